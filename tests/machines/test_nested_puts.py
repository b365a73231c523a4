"""A signal handler or a finalizer puts in the middle of a put of its own thread, or in the middle of the host: is
everything sent once, and is no room lost (P1, P7)?

Wherever the interpreter lets such code run, it puts and completes; then the interrupted code continues.
"""

from itertools import count

import pytest
from tests.harness.producer_shell import ACCEPTED
from tests.machines.test_interrupted_puts import INTAKE, KINDS, arrived, check_the_end, put_all, stream_of_two_shards
from tests.machines.test_producer_promises import THROTTLED, Stream
from tests.sim.interrupting import entered_once_more

from shardline.core.producer.intake import Put


def nested_put(stream, accepted, answers):
    """Put as nested code does. It wakes the host, which runs afterwards."""

    def put():
        record = stream.record(b"nested", "k1")
        answers.append(stream.accept(record))
        if answers[-1] in ACCEPTED:
            accepted.append(record)

    return put


@pytest.mark.parametrize("many", [False, True], ids=["put", "put_many"])
@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_p1_a_put_in_the_middle_of_a_put_is_one_more(config, many):
    for after in count(0, 1 if many else 3):
        stream = stream_of_two_shards(**config)
        accepted, answers = [], []
        with entered_once_more(after, nested_put(stream, accepted, answers), INTAKE) as once_more:
            put_all(stream, accepted, many=many)
        if once_more.where is None:
            break
        assert stream.intake.reserved_records == len(accepted) == 29, once_more.where
        if answers == [Put.WAKE]:
            stream.pump()
        stream.run(20.0)
        check_the_end(stream, accepted, once_more.where)
        assert len(arrived(stream)) == 29
    assert after > 5


@pytest.mark.parametrize("refused", [False, True], ids=["stored", "throttled"])
def test_p1_a_put_in_the_middle_of_sending_and_settling_is_one_more(refused):
    for after in count(0, 31):
        stream = stream_of_two_shards()
        bad = [THROTTLED] * 5 if refused else []
        stream.refuse = lambda *_, bad=bad: bad.pop() if bad else None
        accepted, answers = [], []
        put_all(stream, accepted)
        with entered_once_more(after, nested_put(stream, accepted, answers)) as once_more:
            stream.flush()
            stream.run(3.0)
        if once_more.where is None:
            break
        if answers == [Put.WAKE]:
            stream.pump()
        stream.run(20.0)
        assert (stream.machine.intake.outstanding, stream.machine.intake.buffered_bytes) == (0, 0), once_more.where
        assert [record.conclusion.delivered for record in accepted] == [True] * 29, once_more.where
    assert after > 200


def test_p11_what_is_put_in_the_middle_of_a_poll_that_finds_nothing_is_sent_when_it_has_lingered():
    """In the blocking producer, another thread may put at any time: the host sets the mark before it checks."""
    for after in count():
        stream = stream_of_two_shards()
        accepted, answers = [], []
        with entered_once_more(after, nested_put(stream, accepted, answers)) as once_more:
            assert stream.machine.poll_put(stream.now) is None
            if answers != [Put.WAKE]:
                assert not accepted or stream.machine.next_deadline() <= stream.now + stream.config.linger
        if once_more.where is None:
            break
        stream.run(stream.config.linger + 0.1)
        check_the_end(stream, accepted, once_more.where)
    assert after > 10


def test_p7_a_full_buffer_is_full_for_one_who_comes_in_the_middle_too():
    for after in count():
        stream = Stream(buffer_max_records=5)
        stream.run(1.0)
        accepted, answers = [], []
        with entered_once_more(after, nested_put(stream, accepted, answers), INTAKE) as once_more:
            for number in range(7):
                fresh = stream.record(b"%d" % number)
                if stream.accept(fresh) in ACCEPTED:
                    accepted.append(fresh)
        if once_more.where is None:
            break
        assert stream.machine.intake.outstanding == len(accepted) == 5, once_more.where
        stream.pump()
        stream.run(20.0)
        check_the_end(stream, accepted, once_more.where)
    assert after > 3
