"""Ctrl-C in the middle of a put: is every record that was accepted still found, and sent once (P1, P9)?

A put is ended between any two of its steps; then life goes on. ``STRIDE`` is prime, so that the steps that are tried
fall everywhere.
"""

from itertools import count

import pytest
from tests.aggregates import split_aggregate
from tests.machines.test_producer_promises import HALF, HASH_KEY_MAX, THROTTLED, Stream, shard
from tests.sim.interrupting import interrupted

from shardline.core.failures import Failure, FailureKind
from shardline.core.producer.intake import Put
from shardline.core.producer.record import BufferedRecord

STRIDE = 61
DOWN = Failure(FailureKind.TRANSIENT, "InternalFailure", "why", maybe_received=False)
KINDS = {
    "as usual": {},
    "in order": {"ordered": True},
    "one by one": {"aggregation": False},
    "one by one in order": {"aggregation": False, "ordered": True},
    "small aggregates": {"aggregate_max_bytes": 64},
    "few in an aggregate": {"aggregate_max_count": 3},
}


def stream_of_two_shards(**config):
    """A producer that knows its map; small requests, so that there are many."""
    stream = Stream(shard("a", 0, HALF - 1), shard("b", HALF, HASH_KEY_MAX), request_max_entries=10, **config)
    stream.run(1.0)
    return stream


def records_to_put(now, ttl, begin=0):
    """Of few keys, with and without one, some with a hash key, two that do not fit together."""
    for number in range(begin, begin + 28):
        key = None if number % 5 == 4 else f"k{number % 3}"
        data = b"%d" % number + (b"x" * 40_000 if number - begin in {13, 16} else b"")
        hash_key = str(HALF + 7) if number % 7 == 3 and key is not None else None
        yield BufferedRecord(data, key, hash_key, now + ttl, waiters=[])


def put_all(stream, accepted, *, many=False, begin=100):
    """As a shell does, that polls only when it is told to. What was taken is noted before it is certain."""
    fresh = list(records_to_put(stream.now, stream.config.record_ttl, begin))
    if many:
        for start in range(0, len(fresh), 9):
            taken = fresh[start : start + 9]
            accepted += taken
            assert stream.machine.put_many(taken, stream.now)[0] == len(taken)
        return
    for record in fresh:
        accepted.append(record)
        assert stream.machine.put(record, stream.now) is not Put.FULL


def arrived(stream):
    """What was sent, in its order: (key, data)."""
    found = []
    for _, entries in stream.requests:
        for entry in entries:
            inside = split_aggregate(entry.data)
            found += [(entry.key, entry.data)] if inside is None else [(one.key, one.data) for one in inside]
    return found


def check_the_end(stream, accepted, where):
    machine = stream.machine
    assert machine.outstanding == 0, where
    assert machine.buffered_bytes == 0 or ("Intake.add" in where and machine.buffered_bytes > 0), where  # IN3
    assert not machine._collector._ready, where
    assert (machine._collector._waiting_entries, machine._collector._waiting_bytes) == (0, 0), where
    assert machine.next_deadline() > stream.now, where
    sent = arrived(stream)
    assert len(sent) == len(set(sent)), where
    for record in accepted:
        assert record.conclusion is not None, where
        assert record.conclusion.delivered, where


@pytest.mark.parametrize("many", [False, True], ids=["put", "put_many"])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_p1_a_put_that_is_interrupted_anywhere_loses_nothing(config, many):
    for after in count(0, STRIDE):
        stream = stream_of_two_shards(**config)
        accepted = []
        with interrupted(after) as interruption:
            put_all(stream, accepted, many=many)
        if interruption.where is None:
            break
        found = {id(record) for record in stream.machine.unfinished()}
        surely = accepted[: -9 if many else -1]  # what was under its hands may not be in
        assert {id(record) for record in surely} <= found, interruption.where
        accepted = [record for record in accepted if id(record) in found]
        put = [(one.key, one.data) for one in accepted if one.key is not None and one.explicit_hash_key is None]
        stream.pump()
        stream.run(20.0)
        check_the_end(stream, accepted, interruption.where)
        if config.get("ordered"):
            sent = [one for one in arrived(stream) if one in put]
            for key in ("k0", "k1", "k2"):
                assert [one for one in sent if one[0] == key] == [one for one in put if one[0] == key]
    assert after > 20 * STRIDE


@pytest.mark.parametrize("first", range(0, 4_000, 509))
def test_p1_to_mend_may_be_interrupted_too(first):
    for after in count(0, STRIDE):
        stream = stream_of_two_shards()
        accepted = []
        with interrupted(first) as interruption:
            put_all(stream, accepted)
        assert interruption.where is not None
        with interrupted(after) as again:
            put_all(stream, accepted, begin=200)
        if again.where is None:
            break
        found = {id(record) for record in stream.machine.unfinished()}
        stream.pump()
        stream.run(20.0)
        where = f"{interruption.where}; {again.where}"
        check_the_end(stream, [record for record in accepted if id(record) in found], where)
        assert sum(record.ending is None for record in accepted) <= 2  # under its hands, and not in
    assert after > 20 * STRIDE


def test_p1_what_is_interrupted_before_there_is_a_map_is_sent_when_there_is():
    for after in count(0, STRIDE):
        stream = Stream(request_max_entries=10, latency=0.3)
        accepted = []
        with interrupted(after) as interruption:
            put_all(stream, accepted)
        if interruption.where is None:
            break
        found = {id(record) for record in stream.machine.unfinished()}
        stream.pump()
        stream.run(20.0)
        check_the_end(stream, [record for record in accepted if id(record) in found], interruption.where)
    assert after > 20 * STRIDE


@pytest.mark.parametrize("refusal", ["an entry", "a request"])
def test_p1_what_is_on_its_way_when_a_put_is_interrupted_is_counted_and_comes_back(refusal):
    """In lanes that wait for their pause, and in a request whose answer is out."""
    for after in count(0, STRIDE):
        stream = stream_of_two_shards()
        bad = [THROTTLED] * 6
        if refusal == "an entry":
            stream.refuse = lambda *_, bad=bad: bad.pop() if bad else None
        else:
            stream.fail = lambda _, bad=bad: bad.pop() and DOWN if len(bad) > 3 else None
        earlier = list(records_to_put(stream.now, stream.config.record_ttl))
        for record in earlier:
            assert stream.machine.put(record, stream.now) is not Put.FULL
        stream.flush()
        accepted = []
        with interrupted(after) as interruption:
            put_all(stream, accepted)
        if interruption.where is None:
            break
        found = {id(record) for record in stream.machine.unfinished()}
        stream.run(25.0)
        assert stream.machine.outstanding == 0, interruption.where
        assert stream.machine.buffered_bytes == 0 or "Intake.add" in interruption.where
        for record in earlier + [one for one in accepted if id(one) in found]:
            assert record.conclusion is not None, interruption.where
            assert record.conclusion.delivered, interruption.where
    assert after > 20 * STRIDE


def test_what_is_abandoned_after_an_interrupt_is_told_of_as_failed():
    for after in count(0, STRIDE):
        stream = Stream(request_max_entries=10)
        stream.run(1.0)
        accepted = []
        with interrupted(after) as interruption:
            put_all(stream, accepted)
        if interruption.where is None:
            break
        stream.machine.abandon("Closed", "it was closed")
        assert stream.machine.outstanding == 0
        assert {record.conclusion.code for record in accepted[:-1]} <= {"Closed"}, interruption.where
    assert after > 20 * STRIDE


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_p1_the_first_put_is_interrupted_and_nobody_looks_but_the_host(config):
    """The one that arms the deadlines; ``unfinished`` is not called, which would mend."""
    for after in count():
        stream = Stream(request_max_entries=10, **config)
        stream.run(1.0)
        record = BufferedRecord(b"x", "k", None, stream.now + stream.config.record_ttl, waiters=[])
        with interrupted(after) as interruption:
            stream.machine.put(record, stream.now)
        if interruption.where is None:
            break
        stream.pump()
        stream.run(1.0)
        assert stream.machine.outstanding == 0, interruption.where
        assert record.ending is None or record.conclusion.delivered, interruption.where
        assert len(arrived(stream)) == (record.ending is not None), interruption.where
    assert after > 50


def test_p1_a_round_is_interrupted_and_nobody_looks_but_the_host():
    for after in count(0, STRIDE):
        stream = stream_of_two_shards()
        accepted = []
        with interrupted(after) as interruption:
            put_all(stream, accepted)
        if interruption.where is None:
            break
        stream.pump()
        stream.run(20.0)
        assert stream.machine.outstanding == 0, interruption.where
        assert [record.conclusion.delivered for record in accepted[:-1]] == [True] * (len(accepted) - 1)
    assert after > 20 * STRIDE


def test_a1_what_waits_in_a_lane_when_a_put_is_interrupted_ends_with_its_life():
    """The first to enter is an answer; the oldest record is not in the first lane."""
    for after in count(0, STRIDE):
        pause = 20.0  # longer than a record lives
        stream = stream_of_two_shards(record_ttl=5.0, retry_backoff=pause, retry_backoff_max=pause)
        stream.refuse = lambda _, shard_id: THROTTLED if shard_id == "b" else None
        late = stream.put(b"b", "k", HALF + 1)
        stream.run(1.0)
        on_its_way = stream.put(b"a", "k", 1)
        stream.flush()
        stream.put(b"younger", "k", 1)
        stream.machine._sort(stream.now)
        with interrupted(after) as interruption:
            for number in range(40):
                stream.machine.put(BufferedRecord(b"%d" % number, "k", "1", stream.now + 5.0, waiters=[]), stream.now)
        if interruption.where is None:
            break
        for _, handle, answer in stream.answers:
            handle(answer, stream.now)
        stream.answers = []
        assert on_its_way.conclusion.delivered
        stream.run(late.expires_at - stream.now + 0.01)
        assert late.conclusion is not None, interruption.where
    assert after > 20 * STRIDE
