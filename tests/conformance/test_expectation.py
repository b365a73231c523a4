"""Is a difference found, and does a recording hide varying values?"""

import pytest
from tests.conformance.expectation import (
    ANY_TEXT,
    CONSUMER_ARN,
    COUNT,
    EXTENDED_ID,
    ITERATOR,
    REQUEST_ID,
    SEQUENCE_NUMBER,
    TIME,
    TOKEN,
    WHOLE_SECOND,
    Matching,
    Some,
    compare,
    filled,
    masked,
    one_of,
    shown,
    unfilled,
)

NUMBER = "4" * 56


def fields(expected, got):
    return [mismatch.field for mismatch in compare(expected, got)]


@pytest.mark.parametrize(
    ("expected", "got", "wrong"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 1.0}, []),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": 1}, {"a": 2}, ["a"]),
        ({"a": 1}, {}, ["a"]),
        ({}, {"a": 1}, ["a"]),
        ({"a": None}, {}, ["a"]),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, ["a.b[1]"]),
        ({"a": [1]}, {"a": [1, 2]}, ["a"]),
        ({"a": [1]}, {"a": 1}, ["a"]),
        ({"a": {}}, {"a": []}, ["a"]),
        (Some({"a": 1}), {"a": 1, "b": 2}, []),
        (Some({"a": 1}), {"b": 2}, ["a"]),
        (None, {"a": 1}, ["the answer"]),
        ({"a": TIME}, {}, ["a"]),
        ({"a": Matching(r"x\d")}, {"a": "x7"}, []),
        ({"a": Matching(r"x\d")}, {"a": "x77"}, ["a"]),
        ({"a": Matching(r"x\d")}, {"a": 7}, ["a"]),
        ({"a": one_of(1, 2)}, {"a": 2}, []),
        ({"a": one_of(1, 2)}, {"a": 3}, ["a"]),
    ],
)
def test_what_differs_is_named(expected, got, wrong):
    assert fields(expected, got) == wrong


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (TIME, 1_700_000_000.25, "1700000000"),
        (WHOLE_SECOND, 1_700_000_000.0, 1_700_000_000.25),
        (SEQUENCE_NUMBER, NUMBER, "4" * 20),
        (ITERATOR, "A" * 512, "A" * 513),
        (TOKEN, "t", ""),
        (COUNT, 0, True),
        (COUNT, 7, -1),
        (CONSUMER_ARN, "arn:aws:kinesis:r:1:stream/s/consumer/c:1700000000", "arn:aws:kinesis:r:1:stream/s"),
        (REQUEST_ID, "c7d1f1e6-0a41-f5ad-9d2c-1f3f1a2b3c4d", "C7"),
        (EXTENDED_ID, "A" * 64 + "==", "A"),
        (ANY_TEXT, "x", 7),
    ],
)
def test_shapes(shape, good, bad):
    assert compare({"a": shape}, {"a": good}) == []
    assert fields({"a": shape}, {"a": bad}) == ["a"]


def test_names_are_replaced_everywhere():
    names = {"a": "stream-a", "limit": 500, "account": "1.2"}
    assert filled({"S": "$a", "T": "of $a, $b", "N": "$limit", "L": ["$a"]}, names) == {
        "S": "stream-a", "T": "of stream-a, $b", "N": 500, "L": ["stream-a"],
    }  # fmt: skip
    assert filled(Some({"S": "$a"}), names) == Some({"S": "stream-a"})
    assert filled(Matching(r"\d of $account"), names) == Matching(r"\d of 1\.2")
    assert unfilled({"a": ["$b", {"c": "$d x"}], "e": 7}) == {"b", "d"}


def test_a_recording_hides_what_varies_and_nothing_else():
    names = {
        "a": "run7-a",
        "a_arn": "arn:aws:kinesis:r:123456789012:stream/run7-a",
        "account": "123456789012",
        "run": "run7",
    }
    expected = filled({"N": SEQUENCE_NUMBER, "T": TIME, "M": ANY_TEXT, "X": Matching(r"at \d+ of $account")}, names)
    got = {
        "N": NUMBER, "T": 1_700_000_000.5, "M": f"{NUMBER} of run7-a, 123456789012, {names['a_arn']}, run7",
        "X": "at 7 of 123456789012", "Extra": {"S": "run7-a", "K": 39},
    }  # fmt: skip
    assert masked(expected, got, names) == {
        "N": "<sequence number>", "T": "<time>", "M": "<number> of $a, $account, $a_arn, $run",
        "X": r"<text like at \d+ of $account>", "Extra": {"S": "$a", "K": 39},
    }  # fmt: skip


def test_the_account_of_an_emulator_is_not_seen_in_a_shard_id():
    text = "shardId-000000000000 under account 000000000000"
    assert masked(ANY_TEXT, text, {"account": "000000000000"}) == "shardId-000000000000 under account $account"


def test_members_that_vary_are_hidden_also_where_the_table_says_nothing_of_them():
    got = {"StreamCreationTimestamp": 1_700_000_000.5, "StreamName": "s", "MillisBehindLatest": 7}
    assert masked(Some({"StreamName": "s"}), got, {}) == {
        "StreamCreationTimestamp": "<time>", "StreamName": "s", "MillisBehindLatest": "<count>",
    }  # fmt: skip
    assert masked({"MillisBehindLatest": 0}, {"MillisBehindLatest": 0}, {}) == {"MillisBehindLatest": 0}


def test_what_depends_on_others_is_not_recorded():
    assert masked(Some({"a": 1}, ignored=("b",)), {"a": 1, "b": 2, "c": 3}, {}) == {"a": 1, "c": 3}
    assert compare(Some({"a": 1}, ignored=("b",)), {"a": 1}) == []


def test_a_value_that_does_not_fit_its_shape_is_recorded_as_it_is():
    assert masked({"T": TIME}, {"T": "yesterday"}, {}) == {"T": "yesterday"}
    assert masked({"L": [TIME]}, {"L": [1, 2]}, {}) == {"L": [1, 2]}


def test_an_endless_value_is_cut():
    assert len(shown({"a": "x" * 5_000})) < 400
    assert shown(Some({"a": TIME})) == "at least {a: <time>}"
