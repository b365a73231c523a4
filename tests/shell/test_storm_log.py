"""SL1 and SL2 are the invariants of ``shardline.aio.storm_log``."""

import asyncio
import logging

import pytest

from shardline.aio.storm_log import StormLog


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def storms(now):
    return StormLog(logging.getLogger("shardline.storms"), "s", "life goes on", lambda: now[0])


def test_sl1_what_is_alike_is_counted_and_logged_once_a_period(storms, now, caplog):
    for _ in range(5):
        storms.count("a read failed", "Code", "why")
        storms.log_due()
    assert [record.getMessage() for record in caplog.records] == ["s: a read failed: Code: why"]
    now[0] += 9.9
    storms.log_due()
    assert len(caplog.records) == 1
    now[0] += 0.2
    storms.log_due()
    assert caplog.records[-1].getMessage() == "s: a read failed (4 times): Code: why"
    storms.log_rest()
    assert len(caplog.records) == 2


def test_sl1_the_number_stands_where_the_words_have_a_place_for_it(storms, caplog):
    storms.count("%d records given up", "Code", "100% full", 3, level=logging.ERROR)
    storms.log_rest()
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "s: 3 records given up: Code: 100% full")


def test_sl1_many_different_ones_are_a_storm_too(storms, now, caplog):
    for number in range(1000):
        storms.count("a read failed", "Code", f"number {number}")
        storms.log_due()
    storms.log_rest()
    assert len(caplog.records) == 102
    assert caplog.records[-1].getMessage() == (
        "s: a read failed (899 times): and others: more than 100 different failures"
    )
    now[0] += 11
    storms.count("a read failed", "Code", "number 1000")
    storms.log_due()
    assert "number 1000" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("error", [ValueError("mine"), asyncio.CancelledError(), SystemExit(3), GeneratorExit()])
def test_sl2_a_sink_that_raises_is_told_once_a_minute(storms, now, caplog, error):
    def broken(_):
        raise error

    for _ in range(3):
        storms.hand_on(broken, "event")
    storms.complain("the hook", error)
    assert [record.getMessage() for record in caplog.records] == [
        "s: the sink failed; life goes on",
        "s: the hook failed; life goes on",
    ]
    now[0] += 61
    storms.hand_on(broken, "event")
    assert len(caplog.records) == 3


def test_a_sink_is_handed_each_event(storms):
    seen = []
    storms.hand_on(seen.append, "event")
    storms.hand_on(None, "event")
    assert seen == ["event"]
