"""Do the compiled functions that open aggregates return what their pure twins return, whatever the bytes are?"""

import gc
import subprocess
import sys
from hashlib import md5

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.aggregates import build_headed

from shardline._speedups import native, pure_twins
from shardline.codec import aggregation
from shardline.codec.aggregation import MAGIC, is_framed, split_columns
from shardline.codec.protobuf import encode_varint
from shardline.codec.shapes import RawRecord
from shardline.core.consumer import deaggregator
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.model.hashing import HashRange, hash_key_of
from shardline.model.headers import NO_HEADERS
from shardline.model.record import UNKNOWN_ORIGIN, Origin, Record

pytestmark = pytest.mark.skipif(native is None, reason="this compares the compiled form with the pure one")

thorough = settings(max_examples=400, deadline=None)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(0, 300) | st.sampled_from([127, 128, 2**32, 2**63, 2**64 - 1])
varints = numbers.map(encode_varint) | st.sampled_from(
    [b"\x80\x00", b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\x80" * 11]
)
small = st.integers(0, 3).map(encode_varint)


def field(tag, content):
    return content.map(lambda data: bytes((tag,)) + encode_varint(len(data)) + data)


def joined(parts, **limits):
    return st.lists(parts, **limits).map(b"".join)


tags_of_headers = field(0x22, st.binary(max_size=8) | joined(field(0x0A, texts.map(str.encode)), max_size=2))
unknown = (
    st.tuples(st.sampled_from([0x20, 0x28, 0x21, 0x25, 0x24, 0x23, 0x0B, 0x18, 0x1D]), st.binary(max_size=9)).map(
        lambda pair: bytes(pair[:1]) + pair[1]
    )
    | field(0x2A, st.binary(max_size=5))
    | field(0x22, st.binary(max_size=5))
)
record_fields = st.one_of(
    small.map(lambda number: b"\x08" + number),
    small.map(lambda number: b"\x10" + number),
    field(0x1A, st.binary(max_size=140)),
    tags_of_headers,
    unknown,
    varints.map(lambda number: b"\x08" + number),
    varints.map(lambda number: b"\x10" + number),
)
whole_records = st.tuples(small, st.binary(max_size=140)).map(
    lambda pair: b"\x08" + pair[0] + b"\x1a" + encode_varint(len(pair[1])) + pair[1]
)
message_fields = st.one_of(
    field(0x0A, texts.map(str.encode)),
    field(0x12, texts.map(str.encode)),
    field(0x1A, whole_records),
    field(0x1A, joined(record_fields, max_size=5)),
    field(0x0A, st.binary(max_size=4)),
    unknown,
)
messages = joined(message_fields, min_size=1, max_size=12) | st.binary(min_size=1, max_size=80)
aggregates = st.lists(
    st.tuples(texts, st.binary(max_size=140), st.none() | st.just("7"), st.just({}) | st.just({"a": "b"})),
    min_size=1,
    max_size=12,
).map(build_headed)


def frame(message):
    return MAGIC + message + md5(message, usedforsecurity=False).digest()


@st.composite
def damaged(draw):
    """An aggregate of which some bytes were changed, removed or repeated, under the right checksum."""
    message = bytearray(draw(aggregates)[4:-16])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(message)))
        length = draw(st.integers(0, 3))
        message[at : at + length] = draw(st.binary(max_size=3))
    return bytes(message) or b"\x00"


def check_split(message):
    blob = frame(message)
    expected = pure_twins["split_message"](blob)
    assert native.split_message(blob) == expected
    return expected


@thorough
@given(messages)
@example(b"\x1a\x04\x08\x00\x1a\x00")  # no table
@example(b"\x0a\x01k\x1a\x04\x08\x00\x1a\x00")
@example(b"\x1a\x04\x08\x00\x1a\x00\x0a\x01k")  # the table comes last
@example(b"\x0a\x01k\x1a\x06\x08\x00\x10\x00\x1a\x00")  # no table of hash keys
@example(b"\x0a\x01k\x1a\x0f\x08\x00\x10" + b"\xff" * 9 + b"\x01\x1a\x00")  # the largest index of a hash key
@example(b"\x0a\x01k\x1a\x0d\x1a\x00\x08" + b"\xff" * 9 + b"\x01")  # the largest index of a key
@example(b"\x0a\x01\xff\x1a\x04\x08\x00\x1a\x00")  # a key that is not UTF-8
@example(b"\x0a\x01k\x1a" + b"\xff" * 9 + b"\x01")  # a length of 2**64 - 1
@example(b"\x0a\x01k\x1a\x04\x08\x00\x1a\x01")  # the data reaches beyond its record
def test_messages_of_any_fields_are_split_alike(message):
    check_split(message)


@thorough
@given(damaged())
def test_damaged_aggregates_are_split_alike(message):
    check_split(message)


@thorough
@given(aggregates)
def test_valid_aggregates_are_split_alike(blob):
    assert check_split(blob[4:-16]) is not None


@given(st.lists(aggregates | messages.map(frame) | st.binary(max_size=30) | st.just(MAGIC + b"x" * 17), max_size=40))
def test_frames_are_found_alike(blobs):
    assert native.find_frames(blobs) == pure_twins["find_frames"](blobs) == [is_framed(blob) for blob in blobs]


@given(aggregates, st.integers(0, 10_000))
def test_one_wrong_byte_makes_a_frame_plain(blob, place):
    at = place % len(blob)
    wrong = blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]
    assert native.find_frames([wrong, blob]) == [False, True]


@given(st.lists(texts, max_size=40), st.integers(0, 2**128 - 1), st.integers(0, 2**128 - 1))
def test_keys_are_in_the_range_alike(keys, one, other):
    within = HashRange(min(one, other), max(one, other))
    found = native.keys_in_range(keys, *within.digests, {})
    assert found == pure_twins["keys_in_range"](keys, *within.digests, {})
    assert found == [hash_key_of(key) in within for key in keys]


def test_the_ends_belong_to_the_range():
    digest = md5(b"k", usedforsecurity=False).digest()
    assert native.keys_in_range(["k"], digest, digest, {}) == [True]


@given(st.lists(st.tuples(st.binary(max_size=5), texts), max_size=20))
def test_structs_are_made_alike(pairs):
    columns = ([data for data, _ in pairs], [key for _, key in pairs], (None,), ("1",), list(range(len(pairs))))
    columns += ((None,), (1.5,), ("s",), (True,), (UNKNOWN_ORIGIN,), (NO_HEADERS,))
    made = native.make_structs(Record, len(pairs), columns)
    assert made == pure_twins["make_structs"](Record, len(pairs), columns)
    assert list(map(repr, made)) == [
        repr(Record(data, key, None, "1", place, None, 1.5, "s", aggregated=True, origin=UNKNOWN_ORIGIN))
        for place, (data, key) in enumerate(pairs)
    ]
    assert [hash(record) for record in made] == [hash(msgspec.structs.replace(record)) for record in made]


class Two(msgspec.Struct, gc=False):
    first: object
    second: object


class Tracked(msgspec.Struct):
    first: object


class Plain:
    pass


@pytest.mark.parametrize(
    ("cls", "count", "columns"),
    [
        (Two, 1, ([1],)),
        (Two, 1, ([1], [2], [3])),
        (Two, 2, ([1], [2, 3])),
        (Two, 1, ([1], ())),
        (Two, 1, ([1], (1, 2))),
        (Two, 1, ([1], "x")),
        (Two, -1, ([], [])),
        (Two, 1, [[1], [2]]),
        (Two, "1", ([1], [2])),
        (Tracked, 1, ([1],)),
        (Plain, 1, ([1],)),
        (int, 1, ([1],)),
        (None, 1, ([1],)),
    ],
)
def test_structs_of_another_shape_are_refused(cls, count, columns):
    with pytest.raises(TypeError):
        native.make_structs(cls, count, columns)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("find_frames", [(b"x",)]),
        ("find_frames", [[b"x", None]]),
        ("find_frames", [[bytearray(b"x")]]),
        ("split_message", [None]),
        ("split_message", [b""]),
        ("split_message", [b"x" * 19]),
        ("keys_in_range", [["k"], bytes(16), bytes(15), {}]),
        ("keys_in_range", [["k"], bytes(16), bytes(16)]),
        ("keys_in_range", [("k",), bytes(16), bytes(16), {}]),
        ("keys_in_range", [[b"k"], bytes(16), bytes(16), {}]),
        ("make_structs", []),
    ],
)
def test_arguments_of_another_type_are_refused(name, arguments):
    with pytest.raises(TypeError):
        getattr(native, name)(*arguments)


def test_a_key_that_cannot_be_encoded_raises_as_in_the_pure_form():
    for function in (native.keys_in_range, pure_twins["keys_in_range"]):
        with pytest.raises(UnicodeEncodeError):
            function(["\ud800"], bytes(16), bytes(16), {})


def pages():
    headed = [
        (f"key-{n % 3}", bytes([n]), "7" if n % 4 == 0 else None, {"a": "b"} if n % 5 == 0 else {}) for n in range(40)
    ]
    return [build_headed(headed), b"plain", build_headed(headed[:1]), frame(b"\xff")] * 9


def test_a_deaggregator_returns_the_same_records_in_both_forms(monkeypatch):
    """Slices of every size, so that a slice ends before, inside and after sixteen entries that are checked at once."""
    raws = [RawRecord(data, str(100 + place), "k", 1.0) for place, data in enumerate(pages())]

    def read(enough):
        opener = Deaggregator("s", "shard", hash_range=HashRange(0, 2**127), drop=True)
        found, rest = [], raws
        while rest:
            records, opened = opener.open_some(rest, Origin(), enough)
            found.append(records)
            rest = rest[opened:]
        return found, opener.out_of_range

    compiled = [read(enough) for enough in (1, 39, 40, 200, 10_000)]
    monkeypatch.setattr(aggregation, "split_message", pure_twins["split_message"])
    for name in ("find_frames", "keys_in_range", "make_structs"):
        monkeypatch.setattr(deaggregator, name, pure_twins[name])
    monkeypatch.setattr(deaggregator, "FRAMES_AT_ONCE", 1)
    assert compiled == [read(enough) for enough in (1, 39, 40, 200, 10_000)]
    assert compiled[0][1] > 0


EXHAUST = """
import _testcapi, sys
from hashlib import md5
from shardline._speedups import native
from shardline.model.record import Record
from shardline.codec.aggregation import encode_aggregate, encode_tags
blob = encode_aggregate([f"k{n % 100}" for n in range(300)], [b"x" * 50] * 300, {5: "7"}, {n: b'"\\x00' for n in range(9)})
broken = b"\\xf3\\x89\\x9a\\xc2" + b"\\x0a\\x01\\xff" + md5(b"\\x0a\\x01\\xff").digest()
columns = ([b"x" * 9] * 300, *((None,),) * 9, (1,))
calls = {
    "find_frames": lambda: native.find_frames([blob, b"x", broken] * 9),
    "split_message": lambda: native.split_message(blob),
    "a broken message": lambda: native.split_message(broken),
    "keys_in_range": lambda: native.keys_in_range(["\\xe9" + str(n) for n in range(99)], bytes(16), b"\\xff" * 16, {}),
    "make_structs": lambda: native.make_structs(Record, 300, columns),
}
for name, call in calls.items():
    expected, refused = call(), 0
    for start in range(1_500):
        _testcapi.set_nomemory(start)
        try:
            found = call()
        except MemoryError:
            _testcapi.remove_mem_hooks()
            refused += 1
            continue
        _testcapi.remove_mem_hooks()
        assert found == expected, name
        break
    else:
        sys.exit(f"{name} never succeeded")
    print(name, refused)
"""


def test_short_memory_raises_and_never_crashes():
    """Every allocation fails once, from the first on."""
    pytest.importorskip("_testcapi")  # some distributions leave this module of CPython out
    done = subprocess.run([sys.executable, "-c", EXHAUST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()}
    assert len(refused) == 5
    assert all(count > 0 for count in refused.values()), refused


@pytest.mark.parametrize("is_broken", [False, True])
def test_nothing_is_leaked(is_broken):
    blobs = [blob + b"x" if is_broken else blob for blob in pages()]
    broken = frame(build_headed([("k", b"x", "7", {"a": "b"})] * 30)[4:-17])

    def run():
        native.find_frames(blobs)
        native.split_message(broken if is_broken else blobs[0])
        native.keys_in_range(["é", "b"] * 20, bytes(16), b"\xff" * 16, {})
        native.make_structs(Record, 3, ([b"x"] * 3, *((None,),) * 10))
        for function, arguments in ((native.split_message, [1]), (native.make_structs, [Two, 2, ([1],)])):
            with pytest.raises(TypeError):
                function(*arguments)

    run()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(300):
        run()
    gc.collect()
    assert sys.getallocatedblocks() - before < 200


def test_one_aggregate_alone_is_opened_alike():
    assert [split_columns(blob) is None for blob in pages()[:4]] == [False, True, False, True]
