"""A Lambda function that reads a stream. Its handler is ``lambda_consumer.handler``.

Lambda reads the stream: an event source mapping calls the function with batches of one shard. These are raw Kinesis
records, so the function opens the aggregates of the KPL and of ``Producer``.

With ``FunctionResponseTypes=ReportBatchItemFailures`` in the mapping, the return value tells Lambda where to resume:
Lambda calls the function again with the *Kinesis* record that failed and all records after it. Earlier orders of the
same aggregate are delivered again; recognise them by ``(sequence_number, sub_sequence)``.
"""

import json
import logging
from typing import Any

from shardline import Record, deaggregate

log = logging.getLogger("orders")


def bill(record: Record) -> None:
    """Process one order. If this raises, Lambda retries as often as the mapping allows."""
    order = json.loads(record.data)
    if order["amount"] < 0:
        raise ValueError(f"order {order['order']}: who pays?")


def handler(event: dict[str, Any], _: object) -> dict[str, list[dict[str, str | None]]]:
    for record in deaggregate(event):
        try:
            bill(record)
        except Exception:  # this record and all after it are not processed
            log.exception("not billed: %s/%s", record.sequence_number, record.sub_sequence)
            return {"batchItemFailures": [{"itemIdentifier": record.sequence_number}]}
    return {"batchItemFailures": []}
