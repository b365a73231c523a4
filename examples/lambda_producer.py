"""A Lambda function that puts records. Its handler is ``lambda_producer.handler``; ``STREAM`` names the stream.

Lambda freezes the process when the handler returns, even in the middle of a request. So the handler calls ``flush``,
which waits until every record is delivered. The producer is created once, when the function's environment starts, and
all calls share it, with its connections and its shard map.

``linger=0``, because no more records arrive during a call. ``record_ttl`` is below the function's timeout, so that a
failure is reported before the function times out.
"""

import json
import os
from typing import Any

from shardline import ProducerConfig, Undelivered
from shardline.sync import Producer

config = ProducerConfig(linger=0, record_ttl=8)  # for a function with a timeout of 10 s
producer = Producer(os.environ["STREAM"], config=config)
producer.start()


def handler(event: dict[str, Any], _: object) -> dict[str, int]:
    deliveries = producer.put_many((str(order["customer"]), json.dumps(order).encode()) for order in event["orders"])
    producer.flush(timeout=9)
    failed = [delivery for delivery in deliveries if not delivery.delivered]
    if failed:
        outcomes = [delivery.outcome() for delivery in failed if delivery.done]
        reasons = sorted({outcome.code for outcome in outcomes if isinstance(outcome, Undelivered)})
        reason = ", ".join(reasons) or "no answer in time"
        raise RuntimeError(f"{len(failed)} of {len(deliveries)} orders not delivered: {reason}")
    return {"stored": len(deliveries)}
