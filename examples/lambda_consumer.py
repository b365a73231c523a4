"""A Lambda function that reads a stream: its handler is ``lambda_consumer.handler``.

Lambda does the reading: an event source mapping calls the function with batches of one shard. It hands out Kinesis
records as they are, so aggregates of the KPL, and of ``Producer``, are opened here.

With ``FunctionResponseTypes=ReportBatchItemFailures`` in the mapping, what is returned says where to go on: Lambda
calls again with the *Kinesis* record that failed and all after it. The orders before it in the same aggregate come
again then: ``(sequence_number, sub_sequence)`` tells that they were here.
"""

import json
import logging
from typing import Any

from shardline import Record, deaggregate

log = logging.getLogger("orders")


def bill(record: Record) -> None:
    """The work. What it raises is tried again, as often as the mapping says."""
    order = json.loads(record.data)
    if order["amount"] < 0:
        raise ValueError(f"order {order['order']}: who pays?")


def handler(event: dict[str, Any], _: object) -> dict[str, list[dict[str, str | None]]]:
    for record in deaggregate(event):
        try:
            bill(record)
        except Exception:  # whatever it is: this record is not done, and none after it
            log.exception("not billed: %s/%s", record.sequence_number, record.sub_sequence)
            return {"batchItemFailures": [{"itemIdentifier": record.sequence_number}]}
    return {"batchItemFailures": []}
