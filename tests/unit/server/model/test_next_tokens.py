"""Tests of ``server.model.next_tokens``."""

from base64 import b64decode

from hypothesis import given
from hypothesis import strategies as st

from shardline.model.limits import ITERATOR_MAX_LENGTH
from shardline.server.model.next_tokens import IteratorToken, PageToken, Tokens

ITERATOR = IteratorToken("s", 1, 3, 7, 2.5, 99)
PAGE = PageToken("ListShards", "s", 1, "shardId-000000000003", ("AT_TIMESTAMP", None, 4.0), 2.5)


def test_a_token_is_read_back_as_what_it_is_and_as_nothing_else():
    tokens = Tokens(b"secret")
    assert tokens.read_iterator(tokens.write(ITERATOR)) == ITERATOR
    assert tokens.read_page(tokens.write(PAGE)) == PAGE
    assert tokens.read_page(tokens.write(ITERATOR)) is None
    assert tokens.read_iterator(tokens.write(PAGE)) is None


def test_a_token_of_another_server_is_invalid():
    assert Tokens(b"other").read_iterator(Tokens(b"secret").write(ITERATOR)) is None


def test_an_iterator_looks_like_one_of_aws_and_is_never_too_long():
    longest = IteratorToken("s" * 128, 1_700_000_000, 2**32, 2**60, 1.7e9, 2**32 - 1)
    text = Tokens(b"secret").write(longest)
    assert text.startswith("AAAAAAAAAAE"[:10])
    assert len(text) <= ITERATOR_MAX_LENGTH


@given(st.text("abc", max_size=128))
def test_the_length_of_an_iterator_is_one_that_aws_has(name):
    raw = b64decode(Tokens(b"secret").write(IteratorToken(name, 1_700_000_000, 3, 7, 1.7e9, 2**31)))
    assert raw[:8] == b"\x00\x00\x00\x00\x00\x00\x00\x01"
    assert len(raw) >= 152
    assert (len(raw) - 152) % 16 == 0


@given(st.integers(0, 200), st.integers(0, 255))
def test_a_changed_token_is_invalid(at, value):
    tokens = Tokens(b"secret")
    text = tokens.write(ITERATOR)
    changed = text[: at % len(text)] + chr(value) + text[at % len(text) + 1 :]
    assert changed == text or tokens.read_iterator(changed) is None


def test_other_base64_of_the_same_bytes_is_invalid():
    tokens = Tokens(b"secret")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    checked = 0
    for name in ("s", "s" * 112, "s" * 128):
        token = IteratorToken(name, 1_700_000_000, 3, 7, 2.5, 99)
        text = tokens.write(token)
        last = len(text.rstrip("=")) - 1
        same = [
            other
            for letter in alphabet
            if (other := text[:last] + letter + text[last + 1 :]) != text and b64decode(other) == b64decode(text)
        ]
        checked += len(same)
        assert tokens.read_iterator(text) == token
        assert [tokens.read_iterator(other) for other in same] == [None] * len(same)
    assert checked == 3 + 15  # one ends in "=", one in "==", one in neither


@given(st.text(max_size=60) | st.text("ABCabc019+/=", max_size=60))
def test_a_garbage_token_is_invalid(text):
    assert Tokens(b"secret").read_iterator(text) is None
    assert Tokens(b"secret").read_page(text) is None
