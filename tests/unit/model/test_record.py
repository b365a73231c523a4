"""The entries that go into a stream, and the records that come out of it."""

import gc
import pickle
from array import array
from itertools import repeat

import pytest

from shardline.errors import UsageError
from shardline.model.limits import MIB, PUT_RECORDS_MAX_BYTES, RECORD_HIGHEST_MAX_BYTES
from shardline.model.record import Entry, Origin, Record, check_data, check_entries, hand_out
from shardline.model.sequence import SequenceNumber


class Key(str):
    """A str subclass, as some frameworks pass them."""

    __slots__ = ()


class Blob(bytes):
    """A bytes subclass."""

    __slots__ = ()


# ---- one entry


@pytest.mark.parametrize(
    ("given", "entry"),
    [
        (Entry(b"x", "k"), Entry(b"x", "k", None)),
        (Entry(b"x", "k", "7"), Entry(b"x", "k", "7")),
        ((b"x", "k"), Entry(b"x", "k", None)),
        ((b"x", "k", "7"), Entry(b"x", "k", "7")),
        ((b"x", "k", None), Entry(b"x", "k", None)),
        ((b"", "k"), Entry(b"", "k")),
        ((b"x", None), Entry(b"x", None)),
        ((b"x", None, "7"), Entry(b"x", None, "7")),
        ((b"x", "😀" * 256), Entry(b"x", "😀" * 256)),
        ((b"x", Key("k")), Entry(b"x", "k")),
        ((Blob(b"x"), "k"), Entry(b"x", "k")),
        ((bytearray(b"xy"), "k"), Entry(b"xy", "k")),
        (Entry(bytearray(b"xy"), "k", "0"), Entry(b"xy", "k", "0")),
        ((memoryview(b"xy"), "k"), Entry(b"xy", "k")),
        ((memoryview(b"x1y2")[::2], "k"), Entry(b"xy", "k")),
        ((memoryview(b"xy")[::-1], "k"), Entry(b"yx", "k")),
        ((memoryview(array("H", [1, 2])).cast("B"), "k"), Entry(array("H", [1, 2]).tobytes(), "k")),
        ((memoryview(array("I", [1, 2])), "k"), Entry(array("I", [1, 2]).tobytes(), "k")),
    ],
)
def test_a_good_entry_comes_back_as_an_entry_of_bytes(given, entry):
    (checked,) = check_entries([given])
    assert type(checked) is Entry
    assert checked == entry
    assert isinstance(checked.data, bytes)


def test_a_bytearray_is_copied_so_that_later_changes_do_not_reach_the_entry():
    data = bytearray(b"xy")
    (checked,) = check_entries([(data, "k")])
    data[0] = 0
    assert checked.data == b"xy"


def test_text_is_refused_with_advice():
    with pytest.raises(UsageError, match=r"^entry 0: data must be bytes, not str: encode it, as in data\.encode\(\)$"):
        check_entries([("text", "k")])


@pytest.mark.parametrize("data", [None, 1, 1.5, ["x"], array("B", [1]), object()])
def test_data_of_another_type_is_refused_by_its_type(data):
    with pytest.raises(UsageError, match=f"^entry 0: data must be bytes, not {type(data).__name__}$"):
        check_entries([(data, "k")])
    with pytest.raises(UsageError, match=f"^data must be bytes, not {type(data).__name__}$"):
        check_data(data)


def test_a_memoryview_that_was_released_is_refused():
    view = memoryview(b"abc")
    view.release()
    with pytest.raises(UsageError, match=r"^data must be bytes: this memoryview was released$"):
        check_data(view)


@pytest.mark.parametrize("size", [0, 1, 4, 5])
def test_a_tuple_of_another_length_is_no_entry(size):
    with pytest.raises(
        UsageError, match=r"a tuple \(data, key\[, explicit hash key\]\), not a tuple of another length$"
    ):
        check_entries([(b"x",) * size])


@pytest.mark.parametrize("entry", [None, b"xy", "xy", [b"x", "k"], {"data": b"x", "key": "k"}, 5, Record(b"x", "k")])
def test_what_is_no_tuple_is_no_entry(entry):
    with pytest.raises(UsageError, match=rf"^entry 0: an entry is Entry\(data, key\) .* not {type(entry).__name__}$"):
        check_entries([entry])


@pytest.mark.parametrize("make", [Entry, lambda *fields: fields])
@pytest.mark.parametrize(
    ("key", "words"),
    [
        (5, "must be a str, not int"),
        (b"k", "must be a str, not bytes"),
        ("", "1 to 256 characters, this one has 0"),
        (Key(""), "1 to 256 characters, this one has 0"),
        ("k" * 257, "1 to 256 characters, this one has 257"),
        ("😀" * 257, "1 to 256 characters, this one has 257"),
        ("\ud800", "lone surrogate"),
    ],
    ids=range(7),
)
def test_a_bad_key_is_refused(make, key, words):
    with pytest.raises(UsageError, match=f"^entry 0: a partition key .*{words}"):
        check_entries([make(b"x", key)])


@pytest.mark.parametrize("text", ["", "-1", "01", str(2**128), 5])
def test_a_bad_explicit_hash_key_is_refused(text):
    with pytest.raises(UsageError, match=r"^entry 0: an explicit hash key"):
        check_entries([(b"x", "k", text)])


# ---- many entries


@pytest.mark.parametrize("count", [1, 2, 499, 500])
def test_1_to_500_entries_are_taken_in_order(count):
    entries = [(str(i).encode(), "k") for i in range(count)]
    assert check_entries(entries) == [Entry(data, key) for data, key in entries]


def test_no_entries_are_refused():
    with pytest.raises(UsageError, match="takes 1 to 500 entries, not none"):
        check_entries([])


def test_501_entries_are_refused():
    with pytest.raises(UsageError, match="takes 1 to 500 entries, not more"):
        check_entries([(b"x", "k")] * 501)


def test_an_endless_iterable_is_refused_and_not_read_to_its_end():
    with pytest.raises(UsageError, match="not more"):
        check_entries(repeat((b"x", "k")))


def test_a_generator_is_read_once():
    assert check_entries((bytes([i]), "k") for i in range(3)) == [Entry(bytes([i]), "k") for i in range(3)]


def test_an_error_inside_the_callers_generator_stays_the_callers():
    def broken():
        yield (b"x", "k")
        raise TypeError("mine")

    with pytest.raises(TypeError, match=r"^mine$"):
        check_entries(broken())


@pytest.mark.parametrize("entries", [None, 5, object()])
def test_what_cannot_be_iterated_is_refused_by_its_type(entries):
    with pytest.raises(UsageError, match=f"iterable of entries, not {type(entries).__name__}$"):
        check_entries(entries)


def test_a_single_entry_in_place_of_a_list_is_refused():
    with pytest.raises(UsageError, match=r"^entry 0: an entry is"):
        check_entries(Entry(b"x", "k"))


@pytest.mark.parametrize("index", [0, 1, 499])
def test_an_error_names_the_entry(index):
    entries = [(b"x", "k")] * 500
    entries[index] = (b"x", "")
    with pytest.raises(UsageError, match=f"^entry {index}: "):
        check_entries(entries)


# ---- sizes

LARGEST = bytes(RECORD_HIGHEST_MAX_BYTES)


def test_a_record_of_10_mib_with_its_key_is_taken():
    assert check_entries([(LARGEST[:-1], "k")]) == [Entry(LARGEST[:-1], "k")]
    assert check_entries([(LARGEST, None)]) == [Entry(LARGEST, None)]


def test_a_record_of_one_byte_more_is_refused_with_its_size():
    for entry in [(LARGEST, "k"), (LARGEST[:-1], "kk")]:
        with pytest.raises(UsageError, match=r"^entry 0: a record takes at most 10485760 bytes .* has 10485761$"):
            check_entries([entry])


def test_a_key_counts_in_its_utf8_bytes():
    assert len(check_entries([(LARGEST[:-4], "😀")])) == 1
    with pytest.raises(UsageError, match=r"has 10485761$"):
        check_entries([(LARGEST[:-3], "😀")])


def test_an_explicit_hash_key_does_not_count():
    assert len(check_entries([(LARGEST[:-1], "k", "0")])) == 1


def test_a_request_of_10_mib_with_its_keys_is_taken():
    data = bytes(MIB - 1)
    entries = check_entries([(data, "k")] * 10)
    assert sum(len(entry.data) + len(entry.key) for entry in entries) == PUT_RECORDS_MAX_BYTES


def test_a_request_of_one_byte_more_is_refused_with_its_size():
    data = bytes(MIB - 1)
    with pytest.raises(UsageError, match=r"takes 10485760 bytes of data and keys, these have 10485761$"):
        check_entries([*[(data, "k")] * 9, (data, "kk")])
    with pytest.raises(UsageError, match=r"these have 10485761$"):
        check_entries([*[(data, "k")] * 10, (b"x", None)])


# ---- records of a reader


def test_a_record_tells_its_place_in_the_shard():
    assert Record(b"x", "k", sequence_number="12", sub_sequence=3).order == SequenceNumber(12, 3)
    assert Record(b"x", "k").order == SequenceNumber(0, 0)


def test_records_of_one_shard_sort_by_their_place():
    records = [
        Record(b"x", None, sequence_number=number, sub_sequence=sub) for number, sub in [("9", 0), ("10", 0), ("10", 1)]
    ]
    backwards = records[::-1]
    assert sorted(backwards, key=lambda record: record.order) == records


def test_a_record_without_more_is_plain():
    record = Record(b"x", None)
    facts = (record.explicit_hash_key, record.sequence_number, record.sub_sequence, record.shard_id)
    assert facts == (None, None, 0, None)
    assert (record.arrived_at, record.stream, record.aggregated, record.lag, record.lease) == (
        None,
        None,
        False,
        None,
        None,
    )


def test_a_record_does_not_change():
    with pytest.raises(AttributeError):
        Record(b"x", "k").data = b"y"


class Held:
    held = True
    token = 7


def test_a_record_tells_how_it_was_read():
    record = Record(b"x", "k", origin=Origin(Held()))
    assert (record.lag, record.lease.held, record.lease.token) == (None, True, 7)
    assert repr(record.origin) == "Origin()"


def read(*numbers, origin=None, arrived_at=100.0):
    page = Origin() if origin is None else origin
    return [
        Record(b"x", "k", sequence_number=str(number), sub_sequence=sub, arrived_at=arrived_at, origin=page)
        for number, sub in numbers
    ]


def test_the_lag_is_the_age_that_the_record_had_when_it_was_handed_out():
    records = read((9, 0), (10, 0), (10, 1), (11, 0))
    assert [record.lag for record in records] == [None, None, None, None], "they were read, and no more"
    hand_out(records[:1], 103.0)
    hand_out(records[2:3], 107.5)
    assert [record.lag for record in records] == [3.0, 3.0, 7.5, 7.5]
    hand_out(records[3:], 99.0)
    assert records[3].lag == 0.0, "a clock that is a little off makes no negative age"


def test_a_record_that_comes_again_has_the_lag_of_the_last_time():
    records = read((1, 0), (2, 0), (3, 0))
    for place, at in enumerate([101.0, 102.0, 103.0]):
        hand_out(records[place : place + 1], at)
    hand_out(records[1:2], 150.0)
    assert [record.lag for record in records] == [1.0, 50.0, 50.0]


def test_a_batch_may_span_pages():
    pages = [read((1, 0), (2, 0)), read((3, 0)), read((4, 0), (5, 0), (6, 0))]
    batch = [record for page in pages for record in page]
    hand_out(batch[1:5], 102.0)
    assert [record.lag for record in batch] == [None, 2.0, 2.0, 2.0, 2.0, 2.0]
    hand_out([], 103.0)


def test_a_record_whose_arrival_is_unknown_has_no_lag():
    (record,) = read((1, 0), arrived_at=None)
    hand_out([record], 100.0)
    assert record.lag is None


def test_a_record_that_is_read_again_is_the_same():
    first, again = Record(b"x", "k", origin=Origin(Held())), Record(b"x", "k", origin=Origin(None))
    assert first == again == Record(b"x", "k")
    assert hash(first) == hash(again)
    assert first != Record(b"y", "k", origin=first.origin)
    assert Origin() != 1.5


def test_a_record_can_be_sent_to_another_process():
    (record,) = read((12, 3))
    hand_out([record], 102.0)
    copy = pickle.loads(pickle.dumps(record))
    assert copy == record
    assert copy.lag == 2.0


def test_the_garbage_collector_does_not_look_at_records():
    assert not gc.is_tracked(Record(b"x", "k", origin=Origin()))


def test_a_value_is_what_the_deserializer_of_its_page_makes_of_the_data():
    origin = Origin()
    record = Record(b"[1]", "k", origin=origin)
    assert record.value == b"[1]"
    origin.deserializer = lambda data: data.decode()
    assert record.value == "[1]"
