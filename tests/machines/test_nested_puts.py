"""A signal handler or a finalizer that puts while its own thread is in the machine: is everything sent once (P1, TU1)?

Whatever the machine does is interrupted between any two of its steps by a put that comes to its end; then it goes on.
"""

from itertools import count

import pytest
from tests.machines.test_interrupted_puts import KINDS, arrived, check_the_end, put_all, stream_of_two_shards
from tests.machines.test_producer_promises import THROTTLED
from tests.sim.interrupting import entered_once_more, interrupted

from shardline.core.producer.intake import Put
from shardline.core.producer.record import BufferedRecord


def nested_put(stream, accepted, number=0):
    """One, and what it was answered."""

    def put():
        record = BufferedRecord(b"nested %d" % number, "k1", None, stream.now + stream.config.record_ttl, waiters=[])
        if stream.machine.put(record, stream.now) is not Put.FULL:
            accepted.append(record)

    return put


@pytest.mark.parametrize("many", [False, True], ids=["put", "put_many"])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_p1_a_put_in_the_middle_of_a_put_is_one_more(config, many):
    for after in count(0, 13):
        stream = stream_of_two_shards(**config)
        accepted = []
        with entered_once_more(after, nested_put(stream, accepted)) as once_more:
            put_all(stream, accepted, many=many)
        if once_more.where is None:
            break
        assert len(stream.machine.unfinished()) == stream.machine.outstanding == len(accepted) == 29
        stream.pump()
        stream.run(20.0)
        check_the_end(stream, accepted, once_more.where)
        assert stream.machine.buffered_bytes == 0
        assert len(arrived(stream)) == 29
    assert after > 200


@pytest.mark.parametrize("refused", [False, True], ids=["stored", "throttled"])
def test_p1_a_put_in_the_middle_of_sending_and_settling_is_one_more(refused):
    for after in count(0, 31):
        stream = stream_of_two_shards()
        bad = [THROTTLED] * 5 if refused else []
        stream.refuse = lambda *_, bad=bad: bad.pop() if bad else None
        accepted = []
        put_all(stream, accepted)
        with entered_once_more(after, nested_put(stream, accepted)) as once_more:
            stream.flush()
            stream.run(3.0)
        if once_more.where is None:
            break
        stream.pump()
        stream.run(20.0)
        assert (stream.machine.outstanding, stream.machine.buffered_bytes) == (0, 0), once_more.where
        assert [record.conclusion.delivered for record in accepted] == [True] * 29, once_more.where
    assert after > 200


def test_tu2_what_is_put_in_the_middle_of_a_poll_that_finds_nothing_is_sent_when_it_has_lingered():
    for after in count():
        stream = stream_of_two_shards()
        accepted = []
        with entered_once_more(after, nested_put(stream, accepted)) as once_more:
            assert stream.machine.poll_put(stream.now) is None
        if once_more.where is None:
            break
        assert stream.machine.next_deadline() <= stream.now + stream.config.linger, once_more.where
        stream.run(stream.config.linger + 0.1)
        check_the_end(stream, accepted, once_more.where)
    assert after > 10


def test_p7_a_full_buffer_is_full_for_one_who_comes_in_the_middle_too():
    for after in count(0, 13):
        stream = stream_of_two_shards(buffer_max_records=28)
        accepted = []
        answers = []
        record = BufferedRecord(b"too much", "k", None, stream.now + stream.config.record_ttl)

        def put(stream=stream, answers=answers, record=record):
            answers.append(stream.machine.put(record, stream.now))

        with entered_once_more(after, put) as once_more:
            for one in range(40):
                fresh = BufferedRecord(b"%d" % one, "k", None, stream.now + stream.config.record_ttl)
                if stream.machine.put(fresh, stream.now) is not Put.FULL:
                    accepted.append(fresh)
        if once_more.where is None:
            break
        assert stream.machine.outstanding == len(accepted) + (answers != [Put.FULL]) <= 29, once_more.where
    assert after > 200


def test_p1_a_put_in_the_middle_of_mending_is_one_more():
    for first in (400, 1_500, 2_500):
        for after in count(0, 13):
            stream = stream_of_two_shards()
            accepted = []
            with interrupted(first) as interruption:
                put_all(stream, accepted)
            found = {id(record) for record in stream.machine._whereabouts.unfinished(stream.machine._round or ())}
            accepted = [record for record in accepted if id(record) in found]
            with entered_once_more(after, nested_put(stream, accepted)) as once_more:
                stream.machine.unfinished()
            if once_more.where is None:
                break
            stream.pump()
            stream.run(20.0)
            check_the_end(stream, accepted, f"{interruption.where}; {once_more.where}")
        assert after > 30
