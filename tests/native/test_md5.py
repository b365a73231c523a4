"""Does the MD5 of many messages equal the MD5 of each?"""

from hashlib import md5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline._speedups import native

pytestmark = pytest.mark.skipif(native is None, reason="the pure form has no MD5 of its own")

EDGES = [0, 1, 54, 55, 56, 57, 63, 64, 65, 118, 119, 120, 121, 127, 128, 129, 1023, 1024]


def expected(messages):
    return [md5(message).digest() for message in messages]


@given(st.lists(st.binary(max_size=300) | st.sampled_from(EDGES).map(lambda size: b"\xa5" * size), max_size=60))
def test_messages_of_any_number_and_size(messages):
    assert native.md5_many(messages) == expected(messages)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 15, 16, 17, 33])
def test_every_edge_in_every_place(count):
    messages = [bytes([place]) * EDGES[(place + count) % len(EDGES)] for place in range(count)]
    assert native.md5_many(messages) == expected(messages)


def test_one_long_message_among_short_ones():
    messages = [b"a" * 36] * 20 + [b"b" * 1_000_000] + [b"c"] * 20
    assert native.md5_many(messages) == expected(messages)


@pytest.mark.parametrize("wrong", [None, (b"a",), ["a"], [b"a", None], [bytearray(b"a")]])
def test_another_type_is_refused(wrong):
    with pytest.raises(TypeError, match="list of bytes"):
        native.md5_many(wrong)
