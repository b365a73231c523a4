"""Which taker asks, which is refused, and which question does an answer cover?"""

from types import SimpleNamespace

import pytest

from shardline.core.consumer.taker import Questions, Taker


class Asker(Taker):
    """A taker that is answered at a time that the test chooses."""

    def __init__(self, until=None):
        super().__init__()
        self.until = until
        self.served = 0
        self.during = None

    def serve(self, now):
        self.served += 1
        if self.during is not None:
            self.during()
        return None if self.until is None or now >= self.until else self.until


def waiting(caller):
    woken = []
    return SimpleNamespace(caller=caller, wake=lambda: woken.append(caller), woken=woken)


def alive(caller):
    return False


def ended(caller):
    return True


# ---- user code


def test_a_second_caller_is_refused_while_the_first_one_waits():
    taker = Asker()
    first, second = waiting("task 1"), waiting("task 2")
    assert taker.enter(first, alive)
    assert taker.is_awaited("task 2", alive)
    assert not taker.is_awaited("task 1", alive)
    assert not taker.is_awaited("task 2", ended)
    assert not taker.enter(second, alive)
    assert (taker.asked, taker.caller, list(taker.waiting)) == (1, "task 1", [first])
    taker.leave(first)
    taker.leave(first)
    assert taker.enter(second, alive)
    assert (taker.asked, taker.caller) == (2, "task 2")


@pytest.mark.parametrize(("caller", "has_ended"), [("task 1", alive), ("task 2", ended)])
def test_an_interrupted_wait_blocks_no_other_taker(caller, has_ended):
    taker = Asker()
    assert taker.enter(waiting("task 1"), alive)  # and it never leaves
    mine = waiting(caller)
    assert taker.enter(mine, has_ended)
    assert list(taker.waiting) == [mine]


def test_everyone_who_waits_is_woken():
    taker = Asker()
    one = waiting("task")
    taker.enter(one, alive)
    taker.wake()
    assert one.woken == ["task"]


# ---- the host


def test_a_question_is_answered_once():
    questions, taker = Questions(), Asker()
    taker.asked = 1
    questions.ask(taker, 1)
    questions.serve(100.0)
    assert questions.take_answered() == [taker]
    assert taker.answered == 1
    questions.ask(taker, 1)  # it arrives late: the answer was for an older question
    questions.serve(100.0)
    assert (questions.take_answered(), taker.served) == ([], 1)


def test_an_answer_covers_every_question_before_it():
    questions, taker = Questions(), Asker()
    taker.asked = 1
    questions.ask(taker, 1)
    taker.asked = 2  # the first was interrupted, and the second is on its way
    questions.serve(100.0)
    assert taker.answered == 2
    questions.ask(taker, 2)
    questions.serve(100.0)
    assert taker.served == 1, "user code may be at work on the answer by now"


def test_a_taker_that_breaks_leaves_the_others_servable():
    questions, broken, other = Questions(), Asker(), Asker()
    broken.asked = other.asked = 1
    broken.during = lambda: 1 / 0
    questions.ask(broken, 1)
    with pytest.raises(ZeroDivisionError):
        questions.serve(100.0)
    questions.ask(other, 1)
    questions.serve(100.0)
    assert questions.take_answered() == [other]
