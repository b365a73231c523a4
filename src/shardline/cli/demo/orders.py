"""Generates the orders of the demo.

An order is a JSON object, and its key is the customer. Few customers have many orders, and many have few. In the flash
sale, a handful of resellers order large baskets, and all of their keys belong to one shard.

Invariants:

- The same seed gives the same orders: the same names, customers and baskets, in the same sequence.
- The orders from one customer have increasing names and go through one producer, so that their order can be checked.
- The resellers' keys lie in both halves of their shard, so that a split relieves the shard. Their orders go through
  every producer, so that no single producer can predict that the shard is full.
"""

from itertools import accumulate, count, product
from random import Random
from typing import Final, NamedTuple, final
from zlib import crc32

import msgspec

from shardline.model.hashing import HashRange, hash_key_of

PRODUCERS: Final = 4
CUSTOMERS: Final = 300
_RESELLERS_EACH: Final = 1  # the number of resellers for each half of the shard and each producer
_BASKET: Final = (1, 4)
_LARGE_BASKET: Final = 100
_LARGE_BASKETS: Final = 10
_GOODS: Final = ("tea", "coffee", "cocoa", "sugar", "honey", "salt", "pepper", "saffron", "vanilla", "cinnamon")


@final
class Order(NamedTuple):
    """An order from a customer, which becomes one record in the stream."""

    name: str
    customer: str
    data: bytes


def producer_of(customer: str) -> int:
    """Return the index of the producer that puts the orders from a customer."""
    return crc32(customer.encode()) % PRODUCERS


def resellers_of(shard: HashRange) -> list[str]:
    """Return resellers whose keys belong to this shard."""
    wanted = dict.fromkeys(product((False, True), range(PRODUCERS)), _RESELLERS_EACH)
    found: list[str] = []
    for number in count(1):
        customer = f"reseller-{number}"
        hash_key = hash_key_of(customer)
        place = (hash_key >= shard.middle, producer_of(customer))
        if hash_key in shard and wanted[place]:
            wanted[place] -= 1
            found.append(customer)
            if not any(wanted.values()):
                break
    return found


@final
class Shop:
    """Generates the orders of one run of the demo, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - no secret
        self._numbers = count(1)
        self._customers = [f"customer-{number}" for number in range(1, CUSTOMERS + 1)]
        self._weights = list(
            accumulate(1 / rank for rank in range(1, CUSTOMERS + 1))
        )  # the first customers have the most orders
        # The baskets are generated in advance, so that only the shard limits the rate of the sale.
        self._large_baskets = [self._basket(_LARGE_BASKET) for _ in range(_LARGE_BASKETS)]

    def order(self) -> Order:
        """Return an order from a random customer."""
        [customer] = self._random.choices(self._customers, cum_weights=self._weights)
        return self._of(customer, self._basket(self._random.randint(*_BASKET)))

    def large_order(self, customer: str) -> Order:
        """Return a large order (a few KiB) from a reseller in the flash sale."""
        return self._of(customer, self._random.choice(self._large_baskets))

    def _of(self, customer: str, basket: msgspec.Raw) -> Order:
        name = f"order-{next(self._numbers):06}"
        data = msgspec.json.encode({"order": name, "customer": customer, "basket": basket})
        return Order(name, customer, data)

    def _basket(self, lines: int) -> msgspec.Raw:
        random = self._random
        basket = [
            {"goods": random.choice(_GOODS), "sku": f"{random.randrange(10_000):04}", "quantity": random.randint(1, 12)}
            for _ in range(lines)
        ]
        return msgspec.Raw(msgspec.json.encode(basket))
