"""What a group promises where two rare things meet: a scan that is slower than a take, a store that wants a pause of a minute, a
lease that is lost and regained at the end of its shard. With the workers of ``test_consumer_promises.py``.
"""

from dataclasses import replace
from random import Random

from tests.machines.test_consumer_promises import LATE, A, Group, Worker, at, hold_one, names, shard
from tests.machines.test_consumer_reader_promises import Shard

from shardline.core.clock import NEVER
from shardline.core.consumer.assignment import Standing, assign
from shardline.core.consumer.checkpoint import CheckpointTracker
from shardline.core.consumer.coordinator import ScanLeases
from shardline.core.consumer.events import LeaseLost, RecordsTrimmed
from shardline.core.consumer.failure_policy import BatchWork, FailurePolicy
from shardline.core.failures import Failure, FailureKind
from shardline.core.leases import CommitCheckpoint, Refused
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import TRIM_HORIZON, at_sequence_number
from shardline.model.record import Record
from shardline.model.sequence import SequenceNumber


def test_l4_a_store_that_asks_for_a_long_pause_costs_no_lease():
    group, worker = hold_one()
    worker.failing = Failure(FailureKind.THROTTLED, "Throttled", "why", retry_after=60.0, maybe_received=False)
    group.run(4.0)  # a renewal falls into it, and is refused
    worker.failing = None
    group.run(30.0)
    assert worker.seen(LeaseLost) == []
    assert A in worker.held


def test_lv1_to_ask_for_the_lease_of_a_dead_worker_is_no_sign_of_its_life():
    group = Group()
    dead, onlooker = group.worker("w0"), group.worker("w1")
    group.run(30.0)
    left = list(dead.held)
    assert len(left) == 2
    dead.mute, died_at = True, group.now
    group.workers.remove(dead)
    group.run(6.0)
    asking = group.worker("w2")
    group.run(0.6)
    assert [group.rows[one].owner for one in left].count("w2") == 1
    asking.mute = True
    group.run(died_at + 11.5 - group.now)
    assert set(left) <= onlooker.held.keys()


def test_lv2_a_scan_that_is_older_than_a_row_of_ours_does_not_make_it_look_deleted():
    """A slow scan, begun before a shard was found; its row is made and taken, and then the scan is answered."""
    group, worker = hold_one()
    worker.mute = True
    while not any(isinstance(one, ScanLeases) for one in worker.outbox):
        group.run(0.1)
    before = list(group.rows.values())
    group.shards += [shard(7, begin=90)]
    worker.machine.topology.list_by(group.now)
    group.run(0.1)
    while others := [one for one in worker.outbox if not isinstance(one, ScanLeases)]:
        worker.outbox = [one for one in worker.outbox if one not in others]
        for one in others:
            worker.answer(one)
    (new,) = names(7)
    assert new in worker.held
    listings = worker.listings
    worker.outbox.clear()
    worker.machine.handle_rows(before, group.now)
    worker.mute = False
    worker.pump()
    group.run(5.0)
    assert worker.seen(LeaseLost) == []
    assert new in worker.held
    assert worker.listings == listings, "and the stream is not looked at as if it were another one"


def test_l5_who_leaves_begins_nothing_that_was_planned():
    """The rows came, and in the same moment the worker is closed."""
    group = Group()
    worker = Worker(group, "me", TRIM_HORIZON, LATE, {})
    worker.pump()
    worker.outbox.clear()
    worker.machine.handle_rows([], group.now)
    worker.machine.close()
    assert worker.machine.poll_operation(group.now) is None
    assert worker.machine.is_closed
    assert worker.machine.next_deadline() == NEVER


def test_sg3_a_row_whose_shard_is_unknown_is_looked_up_at_once():
    """Another worker made the row by a newer listing, and died."""
    group, worker = hold_one(list_interval=600.0)
    gone, new = names(5, 7)
    group.shards += [shard(7, 5, begin=90)]
    group.rows[new] = Lease(new, checkpoint=Checkpoint(TRIM_HORIZON), parent_ids=frozenset({gone}))
    group.run(5.0)
    assert new in worker.held


def test_l4_a_commit_that_is_refused_though_the_lease_is_ours_is_made_again():
    """Somebody touched the row, and left us as its holder."""
    group, worker = hold_one()
    row = group.rows[A]
    worker.read(A, 5)
    group.rows[A] = replace(row, counter=row.counter + 1)
    group.run(20.0)
    assert any(isinstance(result, Refused) for *_, operation, result in group.log if operation.shard_id == A)
    assert group.rows[A].checkpoint == at(5)
    assert worker.seen(LeaseLost) == []


def test_k2_what_was_told_to_be_delivered_twice_counts_once():
    """With manual acknowledgements."""
    tracker = CheckpointTracker(Checkpoint(TRIM_HORIZON), interval=1.0, now=0.0, manual=True)
    one, two, three = (Record(b"", "k", sequence_number=str(number), shard_id=A) for number in (1, 2, 3))
    tracker.deliver([one, two])
    tracker.deliver([one, two])
    assert [tracker.ack(two), tracker.ack(one)] == [True, True]
    assert tracker.is_settled
    tracker.deliver([two, three])
    assert not tracker.ack(two)
    assert tracker.ack(three)
    assert tracker.poll_commit(2.0) == at(3)


def test_c3_that_a_shard_has_no_children_is_found_out_anew_by_who_gains_it_again():
    group, worker = hold_one()
    group.listed_at = []
    page = worker.page
    worker.page = lambda request: (group.listed_at.append(group.now), page(request))[1]
    worker.end(A)
    group.run(0.1)  # one listing came, without children; it is not believed yet
    row = group.rows[A]
    assert not row.checkpoint.is_finished
    group.rows[A] = replace(row, counter=row.counter + 1, owner=None)
    group.listing_fails = lambda _: Failure(FailureKind.TRANSIENT, "InternalFailure", "why")
    group.run(5.0)
    assert len(worker.seen(LeaseLost)) == 1
    assert A in worker.held
    group.run(40.0)
    group.listing_fails = None
    ended_at = group.now
    worker.end(A)
    group.run(60.0)
    finished_at = [when for when, _, operation, _ in group.log if isinstance(operation, CommitCheckpoint)]
    listed = [when for when in group.listed_at if when > ended_at]
    assert len(finished_at) == 1
    assert len([when for when in listed if when <= finished_at[0]]) >= 2


def test_rd3_what_retention_took_is_told_also_after_empty_pages():
    one = Shard(at_sequence_number("500"), done=SequenceNumber(500)).start()
    one.page(behind=1_000)
    assert one.reader.take_events() == []
    one.page(501)
    assert [type(event) for event in one.reader.take_events()] == [RecordsTrimmed]


def test_fp2_a_dead_letter_gets_as_many_attempts_as_the_handler_had():
    record = Record(b"", "k", sequence_number="1", shard_id=A)
    work = BatchWork([record], FailurePolicy(attempts=3, finally_="dead-letter"), Random(0), 0.0)
    for now in (0.0, 100.0, 200.0):
        assert work.poll_attempt(now) is not None
        work.handle_error("why", now)
    for now in (300.0, 400.0):
        assert work.poll_dead_letter(now) is not None
        work.handle_burial_failed("the table is down", now)
        assert not work.is_stopped
    assert work.poll_dead_letter(500.0) is not None
    work.handle_buried(500.0)
    assert work.take_done() == [record]
    assert work.is_done


def test_as4_who_has_more_than_it_wants_takes_nothing():
    """A worker that came back under its name, with a smaller ``max_leases``."""
    standings = [Standing(f"mine {n}", "me") for n in range(3)] + [Standing(f"free {n}", None, 99.0) for n in range(4)]
    assert assign(standings, "me", 2, Random(0), spill_after=1.0) == ([], [])
