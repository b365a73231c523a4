"""Do the compiled loops over the records of the intake equal the pure ones?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.native.forms import KEYS, copy_of, records

from shardline._speedups import native, pure_twins
from shardline.aio.producer import bulk_put, producer_facade
from shardline.aio.producer.delivery import Delivery
from shardline.aio.producer.validation import is_plain
from shardline.core.producer import intake
from shardline.core.producer.aggregate import WRAP_MAX_BYTES
from shardline.core.producer.producer_record import BufferedRecord, Undelivered
from shardline.model.limits import PARTITION_KEY_MAX_LENGTH

pytestmark = pytest.mark.skipif(native is None, reason="compares the compiled form with the pure one")

MAX_BYTES = WRAP_MAX_BYTES + 300


class Text(str):
    __slots__ = ()


class Larger(BufferedRecord, gc=False):
    """A record with a field that the extension does not know."""

    more: int = 0


class Pair(tuple):
    __slots__ = ()


ITEMS = st.one_of(
    st.tuples(KEYS | st.none() | st.sampled_from(["", "x" * 257, Text("key")]), st.binary(max_size=320)),
    st.sampled_from([None, (), ("k",), ["k", b"x"], ("k", "x"), ("k", bytearray(b"x")), ("k", b"x", None), (5, b"x")]),
    st.tuples(KEYS, st.binary(max_size=5)).map(Pair),
)


@given(st.lists(ITEMS, max_size=30))
def test_deliveries_are_made_up_to_the_first_item_that_is_not_plain(items):
    made = native.make_plain(Delivery, items, MAX_BYTES - WRAP_MAX_BYTES, PARTITION_KEY_MAX_LENGTH)
    assert all(is_plain(item, MAX_BYTES) for item in items[: len(made)])
    rest = items[len(made) :]
    assert not rest or type(rest[0]) is Pair or not is_plain(rest[0], MAX_BYTES)
    expected = [Delivery(data, key, None, 0.0) for key, data in items[: len(made)]]
    assert [fields_of(delivery) for delivery in made] == [fields_of(delivery) for delivery in expected]
    assert {type(delivery) for delivery in made} <= {Delivery}


def fields_of(delivery):
    return [(type(value), value) for value in (getattr(delivery, name) for name in delivery.__struct_fields__)]


@given(st.lists(records(), max_size=30), st.floats(0, 1e9))
def test_records_are_dated_alike(some, expires_at):
    others = [copy_of(record) for record in some]
    assert native.date_records(some, expires_at) == pure_twins["date_records"](others, expires_at)
    assert all(record.expires_at is expires_at for record in some)


@given(st.lists(records(), max_size=30), st.floats(0, 100))
def test_records_keep_their_order_alike(some, newest):
    others = [copy_of(record) for record in some]
    assert native.keep_order(some, newest) == pure_twins["keep_order"](others, newest)
    assert [record.expires_at for record in some] == [record.expires_at for record in others]


def test_times_may_be_ints():
    some = [BufferedRecord(b"x", "k", None, time) for time in (5, 3, 7.5, 2)]
    assert native.keep_order(some, 4.0) == 7.5
    assert [record.expires_at for record in some] == [5, 5, 7.5, 7.5]
    assert native.date_records(some, 9) == 8


@given(st.lists(records(), max_size=30), st.data())
def test_records_that_have_not_ended_are_found_alike(some, data):
    for record in some:
        record.ending = data.draw(st.sampled_from([None, Undelivered("Closed", "")]))
    assert native.without_ended(some) == pure_twins["without_ended"](some)


def test_the_producer_uses_the_compiled_form():
    assert bulk_put.make_plain is native.make_plain
    assert producer_facade.date_records is native.date_records
    assert intake.keep_order is native.keep_order
    assert intake.without_ended is native.without_ended


@pytest.mark.parametrize(
    "call",
    [
        lambda: native.make_plain(Delivery, (), 1, 1),
        lambda: native.make_plain(Delivery, [], "1", 1),
        lambda: native.make_plain(int, [("k", b"")], 9, 9),
        lambda: native.make_plain(None, [("k", b"")], 9, 9),
        lambda: native.make_plain(Larger, [("k", b"")], 9, 9),
        lambda: native.date_records((), 1.0),
        lambda: native.date_records([None], 1.0),
        lambda: native.date_records([BufferedRecord(None, "k", None, 0.0)], 1.0),
        lambda: native.date_records([], "1"),
        lambda: native.keep_order([None], 1.0),
        lambda: native.keep_order([BufferedRecord(b"", "k", None, "soon")], 1.0),
        lambda: native.keep_order([], None),
        lambda: native.without_ended(()),
        lambda: native.without_ended([None]),
    ],
)
def test_other_types_are_refused(call):
    with pytest.raises((TypeError, ValueError)):
        call()
