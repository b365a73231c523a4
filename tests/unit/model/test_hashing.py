"""Hash keys and ranges, by example."""

import hashlib
import importlib.util
import sys
import time

import pytest

from shardline._speedups import pure_twins
from shardline.errors import UsageError
from shardline.model import hashing
from shardline.model.hashing import (
    HASH_KEY_COUNT,
    HASH_KEY_MAX,
    WHOLE_RING,
    HashRange,
    check_partition_key,
    hash_digest_of,
    hash_key_of,
    keys_in_range,
    parse_explicit_hash_key,
)

LARGEST = "340282366920938463463374607431768211455"


def test_the_hash_key_is_the_md5_read_big_endian():
    assert hash_key_of("abcd") == 0xE2FC714C4727EE9395F324CD2E7F331F


def test_a_python_without_its_own_md5_gives_the_same(monkeypatch):
    monkeypatch.setitem(sys.modules, "_md5", None)  # as if CPython had been built without it
    spec = importlib.util.spec_from_file_location("hashing_without_md5", hashing.__file__)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert module.md5.func is hashlib.md5
    assert module.md5.keywords == {"usedforsecurity": False}  # or a Python in FIPS mode refuses it
    assert module.hash_key_of("abcd") == hash_key_of("abcd")


@pytest.mark.parametrize("key", ["a", "a" * 256, "😀" * 256, " ", "\x00", "ä", '"', "\N{MUSICAL SYMBOL G CLEF}"])
def test_a_key_of_1_to_256_characters_is_taken_as_it_is(key):
    assert check_partition_key(key) == key


@pytest.mark.parametrize(("key", "length"), [("", 0), ("a" * 257, 257), ("😀" * 257, 257)])
def test_a_key_of_another_length_is_refused_with_its_length(key, length):
    with pytest.raises(UsageError, match=rf"1 to 256 characters, this one has {length}$"):
        check_partition_key(key)


@pytest.mark.parametrize("key", ["\ud800", "a\udfffb", "\ude00\ud83d"])
def test_a_key_with_a_lone_surrogate_is_refused(key):
    with pytest.raises(UsageError, match="lone surrogate"):
        check_partition_key(key)


class Liar(str):
    """A str subclass whose methods return wrong values."""

    __slots__ = ()

    def __len__(self):
        return 5

    def __iter__(self):
        return iter("5")

    def __getitem__(self, place):
        return "5"

    def __str__(self):
        return "other"

    def isascii(self):
        return True

    def encode(self, *_):
        return b"5"


def test_a_key_of_another_class_is_judged_and_taken_by_its_characters():
    key = check_partition_key(Liar("abc"))
    assert (type(key), key) == (str, "abc")
    with pytest.raises(UsageError, match=r"this one has 300$"):
        check_partition_key(Liar("k" * 300))
    with pytest.raises(UsageError, match="lone surrogate"):
        check_partition_key(Liar("\ud800"))


def test_an_explicit_hash_key_of_another_class_is_judged_by_its_characters():
    assert parse_explicit_hash_key(Liar("17")) == 17
    with pytest.raises(UsageError, match="plain decimal"):
        parse_explicit_hash_key(Liar("9" * 45))


@pytest.mark.parametrize("key", [None, 1, b"abc", 1.5, ["a"]])
def test_a_key_that_is_no_str_is_refused_by_its_type(key):
    with pytest.raises(UsageError, match=f"must be a str, not {type(key).__name__}$"):
        check_partition_key(key)


def test_both_edges_of_the_ring_are_valid_explicit_hash_keys():
    assert parse_explicit_hash_key("0") == 0
    assert parse_explicit_hash_key("1") == 1
    assert parse_explicit_hash_key(LARGEST) == HASH_KEY_MAX == 2**128 - 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        " 1",
        "1 ",
        "1\n",
        "+1",
        "-1",
        "-0",
        "1_000",
        "_1",
        "0x1f",
        "1f",
        "1.0",
        "1.",
        "1e3",
        "1E3",
        "00",
        "01",
        "0" * 39,
        "\N{ARABIC-INDIC DIGIT THREE}",
        "1\N{ARABIC-INDIC DIGIT THREE}",
        "\N{FULLWIDTH DIGIT ONE}",
        "\N{SUPERSCRIPT TWO}",
        "340282366920938463463374607431768211456",  # 2^128
        "9" * 39,
        "1" + "0" * 39,
        "nan",
        "None",
    ],
)
def test_what_is_no_canonical_decimal_of_the_ring_is_refused(text):
    with pytest.raises(UsageError, match="plain decimal from 0 to"):
        parse_explicit_hash_key(text)


@pytest.mark.parametrize("value", [0, 7, None, b"7", 7.0, True])
def test_an_explicit_hash_key_is_a_str(value):
    with pytest.raises(UsageError, match=f"must be a str of decimal digits, not {type(value).__name__}$"):
        parse_explicit_hash_key(value)


@pytest.mark.parametrize("character", ["1", "0", "x"])
def test_a_huge_text_is_refused_at_once_and_not_repeated_in_the_message(character):
    text = character * 1_000_000
    before = time.process_time()
    with pytest.raises(UsageError) as caught:
        parse_explicit_hash_key(text)
    assert time.process_time() - before < 0.1
    assert len(str(caught.value)) < 200
    assert "..." in str(caught.value)


def test_a_refused_explicit_hash_key_is_shown():
    with pytest.raises(UsageError, match="'007'"):
        parse_explicit_hash_key("007")


@pytest.mark.parametrize(("start", "end"), [(1, 0), (-1, 5), (0, HASH_KEY_COUNT), (HASH_KEY_COUNT, HASH_KEY_COUNT)])
def test_an_empty_range_or_one_beyond_the_ring_is_refused(start, end):
    with pytest.raises(UsageError, match="0 <= start <= end < 2"):
        HashRange(start, end)


def test_the_whole_ring_covers_every_hash_key():
    assert HashRange.parse("0", LARGEST) == WHOLE_RING
    assert WHOLE_RING.size == HASH_KEY_COUNT == 2**128
    assert WHOLE_RING.share == 1.0
    assert 0 in WHOLE_RING
    assert HASH_KEY_MAX in WHOLE_RING
    assert HASH_KEY_COUNT not in WHOLE_RING


def test_a_range_is_parsed_by_the_rules_of_explicit_hash_keys():
    assert HashRange.parse("0", "9") == HashRange(0, 9)
    with pytest.raises(UsageError):
        HashRange.parse("00", "9")
    with pytest.raises(UsageError):
        HashRange.parse("9", "0")


@pytest.mark.parametrize(
    ("one", "other", "overlapping"),
    [
        ((0, 9), (10, 19), False),
        ((0, 10), (10, 19), True),
        ((0, 19), (5, 6), True),
        ((5, 6), (0, 19), True),
        ((10, 19), (0, 9), False),
        ((3, 3), (3, 3), True),
        ((3, 3), (4, 4), False),
    ],
)
def test_ranges_overlap_where_they_share_a_key(one, other, overlapping):
    assert HashRange(*one).overlaps(HashRange(*other)) is overlapping
    assert HashRange(*other).overlaps(HashRange(*one)) is overlapping


def test_the_middle_is_the_first_key_of_the_upper_half():
    assert HashRange(0, 1).middle == 1
    assert HashRange(0, 2).middle == 1
    assert HashRange(0, 3).middle == 2
    assert HashRange(10, 19).middle == 15
    assert WHOLE_RING.middle == 1 << 127


def test_a_range_of_a_single_key_cannot_be_split():
    with pytest.raises(UsageError, match="cannot be split"):
        _ = HashRange(5, 5).middle


def test_half_the_ring_has_half_the_share():
    assert HashRange(0, (1 << 127) - 1).share == 0.5


def test_ranges_sort_by_where_they_start():
    assert sorted([HashRange(10, 19), HashRange(0, 9)]) == [HashRange(0, 9), HashRange(10, 19)]


def test_the_cache_of_keys_in_range_is_bounded(monkeypatch):
    keys_in_range = pure_twins["keys_in_range"]
    monkeypatch.setitem(keys_in_range.__globals__, "KNOWN_KEYS_MAX", 2)
    known = {}
    for number in range(9):
        assert keys_in_range([f"k{number}", "k0"], *WHOLE_RING.digests, known) == [True, True]
        assert len(known) <= 4
    assert known


def test_keys_in_range_compares_both_ends():
    digest, keys = hash_digest_of("k"), ["k", "other", "k"]
    assert keys_in_range(keys, digest, digest, {}) == [True, False, True]
    assert keys_in_range(keys, digest, b"\xff" * 16, {}) == [True, hash_digest_of("other") > digest, True]


def test_a_range_as_digests():
    assert HashRange(1, 256).digests == (bytes(15) + b"\x01", bytes(14) + b"\x01\x00")
