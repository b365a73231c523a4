"""A Lambda function that reads a stream. Its handler is ``lambda_consumer.handler``.

Lambda polls the shards and calls the function with records of one shard. The event source mapping needs
``FunctionResponseTypes=["ReportBatchItemFailures"]``.

Aggregates of the KPL, and of ``Producer``, are opened. An order that fails is tried three times and then written to the
stream ``DEAD_LETTERS``, if that is set. Otherwise Lambda calls again with the *Kinesis* record that failed and all
after it. The orders before it in the same aggregate come again then: ``(sequence_number, sub_sequence)`` identifies
them.
"""

import json
import os
from typing import Any

from shardline import FailurePolicy, Record
from shardline.awslambda import KinesisEventSource

source = KinesisEventSource(
    deserializer=json.loads,
    policy=FailurePolicy(attempts=3, backoff=0.1),
    dead_letter=os.environ.get("DEAD_LETTERS"),
)


def bill(record: Record[Any]) -> None:
    """Process one order."""
    order = record.value
    if order["amount"] < 0:
        raise ValueError(f"order {order['order']}: who pays?")


@source.each_record
def handler(record: Record[Any]) -> None:
    bill(record)
