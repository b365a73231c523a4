"""What must hold when an operator changes the stream, or the store, under a running group?

Played on the coordinator, as in ``test_consumer_promises``.
"""

from tests.machines.test_consumer_promises import Group, names, shard

from shardline.core.consumer.events import RecordsTrimmed

A, B = names(0, 1)
HOUR = 3600.0


# ---- retention


def test_tw1_a_worker_that_lags_learns_soon_that_the_retention_was_shortened():
    group = Group(shard(0), list_interval=3_600.0)
    group.retention_hours = 48
    worker = group.worker()
    group.run(30.0)
    group.retention_hours = 24
    worker.machine.trims.handle_page(A, 23 * HOUR, 30 * HOUR, group.now)
    worker.pump()
    assert worker.seen(RecordsTrimmed) == []
    group.run(10.0)
    assert len(worker.seen(RecordsTrimmed)) == 1


def test_tw2_a_worker_that_lags_learns_at_once_that_the_retention_was_raised():
    group = Group(shard(0), list_interval=3_600.0)
    worker = group.worker()
    group.run(30.0)
    group.retention_hours = 168
    for _ in range(20):
        worker.machine.trims.handle_page(A, 23 * HOUR, 30 * HOUR, group.now)
        group.run(5.0)
    assert worker.seen(RecordsTrimmed) == []


def test_tw1_a_worker_that_leaves_tells_what_it_knows():
    group = Group(shard(0), list_interval=3_600.0)
    worker = group.worker()
    group.run(30.0)
    worker.machine.trims.handle_page(A, 23 * HOUR, 30 * HOUR, group.now)
    worker.machine.close()
    worker.pump()
    assert len(worker.seen(RecordsTrimmed)) == 1


def test_di7_summaries_alone_put_off_no_listing():
    """A worker lags behind retention for minutes, and a shard comes that no parent names."""
    group = Group(shard(0, part=(0, 2)))
    worker = group.worker()
    group.run(30.0)
    group.shards.append(shard(1, part=(2, 4)))
    for _ in range(30):
        worker.machine.trims.handle_page(A, 23 * HOUR, 30 * HOUR, group.now)
        group.run(1.0)
    assert B in group.rows
