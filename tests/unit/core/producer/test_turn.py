"""Who is in the machine, and what may one do who comes in the middle (TU1 to TU3)?"""

import pytest

from shardline.core.producer.intake import Intake, Put
from shardline.core.producer.record import BufferedRecord
from shardline.core.producer.turn import Turn


@pytest.fixture
def called():
    return []


@pytest.fixture
def turn(called):
    return Turn(Intake(), lambda: called.append("mended"), lambda: called.append("armed"))


def record():
    return BufferedRecord(b"data", "key", None, 30.0)


def test_tu3_who_takes_the_turn_mends_and_one_that_is_free_is_mended(turn, called):
    assert not turn.is_taken
    with turn:
        assert turn.is_taken
        assert called == ["mended"]
        turn.mend()
        assert called == ["mended"], "it is another's"
    assert not turn.is_taken
    turn.mend()
    assert called == ["mended"] * 2
    assert not turn.is_taken


def test_tu1_tu2_what_comes_meanwhile_is_in_the_intake_and_armed_when_the_first_leaves(turn, called):
    with turn:
        assert turn.join(record(), 7) is Put.PUMP
        assert called == ["mended"]
    assert called == ["mended", "armed"]
    assert (len(turn._intake.records), turn._intake.size) == (1, 7)


def test_an_error_gives_the_turn_back_too(turn):
    with pytest.raises(ZeroDivisionError), turn:
        raise ZeroDivisionError
    assert not turn.is_taken


def test_tu3_to_mend_may_be_interrupted_and_the_next_one_mends():
    called = []

    def mend():
        called.append("mended")
        if len(called) == 1:
            raise KeyboardInterrupt

    turn = Turn(Intake(), mend, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        turn.mend()
    assert not turn.is_taken
    turn.mend()
    assert called == ["mended"] * 2
