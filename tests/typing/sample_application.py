"""A typed application: orders go into a stream, a fleet bills them, and failures are kept.

mypy --strict and pyright check it, and ``tests/docs/test_sample_application.py`` runs it.
"""

# pyright: strict

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardline import (
    Batch,
    BufferFull,
    ConnectionArguments,
    Consumer,
    ConsumerConfig,
    DeadLetter,
    Delivery,
    FailurePolicy,
    Producer,
    ProducerConfig,
    Receipt,
    Record,
)
from shardline.events import ConsumerEvent, LeaseLost, ProducerEvent, RecordsDelivered, RecordsFailed

log = logging.getLogger("billing")


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int


_decode_order = msgspec.json.Decoder(Order).decode


def encode(order: Order) -> bytes:
    return msgspec.json.encode(order)


def decode(data: bytes) -> Order:
    return _decode_order(data)


class Counts:
    """Counts the events of producers and consumers."""

    def __init__(self) -> None:
        self.records: Counter[str] = Counter()

    def __call__(self, event: ProducerEvent | ConsumerEvent) -> None:
        match event:
            case RecordsDelivered():
                self.records["delivered"] += event.records
            case RecordsFailed():
                self.records[event.code] += event.records
            case LeaseLost():
                log.warning("lost %s: %s", event.shard_id, event.why)
            case _:
                log.debug("%s", event)


@dataclass
class Totals:
    """What each customer owes."""

    by_customer: Counter[str]
    refused: int = 0

    async def bill(self, batch: Batch[Order]) -> None:
        for order in batch.values:
            if order.amount < 0:
                raise ValueError(f"a negative amount: {order.amount}")
        for record in batch:
            self.bill_one(record)

    def bill_one(self, record: Record[Order]) -> None:
        self.by_customer[record.value.customer] += record.value.amount

    def refuse(self, letter: DeadLetter) -> None:
        self.refused += len(letter.records)


async def put_orders(producer: Producer[Order], orders: Iterable[Order]) -> list[Receipt]:
    deliveries: list[Delivery] = []
    for order in orders:
        try:
            deliveries.append(producer.put_nowait(order, key=order.customer))
        except BufferFull:
            deliveries.append(await producer.put(order, key=order.customer))
    receipts: list[Receipt] = []
    for delivery in deliveries:
        outcome = await delivery.outcome()
        if outcome.delivered is True:
            receipts.append(outcome)
        else:
            log.error("not delivered: %s: %s", outcome.code, outcome.message)
    return receipts


async def produce(stream: str, orders: Iterable[Order], sink: Counts, connection: ConnectionArguments) -> int:
    config = ProducerConfig(linger=0.02)
    async with Producer(stream, config=config, serializer=encode, sinks=[sink], **connection) as producer:
        return len(await put_orders(producer, orders))


async def consume(stream: str, leases: Path, sink: Counts, connection: ConnectionArguments) -> Totals:
    totals = Totals(Counter())
    consumer = Consumer(
        stream,
        group="billing",
        store=f"sqlite:///{leases}",
        config=ConsumerConfig(lease_duration=10),
        deserializer=decode,
        until="latest",
        sinks=[sink],
        **connection,
    )
    async with consumer:
        policy = FailurePolicy(attempts=2, backoff=0.01)
        await consumer.run(totals.bill, batch=100, policy=policy, dead_letter=totals.refuse)
    return totals


async def main(stream: str, leases: Path, connection: ConnectionArguments) -> tuple[int, Totals, Counts]:
    counts = Counts()
    orders = [Order(f"customer-{number % 3}", number) for number in range(300)]
    stored = await produce(stream, [*orders, Order("customer-0", -1)], counts, connection)
    totals = await consume(stream, leases, counts, connection)
    return stored, totals, counts


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    log.info("%s", asyncio.run(main(sys.argv[1], Path(sys.argv[2]), {"read_timeout": 10})))
