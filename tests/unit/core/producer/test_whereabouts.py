"""Where is each record, also after a put that was interrupted? P1 and P9 are invariants of
``shardline.core.producer.whereabouts``. That no step of a put is forgotten is seen in ``tests/machines``.
"""

import pytest
from tests.sim.interrupting import interrupted
from tests.unit.core.producer.conftest import at

from shardline.core.clock import NEVER
from shardline.core.producer.collector import Collector
from shardline.core.producer.intake import Intake, Put
from shardline.core.producer.lane import Lane
from shardline.core.producer.record import BufferedRecord
from shardline.core.producer.router import Router


@pytest.fixture
def ctrl_c(monkeypatch):
    """Press it when something is called the next time, before or after it does its work."""

    def press(owner, name, *, after=False):
        original = getattr(owner, name)

        def pressed(*arguments):
            monkeypatch.setattr(owner, name, original)
            if after:
                original(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(owner, name, pressed)

    return press


MOMENTS = {
    "as the record comes": (Intake, "add", {"after": True}),
    "before it is sorted": (Router, "sort", {}),
    "when it is sorted": (Router, "sort", {"after": True}),
    "before it is in its lane": (Lane, "add_all", {}),
    "when it is in its lane": (Lane, "add_all", {"after": True}),
    "as its aggregate is sealed": (Lane, "_enqueue", {"after": True}),
    "before the collector knows": (Collector, "note_sealed", {}),
    "when the collector knows": (Collector, "note_sealed", {"after": True}),
}


def put_until_pressed(one, *, key="k", place=1):
    """More than a round of them. Returns those of which the caller knows."""
    known = []

    def put_on():
        for number in range(100, 200):
            known.append(one.put(b"%d" % number, key, place))

    with pytest.raises(KeyboardInterrupt):
        put_on()
    return known


def send_all(one):
    """The data of all that is sent, in its order."""
    sent = []
    while (request := one.send()) is not None:
        sent += [data for entry in request for data in entry]
        one.stored()
    return sent


@pytest.mark.parametrize(("owner", "name", "when"), MOMENTS.values(), ids=MOMENTS)
def test_p1_after_an_interrupt_each_record_is_found_once_and_goes_at_once(rig, ctrl_c, owner, name, when):
    one = rig(request_max_entries=4, aggregate_max_count=2)
    before = one.puts(1, 1, 9)
    ctrl_c(owner, name, **when)
    known = before + put_until_pressed(one)
    found = one.machine.unfinished()
    accepted = {record.data for record in found}
    assert {record.data for record in known} <= accepted
    assert len(found) == len(accepted) == one.machine.outstanding
    if owner is not Intake:  # then it is as if the put had come to its end
        assert one.machine.buffered_bytes == sum(len(record.data) + len(record.key) for record in found)
        assert one.machine.next_deadline() == -NEVER
    one.machine.flush()
    assert sorted(send_all(one)) == sorted(accepted)
    assert one.is_empty


def test_p9_what_was_put_before_the_interrupt_goes_before_what_was_put_since(rig, ctrl_c):
    one = rig(ordered=True, request_max_entries=3)
    for number in range(10, 14):
        one.put(b"%d" % number, "k", 1)
    ctrl_c(Lane, "add_all", after=True)
    put_until_pressed(one)
    one.put(b"999", "k", 1)
    sent = send_all(one)
    assert sent == sorted(sent, key=int)
    assert sent[-1] == b"999"


def test_p1_what_is_on_its_way_stays_there_and_is_counted(rig, ctrl_c):
    one = rig(request_max_entries=4)
    one.puts(1, 9)
    assert one.flush() == [[b"0"], [b"1"]]
    first = one.number
    ctrl_c(Router, "sort")
    known = put_until_pressed(one)
    assert len(one.machine.unfinished()) == one.machine.outstanding == len(known) + 3  # and the one that was cut short
    assert one.machine.buffered_bytes == sum(len(r.data) + len(r.key) for r in one.machine.unfinished())
    assert len(send_all(one)) == len(known) + 1
    one.stored("a", "b", number=first)
    assert one.is_empty


def test_p7_a_full_buffer_is_full_after_an_interrupt_too(rig, ctrl_c):
    one = rig(request_max_entries=4, buffer_max_records=30)
    ctrl_c(Router, "sort")
    put_until_pressed(one)
    while one.machine.outstanding < 30:
        one.put(b"more", "k", 1)
        assert one.answer is not Put.FULL
    one.put(b"too much", "k", 1)
    assert one.answer is Put.FULL


def test_p1_many_that_are_put_after_an_interrupt_come_after_what_it_left(rig, ctrl_c):
    one = rig(request_max_entries=4)
    ctrl_c(Router, "sort", after=True)
    known = put_until_pressed(one)
    more = [BufferedRecord(b"%d" % number, "k", at(1), one.now + 30.0) for number in range(300, 305)]
    assert one.machine.put_many(more, one.now) == (5, True)
    assert [int(data) for data in send_all(one)] == [*range(100, 101 + len(known)), *range(300, 305)]


def test_p1_what_is_given_up_after_an_interrupt_is_told_of(rig, ctrl_c):
    one = rig(request_max_entries=4)
    ctrl_c(Router, "sort", after=True)
    known = put_until_pressed(one)
    one.machine.abandon("Closed", "why")
    assert {record.conclusion.code for record in known} == {"Closed"}
    assert one.is_empty


def test_p1_an_interrupt_of_the_search_itself_loses_nothing(rig, ctrl_c):
    for after in range(0, 10_000, 11):
        one = rig(request_max_entries=4)
        ctrl_c(Lane, "add_all", after=True)
        known = put_until_pressed(one)
        with interrupted(after) as interruption:
            one.machine.unfinished()
        if interruption.where is None:
            break
        assert len(one.machine.unfinished()) == one.machine.outstanding == len(known) + 1, interruption.where
    assert after > 100


def test_p7_nothing_is_let_in_before_the_counts_are_right_again(rig, ctrl_c):
    one = rig(request_max_entries=4)
    ctrl_c(Intake, "take", after=True)
    put_until_pressed(one)
    assert one.machine.intake.max_records == 0


def test_a1_what_is_gathered_stands_by_age_whatever_its_lane(rig, ctrl_c):
    one = rig(request_max_entries=4, linger=20.0)
    old = one.put(b"old", "k", 9)
    one.machine._sort(one.now)
    one.wait(5.0)
    one.put(b"younger", "k", 1)
    ctrl_c(Router, "sort")
    put_until_pressed(one)
    assert one.machine.unfinished()[0] is old


def test_p9_to_gather_is_interrupted_and_the_order_is_kept(rig, ctrl_c):
    for after in range(0, 10_000, 3):
        one = rig(request_max_entries=4, ordered=True, aggregate_max_count=3)
        for number in range(8):
            one.put(b"%d" % number, "k", 1)
        one.machine._sort(one.now)
        ctrl_c(Router, "sort")
        put_until_pressed(one)
        with interrupted(after) as interruption:
            one.machine.unfinished()
        if interruption.where is None:
            break
        sent = [int(data) for data in send_all(one)]
        assert sent == sorted(sent), interruption.where
    assert after > 100
