"""The agenda beside a naive one, a dict: each name has the appointment that was made last, and no other (AG1)."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shardline.core.clock import NEVER
from shardline.core.consumer.agenda import Agenda

names = st.sampled_from(["a", "b", "c"])


class Appointments(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.agenda = Agenda()
        self.at = {}

    @rule(name=names, at=st.integers(0, 9))
    def make(self, name, at):
        self.agenda.schedule(name, float(at))
        self.at[name] = float(at)

    @rule(name=names)
    def cancel(self, name):
        self.agenda.schedule(name, NEVER)
        self.at.pop(name, None)

    @rule(now=st.integers(0, 9))
    def keep(self, now):
        due = {name for name, at in self.at.items() if at <= now}
        found = self.agenda.pop_due(float(now))
        assert (found in due) if due else found is None
        self.at.pop(found, None)

    @invariant()
    def the_next_one_is_known(self):
        if hasattr(self, "agenda"):
            assert self.agenda.next_at() == min(self.at.values(), default=NEVER)


TestAppointments = Appointments.TestCase
TestAppointments.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
