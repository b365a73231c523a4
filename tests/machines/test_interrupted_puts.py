"""Ctrl-C in the middle of a put: is every accepted record sent once, and is no room lost (P1, P7, P9)?

A put uses only the intake. It is interrupted before each of its instructions, except between reserving room and
appending, where Python does not check for signals (``tests/unit/core/producer/test_intake.py`` pins that). Then the
producer continues.
"""

from contextlib import suppress
from itertools import count

import pytest
from tests.aggregates import split_aggregate
from tests.harness.producer_shell import ACCEPTED
from tests.machines.test_producer_promises import HALF, HASH_KEY_MAX, Stream, shard
from tests.sim.interrupting import interrupted

from shardline.core.producer.intake import Put
from shardline.core.producer.producer_record import Undelivered, payload_bytes

INTAKE = "core/producer/intake.py"
KINDS = {
    "as usual": {},
    "in order": {"ordered": True},
    "one by one": {"aggregation": False, "request_max_entries": 10},
    "one by one in order": {"aggregation": False, "ordered": True, "request_max_entries": 10},
    "few in an aggregate": {"aggregate_max_count": 3, "request_max_entries": 10},
}


def stream_of_two_shards(**config):
    """Return a producer that knows its map."""
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF, HASH_KEY_MAX), **config)
    stream.run(1.0)
    return stream


def records_to_put(stream, begin=100):
    """Return records of few keys, with and without a key, some with a hash key, and two that do not fit together."""
    for number in range(begin, begin + 28):
        key = None if number % 5 == 4 else f"k{number % 3}"
        data = b"%d" % number + (b"x" * 40_000 if number - begin in {13, 16} else b"")
        yield stream.record(data, key, str(HALF + 7) if number % 7 == 3 and key is not None else None)


def put_one(stream, record):
    """Put by the call. The tests of the shells cover the path without it."""
    return stream.intake.put(record, payload_bytes(record))


def put_all(stream, offered, *, many=False):
    """Put as a shell does: the host is woken when the intake says so. A record is noted before its put is certain."""
    fresh = list(records_to_put(stream))
    for start in range(0, len(fresh), 9 if many else 1):
        slice_ = fresh[start : start + (9 if many else 1)]
        offered += slice_
        stream.is_putting = True
        answer = stream.accept_many(slice_) if many else put_one(stream, slice_[0])
        stream.is_putting = False
        assert answer in ACCEPTED
        if answer is Put.WAKE:
            stream.pump()


def arrived(stream):
    """Return the records that were sent, in order: (key, data)."""
    found = []
    for _, entries in stream.requests:
        for entry in entries:
            inside = split_aggregate(entry.data)
            found += [(entry.key, entry.data)] if inside is None else [(one.key, one.data) for one in inside]
    return found


def check_the_end(stream, accepted, where):
    machine = stream.machine
    assert (machine.intake.outstanding, machine.intake.buffered_bytes, machine.intake.unfinished()) == (0, 0, []), where
    assert not machine._collector._ready, where
    assert (machine._collector._waiting_entries, machine._collector._waiting_bytes) == (0, 0), where
    assert machine.next_deadline() > stream.now, where
    sent = arrived(stream)
    assert len(sent) == len(set(sent)), where
    assert all(record.conclusion is not None and record.conclusion.delivered for record in accepted), where


@pytest.mark.parametrize("many", [False, True], ids=["put", "put_many"])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_p1_a_put_that_is_interrupted_anywhere_loses_nothing(config, many):
    for after in count(0, 1 if many else 5):
        stream = stream_of_two_shards(**config)
        offered = []
        with interrupted(after, INTAKE, is_meant=lambda stream=stream: stream.is_putting) as interruption:
            put_all(stream, offered, many=many)
        if interruption.where is None:
            break
        found = {id(record) for record in stream.machine.intake.unfinished()}
        found |= {id(record) for record in offered if record.ending is not None}
        surely = offered[: -9 if many else -1]  # the last record may not have been accepted
        assert {id(record) for record in surely} <= found, interruption.where
        accepted = [record for record in offered if id(record) in found]
        put = [(one.key, one.data) for one in accepted if one.key is not None and one.explicit_hash_key is None]
        stream.pump()  # a shell wakes the host whenever a put is interrupted
        stream.run(20.0)
        check_the_end(stream, accepted, interruption.where)
        if config.get("ordered"):
            sent = [one for one in arrived(stream) if one in put]
            for key in ("k0", "k1", "k2"):
                assert [one for one in sent if one[0] == key] == [one for one in put if one[0] == key]
    assert after > 100


@pytest.mark.parametrize("when", ["the first", "one in a round", "one that ends a round", "one without room"])
def test_p1_p7_a_put_that_is_interrupted_is_in_with_its_room_or_neither(when):
    ends = set()
    for after in count():
        stream = Stream(aggregation=False, request_max_entries=3, linger=5.0, buffer_max_records=3)
        stream.run(1.0)
        for _ in range(["the first", "one in a round", "one that ends a round", "one without room"].index(when)):
            stream.put()
        before = stream.machine.intake.outstanding
        record = stream.record(b"late")
        with interrupted(after, INTAKE) as interruption:
            put_one(stream, record)
        is_in = any(one is record for one in stream.machine.intake.unfinished())
        ends.add(is_in)
        assert stream.machine.intake.outstanding == before + is_in, interruption.where
        if interruption.where is None:
            break
        stream.pump()
        assert stream.machine.next_deadline() <= stream.now + 5.0 or not stream.machine.intake.outstanding
        stream.run(20.0)
        assert (stream.machine.intake.outstanding, stream.machine.intake.buffered_bytes) == (0, 0), interruption.where
        assert (record.conclusion is not None) is is_in, interruption.where
    assert after > 10
    assert ends == ({False} if when == "one without room" else {False, True})


def test_records_abandoned_after_an_interrupt_are_reported_as_failed():
    for after in count(0, 13):
        stream = Stream()
        stream.run(1.0)
        offered = []
        with interrupted(after, INTAKE, is_meant=lambda stream=stream: stream.is_putting) as interruption:
            put_all(stream, offered)
        if interruption.where is None:
            break
        stream.machine.abandon("Closed", "it was closed")
        assert stream.machine.intake.outstanding == sum(
            flight.record_count for flight in stream.machine._flights.values()
        )
        stream.run(5.0)
        assert stream.machine.intake.outstanding == 0
        assert all(record.ending is not None for record in offered[:-1]), interruption.where
    assert after > 100


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_p1_a_host_that_is_interrupted_anywhere_ends_every_record_and_names_every_waiter(config):
    for after in count(0, 37):
        stream = stream_of_two_shards(**config)
        offered = list(records_to_put(stream))
        for record in offered:
            record.waiters = []
            assert put_one(stream, record) in ACCEPTED
        with interrupted(after, steps="signal") as interruption:
            stream.run(2.0)
        if interruption.where is None:
            break
        with suppress(Exception):  # the machine is broken
            stream.machine.abandon("Closed", "it was closed")
        stream.machine.give_up_lost("a signal handler raised")
        assert all(record.ending is not None for record in offered), interruption.where
        ledger = stream.machine.ledger
        assert set(map(id, offered)) <= set(map(id, ledger.finished)), interruption.where
        lost = {id(record) for record in offered if record.ending == Undelivered("Internal", "a signal handler raised")}
        assert lost <= set(map(id, ledger.failed)), interruption.where
    assert after > 100
