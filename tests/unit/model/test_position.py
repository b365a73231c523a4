"""Positions in a shard."""

import math
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

from shardline.errors import UsageError
from shardline.model.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    Position,
    PositionKind,
    after_sequence_number,
    as_position,
    at_sequence_number,
    at_timestamp,
    parse_position,
)
from shardline.model.sequence import SequenceNumber

NUMBER = SequenceNumber(12, 3)


class NoZone(tzinfo):
    """A time zone without an offset: the datetime is still naive."""

    def utcoffset(self, _when):
        return None


def test_there_are_six_kinds_in_the_words_of_the_service():
    assert [kind.value for kind in PositionKind] == [
        "TRIM_HORIZON",
        "LATEST",
        "AT_TIMESTAMP",
        "AT_SEQUENCE_NUMBER",
        "AFTER_SEQUENCE_NUMBER",
        "SHARD_END",
    ]


@pytest.mark.parametrize(
    ("position", "kind", "number", "timestamp", "text"),
    [
        (TRIM_HORIZON, PositionKind.TRIM_HORIZON, None, None, "TRIM_HORIZON"),
        (LATEST, PositionKind.LATEST, None, None, "LATEST"),
        (SHARD_END, PositionKind.SHARD_END, None, None, "SHARD_END"),
        (at_timestamp(1.5), PositionKind.AT_TIMESTAMP, None, 1.5, "AT_TIMESTAMP(1.5)"),
        (at_sequence_number("12"), PositionKind.AT_SEQUENCE_NUMBER, SequenceNumber(12), None, "AT_SEQUENCE_NUMBER(12)"),
        (after_sequence_number(NUMBER), PositionKind.AFTER_SEQUENCE_NUMBER, NUMBER, None, "AFTER_SEQUENCE_NUMBER(12)"),
    ],
)
def test_a_position_carries_exactly_what_its_kind_needs(position, kind, number, timestamp, text):
    assert (position.kind, position.sequence_number, position.timestamp) == (kind, number, timestamp)
    assert str(position) == text


@pytest.mark.parametrize("kind", PositionKind)
@pytest.mark.parametrize("number", [None, NUMBER])
@pytest.mark.parametrize("timestamp", [None, 1.0])
def test_every_other_combination_is_refused(kind, number, timestamp):
    sequenced = kind in {PositionKind.AT_SEQUENCE_NUMBER, PositionKind.AFTER_SEQUENCE_NUMBER}
    timed = kind is PositionKind.AT_TIMESTAMP
    if (number is not None) == sequenced and (timestamp is not None) == timed:
        assert Position(kind, number, timestamp).kind is kind
    else:
        with pytest.raises(UsageError, match=rf"a position {kind} (needs a|takes no) (sequence number|timestamp)"):
            Position(kind, number, timestamp)


@pytest.mark.parametrize("kind", ["TRIM_HORIZON", "sideways", None, 1])
def test_a_kind_other_than_the_six_is_refused(kind):
    with pytest.raises(UsageError, match="kind is a PositionKind"):
        Position(kind)


def test_only_a_finished_shard_is_no_place_to_start():
    assert not SHARD_END.can_start
    for position in (TRIM_HORIZON, LATEST, at_timestamp(0), at_sequence_number("1"), after_sequence_number("1")):
        assert position.can_start


@pytest.mark.parametrize(
    ("when", "seconds"),
    [
        (0, 0.0),
        (1_700_000_000, 1_700_000_000.0),
        (1_700_000_000.123, 1_700_000_000.123),
        (253_402_300_799, 253_402_300_799.0),
        (datetime(1970, 1, 1, tzinfo=UTC), 0.0),
        (datetime(2026, 11, 15, 12, 0, 0, 250_000, tzinfo=UTC), 1_794_744_000.25),
        (datetime(2026, 11, 15, 14, 0, tzinfo=timezone(timedelta(hours=2))), 1_794_744_000.0),
    ],
)
def test_a_time_is_an_aware_datetime_or_seconds(when, seconds):
    assert at_timestamp(when).timestamp == seconds
    assert as_position(when) == at_timestamp(when)
    assert isinstance(at_timestamp(when).timestamp, float)


@pytest.mark.parametrize("when", [datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=NoZone())])  # noqa: DTZ001
def test_a_naive_datetime_is_refused_with_advice(when):
    with pytest.raises(UsageError, match=r"needs a time zone: .* has none \(for example, add tzinfo=UTC\)"):
        at_timestamp(when)


@pytest.mark.parametrize(
    "when",
    [
        math.nan,
        math.inf,
        -math.inf,
        -1,
        -0.001,
        253_402_300_800,
        1_700_000_000_000,  # milliseconds
        1e300,
        pytest.param(10**400, id="beyond-floats"),
        pytest.param(-(10**400), id="before-floats"),
        pytest.param(10**5_000, id="too-long-to-be-shown"),
        datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    ],
)
def test_a_number_that_is_no_time_is_refused_with_the_range(when):
    with pytest.raises(UsageError, match="0 to 253402300799 seconds since 1970"):
        at_timestamp(when)


@pytest.mark.parametrize("when", [True, False, None, "1", b"1", [1], timedelta(1)])
def test_a_time_of_another_type_is_refused_by_its_type(when):
    with pytest.raises(UsageError, match=f"aware datetime or seconds since 1970, not {type(when).__name__}$"):
        at_timestamp(when)


def test_the_latest_time_taken_can_be_said_as_a_datetime():
    assert datetime.fromtimestamp(at_timestamp(253_402_300_799).timestamp, UTC).year == 9999


@pytest.mark.parametrize("make", [at_sequence_number, after_sequence_number])
def test_a_sequence_number_may_be_text_or_a_value(make):
    assert make("12") == make(SequenceNumber(12))
    assert make(NUMBER).sequence_number is NUMBER


@pytest.mark.parametrize("make", [at_sequence_number, after_sequence_number])
@pytest.mark.parametrize("number", ["", "x", "-1", 12, None])
def test_a_bad_sequence_number_is_refused(make, number):
    with pytest.raises(UsageError, match="sequence number"):
        make(number)


@pytest.mark.parametrize("position", [TRIM_HORIZON, LATEST, SHARD_END])
def test_the_named_positions_are_read_from_their_names(position):
    assert parse_position(str(position)) is position
    assert as_position(str(position)) is position


@pytest.mark.parametrize("text", ["", "latest", "AT_TIMESTAMP", "AT_SEQUENCE_NUMBER", "LATEST "])
def test_another_name_is_refused_with_the_names_there_are(text):
    with pytest.raises(UsageError, match=f"one of TRIM_HORIZON, LATEST, SHARD_END, not {text!r}$"):
        parse_position(text)
    with pytest.raises(UsageError):
        as_position(text)


def test_a_position_stays_what_it_is():
    position = at_sequence_number("5")
    assert as_position(position) is position


@pytest.mark.parametrize("value", [None, b"LATEST", ["LATEST"], object])
def test_what_is_no_position_is_refused(value):
    with pytest.raises(UsageError, match="a position is a Position, TRIM_HORIZON, LATEST or a time"):
        as_position(value)


@pytest.mark.parametrize("value", [True, math.nan, -1])
def test_a_number_that_is_no_time_is_no_position(value):
    with pytest.raises(UsageError, match="a start time is"):
        as_position(value)
