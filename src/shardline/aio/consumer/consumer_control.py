"""Implements the methods that control a running consumer: ``commit``, ``pause``, ``resume``, ``seek`` and
``reconfigure``.

Each call checks its arguments, posts a ``Request`` to the host and waits until the host has ended the request. The
machines in ``core/consumer`` decide everything else.

Invariants:

- A call that returns has been carried out. A call that raises ``LeaseNotHeld`` was carried out for all other shards.
- A call whose time is up, or that is cancelled, only stops waiting: the host carries out the request nevertheless.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, cast

import anyio

from shardline.aio.consumer.consumer_session import ConsumerSession
from shardline.aio.producer.validation import check_timeout
from shardline.core.clock import Instant
from shardline.core.consumer.control_requests import Request, sought_checkpoint
from shardline.core.consumer.reader import ShardKey
from shardline.errors import Closed, LeaseNotHeld, StoreError, UsageError, WaitTimeout
from shardline.model.position import Position, as_position, at_sequence_number
from shardline.model.record import Record
from shardline.model.sequence import SequenceNumber

_CLOCK_SLACK: Final = 1.0  # seconds by which the service's clock may be ahead of our estimate


async def commit(session: ConsumerSession, shards: Iterable[str] | None, timeout: float | None) -> dict[str, Position]:  # noqa: ASYNC109 - it raises WaitTimeout
    """Implement ``Consumer.commit`` for both facades."""
    request = Request(_keys(session, shards))
    await _carry_out(session, request, partial(session.driver.hand_out.commit, request), timeout, "commit")
    return request.done


async def pause(session: ConsumerSession, shards: Iterable[str] | None) -> None:
    """Implement ``Consumer.pause`` for both facades."""
    request = Request(_keys(session, shards))
    await _carry_out(session, request, partial(session.driver.hand_out.pause, request), None, "pause")


async def resume(session: ConsumerSession, shards: Iterable[str] | None) -> None:
    """Implement ``Consumer.resume`` for both facades."""
    request = Request(_keys(session, shards))
    await _carry_out(session, request, partial(session.driver.hand_out.resume, request), None, "resume")


async def seek(
    session: ConsumerSession,
    position: Position | str | datetime | float | Record[Any],
    shards: Iterable[str] | None,
    timeout: float | None,  # noqa: ASYNC109 - it raises WaitTimeout
) -> None:
    """Implement ``Consumer.seek`` for both facades."""
    keys = _keys(session, shards)
    if isinstance(position, Record):
        record: Record[Any] = position
        position, keys = _check_record(session, record, keys)
    target = as_position(position)
    if target.sequence_number is not None and (keys is None or len(keys) != 1):
        raise UsageError(f"{target} is in one shard: pass the id of this shard, as in shards=['shardId-000000000000']")
    if target.timestamp is not None and target.timestamp > session.service_now() + _CLOCK_SLACK:
        raise UsageError(f"a consumer cannot seek to a time in the future, by the clock of Kinesis: {target}")
    checkpoint = sought_checkpoint(target, session.latest_at)
    request = Request(keys)
    await _carry_out(session, request, partial(session.driver.hand_out.seek, request, checkpoint), timeout, "seek")


async def reconfigure(session: ConsumerSession, max_leases: int | None) -> None:
    """Implement ``Consumer.reconfigure`` for both facades."""
    replace(session.config, max_leases=max_leases)  # checks the value
    request = Request()
    message = partial(session.driver.hand_out.limit_leases, request, max_leases)
    await _carry_out(session, request, message, None, "reconfigure")


def _check_record(
    session: ConsumerSession, record: Record[Any], keys: frozenset[ShardKey] | None
) -> tuple[Position, frozenset[ShardKey]]:
    """Return the position of the record and its shard."""
    number, shard_id = record.sequence_number, record.shard_id
    if number is None or shard_id is None or record.stream is None or record.stream not in session.streams:
        what = "stream" if len(session.streams) == 1 else "streams"
        raise UsageError(f"this record was not read from the {what} {', '.join(session.streams)}")
    own = frozenset({(record.stream, shard_id)})
    if keys not in (None, own):
        raise UsageError(f"the record is in {shard_id}: leave out shards, or pass this shard alone")
    return at_sequence_number(SequenceNumber.parse(number, record.sub_sequence)), own


async def _carry_out(
    session: ConsumerSession,
    request: Request,
    message: Callable[[Instant], object],
    timeout: float | None,  # noqa: ASYNC109 - it raises WaitTimeout
    name: str,
) -> None:
    """Post the message and wait until its request is over.

    Raises:
        WaitTimeout: the lease store has not confirmed the request in time.
        StoreError: the lease store cannot be used, and waiting will not help.
        LeaseNotHeld: the leases of some shards are not held.
        Closed: the consumer ended before the request was over.
    """
    limit = check_timeout("timeout", timeout)
    driver = session.driver
    driver.post(message)
    with anyio.move_on_after(limit):
        while not request.is_over and not driver.has_ended and not isinstance(driver.failure, StoreError):
            await driver.changes.wait()
    if not request.is_over:
        if driver.has_ended or isinstance(driver.failure, StoreError):
            session.check_failure()
            raise Closed(f"{name}: the consumer ended before this was done")
        raise WaitTimeout(f"{name}: the lease store has not confirmed it after {limit:g} s; the consumer keeps trying")
    if request.lost:
        raise LeaseNotHeld(name, request.lost)


def _keys(session: ConsumerSession, shards: object) -> frozenset[ShardKey] | None:
    """Return the keys of the shards that the caller named, or ``None`` for all shards."""
    if shards is None:
        return None
    if isinstance(shards, str) or not isinstance(shards, Iterable):
        raise UsageError(f"shards must be a collection of shard ids, or None, not {shards!r}")
    keys: set[ShardKey] = set()
    for shard_id in cast("Iterable[object]", shards):
        if not isinstance(shard_id, str):
            raise UsageError(f"shards must contain shard ids, not {shard_id!r}")
        keys.add(_key(session, shard_id))
    return frozenset(keys)


def _key(session: ConsumerSession, name: str) -> ShardKey:
    """Return the key of a shard. If there may be several streams, its name begins with the name of its stream."""
    stream, slash, shard_id = name.rpartition("/")
    if not session.names_streams and not slash:
        (only,) = session.streams
        return only, shard_id
    if stream not in session.streams or not shard_id:
        raise UsageError(
            f"this Consumer may read several streams, so a shard is named as in "
            f"'{next(iter(session.streams))}/shardId-000000000000', not {name!r}"
        )
    return stream, shard_id
