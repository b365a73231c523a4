"""Do the examples work? Each runs as a user would run it, pointed at the embedded server."""

import asyncio
import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from runpy import run_path

import pytest

from shardline import deaggregate
from shardline.sync import Producer

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTED = {
    "produce.py",
    "produce_blocking.py",
    "backfill.py",
    "asgi_producer.py",
    "fastapi_service.py",
    "lambda_consumer.py",
    "lambda_producer.py",
    "consume.py",
    "worker.py",
    "read_to_the_end.py",
    "replay.py",
    "side_by_side.py",
    "file_leases.py",  # in tests/contract/test_file_leases.py
}


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED


@pytest.fixture
def kinesis(local_kinesis):
    return local_kinesis


def run(name, *arguments, kinesis=None):
    """Return the exit code of an example, and its output."""
    told = {} if kinesis is None else kinesis.environment
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONUNBUFFERED": "1"} | told,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


def stored(kinesis):
    return [record.data for record in deaggregate(kinesis.streams["orders"].records)]


def test_produce(kinesis):
    code, printed, errors = run("produce.py", "orders", kinesis=kinesis)
    assert (code, errors) == (0, "")
    assert re.fullmatch(r"1001 orders in \d+ Kinesis records\n", printed)
    assert sorted(json.loads(data)["order"] for data in stored(kinesis)) == list(range(1001))


def test_produce_tells_what_failed(kinesis):
    kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation="PutRecords")
    code, _, errors = run("produce.py", "orders", kinesis=kinesis)
    assert code == 1
    assert errors.count("Undelivered(code='AccessDeniedException', message='not allowed'") == 1001


def test_produce_from_threads(kinesis):
    code, printed, errors = run("produce_blocking.py", "orders", kinesis=kinesis)
    assert (code, errors) == (0, "")
    assert re.fullmatch(r"200 of 200 orders stored, in \d+ requests\n", printed)
    assert sorted(stored(kinesis)) == sorted(b'{"order": %d}' % number for number in range(200))


def test_a_backfill(kinesis, tmp_path):
    file = tmp_path / "orders.jsonl"
    lines = [json.dumps({"customer": f"customer-{number % 7}", "order": number}) for number in range(3000)]
    file.write_text("\n".join(lines) + "\n\n")
    kinesis.faults.throttle(operation="PutRecords", count=2)
    code, printed, _ = run("backfill.py", "orders", file, "customer", kinesis=kinesis)
    assert (code, printed) == (0, "3000 lines, 3000 delivered, 0 failed\n")
    assert Counter(stored(kinesis)) == Counter(line.encode() for line in lines)
    assert (tmp_path / "orders.jsonl.failed").read_text() == ""


def test_a_backfill_reports_what_failed(kinesis, tmp_path):
    file = tmp_path / "orders.jsonl"
    file.write_text('{"customer": "7"}\nno JSON\n{"no": "customer"}\n{"customer": ""}\n')
    code, printed, _ = run("backfill.py", "orders", file, "customer", kinesis=kinesis)
    assert code == 1
    assert printed.splitlines()[0] == "4 lines, 1 delivered, 3 failed"
    assert set(printed.splitlines()[1:]) == {"  JSONDecodeError: 1", "  KeyError: 1", "  UsageError: 1"}
    failed = [json.loads(line) for line in (tmp_path / "orders.jsonl.failed").read_text().splitlines()]
    assert [one["data"] for one in failed] == ["no JSON", '{"no": "customer"}', '{"customer": ""}']
    assert stored(kinesis) == [b'{"customer": "7"}']


def test_an_application(kinesis, monkeypatch):
    """A server does this with it: start, three requests, stop."""
    for name, value in (kinesis.environment | {"STREAM": "orders"}).items():
        monkeypatch.setenv(name, value)
    app = run_path(str(EXAMPLES / "asgi_producer.py"))["app"]

    async def post(state, *parts):
        events = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        events.append({"type": "http.request", "body": b"", "more_body": False})
        sent = []

        async def receive():
            return events.pop(0)

        async def send(event):
            sent.append(event)

        await app({"type": "http", "state": state}, receive, send)
        return sent[0]["status"]

    async def serve():
        asked, told, state = asyncio.Queue(), asyncio.Queue(), {}
        life = asyncio.create_task(app({"type": "lifespan", "state": state}, asked.get, told.put))
        await asked.put({"type": "lifespan.startup"})
        assert await told.get() == {"type": "lifespan.startup.complete"}
        statuses = [await post(state, b"one"), await post(state, b"t", b"wo"), await post(state, b"x" * (11 << 20))]
        await asked.put({"type": "lifespan.shutdown"})
        assert await told.get() == {"type": "lifespan.shutdown.complete"}
        await life
        return statuses

    assert asyncio.run(serve()) == [202, 202, 413]
    assert sorted(stored(kinesis)) == [b"one", b"two"]


# ---- a service


@pytest.fixture
def service(kinesis, tmp_path):
    """The FastAPI service, run by uvicorn as in production; its process and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "service.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "--host", "127.0.0.1", "--port", str(port), "fastapi_service:app"],
            cwd=EXAMPLES,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "STREAM": "orders"} | kinesis.environment,
            stdout=subprocess.PIPE,  # until the last of them has ended
            stderr=output,
            start_new_session=True,  # it starts a worker, which ends with it
        )
    url = f"http://127.0.0.1:{port}"
    give_up_at = time.monotonic() + 60
    try:
        while True:
            try:
                ask(f"{url}/health")
                break
            except urllib.error.URLError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < give_up_at, log.read_text()
                time.sleep(0.05)
        yield process, url
    finally:
        with suppress(ProcessLookupError):  # all have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=30)  # none is left that could print


def ask(url, body=None):
    """Return the status and the value of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_service(service, kinesis):
    _, url = service
    assert ask(f"{url}/orders", {"customer": 7, "order": 1}) == (202, {"accepted": True})
    status, told = ask(f"{url}/orders?wait=true", {"customer": 8, "order": 2})
    assert status == 201
    assert told.keys() == {"shard", "sequence_number"}
    assert told["sequence_number"] in {record.sequence_number for record in kinesis.streams["orders"].records}
    assert ask(f"{url}/orders", {"order": 3}) == (422, {"detail": "invalid order: 'customer'"})
    status, told = ask(f"{url}/orders", {"customer": 9, "data": "x" * (1 << 20)})
    assert status == 422
    assert told["detail"].startswith("invalid order: ")
    kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation="PutRecords")
    status, told = ask(f"{url}/orders?wait=true", {"customer": 8, "order": 4})
    assert (status, told) == (502, {"detail": "AccessDeniedException: not allowed"})
    status, told = ask(f"{url}/health")
    assert (status, told["outstanding"], told["failed"]) == (200, 0, 1)


def test_uvicorn_runs_the_service_on_uvloop(service):
    process, _ = service
    assert "uvloop/loop" in Path(f"/proc/{process.pid}/maps").read_text()


def test_a_service_of_a_misspelt_stream_does_not_start(kinesis):
    ended = subprocess.run(
        [sys.executable, "-m", "uvicorn", "--port", "0", "fastapi_service:app"],
        cwd=EXAMPLES,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "STREAM": "oders"} | kinesis.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 3  # uvicorn's exit code for a failed start
    assert "ResourceNotFoundException" in ended.stderr
    assert "oders" in ended.stderr


def test_a_service_that_is_stopped_under_load_delivers_what_it_accepted(service, kinesis):
    """Four clients send orders while SIGTERM arrives, and Kinesis throttles: each order with a 202 is stored."""
    process, url = service
    kinesis.faults.throttle(operation="PutRecords", count=5)
    accepted = []

    def send_orders(first):
        for number in range(first, 100_000, 4):
            try:
                status, _ = ask(f"{url}/orders", {"customer": number, "order": number})
            except (OSError, http.client.HTTPException):  # the server has stopped
                return
            if status == 202:
                accepted.append(number)

    clients = [threading.Thread(target=send_orders, args=(first,)) for first in range(4)]
    for client in clients:
        client.start()
    wait_until(lambda: len(accepted) >= 200)
    process.send_signal(signal.SIGTERM)
    exit_code = process.wait(timeout=60)
    for client in clients:
        client.join(60)
        assert not client.is_alive()
    assert exit_code == -signal.SIGTERM  # uvicorn ends as the signal would have
    orders = {json.loads(data)["order"] for data in stored(kinesis)}
    assert len(accepted) >= 200
    assert set(accepted) - orders == set()
    assert len(orders - set(accepted)) <= len(clients), "stored, and the response was cut off: at most one for each"


def wait_until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# ---- Lambda


@pytest.fixture
def function(monkeypatch, kinesis):
    """Load a Lambda function as Lambda does: once, with its environment."""
    for name, value in (kinesis.environment | {"STREAM": "orders"}).items():
        monkeypatch.setenv(name, value)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def event_of(records):
    """Return an event as Lambda passes it to a function."""
    return {
        "Records": [
            {
                "eventSource": "aws:kinesis",
                "eventVersion": "1.0",
                "eventID": f"{record.shard_id}:{record.sequence_number}",
                "eventName": "aws:kinesis:record",
                "awsRegion": "us-east-1",
                "eventSourceARN": "arn:aws:kinesis:us-east-1:123456789012:stream/orders",
                "kinesis": {
                    "kinesisSchemaVersion": "1.0",
                    "partitionKey": record.key,
                    "sequenceNumber": record.sequence_number,
                    "data": b64encode(record.data).decode(),
                    "approximateArrivalTimestamp": record.arrived_at,
                },
            }
            for record in records
        ]
    }


def test_a_function_reads_aggregates_and_says_where_to_go_on(function, kinesis, monkeypatch):
    module = function("lambda_consumer")
    with Producer("orders") as producer:
        raw, batch = [], 0
        while batch < 3 or len(deaggregate(raw[-1])) == 1:  # until the shards are known, records go one by one
            producer.put_many(("customer-7", b'{"order": %d, "amount": 5}' % (10 * batch + n)) for n in range(10))
            producer.flush()
            raw, batch = kinesis.streams["orders"].records, batch + 1
    orders = [json.loads(record.data)["order"] for record in deaggregate(raw)]
    assert sorted(orders) == list(range(10 * batch))
    billed, refused = [], [orders[-1]] * 3  # the last member of the last aggregate fails, in each attempt of a call
    bill = module.bill

    def bill_and_note(record):
        bill(record)
        number = json.loads(record.data)["order"]
        if number in refused:
            refused.remove(number)
            raise ConnectionError("the database is away")
        billed.append(number)

    monkeypatch.setattr(module, "bill", bill_and_note)
    told = module.handler(event_of(raw), None)
    assert told == {"batchItemFailures": [{"itemIdentifier": raw[-1].sequence_number}]}
    rest = [record for record in raw if int(record.sequence_number) >= int(raw[-1].sequence_number)]
    assert module.handler(event_of(rest), None) == {"batchItemFailures": []}
    assert set(billed) == set(orders), "none is left out"
    assert {number for number, times in Counter(billed).items() if times == 2} == set(
        orders[-len(deaggregate(raw[-1])) : -1]
    )


def test_a_function_stops_at_an_order_that_cannot_be_billed(put, function, kinesis, caplog):
    put(b'{"order": 1, "amount": -5}')
    module = function("lambda_consumer")
    [record] = kinesis.streams["orders"].records
    told = module.handler(event_of([record]), None)
    assert told == {"batchItemFailures": [{"itemIdentifier": record.sequence_number}]}
    assert "who pays?" in caplog.text


def test_a_function_that_dead_letters_goes_on(function, kinesis, put, monkeypatch):
    kinesis.create_stream("orders-failed")
    monkeypatch.setenv("DEAD_LETTERS", "orders-failed")
    put(b'{"order": 1, "amount": 1}', b'{"order": 2, "amount": -1}', b'{"order": 3, "amount": 1}')
    module = function("lambda_consumer")
    try:
        for record in kinesis.streams["orders"].records:
            assert module.handler(event_of([record]), None) == {"batchItemFailures": []}
    finally:
        module.source.close()
    assert [record.data for record in kinesis.streams["orders-failed"].records] == [b'{"order": 2, "amount": -1}']


def test_a_function_puts_and_everything_is_there_when_it_returns(function, kinesis):
    module = function("lambda_producer")
    try:
        for call in range(3):
            orders = [{"customer": n, "order": 100 * call + n} for n in range(100)]
            assert module.handler({"orders": orders}, None) == {"stored": 100}
            assert len(stored(kinesis)) == 100 * (call + 1)
        assert kinesis.requests.count("ListShards") == 1, "the producer outlives a call"
        kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation="PutRecords", count=1)
        with pytest.raises(RuntimeError, match="1 of 1 orders not delivered: AccessDeniedException"):
            module.handler({"orders": [{"customer": 1, "order": 1}]}, None)
    finally:
        module.producer.close()


# ---- consumers


@pytest.fixture
def put(kinesis, monkeypatch):
    """Put data with the keys ``customer-0``, ``customer-1``, ..."""
    for name, value in kinesis.environment.items():
        monkeypatch.setenv(name, value)

    def put(*data):
        with Producer("orders") as producer:
            producer.put_many((f"customer-{number}", one) for number, one in enumerate(data))

    return put


@pytest.fixture
def started(kinesis):
    """Start an example, and end it if the test did not."""
    running = []

    def start(name, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, arguments)],
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"} | kinesis.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_group_reads_until_it_is_interrupted_and_goes_on_there(put, started, tmp_path):
    arguments = ("orders", "g", f"sqlite:///{tmp_path}/leases.db")
    for orders in ([b"1", b"2", b"3"], [b"4", b"5"]):
        put(*orders)
        process = started("consume.py", *arguments)
        seen = [process.stdout.readline().split()[2].encode() for _ in orders]
        time.sleep(0.2)  # it requests the next record
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=10)
        assert (process.returncode, rest) == (130, "")
        assert re.fullmatch(r"\S+ reads orders for g\n", errors)
        assert sorted(seen) == orders, "these, and none again"


def test_a_worker_ends_well_on_sigterm(put, started, tmp_path):
    file = tmp_path / "dead.jsonl"
    arguments = ("orders", "g", f"sqlite:///{tmp_path}/leases.db", file)
    put(b'{"order": 1}', b"no JSON", b'{"order": 2}')
    process = started("worker.py", *arguments)
    lines = sorted(process.stdout.readline() for _ in range(2))
    while not file.exists() or not file.read_text().endswith("\n"):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    rest, errors = process.communicate(timeout=20)
    assert (process.returncode, rest) == (0, "stopped\n"), errors
    assert time.monotonic() - began < 10
    assert lines == ["customer-0: order 1\n", "customer-2: order 2\n"]
    [dead] = map(json.loads, file.read_text().splitlines())
    assert (dead["data"], dead["attempts"]) == ("no JSON", 3)
    process = started("worker.py", *arguments)
    put(b'{"order": 3}')
    assert process.stdout.readline() == "customer-0: order 3\n", "nothing came again"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "stopped\n"


def test_reading_to_the_end(put, kinesis):
    assert run("read_to_the_end.py", "orders", kinesis=kinesis) == (0, "0 records, 0 bytes\n", "")
    put(*[b"x"] * 100)
    code, printed, errors = run("read_to_the_end.py", "orders", kinesis=kinesis)
    *shards, last = printed.splitlines()
    assert (code, errors, last) == (0, "", "100 records, 100 bytes")
    assert sum(int(line.split()[1]) for line in shards) == 100


@pytest.mark.parametrize("processes", [(), ("2",)], ids=["concurrency", "processes"])
def test_handlers_side_by_side(put, kinesis, tmp_path, processes):
    put(*[b"%d" % number for number in range(30)])
    store = f"sqlite:///{tmp_path}/leases.db"
    code, printed, errors = run("side_by_side.py", "orders", "g", store, *processes, kinesis=kinesis)
    *lines, last = printed.splitlines()
    assert (code, errors, last, len(lines)) == (0, "", "30 records", 30)
    assert len({line.split(": ")[1] for line in lines}) == 30
    again = run("side_by_side.py", "orders", "g", store, *processes, kinesis=kinesis)
    assert again == (0, "0 records\n", ""), "all records are committed"


def test_a_replay_from_a_time(put, kinesis):
    put(b"old")
    time.sleep(1.1)
    since = datetime.now(UTC)
    put(b"new", b"newer")
    code, printed, errors = run("replay.py", "orders", since.isoformat(), kinesis=kinesis)
    assert (code, errors) == (0, "")
    lines = [json.loads(line) for line in printed.splitlines()]
    assert sorted((line["key"], b64decode(line["data"])) for line in lines) == [
        ("customer-0", b"new"),
        ("customer-1", b"newer"),
    ]
