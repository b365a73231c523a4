"""Do the ready-made middleware compress, decompress and validate every record, or refuse it?"""

import gzip
import pickle
import sys
import zlib
from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline import Record, UsageError
from shardline.middleware import RecordToPut, compress, decompress, replace, validate

ENCODINGS = ["gzip", "zstd"]
TEXT = b'{"id": 1, "name": "a name that repeats"}' * 20


def put(data, **headers):
    return RecordToPut(data, "k", headers=headers)


def read(record):
    return Record(record.data, record.key, None, "1", headers=record.headers)


# ---- compression


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_data_is_compressed_and_decompressed(encoding):
    sent = compress(encoding)(RecordToPut(TEXT, "k", "7", {"a": "b"}))
    assert len(sent.data) < len(TEXT) / 5
    assert (sent.key, sent.explicit_hash_key, dict(sent.headers)) == (
        "k",
        "7",
        {"a": "b", "content-encoding": encoding},
    )
    found = decompress()(read(sent))
    assert (found.data, dict(found.headers), found.sequence_number) == (TEXT, {"a": "b"}, "1")


def test_any_gzip_program_can_read_the_data():
    assert gzip.decompress(compress()(put(TEXT)).data) == TEXT
    assert compress()(put(TEXT)) == compress()(put(TEXT)), "the data contains no time"


@given(st.binary(max_size=2_000), st.sampled_from(ENCODINGS), st.integers(0, 500))
def test_any_data_survives_and_never_grows(data, encoding, min_bytes):
    sent = compress(encoding, min_bytes=min_bytes)(put(data))
    assert len(sent.data) <= len(data)
    assert decompress()(read(sent)).data == data


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("level", [1, 9])
def test_levels(encoding, level):
    assert decompress()(read(compress(encoding, level=level)(put(TEXT)))).data == TEXT


def test_small_random_and_encoded_records_are_put_as_they_are():
    small, random = put(b"x" * 255), put(bytes(range(256)) * 2)
    encoded = RecordToPut(TEXT, headers={"content-encoding": "br"})
    assert compress()(small) is small
    assert compress(min_bytes=0)(put(b"")).data == b""
    assert compress(level=1)(replace(random, data=random.data[:300])).headers == {}
    assert compress()(encoded) is encoded


def test_records_without_the_header_are_read_as_they_are():
    record = Record(b"\x1f\x8b plain", "k")
    assert decompress()(record) is record
    identity = Record(b"plain", "k", headers={"content-encoding": "identity"})
    assert (decompress()(identity).data, dict(decompress()(identity).headers)) == (b"plain", {})


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_bomb_is_refused_without_unpacking_it(encoding):
    bomb = compress(encoding, max_bytes=2**28)(put(bytes(2**25)))
    with pytest.raises(ValueError, match="more than 1000000 bytes"):
        decompress(max_bytes=1_000_000)(read(bomb))
    assert len(decompress(max_bytes=2**25)(read(bomb)).data) == 2**25
    with pytest.raises(UsageError, match="at most 10 bytes, this one has 800: set max_bytes"):
        compress(encoding, max_bytes=10)(put(TEXT[:800]))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_damaged_data_is_refused(encoding):
    packed = compress(encoding)(put(TEXT))
    for data in (b"", b"no", packed.data[:-1], packed.data[:5], packed.data * 2, packed.data + b"x", TEXT):
        with pytest.raises(ValueError, match=f"not valid {encoding}"):
            decompress()(read(replace(packed, data=data)))


@given(st.binary(max_size=200), st.sampled_from(ENCODINGS))
def test_any_bytes_are_read_or_refused(data, encoding):
    try:
        decompress()(Record(data, "k", headers={"content-encoding": encoding}))
    except ValueError as error:
        assert "not valid" in str(error)  # noqa: PT017 - most bytes are refused, but not all
    else:
        assert data


class Unknown:
    """Neither a dataclass nor a Struct."""


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "gzip,zstd", "GZIP", "", "\u0000"])
def test_an_unknown_encoding_is_refused(encoding):
    with pytest.raises(ValueError, match="this record has another one"):
        decompress()(Record(TEXT, "k", headers={"content-encoding": encoding}))


def test_zstd_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "compression", None)
    monkeypatch.setitem(sys.modules, "backports", None)
    with pytest.raises(UsageError, match=r"shardline\[zstd\]"):
        compress("zstd")
    with pytest.raises(UsageError, match=r"shardline\[zstd\]"):
        decompress()(Record(TEXT, "k", headers={"content-encoding": "zstd"}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: compress("br"), "encoding must be 'gzip' or 'zstd', not 'br'"),
        (lambda: compress([]), r"encoding must be 'gzip' or 'zstd', not \[\]"),
        (lambda: compress(level=10), "level must be a whole number from 1 to 9, not 10"),
        (lambda: compress("zstd", level=True), "level must be a whole number from 1 to 22, not True"),
        (lambda: compress(min_bytes=-1), "min_bytes must be a whole number of bytes, 0 or more, not -1"),
        (lambda: decompress(max_bytes=1.5), r"max_bytes must be a whole number of bytes, 0 or more, not 1\.5"),
        (lambda: validate(zlib.compressobj), "validate cannot check this type"),
        (lambda: validate(Unknown), "msgspec does not know the class Unknown"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(UsageError, match=message):
        make()


# ---- validation


class Struct(msgspec.Struct):
    id: int
    name: str = ""


@dataclass
class Data:
    id: int


class Typed(TypedDict):
    id: int


class Model(pydantic.BaseModel):
    id: int


@pytest.mark.parametrize("schema", [Struct, Data, Typed, Model, dict[str, int]])
def test_valid_and_invalid_data(schema):
    check = validate(schema)
    valid, invalid = put(b'{"id": 1}'), put(b'{"id": "secret"}')
    assert check(valid) is valid
    assert check(read(valid)) == read(valid)
    for data in (invalid, put(b"no json"), put(b""), put(b"\xff"), put(b"[" * 100_000)):
        with pytest.raises(UsageError, match="the data is not a valid") as refused:
            check(data)
        with pytest.raises(ValueError, match="the data is not a valid") as failed:
            check(read(data))
        for error in (refused.value, failed.value):
            assert "secret" not in str(error)
            assert error.__cause__ is None


def test_the_message_says_where_the_data_is_wrong():
    with pytest.raises(UsageError, match=r"the data is not a valid Struct: wrong at \$\.id$"):
        validate(Struct)(put(b'{"id": "x"}'))
    with pytest.raises(UsageError, match=r"the data is not a valid Model: int_parsing$"):
        validate(Model)(put(b'{"id": "x"}'))


def test_middleware_can_be_sent_to_a_process():
    for each in (compress(), decompress(), validate(Struct)):
        assert repr(pickle.loads(pickle.dumps(each))) == repr(each)
