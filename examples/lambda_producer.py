"""A Lambda function that puts records: its handler is ``lambda_producer.handler``, the stream ``STREAM``.

Lambda freezes the process when the handler returns, in the middle of whatever it does. So everything is delivered
before: ``flush`` waits for it. The producer itself is made once, when the function's environment starts, and is used by
all of its calls: the connections and the map of the shards stay.

``linger=0`` since nothing comes that would be worth waiting for, and a ``record_ttl`` below the function's timeout, so
that a failure is told while someone is there to hear it.
"""

import json
import os
from typing import Any

from shardline import ProducerConfig
from shardline.sync import Producer

config = ProducerConfig(linger=0, record_ttl=8)  # of a function that has 10 s
producer = Producer(os.environ["STREAM"], config=config)
producer.start()


def handler(event: dict[str, Any], _: object) -> dict[str, int]:
    deliveries = producer.put_many((str(order["customer"]), json.dumps(order).encode()) for order in event["orders"])
    producer.flush(timeout=9)
    failed = [delivery for delivery in deliveries if not delivery.delivered]
    if failed:
        reasons = sorted({delivery.outcome().code for delivery in failed if delivery.done})
        told = ", ".join(reasons) or "no answer in time"
        raise RuntimeError(f"{len(failed)} of {len(deliveries)} orders not delivered: {told}")
    return {"stored": len(deliveries)}
