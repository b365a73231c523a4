"""The headers of a record: what a put accepts, and what a reader gets."""

import pickle
from collections.abc import Mapping

import pytest

from shardline.errors import UsageError
from shardline.model.headers import (
    HEADER_NAME_MAX_LENGTH,
    HEADERS_MAX_BYTES,
    HEADERS_MAX_COUNT,
    NO_HEADERS,
    Headers,
    check_headers,
    valid_headers,
)
from shardline.model.record import Record, options_of_tuple

EVERY_CHARACTER = "!#$%&'*+-.^_`|~0123456789ABCXYZabcxyz"


class Text(str):
    __slots__ = ()


class TestHeaders:
    def test_are_a_mapping_that_cannot_be_changed(self):
        headers = Headers({"a": "1", "b": "2"})
        assert isinstance(headers, Mapping)
        assert (headers["a"], headers.get("c"), list(headers), len(headers)) == ("1", None, ["a", "b"], 2)
        assert headers == {"b": "2", "a": "1"}
        assert headers != {"a": "1"}
        with pytest.raises(TypeError):
            headers["a"] = "2"
        assert not hasattr(headers, "__dict__")

    def test_do_not_follow_the_mapping_that_they_were_made_of(self):
        source = {"a": "1"}
        headers = Headers(source)
        source["a"] = "2"
        assert headers == {"a": "1"}

    def test_can_be_hashed_shown_and_pickled(self):
        headers = Headers({"a": "1", "b": "2"})
        assert hash(headers) == hash(Headers({"b": "2", "a": "1"}))
        assert repr(headers) == "Headers({'a': '1', 'b': '2'})"
        assert pickle.loads(pickle.dumps(headers)) == headers

    def test_a_record_without_headers_has_the_shared_empty_ones_and_can_be_hashed(self):
        record = Record(b"", "k")
        assert record.headers is NO_HEADERS
        assert not record.headers
        assert len({record, Record(b"", "k"), Record(b"", "k", headers=Headers({"a": "1"}))}) == 2


class TestChecking:
    def test_no_headers(self):
        assert check_headers(None) == check_headers({}) == {}

    def test_text_of_any_kind(self):
        given = {"traceparent": "00-1", "Empty": "", "lines": "a\nb\x00", "é".encode().hex(): "é\U0001f600"}
        assert check_headers(given) == given

    def test_subclasses_become_plain_text(self):
        ((name, value),) = check_headers({Text("a"): Text("b")}).items()
        assert (type(name), type(value)) == (str, str)

    @pytest.mark.parametrize("value", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")])
    def test_bytes_go_as_base64_under_a_binary_name(self, value):
        assert check_headers({"proof-bin": value}) == {"proof-bin": "AP8="}

    def test_text_under_a_binary_name_stays(self):
        assert check_headers({"proof-bin": "AP8="}) == {"proof-bin": "AP8="}

    @pytest.mark.parametrize("name", [*EVERY_CHARACTER, "x" * HEADER_NAME_MAX_LENGTH])
    def test_every_character_of_a_name(self, name):
        assert check_headers({name: "x"}) == {name: "x"}

    @pytest.mark.parametrize(
        ("headers", "said"),
        [
            ([("a", "b")], "headers must be a mapping of names to values, not list"),
            ("a=b", "headers must be a mapping of names to values, not str"),
            ({1: "x"}, "a header's name must be a str, not int"),
            ({"": "x"}, r"a header's name has 1 to 128 ASCII letters, .* unlike ''"),
            ({"x" * 129: "x"}, "unlike 'xxx"),
            ({"a b": "x"}, "unlike 'a b'"),
            ({"a=b": "x"}, "unlike 'a=b'"),
            ({"a:": "x"}, "unlike 'a:'"),
            ({"a\n": "x"}, r"unlike 'a\\n'"),
            ({"é": "x"}, "unlike 'é'"),
            ({"a": 1}, "the header 'a' must be a str, not int"),
            ({"a": None}, "the header 'a' must be a str, not NoneType"),
            (
                {"a": b"x"},
                "the header 'a' must be a str: bytes need a name that ends in '-bin', and are sent as base64",
            ),
            ({"a": "\ud800"}, "the header 'a' has a lone surrogate, which UTF-8 cannot encode"),
        ],
    )
    def test_an_error_says_what_is_wrong(self, headers, said):
        with pytest.raises(UsageError, match=said):
            check_headers(headers)

    def test_the_number_is_limited(self):
        most = {f"h{place}": "" for place in range(HEADERS_MAX_COUNT)}
        assert check_headers(most) == most
        with pytest.raises(UsageError, match="a record takes at most 64 headers, not 65"):
            check_headers(most | {"one-more": ""})

    @pytest.mark.parametrize("value", ["x" * (HEADERS_MAX_BYTES - 1), "é" * 8_191 + "x"])
    def test_the_size_is_limited_in_bytes_of_utf_8(self, value):
        assert check_headers({"n": value}) == {"n": value}
        said = "the headers of a record take at most 16384 bytes with their names, these have 16385"
        with pytest.raises(UsageError, match=said):
            check_headers({"n": value + "x"})


class TestReading:
    def test_none(self):
        assert valid_headers([]) is NO_HEADERS
        assert valid_headers([("", "x"), ("a b", "x")]) is NO_HEADERS

    def test_the_last_of_two_counts_and_others_are_left_out(self):
        assert valid_headers([("a", "1"), ("", "x"), ("b", "2"), ("a", "3"), ("x" * 129, "")]) == {"a": "3", "b": "2"}

    def test_beyond_the_limits_the_first_that_fit_are_kept(self):
        many = [(f"h{place}", "") for place in range(HEADERS_MAX_COUNT + 9)]
        assert list(valid_headers(many).items()) == many[:HEADERS_MAX_COUNT]
        large = [("a", "1"), ("b", "é" * 8_192), ("c", "x" * (HEADERS_MAX_BYTES - 3))]
        assert list(valid_headers(large)) == ["a", "c"]
        assert list(valid_headers([*large, ("d", "")])) == ["a", "c"]

    def test_what_is_read_can_be_put_again(self):
        headers = valid_headers([(f"h{place}", "é" * 500) for place in range(99)])
        assert headers
        assert check_headers(headers) == headers


def test_a_mapping_in_the_third_place_of_three_is_headers():
    headers = {"a": "1"}
    assert options_of_tuple(("k", b"")) == (None, None)
    assert options_of_tuple(("k", b"", "7")) == ("7", None)
    assert options_of_tuple(("k", b"", None)) == (None, None)
    assert options_of_tuple(("k", b"", headers)) == (None, headers)
    assert options_of_tuple(("k", b"", "7", headers)) == ("7", headers)
    assert options_of_tuple(("k", b"", headers, None)) == (headers, None), "an explicit hash key that will be refused"
