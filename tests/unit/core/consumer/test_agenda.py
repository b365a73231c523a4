"""AG1 and AG2 are the invariants of ``shardline.core.consumer.agenda``."""

from tests.sim.interrupting import interrupted

from shardline.core.clock import NEVER
from shardline.core.consumer.agenda import Agenda


def test_names_come_when_they_are_due_the_earliest_first():
    agenda = Agenda()
    agenda.schedule("b", 2.0)
    agenda.schedule("a", 1.0)
    assert agenda.next_at() == 1.0
    assert agenda.pop_due(0.5) is None
    assert [agenda.pop_due(2.0), agenda.pop_due(2.0), agenda.pop_due(2.0)] == ["a", "b", None]
    assert agenda.next_at() == NEVER


def test_ag1_the_last_appointment_counts():
    agenda = Agenda()
    agenda.schedule("a", 1.0)
    agenda.schedule("a", 1.0)
    agenda.schedule("a", 3.0)
    assert agenda.next_at() == 3.0
    assert agenda.pop_due(2.0) is None
    agenda.schedule("a", NEVER)
    agenda.schedule("a", NEVER)
    assert agenda.pop_due(9.0) is None


def test_ag1_a_name_that_was_moved_there_and_back_comes_once():
    agenda = Agenda()
    for at in (1.0, 2.0, 1.0):
        agenda.schedule("a", at)
    assert agenda.pop_due(5.0) == "a"
    assert agenda.pop_due(5.0) is None


def test_ag1_an_interrupt_leaves_the_old_appointment_or_the_new():
    after, where = 0, "not yet"
    while where is not None:
        agenda = Agenda()
        agenda.schedule("a", 1.0)
        with interrupted(after, "core/consumer/agenda", steps="signal") as interruption:
            agenda.schedule("a", 0.5)
        where = interruption.where
        assert agenda.next_at() == (0.5 if where is None else 1.0)
        agenda.schedule("a", 0.5)
        assert [agenda.pop_due(9.0), agenda.pop_due(9.0)] == ["a", None]
        after += 1
