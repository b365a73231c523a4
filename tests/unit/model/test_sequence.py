"""The order of records in a shard."""

import pytest

from shardline.errors import UsageError
from shardline.model.sequence import ANY_NUMBER, SequenceNumber, numbers_of_shard

REAL = "49590338271490256608559692538361571095921575989136588898"


def test_sequence_numbers_compare_as_numbers_not_as_text():
    assert SequenceNumber.parse("9") < SequenceNumber.parse("10")
    assert SequenceNumber.parse("9" * 128) < SequenceNumber.parse("1" + "0" * 128)


def test_records_of_one_aggregate_follow_each_other_by_sub_sequence():
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


def test_a_plain_record_has_sub_sequence_0():
    assert SequenceNumber.parse(REAL) == SequenceNumber(int(REAL), 0)


def test_the_text_is_the_services_number_alone():
    assert str(SequenceNumber.parse(REAL, 5)) == REAL


@pytest.mark.parametrize("text", ["0", "1", REAL, "9" * 129])
def test_a_number_of_1_to_129_digits_comes_back_unchanged(text):
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


@pytest.mark.parametrize(("number", "sub_sequence"), [(-1, 0), (0, -2)])
def test_negative_numbers_are_refused(number, sub_sequence):
    with pytest.raises(UsageError, match="not negative"):
        SequenceNumber(number, sub_sequence)


AWS_NUMBER = "49543463076548007577105092703039560359975228518395019266"  # from AWS's documentation, of 2014


def test_the_numbers_of_a_shard_begin_with_the_second_of_its_creation():
    numbers = numbers_of_shard(AWS_NUMBER)
    assert numbers.first <= AWS_NUMBER < numbers.limit
    assert int(numbers.limit) - int(numbers.first) == 1 << 148
    assert int(numbers.first) >> 148 & (1 << 36) - 1 == 1_411_403_981  # 2014-09-22
    assert numbers.first <= "49543463076570308322303623326179887152428262250726293588" < numbers.limit
    later = numbers_of_shard(str(int(AWS_NUMBER) + (1 << 148)))
    assert later.first == numbers.limit


def test_a_shard_of_aws_is_distinguished_from_its_children():
    """AWS's own numbers, from https://brandur.org/kinesis-by-example: a shard, and one of its two children."""
    parent = numbers_of_shard("49548859072970256769156879668947671610661756289899560962")
    child = numbers_of_shard("49548859213219643322715968606065803827347328807764754450")
    end = "49548859072981407141756144980517230543978492779512725506"
    assert parent.first <= end < parent.limit <= child.first
    assert (int(parent.first) >> 148 & (1 << 36) - 1, int(child.first) >> 148 & (1 << 36) - 1) == (
        1_426_526_784,
        1_426_527_177,
    )


@pytest.mark.parametrize("text", ["0", "1" * 56, "9" * 56, "x" * 56, AWS_NUMBER + "0", ""])
def test_numbers_of_another_layout_tell_nothing(text):
    assert numbers_of_shard(text) is ANY_NUMBER
    assert ANY_NUMBER.first <= "0" < ANY_NUMBER.limit
    assert ANY_NUMBER.first <= "9" * 129 < ANY_NUMBER.limit
