"""Do the functions of the AWS Lambda guides do what the pages say?"""

import json
import re
from base64 import b64encode
from pathlib import Path

import pytest
import yaml
from tests.docs import pages

from shardline import ShardlineError, aggregate, deaggregate
from shardline.awslambda import KinesisEventSource
from shardline.core.consumer.failure_policy import FailurePolicy

FOLDER = "docs/guides/lambda"
PROGRAMS = pages.blocks_in(FOLDER, "python")
EVENT_OF = pages.run_block(PROGRAMS, "class NoWaits").event_of


def program(text):
    """Run the only program that contains a text, and return its names."""
    return pages.run_block(PROGRAMS, text)


class Context:
    def __init__(self, seconds):
        self.seconds = seconds

    def get_remaining_time_in_millis(self):
        return self.seconds * 1000


def test_every_block_is_looked_at():
    used = re.findall(r'program\("([^"]+)"\)', Path(__file__).read_text())
    assert [
        block for block in PROGRAMS if "class NoWaits" not in block and not any(text in block for text in used)
    ] == []
    assert set().union(*map(pages.languages_of, pages.pages_in(FOLDER))) == {"python", "yaml"}


def test_the_function_that_reads(kinesis, capsys):
    kinesis.create_stream("orders-failed")
    function = program("who pays?")
    orders = [("a", b'{"amount": 1}'), ("b", b'{"amount": -2}'), ("c", b'{"amount": 3}')]
    try:
        assert function.handler(EVENT_OF(aggregate(orders)), None) == {"batchItemFailures": []}
    finally:
        function.source.close()
    assert capsys.readouterr().out == "a 1 0 {'amount': 1}\nc 1 2 {'amount': 3}\n"
    assert [record.data for record in kinesis.streams["orders-failed"].records] == [b'{"amount": -2}']


def test_the_mapping_reports_failures_and_names_the_handler():
    [template] = pages.blocks_of(f"{FOLDER}/index.md", "yaml")
    properties = yaml.safe_load(template)["Properties"]
    mapping = properties["Events"]["Orders"]["Properties"]
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert callable(program("who pays?").handler)
    assert properties["Handler"].endswith(".handler")


def test_the_handler_of_batches(capsys):
    assert program("handle_batch").handle_batch(EVENT_OF(b"1", b"2"), None) == {"batchItemFailures": []}
    assert capsys.readouterr().out == "shardId-000000000000 2 [b'1', b'2']\n"


def test_a_clock_without_waits():
    def fail(_):
        raise ValueError

    clock = program("class NoWaits").NoWaits()
    source = KinesisEventSource(policy=FailurePolicy(backoff=1000, backoff_max=1000), clock=clock)
    assert source.each_record(fail)(EVENT_OF(b"1"), None) == {"batchItemFailures": [{"itemIdentifier": "1"}]}
    assert clock.time > 2000


def test_the_slow_handler_stops_in_time():
    response = program("slow_handler").slow_handler(EVENT_OF(*[b"x"] * 100), Context(2))
    [failure] = response["batchItemFailures"]
    assert 1 < int(failure["itemIdentifier"]) < 10


def test_the_window():
    function = program("Counter(window.state)")
    orders = [{"country": "de", "amount": 3}, {"country": "fr", "amount": 1}, {"country": "de", "amount": 2}]
    window = {
        "window": {"start": "2020-12-09T07:04:00Z", "end": "2020-12-09T07:06:00Z"},
        "shardId": "shardId-000000000000",
        "isWindowTerminatedEarly": False,
    }
    state = {}
    for order in orders:
        event = EVENT_OF(json.dumps(order).encode()) | window | {"state": state, "isFinalInvokeForWindow": False}
        state = json.loads(json.dumps(function.handler(event, None)["state"]))
    assert function.totals == []
    function.handler({"Records": []} | window | {"state": state, "isFinalInvokeForWindow": True}, None)
    assert function.totals == [{"until": 1607497560.0, "shard": "shardId-000000000000", "de": 5, "fr": 1}]


def test_the_function_that_reads_and_puts(kinesis, monkeypatch):
    monkeypatch.setenv("STREAM", "orders")
    function = program("record.data.upper()")
    try:
        assert function.handler(EVENT_OF(b"one", b"two"), Context(30)) == {"batchItemFailures": []}
        assert sorted(record.data for record in deaggregate(kinesis.streams["orders"].records)) == [b"ONE", b"TWO"]
        kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation="PutRecords")
        with pytest.raises(ShardlineError, match="1 failed"):
            function.handler(EVENT_OF(b"three"), Context(30))
    finally:
        function.producer.close()


def test_the_function_that_puts(kinesis, monkeypatch):
    monkeypatch.setenv("STREAM", "orders")
    function = program("producer.start()")
    try:
        function.handler({"lines": ["one", "two"]}, None)
        assert sorted(record.data for record in deaggregate(kinesis.streams["orders"].records)) == [b"one", b"two"]
        kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation="PutRecords")
        with pytest.raises(RuntimeError, match="not everything"):
            function.handler({"lines": ["three"]}, None)
    finally:
        function.producer.close()


def test_the_event_of_the_page_is_that_of_lambda():
    [record] = EVENT_OF(b"x")["Records"]
    assert record["kinesis"]["data"] == b64encode(b"x").decode()
