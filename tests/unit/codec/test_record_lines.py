"""Tests of ``codec.record_lines``."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline import UsageError
from shardline.codec.record_lines import NO_KEY, PlainRecord, format_problem, line_of, record_of, shown_time
from shardline.model.headers import NO_HEADERS, Headers

KEYS = st.none() | st.text(st.characters(codec="utf-8"), min_size=1)
OLD = (
    b'{"stream": "s", "shard_id": "shardId-0", "sequence_number": "1", "sub_sequence": 0, "key": "k", '
    b'"explicit_hash_key": null, "arrived_at": 1.5, "data": "aGVsbG8=", "attempts": 2, "error": "ValueError: x", '
    b'"buried_at": 1700000000.25}'
)


HEADERS = st.none() | st.dictionaries(
    st.sampled_from(["a", "b-bin"]), st.text(st.characters(codec="utf-8")), min_size=1
)


@given(KEYS, st.binary() | st.text(st.characters(codec="utf-8")).map(str.encode), st.none() | st.just("7"), HEADERS)
def test_what_is_written_is_read_back(key, data, explicit_hash_key, headers):
    record = PlainRecord(key, data, explicit_hash_key, headers)
    line = line_of(record, error="Expired", message="too late", line=3, maybe_stored=True)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert record_of(line) == record
    assert format_problem(line) is None


def test_text_is_text_and_the_rest_is_base64():
    assert json.loads(line_of(PlainRecord("k", "ü".encode()))) == {"version": 1, "key": "k", "data": "ü"}
    assert json.loads(line_of(PlainRecord(None, b"\xff"))) == {"version": 1, "key": None, "data_base64": "/w=="}
    text = base64.b64encode(b"text that looks like base64")
    assert record_of(line_of(PlainRecord("k", text))).data == text


def test_only_a_line_with_headers_has_the_version_that_older_readers_refuse():
    line = line_of(PlainRecord("k", b"x", None, Headers({"a": "1"})))
    assert json.loads(line) == {"version": 2, "key": "k", "data": "x", "headers": {"a": "1"}}
    assert json.loads(line_of(PlainRecord("k", b"x", None, NO_HEADERS))) == {"version": 1, "key": "k", "data": "x"}
    assert record_of(b'{"data": "x", "headers": {"a": "1"}}') == PlainRecord(None, b"x", None, {"a": "1"})
    assert record_of(b'{"data": "x", "headers": {}}') == PlainRecord(None, b"x")


@pytest.mark.parametrize("headers", [b'"a=1"', b'["a"]', b'{"a": 1}'])
def test_headers_that_are_not_text_make_no_record(headers):
    with pytest.raises(UsageError, match=r"not a record as JSON: .*headers"):
        record_of(b'{"data": "x", "headers": %b}' % headers)


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b'{"data": 1}', b'{"data": "x", "data_base64": "eA=="}', b'{"data_base64": "?"}', b"\xff"],
)
def test_what_is_no_record(line):
    with pytest.raises(UsageError):
        record_of(line)
    assert format_problem(line) is None


def test_unknown_members_are_ignored_and_a_version_is_optional():
    assert record_of(b'{"data": "x", "headers_to_come": {"a": 1}}') == PlainRecord(None, b"x")


@pytest.mark.parametrize("version", [-1, 0, 3, 2_000])
def test_another_version_is_refused(version):
    line = b'{"version": %d, "key": "k", "data": "x"}' % version
    message = f"a record in version {version} of the format: this Shardline reads versions 1 and 2"
    assert format_problem(line) == message
    with pytest.raises(UsageError, match=message):
        record_of(line)


def test_a_dead_letter_of_the_old_format_is_refused():
    assert "in the format of an older Shardline" in format_problem(OLD)
    with pytest.raises(UsageError, match="rename that member to data_base64, and remove buried_at"):
        record_of(OLD)
    # and the advice works
    mended = json.loads(OLD)
    mended["data_base64"] = mended.pop("data")
    del mended["buried_at"]
    assert record_of(json.dumps(mended).encode()) == PlainRecord("k", b"hello")


def test_a_broken_line_that_mentions_a_version_is_left_to_record_of():
    assert format_problem(b'{"version": ') is None
    assert format_problem(b'{"version": "one", "data": "x"}') is None
    assert format_problem(b'"version" \xff') is None
    with pytest.raises(UsageError, match="not a record as JSON"):
        record_of(b'{"version": "one", "data": "x"}')


def test_a_line_that_was_to_have_a_key_goes_nowhere_without_one():
    line = line_of(PlainRecord(None, b"x"), error=NO_KEY)
    with pytest.raises(UsageError, match="it has no key"):
        record_of(line)
    assert record_of(line, lambda data: data.decode() + "!") == PlainRecord("x!", b"x")
    assert record_of(line_of(PlainRecord("own", b"x")), lambda _: "other").key == "own"


def test_times_are_in_utc():
    assert shown_time(1_700_000_000.25) == "2023-11-14T22:13:20.250Z"
