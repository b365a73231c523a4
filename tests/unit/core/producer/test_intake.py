"""Which records were put, and are in no lane yet? P1, P7, P9 and P11 are invariants of
``shardline.core.producer.intake``.
"""

import dis
from itertools import pairwise

import pytest
from tests.harness.producer_shell import ProducerShell, shard

from shardline._speedups import pure_twins
from shardline.aio.producer.async_producer import Producer as AsyncProducer
from shardline.codec.shapes import ListShardsResponse
from shardline.core.producer.aggregate import WRAP_MAX_BYTES
from shardline.core.producer.intake import Intake, Put, round_limits
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord, Landing, Sent
from shardline.model.hashing import HASH_KEY_COUNT
from shardline.model.limits import KIB, MIB
from shardline.sync.blocking_producer import Producer as BlockingProducer

LOOKS = {"RESUME", "SEND", "YIELD_VALUE", "FOR_ITER", "BEFORE_WITH"}
LANDING = Landing("a", "1", Sent(0.0, 0.0))


def record(data=b"data", key="key", expires_at=30.0):
    return BufferedRecord(data, key, None, expires_at)


def intake(**settings):
    return Intake(ProducerConfig(**settings))


def end(one, *records, size):
    """End these records, as if the host had delivered them."""
    for each in records:
        each.ending = LANDING
    one.release(len(records), size)


# ---- room


def puts(sizes, **settings):
    """Return the intake's answers to records of these sizes."""
    one = intake(**settings)
    said = [one.put(record(b"x" * size, None), size) is not Put.FULL for size in sizes]
    return said, one.outstanding, one.buffered_bytes


def test_p7_the_number_of_records_is_bounded():
    assert puts([1] * 5, buffer_max_records=3) == ([True, True, True, False, False], 3, 3)


def test_p7_so_are_their_bytes():
    assert puts([1_000, 25, 24, 1, 0], buffer_max_bytes=1_024) == ([True, False, True, False, True], 3, 1_024)


def test_p7_a_record_larger_than_the_bound_goes_into_an_empty_buffer_alone():
    assert puts([5_000, 0, 1], buffer_max_bytes=1_024) == ([True, False, False], 1, 5_000)


def test_p7_a_buffer_that_is_empty_again_takes_a_larger_record():
    one, first = intake(buffer_max_bytes=1_024), record()
    one.put(first, 7)
    assert one.put(record(), 2_000) is Put.FULL
    one.take(1)
    end(one, first, size=7)
    assert one.put(record(), 2_000) is not Put.FULL


def test_p7_put_many_takes_all_or_none():
    one = intake(buffer_max_records=3, buffer_max_bytes=1_024)
    assert one.put_many([record() for _ in range(4)], 28) is Put.FULL
    assert one.put_many([record(), record()], 1_025) is Put.FULL
    assert (one.outstanding, one.records) == (0, [])
    two = [record(), record()]
    assert one.put_many(two, 14) is Put.WAKE
    assert (one.outstanding, one.buffered_bytes, one.records) == (2, 14, two)


def test_p7_what_ends_makes_room_for_exactly_as_much():
    one, first = intake(buffer_max_records=1), record()
    one.put(first, 7)
    assert not one.has_room
    assert one.put(record(), 7) is Put.FULL
    one.take(1)
    end(one, first, size=7)
    assert one.has_room
    assert one.put(record(), 7) is not Put.FULL
    assert (one.outstanding, one.buffered_bytes) == (1, 7)


# ---- the gate


@pytest.mark.parametrize("condition", ["refused", "waiters", "serializer"])
def test_the_gate_is_closed_while_a_put_must_not_simply_be_appended(condition):
    one = intake()
    one.mark(5, 1_000)
    assert one.gate_records == 5
    if condition == "refused":
        one.refuse("closed")
    elif condition == "waiters":
        one.waiters.append("someone")
        one.update_gate()
    else:
        one.serializes = True
        one.update_gate()
    assert one.gate_records == 0
    one.mark(5, 1_000)
    assert one.gate_records == 0, "the host does not open it"
    one.refusal, one.serializes = None, False
    one.waiters.clear()
    one.mark(5, 1_000)
    assert one.gate_records == 5


def test_a_refused_put_leaves_nothing():
    one = intake()
    one.refuse("closed")
    assert one.put(record(), 7) is Put.REFUSED
    assert one.put_many([record()], 7) is Put.REFUSED
    assert (one.refusal, one.outstanding, one.records) == ("closed", 0, [])
    one.admit()
    assert one.put(record(), 7) is Put.WAKE


# ---- waking


def test_p11_a_put_is_quiet_up_to_the_mark_and_wakes_once_beyond_it():
    one = intake()
    one.mark(2, 1_000)
    assert [one.put(record(), 7) for _ in range(5)] == [Put.QUIET, Put.QUIET, Put.WAKE, Put.QUIET, Put.QUIET]
    one.mark(0, 0)
    assert [one.put(record(), 7) for _ in range(2)] == [Put.WAKE, Put.QUIET]


def test_p11_the_mark_counts_bytes_too():
    one = intake()
    one.mark(100, 20)
    assert [one.put(record(), 7) for _ in range(4)] == [Put.QUIET, Put.QUIET, Put.WAKE, Put.QUIET]
    one.mark(2, 1_000)
    assert [one.put_many([record()] * 2, 14) for _ in range(3)] == [Put.QUIET, Put.WAKE, Put.QUIET]


def test_p12_no_record_that_might_not_fit_when_wrapped_goes_by_the_gate():
    one = intake(record_max_bytes=5_000)
    for mark in (lambda: one.mark(10, 1 << 30), lambda: one.pass_mark([])):
        mark()
        assert one.quiet_bytes == one.reserved_bytes + 5_000 - WRAP_MAX_BYTES
    one.limit_record(2_000)
    assert (one.record_max_bytes, one.plain_max_bytes) == (2_000, 2_000 - WRAP_MAX_BYTES)
    assert one.quiet_bytes <= one.reserved_bytes + one.plain_max_bytes


def test_the_marks_never_pass_the_limit():
    one = intake(buffer_max_records=3, buffer_max_bytes=1_024)
    one.mark(10, 10_000)
    assert (one.quiet_records, one.quiet_bytes) == (3, 1_024)


# ---- the host


def test_it_is_one_list_for_the_whole_life():
    one = intake()
    records, first = one.records, record()
    one.put(first, 7)
    assert one.take(5) == [first]
    one.put(record(), 7)
    one.end("why")
    assert one.records is records
    assert records == []


def test_the_first_records_are_taken_in_the_order_of_their_puts():
    one, records = intake(), [record() for _ in range(5)]
    one.put_many(records, 35)
    assert one.take(2) == records[:2]
    assert one.take(0) == []
    assert one.take(9) == records[2:]
    assert one.take(9) == []


def test_p9_a_record_that_was_held_up_before_it_was_appended_is_dated_as_those_before_it():
    one = intake()
    for expires_at in (31.0, 30.0, 32.0):
        one.put(record(expires_at=expires_at), 7)
    assert [each.expires_at for each in one.take(9)] == [31.0, 31.0, 32.0]
    one.put(record(expires_at=31.5), 7)
    assert [each.expires_at for each in one.take(9)] == [32.0]


def test_p1_every_record_that_has_not_ended_is_found():
    one, records = intake(), [record() for _ in range(5)]
    one.put_many(records, 35)
    one.take(3)
    assert one.unfinished() == records
    end(one, records[1], size=7)
    assert one.unfinished() == [records[0], *records[2:]]
    one.take(9)
    end(one, records[0], *records[2:], size=28)
    assert one.unfinished() == one._taken == []


def test_records_that_have_ended_are_not_kept():
    one, kept = intake(), record()
    one.put(kept, 7)
    one.take(1)
    for _ in range(200):
        many = [record() for _ in range(100)]
        one.put_many(many, 700)
        one.take(100)
        end(one, *many, size=700)
    assert one.unfinished() == [kept]
    assert len(one._taken) < 4_500


def test_p1_a_record_that_is_appended_after_the_end_is_taken_back_by_its_putter():
    """The putter had passed the gate when the host refused, and continued after the host had taken its last record."""
    one, first, late = intake(), record(), record()
    one.put(first, 7)
    one.refuse("the host has ended")
    assert one.end("why") == [first]
    assert one.refusal == "the host has ended"
    for each in (first, late):
        one.reserved_records += 1
        one.reserved_bytes += 7
        one.records.append(each)
        assert one.reserved_records > one.quiet_records, "it looks at the mark, and sees that something is wrong"
        assert one.pass_mark([each]) is Put.REFUSED
        assert (one.records, one.outstanding, one.buffered_bytes) == ([], 1, 7)
    assert late.ending.code == "Closed"
    assert one.pass_mark([late]) is Put.WAKE, "the host has taken it, and ends it"


def test_p1_the_last_records_are_taken_one_by_one():
    """A putter in another thread may take its own record back meanwhile."""

    class TakenBack(list):
        def pop(self):
            last = super().pop()
            self.clear()
            return last

    one, records = intake(), [record() for _ in range(3)]
    one.records = TakenBack(records)
    assert one.end("why") == records[2:]

    class Empty(list):
        def __bool__(self):
            return True

    one.records = Empty()
    assert one.end("why") == []


# ---- rounds


@pytest.mark.parametrize(
    ("lanes", "settings", "records", "size"),
    [
        (1, {}, 1_000, 1_000 * KIB),
        (15, {}, 1_000, 1_000 * KIB),
        (32, {}, 2_048, 1_000 * KIB),
        (125, {}, 8_000, 1_000 * KIB),
        (256, {}, 12_500, 1 * MIB),
        (256, {"aggregation": False}, 500, 1_000 * KIB),
        (256, {"request_max_entries": 3, "aggregation": False}, 3, 1_000 * KIB),
        (1, {"request_max_bytes": 100_000, "aggregation": False}, 500, 100_000),
        (256, {"aggregate_max_count": 3}, 1_500, 1 * MIB),
        (256, {"aggregate_max_count": 1}, 500, 1 * MIB),
        (256, {"buffer_max_records": 8_000, "buffer_max_bytes": 4 * MIB}, 1_000, 512 * KIB),
    ],
)
def test_a_round_grows_with_the_lanes_but_is_no_more_than_a_part_of_the_buffer(lanes, settings, records, size):
    assert round_limits(ProducerConfig(**settings), lanes) == (records, size)
    one = shell(lanes, record_max_bytes=10 * MIB, **settings)
    assert (one.intake.quiet_records, one.intake.quiet_bytes) == (records - 1, size)


def test_a_round_has_at_least_one_record():
    assert round_limits(ProducerConfig(buffer_max_records=1), 1)[0] == 1


def shell(lanes, **settings):
    """Return a shell that knows this many shards, and has one record in its intake."""
    one = ProducerShell(ProducerConfig(linger=5.0, **settings), 0.0)
    edges = [HASH_KEY_COUNT * place // lanes for place in range(lanes + 1)]
    shards = [shard(f"s-{place}", start, end - 1) for place, (start, end) in enumerate(pairwise(edges))]
    one.machine.poll_list_shards(0.0)
    one.machine.handle_list_shards(ListShardsResponse(shards), 0.0)
    assert one.accept(one.record(b"")) is Put.WAKE
    one.poll()
    return one


@pytest.mark.parametrize(("ordered", "keys"), [(True, ["k", None, "a", None]), (False, ["k", "a", None, None])])
def test_p9_in_order_a_round_is_sorted_record_by_record(ordered, keys):
    one = shell(1, ordered=ordered)
    for key in (None, "a", None):
        one.accept(one.record(b"data", key))
    one.machine._sort(9, 0.0)
    (lane,) = one.machine._router.lanes
    assert [each.key for each in lane.unsent()] == keys


# ---- interrupts


def from_looking_to_appending(function):
    """Return the instructions from the first read of ``reserved_records`` to the call that appends, inclusive."""
    found, is_in = [], False
    for instruction in dis.get_instructions(function):
        is_in = is_in or instruction.argval == "reserved_records"
        if is_in:
            found.append(instruction)
        if is_in and instruction.opname.startswith("CALL"):
            return found
    raise AssertionError(f"{function.__qualname__} does not append")


@pytest.mark.parametrize("function", [pure_twins["Room"].accept, AsyncProducer.put, BlockingProducer.put])
def test_p1_nothing_is_called_between_reserving_and_appending(function):
    """Python checks for signals after calls, at the start of a function, and where a loop begins again, but not here.

    The same applies from the read of the reserved amount on: a signal handler's put in between would be forgotten.
    """
    *before, call = from_looking_to_appending(function)
    written = [one.argval for one in before if one.opname == "STORE_ATTR"]
    assert written == ["reserved_records", "reserved_bytes"]
    assert {"append", "extend"} & {one.argval for one in before}
    assert [one.opname for one in before if one.opname in LOOKS or "BACKWARD" in one.opname] == []
    assert call.opname.startswith("CALL")


def test_invalid_records_wait_for_the_host_and_take_no_room():
    intake = Intake(ProducerConfig())
    one, two = BufferedRecord(b"1", None, None, 0.0), BufferedRecord(b"2", None, None, 0.0)
    intake.invalid += [one, two]
    assert (intake.take_invalid(), intake.take_invalid()) == ([one, two], [])
    assert (intake.outstanding, intake.known()) == (0, [])
