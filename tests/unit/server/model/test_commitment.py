"""Tests of ``server.model.commitment``."""

from shardline.server.model.commitment import Commitment

DAY = 86_400.0


def test_an_account_begins_without_one():
    never = Commitment()
    assert never.describe(5.0) == {"Status": "DISABLED"}
    assert not never.is_enabled(5.0)
    assert never.disable(5.0) == never


def test_a_commitment_begins_at_once():
    enabled = Commitment().enable(5.0)
    assert enabled.is_enabled(5.0)
    assert enabled.describe(6.0) == {"Status": "ENABLED", "StartedAt": 5.0, "EarliestAllowedEndAt": 5.0 + DAY}
    assert enabled.enable(7.0) == enabled


def test_an_end_within_24_hours_is_put_off():
    ending = Commitment().enable(5.0).disable(6.0)
    assert ending.is_enabled(4.9 + DAY)
    assert ending.describe(6.0) == {
        "Status": "ENABLED_UNTIL_EARLIEST_ALLOWED_END",
        "StartedAt": 5.0,
        "EarliestAllowedEndAt": 5.0 + DAY,
    }
    assert ending.disable(7.0) == ending
    assert ending.enable(8.0) == Commitment().enable(5.0)


def test_a_commitment_ends_by_the_time_alone():
    ending = Commitment().enable(5.0).disable(6.0)
    assert not ending.is_enabled(5.0 + DAY)
    assert ending.describe(5.0 + DAY) == {"Status": "DISABLED", "StartedAt": 5.0, "EndedAt": 5.0 + DAY}
    assert ending.enable(6.0 + DAY) == Commitment(6.0 + DAY)


def test_after_24_hours_it_ends_at_once():
    ended = Commitment().enable(5.0).disable(6.0 + DAY)
    assert ended.describe(6.0 + DAY) == {"Status": "DISABLED", "StartedAt": 5.0, "EndedAt": 6.0 + DAY}
