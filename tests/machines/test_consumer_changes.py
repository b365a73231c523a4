"""What must hold when an operator changes the stream or the store under a running group?

The tests use the group of ``tests/harness``.
"""

import pytest
from tests.harness.coordinator import DOWN, HALVES, A, B, Group, hold_one, names, shard

from shardline.core.consumer.consumer_events import (
    ConsumerFailed,
    LeaseGained,
    ProgressLost,
    RecordsTrimmed,
    StoreFailed,
    StreamMissing,
    StreamReplaced,
    TooManyUnacknowledged,
)
from shardline.core.error_codes import Failure, FailureKind

HOUR = 3600.0


# ---- retention


def test_a_worker_that_lags_learns_soon_that_the_retention_was_shortened():
    group = Group(shard(0), list_interval=3_600.0)
    group.stream.retention_hours = 48
    worker = group.worker()
    group.run(30.0)
    group.stream.retention_hours = 24
    worker.machine.trims.handle_page(A, 23 * HOUR, 30 * HOUR, group.now)
    worker.pump()
    assert worker.seen(RecordsTrimmed) == []
    group.run(10.0)
    assert len(worker.seen(RecordsTrimmed)) == 1


def test_a_worker_that_lags_learns_at_once_that_the_retention_was_raised():
    group, worker = hold_one(list_interval=3_600.0)
    arrived_at = (
        group.now - 24 * HOUR + 10.0
    )  # the oldest unread record; it was still there when the retention was raised
    group.stream.retention_hours = 168
    for _ in range(20):
        group.run(5.0)
        worker.machine.trims.handle_page(A, 23 * HOUR, group.now - arrived_at, group.now)
    group.run(5.0)
    assert worker.seen(RecordsTrimmed) == []


def test_a_worker_that_leaves_tells_what_it_knows():
    group, worker = hold_one(list_interval=3_600.0)
    worker.machine.trims.handle_page(A, 23 * HOUR, 30 * HOUR, group.now)
    worker.close()
    assert len(worker.seen(RecordsTrimmed)) == 1


def test_summaries_alone_put_off_no_listing():
    """A worker lags behind retention for minutes, and a shard appears that no parent names."""
    group = Group(shard(0, part=(0, 2)))
    worker = group.worker()
    group.run(30.0)
    group.stream.shards.append(shard(1, part=(2, 4)))
    for _ in range(30):
        worker.machine.trims.handle_page(A, 23 * HOUR, 30 * HOUR, group.now)
        group.run(1.0)
    assert B in group.rows


# ---- the store


GONE = Failure(FailureKind.NOT_FOUND, "ResourceNotFoundException", "why", 400, maybe_received=False)
REPLACED = Failure(FailureKind.INVALID, "FileReplaced", "why", maybe_received=False)
DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "why", 400, maybe_received=False)


@pytest.mark.parametrize(("failure", "limit"), [(GONE, 10.0), (REPLACED, 10.0), (DENIED, 300.0)])
def test_a_store_that_never_works_again_ends_the_consumer(failure, limit):
    group, worker = hold_one()
    worker.failing = failure
    group.run(limit - 1.0)
    assert worker.seen(ConsumerFailed) == []
    assert {event.gives_up_at < 2_000.0 for event in worker.seen(StoreFailed)} == {True}
    group.run(3.0)
    assert [event.failure for event in worker.seen(ConsumerFailed)] == [failure]
    scans = worker.scans
    group.run(60.0)
    assert len(worker.seen(ConsumerFailed)) == 1
    assert worker.scans <= scans + 1


@pytest.mark.parametrize("failure", [GONE, DENIED])
def test_a_store_that_is_back_in_time_ends_nothing(failure):
    group, worker = hold_one(store_patience=12.0)
    for _ in range(4):
        worker.failing = failure
        group.run(8.0)
        worker.failing = None
        group.run(8.0)
    assert worker.seen(ConsumerFailed) == []


def test_a_store_that_cannot_be_reached_ends_nothing():
    group, worker = hold_one()
    worker.failing = DOWN
    group.run(3_600.0)
    worker.failing = None
    group.run(10.0)
    assert worker.seen(ConsumerFailed) == []
    assert A in worker.held


def test_a_store_that_comes_back_empty_is_reported():
    """The rows are created again, from the start."""
    group, worker = hold_one(shards=HALVES)
    worker.read(A, 5)
    group.run(5.0)
    group.rows.clear()
    group.run(5.0)
    assert worker.seen(ProgressLost) == [ProgressLost(2)]
    assert {A, B} == worker.held.keys() == group.rows.keys()
    gained = worker.seen(LeaseGained)[-2:]
    assert all(not event.checkpoint.has_begun for event in gained)
    group.run(60.0)
    assert len(worker.seen(ProgressLost)) == 1


def test_a_store_that_a_refused_write_finds_empty_is_reported():
    group, worker = hold_one(scan_interval=2.0)
    while not any(request for request in worker.outbox if hasattr(request, "counter")):
        group.now = worker.machine.next_deadline()
        worker.pump()
        for request in [one for one in worker.outbox if not hasattr(one, "counter")]:
            worker.answer(request)
    group.rows.clear()
    group.run(10.0)
    assert worker.seen(ProgressLost) == [ProgressLost(1)]


def test_rows_that_are_deleted_because_the_stream_was_re_created_are_no_loss():
    group = Group(shard(0), if_recreated="restart")
    workers = [group.worker(), group.worker()]
    group.run(30.0)
    for worker in workers:
        for shard_id in worker.held:
            worker.read(shard_id, 5)
    group.run(5.0)
    group.stream.created_at = 2.0
    group.stream.shards = [shard(0, begin=900)]
    group.run(60.0)
    assert all(worker.seen(StreamReplaced) for worker in workers)
    assert [worker.seen(ProgressLost) for worker in workers] == [[], []]
    assert not group.rows[A].checkpoint.has_begun
    group.rows.clear()
    group.run(60.0)
    assert any(worker.seen(ProgressLost) for worker in workers)


def test_a_new_group_has_lost_nothing():
    group = Group(shard(0))
    worker = group.worker()
    group.run(60.0)
    assert worker.seen(ProgressLost) == []


# ---- the stream


NO_STREAM = Failure(FailureKind.NOT_FOUND, "ResourceNotFoundException", "no such stream", 400)


def children(parent):
    """The shards 2 and 3, into which a shard was split."""
    return [shard(number, parent, part=(number, number + 1), begin=91) for number in (2, 3)]


def read_and_delete(**config):
    """A worker has read a stream of two shards, and then the stream is deleted."""
    group, worker = hold_one(shards=HALVES, **config)
    for shard_id in (A, B):
        worker.read(shard_id, 5)
    group.run(5.0)
    group.stream.missing = NO_STREAM
    for shard_id in (A, B):
        worker.machine.mark_missing(shard_id, group.now)
    worker.pump()
    return group, worker


@pytest.mark.parametrize("missing_for", [0.5, 20.0, 300.0])
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_stream_that_is_missing_for_long_is_read_from_its_start_when_it_is_back(missing_for, shards):
    group, worker = read_and_delete(if_recreated="restart")
    group.run(missing_for)
    assert worker.seen(ConsumerFailed) == []
    assert len(worker.seen(StreamMissing)) == 1
    group.stream.missing = None
    group.stream.created_at = 2.0
    parts = {1: [(0, 4)], 2: [(0, 2), (2, 4)], 3: [(0, 1), (1, 2), (2, 4)]}[shards]
    group.stream.shards = [shard(number, part=part, begin=900) for number, part in enumerate(parts)]
    group.run(60.0)
    assert len(worker.seen(StreamReplaced)) >= 1
    assert worker.held.keys() == set(names(*range(shards)))
    assert not any(group.rows[shard_id].checkpoint.has_begun for shard_id in worker.held)
    assert all(event.start == event.checkpoint.position for event in worker.seen(LeaseGained)[-shards:])
    assert worker.seen(ConsumerFailed) == []


def test_a_shard_of_a_re_created_stream_waits_for_no_parent_of_the_old_stream():
    """Regression: a row at its start position looked like one of the new stream, and waited for its old parent."""
    group, worker = hold_one(shards=HALVES, if_recreated="restart")
    group.stream.shards = [HALVES[0], shard(1, part=(2, 4), end=90), *children(1)]
    worker.read(A, 5)
    worker.read(B, 5)
    worker.end(B, *children(1))
    group.run(5.0)
    assert {shard_id for shard_id, row in group.rows.items() if row.parent_ids} == set(names(2, 3))
    group.workers.remove(worker)
    assert not any(group.rows[shard_id].checkpoint.has_begun for shard_id in names(2, 3))
    group.stream.created_at = 2.0
    group.stream.shards = [shard(number, part=(number, number + 1), begin=900) for number in range(4)]
    for name in ("second", "third"):
        fresh = group.worker(name)
        group.run(120.0)
        assert fresh.held.keys() == set(names(0, 1, 2, 3)), name
        group.workers.remove(fresh)


def test_a_stream_that_is_missing_is_asked_for_now_and_then():
    group, worker = read_and_delete(if_recreated="restart")
    listings = worker.listings
    group.run(300.0)
    assert 8 <= worker.listings - listings <= 30


def test_by_default_a_missing_stream_ends_the_consumer():
    group, worker = read_and_delete()
    group.run(1.0)
    assert [event.failure for event in worker.seen(ConsumerFailed)] == [NO_STREAM]
    assert worker.seen(StreamMissing) == []


def test_a_stream_that_was_never_there_ends_the_consumer():
    group = Group(shard(0), if_recreated="restart")
    group.stream.missing = NO_STREAM
    worker = group.worker()
    group.run(5.0)
    assert [event.failure for event in worker.seen(ConsumerFailed)] == [NO_STREAM]


def test_the_same_stream_that_is_back_is_read_on():
    """The service answered wrongly that there is no such stream."""
    group, worker = read_and_delete(if_recreated="restart")
    group.run(20.0)
    group.stream.missing = None
    group.run(60.0)
    assert worker.seen(StreamReplaced) == []
    assert worker.held.keys() == {A, B}
    assert all(group.rows[shard_id].checkpoint.has_begun for shard_id in (A, B))


def test_a_stream_whose_shards_alone_are_missing_is_waited_for_too():
    """The service describes the stream, but lists no shards."""
    group, worker = read_and_delete(if_recreated="restart")
    group.stream.missing, group.stream.listing_fails = None, lambda _: NO_STREAM
    group.run(60.0)
    assert len(worker.seen(StreamMissing)) == 1
    assert worker.seen(ConsumerFailed) == []
    group.stream.listing_fails = None
    group.run(60.0)
    assert worker.held.keys() == {A, B}


# ---- the user


def test_a_user_that_acknowledges_nothing_is_handed_a_bounded_number():
    _, worker = hold_one(ack="manual", max_unacknowledged=100)
    records = [record for number in range(1, 101) for record in worker.read(A, number, ack=False)]
    held = worker.machine.held
    assert held.is_full(A)
    assert worker.seen(TooManyUnacknowledged) == [TooManyUnacknowledged(A, 100)]
    held.ack(A, records[50])
    assert held.is_full(A)
    held.ack(A, records[0])
    assert not held.is_full(A)
