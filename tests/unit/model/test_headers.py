"""The headers of a record: what a put accepts, and what a reader gets."""

import pickle
import sys
import threading
import time
from collections.abc import Mapping
from enum import Enum
from itertools import count

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


class Name(str, Enum):  # noqa: UP042 - a StrEnum would be harmless
    """``str()`` of a member is its name, not its value."""

    TRACE = "traceparent"


class Odd(str):
    """A text whose methods do not say what it is."""

    __slots__ = ()

    def __str__(self):
        return "another"

    def __len__(self):
        return 0

    def isascii(self):
        return True

    def encode(self, *_):
        return b""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return self is other


class Source(Mapping):
    """A mapping whose items come from a function."""

    def __init__(self, items):
        self._items = items

    def __getitem__(self, name):
        raise KeyError(name)

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def items(self):
        return self._items()


def fail():
    raise RuntimeError("private")


def change_while_read():
    changing = {"a": "1", "b": "2"}
    for pair in changing.items():
        changing["c"] = "3"
        yield pair


def released():
    view = memoryview(b"x")
    view.release()
    return view


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

    def test_a_member_of_an_enum_counts_with_its_value(self):
        checked = check_headers({Name.TRACE: Name.TRACE})
        assert repr(checked) == "{'traceparent': 'traceparent'}"

    def test_a_subclass_cannot_hide_its_text(self):
        assert repr(check_headers({Odd("a"): Odd("b")})) == "{'a': 'b'}"
        with pytest.raises(UsageError, match="unlike 'a b'"):
            check_headers({Odd("a b"): ""})
        with pytest.raises(UsageError, match="these have 16385"):
            check_headers({"a": Odd("x" * HEADERS_MAX_BYTES)})
        with pytest.raises(UsageError, match="lone surrogate"):
            check_headers({"a": Odd("\ud800")})
        assert check_headers(Source(lambda: [(Odd("a"), "1"), (Odd("a"), "2")])) == {"a": "2"}

    def test_names_that_differ_in_case_are_two_headers(self):
        given = {"Content-Type": "1", "content-type": "2"}
        assert list(check_headers(given).items()) == list(given.items())

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
            (({"a": "b"},), "headers must be a mapping of names to values, not tuple"),
            ({1: "x"}, "a header's name must be a str, not int"),
            ({b"a": "x"}, "a header's name must be a str, not bytes"),
            ({None: "x"}, "a header's name must be a str, not NoneType"),
            ({":": "x"}, "unlike ':'"),  # the name of a stamp
            ({"a\x00": "x"}, r"unlike 'a\\x00'"),
            ({"\ud800": "x"}, r"unlike '\\ud800'"),
            ({"x" * (1 << 20): "x"}, "unlike 'x{256}'$"),
            ({"": "x"}, r"a header's name has 1 to 128 ASCII letters, .* unlike ''"),
            ({"x" * 129: "x"}, "unlike 'xxx"),
            ({"a b": "x"}, "unlike 'a b'"),
            ({"a=b": "x"}, "unlike 'a=b'"),
            ({"a:": "x"}, "unlike 'a:'"),
            ({"a\n": "x"}, r"unlike 'a\\n'"),
            ({"é": "x"}, "unlike 'é'"),
            ({"a": 1}, "the header 'a' must be a str, not int"),
            ({"a": None}, "the header 'a' must be a str, not NoneType"),
            ({"a": ["b"]}, "the header 'a' must be a str, not list"),
            ({"a-bin": 1}, "the header 'a-bin' must be a str, not int"),
            ({"a-bin": released()}, "the header 'a-bin' must be bytes: this memoryview was released"),
            ({"a": "x" * (1 << 20)}, "at most 16384 bytes with their names, these have 1048577$"),
            ({"a-bin": bytes(1 << 20)}, "at most 16384 bytes with their names, these have 1398109$"),
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
        with pytest.raises(UsageError, match="a record takes at most 64 headers, and these are more"):
            check_headers(most | {"one-more": ""})
        with pytest.raises(UsageError, match="and these are more"):
            check_headers(Source(lambda: ((f"h{number}", "") for number in count())))

    @pytest.mark.parametrize(
        ("items", "kind"),
        [
            (fail, "RuntimeError"),
            (change_while_read, "RuntimeError"),
            (lambda: None, "TypeError"),
            (lambda: [("a", "b", "c")], "ValueError"),
            (lambda: [1], "TypeError"),
        ],
    )
    def test_a_mapping_that_raises_is_an_error_with_a_cause(self, items, kind):
        with pytest.raises(UsageError, match=f"the headers could not be read: their mapping raised {kind}$") as raised:
            check_headers(Source(items))
        assert type(raised.value.__cause__).__name__ == kind

    def test_an_interrupt_in_a_mapping_is_not_an_error_of_the_headers(self):
        def items():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            check_headers(Source(items))

    def test_a_dict_that_another_thread_changes_is_read_in_one_step(self):
        changing, is_over = {f"h{place}": "" for place in range(40)}, threading.Event()

        def change():
            for number in count():
                changing[f"more{number % 20}"] = ""
                changing.pop(f"more{(number + 7) % 20}", None)
                if is_over.is_set():
                    return

        thread = threading.Thread(target=change)
        sizes, interval, until = {40}, sys.getswitchinterval(), time.monotonic() + 0.2
        sys.setswitchinterval(1e-5)
        thread.start()
        try:
            while time.monotonic() < until:
                sizes.add(len(check_headers(changing)))
        finally:
            sys.setswitchinterval(interval)
            is_over.set()
            thread.join()
        assert 40 <= min(sizes) <= max(sizes) <= 60

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
