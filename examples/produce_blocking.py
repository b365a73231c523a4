"""Put orders from threads, without an event loop: ``python examples/produce_blocking.py STREAM``."""

import sys
from concurrent.futures import ThreadPoolExecutor

from shardline import DeliveryFailed
from shardline.sync import Producer


def main(stream: str) -> int:
    with Producer(stream) as producer:

        def take_order(number: int) -> bool:
            """Handle one request of a customer; return whether the order was stored."""
            try:
                producer.put(b'{"order": %d}' % number, key=f"customer-{number % 10}").result(timeout=30)
            except DeliveryFailed as error:
                print(error, file=sys.stderr)
                return False
            return True

        with ThreadPoolExecutor(20) as pool:
            stored = sum(pool.map(take_order, range(200)))
        print(f"{stored} of 200 orders stored, in {producer.stats().requests} requests")
    return 0 if stored == 200 else 1  # noqa: PLR2004


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
