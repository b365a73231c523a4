"""The lines of the log sink: each event is one, with every field, at the level that was asked for."""

import json
import logging
from typing import get_args, get_type_hints

import pytest

from shardline import UsageError, events
from shardline.adapters.sinks.log_sink import LogSink
from shardline.core.consumer.grant import Grant
from shardline.events import NEVER, EventSource, Failure, FailureKind
from shardline.model.hashing import HASH_KEY_MAX, HashRange
from shardline.model.lease import Checkpoint
from shardline.model.position import SHARD_END, TRIM_HORIZON, Position, after_sequence_number

SOURCE = EventSource("consumer", "orders", "billing", "worker-1", "localhost")
DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", 'not "you"\nnor me', 403, retry_after=0.5)
LANE = events.LaneStats("s-1", 2, 100, 1, 1.0, tripped=False)
SAMPLES = {
    str: "text",
    int: 7,
    float: 0.5,
    bool: True,
    Failure: DENIED,
    Position: TRIM_HORIZON,
    Checkpoint: Checkpoint(SHARD_END),
    Grant: Grant("s-1", 17, NEVER),
    tuple[str, ...]: ("s-1", "s-2"),
    tuple[events.LaneStats, ...]: (LANE,),
    tuple[events.ShardLag, ...]: (events.ShardLag("s-1", None, 2.0, 3, 4),),
}


@pytest.fixture
def written(caplog):
    """The log records of the sink, after it got these events."""

    def write(*sent, source=SOURCE, **arguments):
        caplog.set_level(logging.DEBUG, "shardline")
        caplog.clear()
        log = LogSink(**arguments).open(source)
        for event in sent:
            log(event)
        return list(caplog.records)

    return write


def example(kind):
    """An event of this type."""
    hints = get_type_hints(kind)
    return kind(*(SAMPLES.get(hint, SAMPLES.get(get_args(hint)[:1] and get_args(hint)[0])) for hint in hints.values()))


@pytest.mark.parametrize("kind", get_args(events.Event), ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("format_", ["json", "key=value"])
def test_every_event_is_one_line_with_every_field(written, kind, format_):
    (record,) = written(example(kind), format=format_)
    line = record.getMessage()
    assert "\n" not in line
    if format_ == "json":
        assert set(json.loads(line)) >= {"time", "level", "event", "stream", *kind._fields}
    else:
        keys = {key.partition(".")[0] for key in line.split() for key in [key.partition("=")[0]]}
        assert keys >= {"time", "level", "event", "stream", *kind._fields}
    assert (record.name, record.event, record.levelno >= logging.INFO) == ("shardline.events", kind.__name__, True)


def test_a_line_of_json(written):
    (record,) = written(events.ReadFailed("s-1", "GetRecords", DENIED, NEVER))
    line = json.loads(record.getMessage())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "WARNING",
        "event": "ReadFailed",
        "stream": "orders",
        "group": "billing",
        "worker": "worker-1",
        "shard_id": "s-1",
        "code": "AccessDeniedException",
        "operation": "GetRecords",
        "failure": {
            "kind": "denied",
            "code": "AccessDeniedException",
            "message": 'not "you"\nnor me',
            "status": 403,
            "request_id": None,
            "retry_after": 0.5,
            "maybe_received": True,
        },
        "retry_at": None,
    }


def test_values_that_json_does_not_have(written):
    start = after_sequence_number("123")
    grant, hash_range = Grant("s-1", 17, NEVER), HashRange(1, HASH_KEY_MAX)
    gained = events.LeaseGained("s-1", grant, start, Checkpoint(TRIM_HORIZON), hash_range)
    measured = events.LagMeasured((events.ShardLag("s-1", 1.0, None, 3, 4),))
    opened = events.ShardsChanged(2, ("s-1", "s-2"), ())
    held = events.ProducerMeasured(1, 2, 3, 4.0, 5, (LANE,))
    lines = [json.loads(record.getMessage()) for record in written(gained, measured, opened, held)]
    assert [lines[0][name] for name in ("grant", "start", "checkpoint", "hash_range")] == [
        {"token": 17},
        str(start),
        "TRIM_HORIZON",
        f"1-{HASH_KEY_MAX}",
    ]
    assert lines[1]["shards"] == [
        {"shard_id": "s-1", "reading_lag": 1.0, "handling_lag": None, "prefetched": 3, "in_hand": 4}
    ]
    assert (lines[2]["opened"], lines[2]["vanished"]) == (["s-1", "s-2"], [])
    assert lines[3]["lanes"][0]["rate_share"] == 1.0


def test_a_line_of_pairs(written):
    (record,) = written(
        events.StoreFailed(DENIED, 1), source=EventSource("consumer", "my-stream", worker_id="a b"), format="key=value"
    )
    time, _, line = record.getMessage().partition(" ")
    assert time.startswith("time=")
    assert line == (
        'level=WARNING event=StoreFailed stream=my-stream worker="a b" code=AccessDeniedException failure.kind=denied '
        r'failure.code=AccessDeniedException failure.message="not \"you\"\nnor me" failure.status=403 '
        "failure.request_id=null failure.retry_after=0.5 failure.maybe_received=true failures=1 gives_up_at=null"
    )


@pytest.mark.parametrize("text", ["", "a=b", "back\\slash", "naïve", "tab\t", '"'])
def test_text_that_is_no_plain_word_is_quoted(written, text):
    (record,) = written(events.LeaseLost("s-1", text), format="key=value")
    assert json.loads(record.getMessage().partition(" why=")[2]) == text


def test_the_extra_of_a_record(written):
    (record,) = written(events.HandlerRetried("s-1", "4", 0, 1, 1, "KeyError", "m", "x.py:1", 2.0))
    assert (record.stream, record.group, record.worker, record.shard_id, record.code, record.event) == (
        "orders",
        "billing",
        "worker-1",
        "s-1",
        "KeyError",
        "HandlerRetried",
    )


def test_the_levels(written):
    delivered, lost, failed = (
        events.RecordsDelivered(1, 1, 0.1, ()),
        events.LeaseLost("s-1", ""),
        events.RecordsFailed(1, "", ""),
    )
    sent = (delivered, lost, failed)
    assert [record.levelname for record in written(*sent)] == ["INFO", "WARNING", "ERROR"]
    assert [record.levelname for record in written(*sent, level="debug")] == ["DEBUG", "WARNING", "ERROR"]
    assert [record.levelname for record in written(*sent, level=None)] == ["WARNING", "ERROR"]
    levels = {events.RecordsDelivered: logging.CRITICAL, events.LeaseLost: None, events.RecordsFailed: "WARNING"}
    assert [record.levelname for record in written(*sent, levels=levels)] == ["CRITICAL", "WARNING"]


def test_an_event_below_the_loggers_level_is_not_formatted(caplog, monkeypatch):
    caplog.set_level(logging.WARNING, "shardline.quiet")
    monkeypatch.setattr(logging.Logger, "makeRecord", None)
    LogSink("shardline.quiet").open(SOURCE)(events.RecordsDelivered(1, 1, 0.1, ()))
    assert caplog.records == []


def test_the_logger_may_be_an_object_or_a_name(caplog):
    caplog.set_level(logging.INFO)
    for logger in (logging.getLogger("mine"), "mine"):
        LogSink(logger).open(EventSource("producer", "orders"))(events.RecordsDelivered(1, 1, 0.1, ()))
    assert [record.name for record in caplog.records] == ["mine", "mine"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"logger": 5}, "logger must be a logging.Logger or its name, not int"),
        ({"format": "xml"}, "format must be 'json' or 'key=value', not 'xml'"),
        ({"level": "LOUD"}, "level must be a level of logging, .* not 'LOUD'"),
        ({"level": True}, "level must be a level of logging, .* not True"),
        (
            {"levels": {str: 10}},
            "levels: the keys must be types of events, such as RecordsDelivered, not <class 'str'>",
        ),
        ({"levels": {events.Stalled: 1.5}}, r"levels\[Stalled\] must be a level of logging, .* not 1.5"),
    ],
)
def test_wrong_arguments_are_refused(arguments, problem):
    with pytest.raises(UsageError, match=problem):
        LogSink(**arguments)
