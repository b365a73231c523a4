"""CBOR for any value and any bytes, alone and against cbor2."""

import math
import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.codec.cbor import CborError, decode, encode, head

thorough = settings(max_examples=70, deadline=None)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text("ab", min_size=20, max_size=300)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.integers(-300, 300)
    | st.floats(allow_nan=False, allow_infinity=False)  # cbor2 writes the others in two bytes
    | texts
    | st.binary(max_size=40)
    | st.binary(min_size=250, max_size=260)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


def same(one, other):
    """Whether two values are equal, of equal types. A NaN equals a NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


def theirs(data):
    """Return the value that cbor2 reads, configured for AWS's milliseconds and to drop other tags as we do;
    ``undefined`` is None.
    """
    known = (0, 4, 5, 25, 28, 29, 30, 35, 36, 37, 43, 52, 54, 100, 256, 258, 260, 261, 1004, 43_000, 55_799)
    dropped = dict.fromkeys(known, lambda value, _: value)
    return plain(
        cbor2.loads(
            data,
            semantic_decoders=dropped | {1: lambda value, _: value / 1000.0},
            tag_hook=lambda tag, _: tag.value,
            allow_duplicate_keys=True,
        )
    )


def plain(value):
    """Undo that cbor2 makes values inside a tag immutable."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return None if value is cbor2.undefined else value


# ---- round trips, in both directions with cbor2


@thorough
@given(values)
def test_what_is_written_is_read_back(value):
    assert same(decode(encode(value)), value)


@thorough
@given(values)
def test_we_write_what_cbor2_writes_and_it_reads_ours(value):
    assert encode(value) == cbor2.dumps(value)
    assert same(theirs(encode(value)), value)


@thorough
@given(values, st.booleans(), st.booleans())
def test_we_read_what_cbor2_writes_in_all_its_styles(value, canonical, indefinite):
    assert same(decode(cbor2.dumps(value, canonical=canonical, indefinite_containers=indefinite)), value)


@thorough
@given(st.floats())
def test_every_float_is_written_in_eight_bytes_and_read_by_both(number):
    assert len(encode(number)) == 9
    assert same(decode(encode(number)), number)
    assert same(theirs(encode(number)), number)


@thorough
@given(st.integers(-(2**200), 2**200))
def test_big_numbers_of_cbor2_are_ints(number):
    assert decode(cbor2.dumps(number)) == number


@thorough
@given(st.datetimes(timezones=st.timezones() | st.just(UTC)))
def test_datetimes_travel_as_milliseconds(when):
    milliseconds = (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert cbor2.loads(encode(when), semantic_decoders={1: lambda value, _: value}) == milliseconds
    assert decode(encode([when, {"at": when}])) == [milliseconds / 1000.0, {"at": milliseconds / 1000.0}]


# ---- every way to write a value, from an encoder that chooses at random


@st.composite
def loose_heads(draw, major, length):
    """Draw any head for this length: the shortest, or a wider one."""
    widths = [code for code, limit in ((24, 8), (25, 16), (26, 32), (27, 64)) if length < 1 << limit]
    code = draw(st.sampled_from([None, *widths]))
    if code is None:
        return head(major, length)
    return bytes((major << 5 | code,)) + length.to_bytes(1 << (code - 24), "big")


@st.composite
def loose_strings(draw, text):
    major = 3 if isinstance(text, str) else 2
    if draw(st.booleans()):
        raw = text.encode() if major == 3 else text
        return draw(loose_heads(major, len(raw))) + raw
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    raws = [chunk.encode() if major == 3 else chunk for chunk in chunks]
    return bytes((major << 5 | 31,)) + b"".join([draw(loose_heads(major, len(raw))) + raw for raw in raws]) + b"\xff"


@st.composite
def loose_items(draw, value):
    if draw(st.integers(0, 9)) == 0:
        tag = draw(st.sampled_from([0, 5, 24, 42, 55_799, 2**64 - 1]))
        return draw(loose_heads(6, tag)) + draw(loose_items(value))
    if isinstance(value, (str, bytes)):
        return draw(loose_strings(value))
    if isinstance(value, (list, dict)):
        major = 4 if isinstance(value, list) else 5
        inner = [item for entry in value.items() for item in entry] if major == 5 else value
        body = b"".join([draw(loose_items(item)) for item in inner])
        if draw(st.booleans()):
            return bytes((major << 5 | 31,)) + body + b"\xff"
        return draw(loose_heads(major, len(value))) + body
    if isinstance(value, int) and not isinstance(value, bool):
        return draw(loose_heads(0, value) if value >= 0 else loose_heads(1, -1 - value))
    if isinstance(value, float):
        return draw(st.sampled_from(float_forms(value)))
    return encode(value) if value is not None else draw(st.sampled_from([b"\xf6", b"\xf7"]))


def float_forms(value):
    forms = []
    for first, form in ((0xF9, ">e"), (0xFA, ">f"), (0xFB, ">d")):
        try:
            raw = struct.pack(form, value)
        except OverflowError:
            continue
        if struct.unpack(form, raw)[0] == value:
            forms.append(bytes((first,)) + raw)
    return forms


written = st.shared(values, key="value").flatmap(loose_items)


@thorough
@given(st.shared(values, key="value"), written)
def test_every_way_to_write_a_value_gives_the_value(value, data):
    assert same(decode(data), value)
    assert same(theirs(data), value)


# ---- any bytes at all


@settings(max_examples=40, deadline=None)
@given(written)
def test_no_beginning_of_an_item_is_an_item_nor_is_one_with_more_behind_it(data):
    for end in {*range(min(len(data), 40)), *range(max(0, len(data) - 40), len(data))}:
        with pytest.raises(CborError):
            decode(data[:end])
    with pytest.raises(CborError, match="follow"):
        decode(data + b"\x00")


def check_any(data):
    """Check that the result is a value or a ``CborError``, and a value only if cbor2, which supports more, reads the
    same.
    """
    try:
        value = decode(data)
    except CborError:
        return
    assert same(theirs(data), value)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=8))
def test_random_bytes_are_a_value_or_an_error(data):
    check_any(data)


@settings(max_examples=100, deadline=None)
@given(written, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255), st.sampled_from("=+-")), max_size=4))
def test_mutations_of_items_are_a_value_or_an_error(data, mutations):
    mutated = bytearray(data)
    for place, byte, kind in mutations:
        at = place % (len(mutated) + 1)
        mutated[at : at + (kind != "+")] = bytes((byte,)) if kind != "-" else b""
    check_any(bytes(mutated))


@thorough
@given(st.lists(st.sampled_from([b"\x81", b"\x9f", b"\xa1", b"\xa1\x60", b"\xbf\x60", b"\xc1", b"\xc6"]), max_size=300))
def test_depth_bombs_are_refused(openings):
    with pytest.raises(CborError):
        decode(b"".join(openings))


@thorough
@given(st.integers(2, 5), st.integers(2**7, 2**64 - 1), st.binary(max_size=100))
def test_length_bombs_are_refused(major, length, rest):
    with pytest.raises(CborError, match="ends inside"):
        decode(head(major, length) + rest)


# ---- values that cannot be written

strange = scalars | st.sampled_from([{1}, object, 1j, range(3), "\ud800", 2**64])


@thorough
@given(strange | st.lists(strange, max_size=3) | st.dictionaries(st.integers() | texts, strange, max_size=3))
def test_any_value_is_written_or_refused(value):
    try:
        data = encode(value)
    except CborError:
        return
    assert same(decode(data), value)
