"""Writes the dead letters of a blocking consumer.

Invariants:

- As for the async consumer, a dead letter counts as written when the callable has returned, or when every record has
  its receipt.
- The user's callable runs in a thread, so it may block.
"""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio.to_thread

from shardline.aio.consumer.dead_letters import lost_its_headers, records_of, without_refused_headers
from shardline.aio.producer.async_producer import Producer as AsyncProducer
from shardline.core.consumer.failure_policy import DeadLetter
from shardline.errors import UsageError
from shardline.sync.blocking_producer import Producer

DeadLetterTarget: TypeAlias = Callable[[DeadLetter], object] | str | Path | Producer[bytes]
"""Destination of dead letters: a callable, a stream's name or ARN, the path of a file, or a blocking producer."""


def in_threads(target: Any) -> Any:
    """Return the target for the async consumer: a callable or a producer is wrapped so that it runs in a thread.

    Raises:
        UsageError: the target is an async producer.
    """
    if isinstance(target, AsyncProducer):
        raise UsageError("dead_letter: a blocking Consumer takes a shardline.sync.Producer, not an async one")
    if isinstance(target, Producer):
        target = partial(_put, target)
    if not callable(target) or inspect.iscoroutinefunction(target):
        return target

    async def write(letter: DeadLetter) -> None:
        await anyio.to_thread.run_sync(target, letter)

    return write


def _put(producer: Producer, letter: DeadLetter) -> None:
    records = without_refused_headers(records_of(letter), producer.headers_refusal)
    deliveries = producer.put_many(records)
    refused = [
        record
        for record, delivery in zip(records, deliveries, strict=True)
        if lost_its_headers(delivery.outcome(), delivery)
    ]
    for delivery in producer.put_many(without_refused_headers(refused, producer.headers_refusal)):
        delivery.result()
