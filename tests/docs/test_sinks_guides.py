"""Do the examples of the guides on sinks run as they stand, and are the lines that they show real?"""

import json
import logging
import re
from pathlib import Path

import anyio
import pytest
from tests.docs import pages
from tests.docs.pages import block_with, run_block

from shardline import Producer, events, sinks
from shardline.aio import sink_threads
from shardline.events import EventSource, LeaseLost
from shardline.sinks import LogSink
from shardline.sync import Producer as BlockingProducer

HERE = Path(__file__)
LOG, INDEX = "docs/guides/sinks/log.md", "docs/guides/sinks/index.md"
BLOCKS = pages.blocks_of(INDEX, "python") + pages.blocks_of(LOG, "python")
SOURCE = EventSource("consumer", "orders", "billing", "host-1-x7f3")
LOST = LeaseLost("shardId-000000000001", "it lapsed")


def test_every_example_runs_in_a_test():
    used = [block_with(BLOCKS, text) for text in re.findall(r'page\("(.+?)"\)', HERE.read_text())]
    assert [block for block in BLOCKS if block not in used] == []


@pytest.fixture
def page(kinesis):
    return lambda text: run_block(BLOCKS, text)


@pytest.fixture
def logger():
    """The logger of the sink, which is as before after the test."""
    logger = logging.getLogger("shardline.events")
    yield logger
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


@pytest.fixture
def put(kinesis):
    with BlockingProducer("orders") as producer:
        producer.put(b"1", key="k")


# ---- sinks


def test_sinks_are_passed(page, backend, caplog):
    caplog.set_level(logging.INFO)
    assert anyio.run(page("def count_failed").put, [("k", b"1")], backend=backend) == 0
    assert "RecordsDelivered" in [getattr(record, "event", None) for record in caplog.records]


def test_everything_is_instrumented(page, backend, caplog):
    caplog.set_level(logging.INFO)
    installed = page("instrumentation = ").instrumentation

    async def put():
        async with Producer("orders") as producer:
            await producer.put(b"1", key="k")

    try:
        anyio.run(put, backend=backend)
    finally:
        installed.remove()
    assert "RecordsDelivered" in [getattr(record, "event", None) for record in caplog.records]


def test_a_sink_of_ones_own(page, kinesis):
    sink = page("class EventCounts").EventCounts()
    with BlockingProducer("orders", sinks=[sink]) as first, BlockingProducer("orders", sinks=[sink]) as second:
        for producer in (first, second):
            producer.put(b"1", key="k").result(10)
    assert sink.counts["orders"]["RecordsDelivered"] == 2


def test_the_index_names_every_sink():
    named = [re.findall(r"`(\w+)`", row[0])[0] for row in pages.table_of(INDEX, "sink")]
    assert sorted(named) == sorted(sinks.__all__)


def test_the_numbers_of_the_page_are_those_of_the_code():
    text = pages.text_of(INDEX)
    assert f"At most {sink_threads.QUEUE_MAX:,} events" in text
    assert f"about {sink_threads.INTERVAL * 1000:.0f} ms" in text
    assert sink_threads.CLOSE_TIMEOUT == 2.0
    assert "at most two seconds" in text


# ---- the log


def test_every_event_is_logged(page, put, backend, logger, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert logger.handlers == []
    anyio.run(page("async def read_and_log").read_and_log, backend=backend)
    out, err = capfd.readouterr()
    assert out == "b'1'\n"
    lines = [json.loads(line) for line in err.splitlines()]
    assert {"LeaseGained", "LeaseReleased"} <= {line["event"] for line in lines}
    assert {(line["stream"], line["group"]) for line in lines} == {("orders", "billing")}


def lines_of(sink, caplog):
    caplog.clear()
    sink.open(SOURCE)(LOST)
    return [record.getMessage() for record in caplog.records]


def test_the_lines_are_as_shown(caplog):
    caplog.set_level(logging.INFO)
    (shown,) = pages.blocks_of(LOG, "json")
    (line,) = lines_of(LogSink(), caplog)
    assert list(json.loads(shown).items())[1:] == list(json.loads(line).items())[1:]
    (shown,) = pages.blocks_of(LOG, "text")
    (line,) = lines_of(LogSink(format="key=value"), caplog)
    assert shown.split(" ", 1)[1] == f"{line.split(' ', 1)[1]}\n"
    assert re.sub(r"\d", "0", shown.split()[0]) == re.sub(r"\d", "0", line.split()[0])


def test_the_levels(page, caplog):
    caplog.set_level(logging.DEBUG)
    named = page("problems_only = ")
    for sink in (named.sink, named.problems_only):
        log = sink.open(SOURCE)
        log(events.RequestAnswered(1, 1, 1, 0.1, 0, None))
        log(events.RecordsDelivered(1, 1, 0.1, ()))
        log(LOST)
    assert [(record.name, record.levelname, record.event) for record in caplog.records] == [
        ("kinesis", "DEBUG", "RequestAnswered"),
        ("kinesis", "WARNING", "LeaseLost"),
        ("shardline.events", "WARNING", "LeaseLost"),
    ]


def test_a_formatter_uses_the_fields(page, capsys):
    log = page("def log_by_shard").log_by_shard().open(SOURCE)
    log(LOST)
    log(events.RecordsFailed(1, "Expired", "too late"))
    assert capsys.readouterr().err.splitlines() == [
        "WARNING orders shardId-000000000001 LeaseLost None",
        "ERROR orders None RecordsFailed Expired",
    ]
    logging.getLogger("kinesis.by_shard").handlers.clear()


def test_the_table_names_every_attribute(caplog):
    lines_of(LogSink(), caplog)
    (record,) = caplog.records
    named = {name for row in pages.table_of(LOG, "attribute") for name in re.findall(r"`(\w+)`", row[0])}
    ordinary = set(vars(logging.makeLogRecord({}))) | {"message", "taskName", "asctime"}
    assert named == set(vars(record)) - ordinary
