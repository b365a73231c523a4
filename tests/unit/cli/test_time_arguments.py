"""Are the times, durations and positions that users type parsed correctly?"""

import time

import pytest

from shardline import UsageError
from shardline.cli.time_arguments import parse_duration, parse_moment, parse_start, shown_time
from shardline.model.position import LATEST, TRIM_HORIZON, at_sequence_number, at_timestamp

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("90s", 90),
        ("15m", 900),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("1w", 604_800),
        ("7", 7),
        ("0.5", 0.5),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 s", "5x", "m", "1h 2m", "1e3", "٣s"])
def test_what_is_no_duration(text):
    with pytest.raises(UsageError, match="a duration is written as"):
        parse_duration(text)


def test_times_and_ages(monkeypatch):
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert parse_moment("1970-01-01T02:00", NOW) == 0, "a time without a zone is the machine's"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert parse_moment("2001-09-09T01:46:40Z", NOW) == 1_000_000_000
    assert parse_moment("2001-09-09T03:46:40+02:00", NOW) == 1_000_000_000
    assert parse_moment("1000000000.5", NOW) == 1_000_000_000.5
    assert parse_moment("15m", NOW) == NOW - 900
    assert parse_moment("+30s", NOW) == NOW + 30
    for text in ("", "yesterday", "+", "+x", "2026-13-01", "9" * 13):
        with pytest.raises(UsageError):
            parse_moment(text, NOW)


def test_starts():
    number = "49590338271490256608559692538361571095921575989136588898"
    assert parse_start("latest", NOW) == LATEST
    assert parse_start("TRIM_HORIZON", NOW) == TRIM_HORIZON
    assert parse_start("1h", NOW) == at_timestamp(NOW - 3600)
    assert parse_start("1000000000", NOW) == at_timestamp(1_000_000_000)
    assert parse_start(number, NOW) == at_sequence_number(number)
    with pytest.raises(UsageError, match="neither TRIM_HORIZON, LATEST, a time"):
        parse_start("SHARD_END", NOW)


def test_a_time_is_shown_in_utc():
    assert shown_time(1_000_000_000.1234) == "2001-09-09T01:46:40.123Z"
    assert shown_time(None) == "-"
