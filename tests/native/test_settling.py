"""Does the compiled form settle records as the pure form does?"""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.forms import copy_of, records

from shardline._speedups import native, pure_twins
from shardline.aio.producer.delivery import Delivery
from shardline.core.producer import ledger
from shardline.core.producer.producer_record import BufferedRecord, Landing, Sent, Undelivered

pytestmark = pytest.mark.skipif(native is None, reason="compares the compiled form with the pure one")

LANDING = Landing("shardId-000000000000", "4960", Sent(1.0, 0.5))
FIELDS = (
    "data",
    "key",
    "explicit_hash_key",
    "expires_at",
    "ending",
    "place",
    "history",
    "waiters",
    "extra_ttl",
    "tags",
)


def test_the_ledger_uses_the_compiled_form():
    assert ledger.settle_delivered is native.settle_delivered


def fields_of(record):
    return tuple(getattr(record, name) for name in FIELDS)


def settled(function, some):
    finished = deque()
    count = function(some, LANDING, finished)
    places = [next(place for place, record in enumerate(some) if record is known) for known in finished]
    return count, places, [fields_of(record) for record in some]


@given(st.lists(st.tuples(records(), st.booleans()), max_size=600))
def test_records_are_settled_alike(drawn):
    some = [record for record, _ in drawn]
    for record, has_waiter in drawn:
        record.waiters = [print] if has_waiter else None
    others = [copy_of(record) for record in some]
    assert settled(native.settle_delivered, some) == settled(pure_twins["settle_delivered"], others)


def test_a_delivery_is_a_record():
    delivery = Delivery(b"data", "key", None, 0.0)
    assert native.settle_delivered([delivery], LANDING, deque()) == 1
    assert delivery.delivered
    assert delivery.receipt().sub_sequence == 0


def test_a_record_ends_once():
    fresh, ended = (BufferedRecord(b"x", "k", None, 0.0, ending=end) for end in (None, Undelivered("Closed", "")))
    with pytest.raises(AssertionError, match="P1: a record ends once"):
        native.settle_delivered([fresh, ended], LANDING, deque())
    assert fresh.ending is LANDING
    assert ended.data == b"x"


class Restless(bytes):
    """Data whose destructor changes the list of records."""

    __slots__ = ()
    target: list[BufferedRecord] = []  # noqa: RUF012 - shared on purpose

    def __del__(self):
        self.target.clear()


def test_a_destructor_may_change_the_list():
    some = [BufferedRecord(Restless(b"x"), "k", None, 0.0), BufferedRecord(b"y", "k", None, 0.0)]
    second = some[1]
    Restless.target = some
    assert native.settle_delivered(some, LANDING, deque()) == 1
    assert second.ending is None


class Broken(deque):
    """A deque that cannot grow."""

    def append(self, _record):
        raise MemoryError


def test_an_error_of_the_deque_is_raised():
    record = BufferedRecord(b"x", "k", None, 0.0, waiters=[print])
    with pytest.raises(MemoryError):
        native.settle_delivered([record], LANDING, Broken())
    assert record.ending is LANDING


@pytest.mark.parametrize("arguments", [(), ([],), ((), LANDING, deque()), ([object()], LANDING, deque())])
def test_other_types_are_refused(arguments):
    with pytest.raises(TypeError):
        native.settle_delivered(*arguments)


class NoSlots:
    data = key = explicit_hash_key = ending = place = waiters = tags = None


@pytest.mark.parametrize("wrong", [None, 5, NoSlots, int])
def test_only_a_class_with_the_slots_of_a_record_is_bound(wrong):
    with pytest.raises((TypeError, AttributeError)):
        native.bind_record(wrong)
    assert native.settle_delivered([BufferedRecord(b"x", "k", None, 0.0)], LANDING, deque()) == 1
