"""The order of records in a shard. Q1 to Q3 are the invariants of ``shardline.model.sequence``."""

import pytest

from shardline.errors import UsageError
from shardline.model.sequence import SequenceNumber

REAL = "49590338271490256608559692538361571095921575989136588898"


def test_q1_sequence_numbers_compare_as_numbers_not_as_text():
    assert SequenceNumber.parse("9") < SequenceNumber.parse("10")
    assert SequenceNumber.parse("9" * 128) < SequenceNumber.parse("1" + "0" * 128)


def test_q2_records_of_one_aggregate_follow_each_other_by_sub_sequence():
    ordered = [
        SequenceNumber.parse("9"),
        SequenceNumber.parse("10", 0),
        SequenceNumber.parse("10", 1),
        SequenceNumber.parse("10", 2),
        SequenceNumber.parse("10", 10),
        SequenceNumber.parse("11"),
    ]
    backwards = ordered[::-1]
    assert sorted(backwards) == ordered
    assert len(set(ordered)) == len(ordered)


def test_q3_a_plain_record_has_sub_sequence_0():
    assert SequenceNumber.parse(REAL) == SequenceNumber(int(REAL), 0)


def test_the_text_is_the_services_number_alone():
    assert str(SequenceNumber.parse(REAL, 5)) == REAL


@pytest.mark.parametrize("text", ["0", "1", REAL, "9" * 129])
def test_a_number_of_1_to_129_digits_comes_back_as_it_was(text):
    assert str(SequenceNumber.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "1" * 130, "-1", "+1", " 1", "1\n", "1_0", "0x1", "1.0", "\N{FULLWIDTH DIGIT ONE}", "LATEST"]
)
def test_what_is_not_1_to_129_digits_is_refused(text):
    with pytest.raises(UsageError, match="1 to 129 decimal digits"):
        SequenceNumber.parse(text)


def test_a_huge_text_is_not_repeated_in_the_message():
    with pytest.raises(UsageError) as caught:
        SequenceNumber.parse("1" * 1_000_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("value", [1, None, b"1", 1.0])
def test_what_is_no_str_is_refused_by_its_type(value):
    with pytest.raises(UsageError, match=f"is a str of decimal digits, not {type(value).__name__}$"):
        SequenceNumber.parse(value)


@pytest.mark.parametrize(("number", "sub_sequence"), [(-1, 0), (0, -1)])
def test_negative_numbers_are_refused(number, sub_sequence):
    with pytest.raises(UsageError, match="not negative"):
        SequenceNumber(number, sub_sequence)
