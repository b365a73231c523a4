"""Tests of ``lineage_times``: each source of a time, and how wide the range is that it leaves."""

import pytest

from shardline.console.lineage_times import QUESTIONS_MAX, LineageTimes, fingerprint, with_times
from shardline.model.hashing import HashRange
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard
from shardline.server.model.sequence_numbers import LAST, Numbering

BORN = 1_700_000_000.0
NOW = BORN + 86_400


def shard(number, parents=(), *, began=None, ended=None, opaque=False):
    """Return a shard whose numbers contain these seconds; ``opaque`` numbers contain none."""
    numbering = Numbering(number, int(began or BORN))
    first = 10 + number if opaque else numbering.make(0, numbering.began)
    last = None if ended is None else 10**6 + number if opaque else numbering.make(LAST, int(ended))
    parent, adjacent = [*(f"shardId-{each:012}" for each in parents), None, None][:2]
    ending = None if last is None else SequenceNumber(last)
    return Shard(f"shardId-{number:012}", HashRange(0, 9), SequenceNumber(first), ending, parent, adjacent)


def found(times, number):
    known = times.to_json()[f"shardId-{number:012}"]
    return tuple(None if span is None else tuple(span.values()) for span in known.values())


def test_numbers_of_aws_contain_the_times_and_need_no_question():
    times = LineageTimes(BORN)
    split = BORN + 500
    shards = [shard(0, ended=split), shard(1, [0], began=split + 1), shard(2, [0], began=split + 1)]
    times.add_listing(shards, NOW)
    assert found(times, 0) == ((BORN, BORN + 1, "number"), (split, split + 1, "number"))
    assert found(times, 2) == ((split + 1, split + 2, "number"), None)
    assert times.next_question(BORN, NOW) is None


@pytest.mark.parametrize("began", [BORN - 3600, NOW + 3600])
def test_an_impossible_second_is_not_believed(began):
    times = LineageTimes(BORN)
    times.add_listing([shard(0, ended=BORN + 5), shard(1, [0], began=began)], NOW)
    assert found(times, 1)[0] == (BORN + 5, BORN + 6, "number")  # that of its parent's end


def test_without_times_in_numbers_a_shard_is_younger_than_its_stream():
    times = LineageTimes(BORN)
    times.add_listing([shard(0, opaque=True, ended=1), shard(1, [0], opaque=True)], NOW)
    assert found(times, 0) == ((BORN, BORN + 1, "stream"), (BORN, NOW, "stream"))
    assert found(times, 1) == ((BORN, NOW, "stream"), None)
    unknown = LineageTimes(None)
    unknown.add_listing([shard(0, opaque=True)], NOW)
    (low, high, source), _ = found(unknown, 0)
    assert (low < BORN, high, source) == (True, NOW, "stream")


def test_a_reshard_that_the_console_sees_lies_between_two_listings():
    times = LineageTimes(BORN)
    times.add_listing([shard(0, opaque=True)], NOW)
    times.add_listing([shard(0, opaque=True, ended=1), shard(1, [0], opaque=True)], NOW + 10)
    assert found(times, 0)[1] == (NOW, NOW + 10, "seen")
    assert found(times, 1)[0] == (NOW, NOW + 10, "seen")
    times.add_listing([shard(1, [0], opaque=True)], NOW + 20)  # the parent expired
    assert list(times.to_json()) == ["shardId-000000000001"]


def test_questions_narrow_every_reshard_down_to_a_minute():
    resharded = (BORN + 20_000.0, BORN + 70_000.0)
    shards = [
        shard(0, opaque=True, ended=1),
        shard(1, [0], opaque=True, ended=1),
        shard(2, [0], opaque=True, ended=1),
        shard(3, [1, 2], opaque=True),
    ]
    lives = {0: (BORN, resharded[0]), 1: resharded, 2: resharded, 3: (resharded[1], NOW + 1)}
    times = LineageTimes(BORN)
    times.add_listing(shards, NOW)
    asked = 0
    while (at := times.next_question(BORN, NOW)) is not None:
        times.add_answer(at, [f"shardId-{each:012}" for each, (low, high) in lives.items() if low <= at < high])
        asked += 1
    assert 10 < asked <= QUESTIONS_MAX
    for number, (began, ended) in lives.items():
        created, closed = found(times, number)
        assert created[0] <= began <= created[1] <= created[0] + 60
        assert closed is None or closed[0] <= ended <= closed[1] <= closed[0] + 60
    assert found(times, 3)[0][2] == "asked"


def test_a_service_that_cannot_answer_is_not_asked_again():
    times = LineageTimes(BORN)
    times.add_listing([shard(0, [9], opaque=True)], NOW)
    assert times.next_question(NOW - 1000, NOW) == NOW - 500  # nothing is known from before the retention period
    times.stop_asking()
    assert times.next_question(NOW - 1000, NOW) is None


def test_the_object_of_a_stream_gets_the_times():
    times = LineageTimes(BORN)
    times.add_listing([shard(0)], NOW)
    told = with_times({"name": "orders", "shards": [{"shard_id": "shardId-000000000000"}]}, times, NOW)
    assert told["now"] == NOW
    assert told["shards"][0]["created"] == {"low": BORN, "high": BORN + 1, "source": "number"}
    assert told["shards"][0]["closed"] is None


def test_a_fingerprint_changes_with_the_shards():
    both = [shard(0), shard(1)]
    seen = {fingerprint(both), fingerprint(both[:1]), fingerprint([shard(0, ended=BORN), both[1]])}
    assert len(seen) == 3
    assert fingerprint(reversed(both)) == fingerprint(both)
