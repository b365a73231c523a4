"""Is a record that was written as a line read back as it was?"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline import UsageError
from shardline.cli.record_lines import NO_KEY, PlainRecord, line_of, record_of

KEYS = st.none() | st.text(st.characters(codec="utf-8"), min_size=1)


@given(KEYS, st.binary() | st.text(st.characters(codec="utf-8")).map(str.encode), st.none() | st.just("7"))
def test_what_is_written_is_read_back(key, data, explicit_hash_key):
    record = PlainRecord(key, data, explicit_hash_key)
    line = line_of(record, error="Expired", message="too late", line=3, maybe_stored=True)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert record_of(line) == record


def test_text_is_text_and_the_rest_is_base64():
    assert json.loads(line_of(PlainRecord("k", "ü".encode()))) == {"key": "k", "data": "ü"}
    assert json.loads(line_of(PlainRecord(None, b"\xff"))) == {"key": None, "data_base64": "/w=="}


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b'{"data": 1}', b'{"data": "x", "data_base64": "eA=="}', b'{"data_base64": "?"}', b"\xff"],
)
def test_what_is_no_record(line):
    with pytest.raises(UsageError):
        record_of(line)


def test_a_line_that_was_to_have_a_key_goes_nowhere_without_one():
    line = line_of(PlainRecord(None, b"x"), error=NO_KEY)
    with pytest.raises(UsageError, match="it has no key"):
        record_of(line)
    assert record_of(line, lambda data: data.decode() + "!") == PlainRecord("x!", b"x")
    assert record_of(line_of(PlainRecord("own", b"x")), lambda _: "other").key == "own"
