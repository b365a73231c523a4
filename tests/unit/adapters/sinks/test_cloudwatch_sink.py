"""Do metrics reach CloudWatch, as lines and by requests, and what happens while it does not answer?

The server of these tests checks every request by botocore's model of CloudWatch and by botocore's signer.
"""

import gzip
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.session
import botocore.validate
import pytest
from tests.harness.event_examples import CONSUMER, CONSUMER_EXAMPLES, EXAMPLES, PRODUCER, PRODUCER_EXAMPLES

from shardline import Credentials
from shardline import events as ev
from shardline.adapters.aws.aws_service import AwsSettings
from shardline.adapters.aws.botocore_session import BotocoreSession
from shardline.adapters.sinks import cloudwatch_sink as module
from shardline.adapters.sinks.cloudwatch_sink import CloudWatchSink
from shardline.errors import UsageError

KEYS = Credentials("AKIDEXAMPLE", "the secret", "the token")
MODEL = botocore.session.get_session().get_service_model("cloudwatch")
SHAPE = MODEL.operation_model("PutMetricData").input_shape
ROOT = Path(__file__).parents[4]


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


# ---- EMF


def test_lines_in_a_file(tmp_path):
    sink = CloudWatchSink(tmp_path / "metrics.log")
    opened = sink.open(PRODUCER)
    for event in PRODUCER_EXAMPLES:
        opened(event)
    opened.close()
    [first, *_] = lines_of((tmp_path / "metrics.log").read_text())
    assert first["ProducerDeliveredRecords"] == 150
    assert first["ProducerRequest"] == [0.02]
    assert first["Stream"] == "orders"
    assert abs(first["_aws"]["Timestamp"] / 1000 - time.time()) < 60
    assert first["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Shardline"
    before = (tmp_path / "metrics.log").read_text()
    assert sink.flush()
    assert (tmp_path / "metrics.log").read_text() == before, "no events, no lines"


def test_lines_on_standard_output_and_in_an_open_file(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    sink = CloudWatchSink("stdout", names="kcl")
    opened = sink.open(CONSUMER)
    for event in CONSUMER_EXAMPLES:
        opened(event)
    opened.close()
    namespaces = {line["_aws"]["CloudWatchMetrics"][0]["Namespace"] for line in lines_of(written.getvalue())}
    assert namespaces == {"billing"}
    file = io.StringIO()
    other = CloudWatchSink(file, names="kpl", namespace="Mine").open(PRODUCER)
    other(EXAMPLES[ev.RecordsDelivered])
    other.close()
    assert {line["_aws"]["CloudWatchMetrics"][0]["Namespace"] for line in lines_of(file.getvalue())} == {"Mine"}


def test_lines_through_a_logger(caplog):
    caplog.set_level(logging.INFO, "metrics")
    opened = CloudWatchSink(logging.getLogger("metrics")).open(PRODUCER)
    opened(EXAMPLES[ev.RecordsFailed])
    opened.close()
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "metrics"]
    assert lines[0]["ProducerFailedRecords"] == 2


def test_names_that_do_not_apply_write_nothing():
    file = io.StringIO()
    opened = CloudWatchSink(file, names="kpl").open(CONSUMER)
    opened(EXAMPLES[ev.PageRead])
    opened.close()
    assert file.getvalue() == ""


def test_a_period_ends_by_itself():
    file = io.StringIO()
    opened = CloudWatchSink(file, period=1).open(PRODUCER)
    opened(EXAMPLES[ev.RecordsDelivered])
    deadline = time.monotonic() + 20
    while not file.getvalue() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lines_of(file.getvalue())[0]["ProducerDeliveredRecords"] == 150


def test_many_sources_are_added_up():
    file = io.StringIO()
    sink = CloudWatchSink(file)
    for _ in range(3):
        sink.open(PRODUCER)(EXAMPLES[ev.RecordsDelivered])
    assert sink.flush()
    assert lines_of(file.getvalue())[0]["ProducerDeliveredRecords"] == 450


def test_a_file_that_cannot_be_written_is_logged_and_harms_nothing(tmp_path, caplog):
    sink = CloudWatchSink(tmp_path / "missing" / "metrics.log")
    opened = sink.open(PRODUCER)
    opened(EXAMPLES[ev.RecordsDelivered])
    assert not sink.flush()
    assert "metrics could not be published" in caplog.text
    opened(EXAMPLES[ev.RecordsDelivered])


def test_a_file_that_blocks_holds_up_no_event_and_no_close(monkeypatch):
    monkeypatch.setattr(module, "_CLOSE_WAIT", 0.2)
    release = threading.Event()

    class Blocking(io.StringIO):
        def write(self, text):
            release.wait(30)
            return super().write(text)

    opened = CloudWatchSink(Blocking()).open(PRODUCER)
    began = time.monotonic()
    opened(EXAMPLES[ev.RecordsDelivered])
    opened.close()
    opened(EXAMPLES[ev.RecordsDelivered])
    opened.close()
    release.set()
    assert time.monotonic() - began < 10


def test_a_forked_child_publishes_only_its_own_events(tmp_path):
    script = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.harness.event_examples import EXAMPLES, PRODUCER
from shardline import events as ev
from shardline.adapters.sinks.cloudwatch_sink import CloudWatchSink

sink = CloudWatchSink(Path({str(tmp_path / "lines")!r}))
sink.open(PRODUCER)(EXAMPLES[ev.RecordsDelivered])
child = os.fork()
opened = sink.open(PRODUCER)
opened(EXAMPLES[ev.RecordsDelivered])
if child:
    os.waitpid(child, 0)
opened.close()
os._exit(0)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60, env=environment)
    delivered = [line["ProducerDeliveredRecords"] for line in lines_of((tmp_path / "lines").read_text())]
    assert delivered == [150, 300]


# ---- PutMetricData


class CloudWatch(ThreadingHTTPServer):
    """A server that takes PutMetricData requests, and answers from a list."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests = []
        self.problems = []
        self.answers = []
        self.delay = 0.0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def data(self):
        return {datum["MetricName"]: datum for request in self.requests for datum in request["MetricData"]}

    def total(self, name, dimensions):
        """Return the sum of a metric over the data that have this number of dimensions."""
        return sum(
            datum["Value"]
            for request in self.requests
            for datum in request["MetricData"]
            if datum["MetricName"] == name and len(datum["Dimensions"]) == dimensions
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self.check(body)
        except AssertionError as error:
            self.server.problems.append(str(error))
        time.sleep(self.server.delay)
        status, answer = self.server.answers.pop(0) if self.server.answers else (200, {})
        if status == 200:
            self.server.requests.append(json.loads(gzip.decompress(body)))
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def check(self, body):
        headers = self.headers
        assert self.path == "/"
        assert headers["X-Amz-Target"] == f"{MODEL.metadata['targetPrefix']}.PutMetricData"
        assert headers["Content-Type"] == f"application/x-amz-json-{MODEL.metadata['jsonVersion']}"
        assert headers["Content-Encoding"] == "gzip"
        problems = botocore.validate.ParamValidator().validate(json.loads(gzip.decompress(body)), SHAPE)
        assert not problems.has_errors(), problems.generate_report()
        signed = headers["Authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
        request = botocore.awsrequest.AWSRequest(
            "POST", f"http://{headers['Host']}/", headers={name: headers[name] for name in signed}, data=body
        )
        request.context["timestamp"] = headers["X-Amz-Date"]
        keys = botocore.credentials.Credentials(KEYS.access_key, KEYS.secret_key, KEYS.session_token)
        signer = botocore.auth.SigV4Auth(keys, "monitoring", "eu-west-1")
        to_sign = signer.string_to_sign(request, signer.canonical_request(request))
        assert headers["Authorization"].endswith(f"Signature={signer.signature(to_sign, request)}")
        assert "content-encoding" in signed

    def log_message(self, *_):
        """Keep the output of the tests clean."""


@pytest.fixture
def cloudwatch():
    server = CloudWatch()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
    assert server.problems == []


def api_sink(server, **arguments):
    return CloudWatchSink(endpoint_url=server.url, region="eu-west-1", credentials=KEYS, **arguments)


@pytest.mark.parametrize("names", ["shardline", "kpl", "kcl"])
def test_requests_that_the_model_accepts(cloudwatch, names):
    sink = api_sink(cloudwatch, names=names, by_shard=True)
    producer, consumer = sink.open(PRODUCER), sink.open(CONSUMER)
    for event in PRODUCER_EXAMPLES:
        producer(event)
    for event in CONSUMER_EXAMPLES:
        consumer(event)
    assert sink.flush(20)
    expected = {
        "shardline": ("Shardline", "ProducerDeliveredRecords", 2, 150),
        "kpl": ("KinesisProducerLibrary", "UserRecordsPut", 2, 150),
        "kcl": ("billing", "RecordsProcessed", 2, 100),
    }
    namespace, name, dimensions, value = expected[names]
    assert {request["Namespace"] for request in cloudwatch.requests} == {namespace}
    assert cloudwatch.total(name, dimensions) == value
    assert len({json.dumps(request) for request in cloudwatch.requests}) == len(cloudwatch.requests)


def test_throttled_data_is_sent_with_the_next_period(cloudwatch, caplog):
    cloudwatch.answers += [(400, {"__type": "com.amazonaws.monitoring#ThrottlingException", "message": "slow down"})]
    sink = api_sink(cloudwatch)
    opened = sink.open(PRODUCER)
    opened(EXAMPLES[ev.RecordsDelivered])
    assert not sink.flush(20)
    assert "CloudWatch did not take metrics, which will be sent again: ThrottlingException: slow down" in caplog.text
    opened(EXAMPLES[ev.RecordsFailed])
    assert sink.flush(20)
    names = [datum["MetricName"] for request in cloudwatch.requests for datum in request["MetricData"]]
    assert names.index("ProducerDeliveredRecords") < names.index("ProducerFailedRecords")
    assert names.count("ProducerDeliveredRecords") == 1


def test_denied_data_is_dropped_and_logged_once_a_minute(cloudwatch, caplog):
    denied = (
        403,
        {"__type": "AccessDeniedException", "message": "not authorized to perform: cloudwatch:PutMetricData"},
    )
    cloudwatch.answers += [denied, denied]
    sink = api_sink(cloudwatch)
    opened = sink.open(PRODUCER)
    for _ in range(2):
        opened(EXAMPLES[ev.RecordsDelivered])
        assert not sink.flush(20)
    assert caplog.text.count("which are dropped: AccessDeniedException: not authorized") == 1
    assert "the secret" not in caplog.text
    opened(EXAMPLES[ev.RecordsFailed])
    assert sink.flush(20)
    assert list(cloudwatch.data) == ["ProducerFailedRecords", "ProducerErrors"]


def test_an_unreachable_service_is_tried_again_and_the_backlog_is_bounded(cloudwatch, caplog, monkeypatch):
    monkeypatch.setattr(module, "_BACKLOG_MAX", 3)
    monkeypatch.setattr(module, "_LOG_PERIOD", 0.0)
    cloudwatch.answers += [(500, {"__type": "InternalServiceFault", "message": ""})] * 5
    sink = api_sink(cloudwatch)
    opened = sink.open(PRODUCER)
    for number in range(5):
        opened(ev.RecordsDelivered(number + 1, 1, 0.1, ()))
        assert not sink.flush(20)
    assert "dropped the oldest metrics" in caplog.text
    assert sink.flush(20)
    sent = [request["MetricData"][0]["Value"] for request in cloudwatch.requests]
    assert sent == [3, 4, 5]


def test_a_slow_service_holds_up_no_event_and_no_close(cloudwatch, monkeypatch):
    monkeypatch.setattr(module, "_CLOSE_WAIT", 0.2)
    cloudwatch.delay = 3.0
    sink = api_sink(cloudwatch)
    opened = sink.open(PRODUCER)
    began = time.monotonic()
    for _ in range(1_000):
        opened(EXAMPLES[ev.RecordsDelivered])
    opened.close()
    assert time.monotonic() - began < 2.5
    assert sink.flush(20)
    assert cloudwatch.data["ProducerDeliveredRecords"]["Value"] == 150_000


def publishers():
    return {thread for thread in threading.enumerate() if thread.name == "shardline CloudWatch publisher"}


def wait_for_the_end_of_publishers(before):
    deadline = time.monotonic() + 20
    while not publishers() <= before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_publisher_ends_with_its_last_source_and_begins_again_with_the_next(tmp_path):
    before, file = publishers(), tmp_path / "lines"
    sink = CloudWatchSink(file)
    one, other = sink.open(PRODUCER), sink.open(PRODUCER)
    one(EXAMPLES[ev.RecordsDelivered])
    one.close()
    assert len(publishers() - before) == 1
    other.close()
    wait_for_the_end_of_publishers(before)
    assert sink.flush(20), "a flush without a source"
    wait_for_the_end_of_publishers(before)
    again = sink.open(PRODUCER)
    again(EXAMPLES[ev.RecordsDelivered])
    again.close()
    assert [line["ProducerDeliveredRecords"] for line in lines_of(file.read_text())] == [150, 150]


def test_a_publisher_whose_data_was_not_taken_goes_on(cloudwatch):
    before = publishers()
    cloudwatch.answers += [(500, {"__type": "InternalServiceFault", "message": ""})]
    sink = api_sink(cloudwatch, period=1)
    opened = sink.open(PRODUCER)
    opened(EXAMPLES[ev.RecordsDelivered])
    opened.close()
    wait_for_the_end_of_publishers(before)
    assert cloudwatch.data["ProducerDeliveredRecords"]["Value"] == 150


def test_without_a_region_the_metrics_are_kept(caplog, monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # The publisher of this sink goes on trying, and later tests may set a region: it must find no other address then.
    sink = CloudWatchSink(endpoint_url="http://127.0.0.1:1", credentials=KEYS)
    sink.open(PRODUCER)(EXAMPLES[ev.RecordsDelivered])
    assert not sink.flush(20)
    assert "metrics cannot be sent: no AWS region found" in caplog.text


def test_the_endpoint_is_the_root_of_the_service_whatever_protocol_botocore_prefers(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    session = BotocoreSession(AwsSettings(region="eu-west-1", credentials=KEYS), "cloudwatch")
    assert session.endpoint("PutMetricData", {}) == "https://monitoring.eu-west-1.amazonaws.com/"
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", "http://127.0.0.1:4582")
    session = BotocoreSession(AwsSettings(region="eu-west-1", credentials=KEYS), "cloudwatch")
    assert session.endpoint("PutMetricData", {}) == "http://127.0.0.1:4582/"


# ---- wrong arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"names": "otel"}, "names must be 'shardline', 'kpl' or 'kcl', not 'otel'"),
        ({"namespace": ""}, "namespace must be a text of 1 to 255 characters, not ''"),
        ({"period": 0}, "period must be a number of seconds from 1 to 3600, not 0"),
        ({"period": True}, "period must be a number"),
        ({"by_shard": 1}, "by_shard must be True or False, not 1"),
        ({"to": "stderr"}, "to must be 'api', 'stdout', a logger, an open text file or a pathlib.Path, not 'stderr'"),
        (
            {"to": "stdout", "region": "eu-west-1"},
            "region, endpoint_url, profile, session and credentials need to='api'",
        ),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(UsageError, match=message):
        CloudWatchSink(**arguments)
