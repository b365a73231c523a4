"""Do the ready-made deserializers return all values of a record, or refuse it?"""

import json

import pytest

from shardline.deserializers import json_lines, json_list, length_prefixed, netstrings


@pytest.mark.parametrize(
    ("data", "values"),
    [(b"", []), (b"1", [1]), (b'{"a": 1}\n{"b": 2}\n', [{"a": 1}, {"b": 2}]), (b"1\r\n\n \n2", [1, 2])],
)
def test_json_lines(data, values):
    assert json_lines(data) == values


@pytest.mark.parametrize("data", [b"1\nno", b"{", b"\xff"])
def test_what_is_no_json_is_refused(data):
    with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
        json_lines(data)
    with pytest.raises((json.JSONDecodeError, UnicodeDecodeError)):
        json_list(data)


@pytest.mark.parametrize("reader", [json_lines, json_list])
@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000])
def test_json_that_is_nested_too_deeply_is_refused(reader, data):
    """Regression: it raised a RecursionError."""
    with pytest.raises(ValueError, match="nested too deeply"):
        reader(data)


def test_json_lists():
    assert json_list(b"[]") == []
    assert json_list(b'[1, {"a": [2]}]') == [1, {"a": [2]}]
    with pytest.raises(ValueError, match="expected a JSON array, not dict"):
        json_list(b"{}")


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b"", []),
        (b"0:,", [b""]),
        (b"3:abc,", [b"abc"]),
        (b"3:a:,,1:,,", [b"a:,", b","]),
        (b"10:0123456789,", [b"0123456789"]),
    ],
)
def test_netstrings(data, values):
    assert netstrings(data) == values


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"abc", "at byte 0: expected a length"),
        (b":abc,", "at byte 0: expected a length"),
        (b"3:abc", "at byte 0: no comma after its 3 bytes"),
        (b"3:abc,4:abc,", "at byte 6: no comma"),
        (b"-1:a,", "at byte 0: expected a length"),
        (b"0000000000000003:abc,", "at byte 0: expected a length"),
    ],
)
def test_what_is_no_netstring_is_refused(data, told):
    with pytest.raises(ValueError, match=told):
        netstrings(data)


def test_length_prefixed_values():
    assert length_prefixed(b"\0\0\0\1a\0\0\0\0") == [b"a", b""]
    with pytest.raises(ValueError, match="2 bytes announced, 1 found"):
        length_prefixed(b"\0\0\0\2a")
