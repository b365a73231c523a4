"""Do the compiled functions survive objects that change while they are read?

On Python 3.11, the garbage collector may run whenever a list is created, and a finalizer may change any object.
"""

import gc
from collections import deque

import msgspec
import pytest
from tests.native.putters import putter

from shardline._speedups import native
from shardline.aio.producer.delivery import Delivery
from shardline.codec.aggregation import split_columns
from shardline.core.producer.producer_record import BufferedRecord
from shardline.model.record import Record

pytestmark = pytest.mark.skipif(native is None, reason="the pure form reads lists through the interpreter")

COUNT = 2_000
ITEMS = [(f"key {number}", b"data") for number in range(COUNT)]
BLOBS = [b"blob %d" % number for number in range(COUNT)]
RECORDS = [BufferedRecord(data, key, None, 0.0) for key, data in ITEMS]
LANES = native and native.make_lane_table((b"\xff" * 16,))


def compiled(name):
    """Return a compiled function. In the pure form, this module is only imported."""
    return getattr(native, name, None)


CALLS = {
    "make_plain": (ITEMS, lambda items: native.make_plain(Delivery, items, 1_000, 256)),
    "md5_many": (BLOBS, compiled("md5_many")),
    "find_frames": (BLOBS, compiled("find_frames")),
    "keys_in_range": (
        [key for key, _ in ITEMS],
        lambda keys: native.keys_in_range(keys, bytes(16), b"\xff" * 16, {}),
    ),
    "make_structs": (BLOBS, lambda blobs: native.make_structs(Record, COUNT, (blobs, *((None,),) * 10))),
    "without_ended": (RECORDS, compiled("without_ended")),
    "sort": (RECORDS, lambda records: LANES.sort(records)[0][0][1]),
    "encode_records": (RECORDS, lambda records: split_columns(native.encode_records([(records, "")])[0]).keys),
}


class Clearing:
    """Clears a list when it is collected. It refers to itself, so only the garbage collector finds it."""

    def __init__(self, values):
        self.values = values
        self.myself = self

    def __del__(self):
        self.values.clear()


@pytest.fixture
def collector():
    """Run the garbage collector only when a test says so."""
    thresholds = gc.get_threshold()
    gc.disable()
    yield
    gc.set_threshold(*thresholds)
    gc.enable()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("name", CALLS)
def test_a_finalizer_may_clear_the_list_at_any_time(name):
    whole, call = CALLS[name]
    for allocations in range(1, 12):
        values = list(whole)
        gc.collect()
        Clearing(values)
        gc.set_threshold(allocations)
        gc.enable()
        try:
            found = call(values)
        except (RuntimeError, TypeError, ValueError):
            found = []  # the list was empty, or changed while it was read
        gc.disable()
        assert len(found) in {0, COUNT}
    gc.collect()


class LyingWaiters:
    """Changes the room while it is asked how many callers wait."""

    def __init__(self, room, records):
        self.room = room
        self.records = records

    def __len__(self):
        self.room.records = self.records
        return 0


@pytest.mark.parametrize("records", [None, (), deque()])
def test_the_records_of_a_room_may_be_replaced_at_any_time(records):
    room = putter()._intake
    room.waiters = LyingWaiters(room, records)
    with pytest.raises(TypeError):
        native.Room.accept(room, [BufferedRecord(b"x", "k", None, 0.0)], 1, 0)


class Longer(msgspec.Struct, gc=False):
    data: object
    key: object
    explicit_hash_key: object
    expires_at: object
    ending: object
    place: object
    history: object
    waiters: object
    extra_ttl: object
    tags: object
    further: object


class Reordered(msgspec.Struct, gc=False):
    key: object
    data: object
    explicit_hash_key: object
    expires_at: object
    ending: object
    place: object
    history: object
    waiters: object
    extra_ttl: object
    tags: object


@pytest.mark.parametrize("record_type", [Longer, Reordered, Record])
def test_a_record_with_other_fields_is_refused(record_type):
    """A delivery of such a class would have a field that nothing has filled."""
    with pytest.raises(TypeError, match="the fields of"):
        native.bind_record(record_type)
    assert native.without_ended([BufferedRecord(b"x", "k", None, 0.0)])
