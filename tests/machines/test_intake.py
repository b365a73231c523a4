"""Tests what putters and the host rely on at the intake, one guarantee per test, on the stream of
``test_producer_promises.py``.
"""

from tests.machines.test_producer_promises import Stream

from shardline.core.producer.intake import Put


def quiet_stream(**config):
    """Return a stream that has its map, and nothing to do."""
    stream = Stream(linger=5.0, **config)
    stream.run(1.0)
    return stream


def test_p11_the_host_is_woken_once_however_many_are_put_before_it_runs():
    stream = quiet_stream()
    answers = [stream.accept(stream.record(b"%d" % number)) for number in range(3_000)]
    assert answers == [Put.WAKE] + [Put.QUIET] * 2_999
    stream.pump()
    stream.run(10.0)
    assert stream.machine.intake.outstanding == 0


def test_p7_many_are_taken_all_or_none():
    stream = quiet_stream(buffer_max_records=10, buffer_max_bytes=2_000)
    for _ in range(4):
        stream.put()
    assert stream.accept_many([stream.record() for _ in range(7)]) is Put.FULL
    assert stream.accept_many([stream.record(b"x" * 1_000), stream.record(b"x" * 1_000)]) is Put.FULL
    assert stream.accept_many([stream.record() for _ in range(6)]) is not Put.FULL
    assert stream.machine.intake.outstanding == 10


def test_p7_while_a_caller_waits_for_room_no_other_overtakes_it():
    stream = quiet_stream()
    stream.intake.waiters.append("the first")
    assert stream.accept(stream.record()) is Put.FULL
    assert stream.accept_many([stream.record()]) is Put.FULL
    assert stream.intake.put(stream.record(), 2, in_turn=True) is not Put.FULL


def test_p9_a_thread_that_was_held_up_before_it_appended_overtakes_nothing():
    """The thread's record has an earlier time than records that were put before it."""
    stream = quiet_stream(ordered=True, aggregate_max_count=2)
    for number in range(10):
        record = stream.record(b"%d" % number)
        record.expires_at -= 1.0 * (number % 3)
        stream.accept(record)
    stream.pump()
    stream.run(10.0)
    assert stream.stored() == list(range(10))


def test_a_long_intake_is_sorted_slice_by_slice():
    stream = quiet_stream()
    stream.machine._slice_records = 4
    for _ in range(12):
        stream.accept(stream.record())
    stream.machine.flush()
    left = []
    while stream.intake.records:
        stream.machine.poll_put(stream.now)
        left.append(len(stream.intake.records))
    assert left == [8, 4, 0]


def test_p10_what_a_flush_finds_in_a_long_intake_goes_with_it():
    stream = quiet_stream()
    stream.machine._slice_records = 4
    for _ in range(10):
        stream.accept(stream.record())
    stream.flush()
    stream.run(1.0)
    assert stream.machine.intake.outstanding == 0
    assert len(stream.requests) == 1, "it is not cut up by the slices"


def test_p1_a_record_that_comes_after_the_last_look_of_the_host_is_not_accepted():
    """The putter had passed the gate before the host ended."""
    stream = quiet_stream()
    stream.put()
    stream.machine.abandon("Closed", "why")
    assert stream.accept(stream.record()) is Put.REFUSED
    late, intake = stream.record(b"late"), stream.intake
    intake.reserved_records += 1
    intake.reserved_bytes += 5
    intake.records.append(late)
    assert intake.reserved_records > intake.quiet_records, "it sees that it has to look"
    assert intake.pass_mark([late]) is Put.REFUSED
    assert (intake.records, stream.machine.intake.outstanding, late.ending.code) == ([], 0, "Closed")


def test_p7_what_goes_by_the_gate_fits_into_the_buffer():
    for settings, most in (({"buffer_max_records": 10}, 10), ({"buffer_max_bytes": 1_024}, 10)):
        stream = quiet_stream(aggregation=False, **settings)
        accepted = 0
        while stream.accept(stream.record(b"x" * 99)) is not Put.FULL:
            accepted += 1
            stream.pump()
        assert (accepted, stream.machine.intake.outstanding) == (most, most)
