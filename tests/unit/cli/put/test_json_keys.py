"""Is the key of a line found, and a line without one refused?"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline import UsageError
from shardline.cli.put.json_keys import key_finder

NAMES = st.text(st.characters(codec="utf-8", exclude_characters='."\\', min_codepoint=32), min_size=1, max_size=5)


@given(st.lists(NAMES, min_size=1, max_size=4), st.text(st.characters(codec="utf-8")) | st.integers())
def test_a_key_is_found_wherever_it_is(names, key):
    value = key
    for name in reversed(names):
        value = {"other": [1, {"x": None}], name: value}
    assert key_finder(".".join(names))(json.dumps(value).encode()) == str(key)


@pytest.mark.parametrize(
    "line",
    [
        *[b"", b"{", b"[]", b"7", b"null", b"{}", b'{"a": {}}', b'{"a": null}', b'{"a": 1}', b'{"a": {"b": null}}'],
        *[b'{"a": {"b": [1]}}', b'{"a": {"b": {}}}', b'{"a": {"b": true}}', b"\xff", b'{"a": {"b": "\xff"}}'],
        b'{"a": {"b": 1}} x',
    ],
)
def test_a_line_without_a_key(line):
    with pytest.raises(UsageError):
        key_finder("a.b")(line)


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", 'a"b', "a\\b", "a\nb"])
def test_what_is_no_path(path):
    with pytest.raises(UsageError, match=r"a field is named as in id or customer\.id"):
        key_finder(path)
