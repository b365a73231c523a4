"""Does each test get its own Kinesis, whatever it does with it?"""

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback

import anyio
import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError

from shardline import Closed, TransportError, UsageError
from shardline.server import running_server as running
from shardline.server.running_server import RunningServer
from shardline.server.storage import Storage
from shardline.testing import Delays, Limits, LocalKinesis

ONCE = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=30)
SHARD = "shardId-000000000000"


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def event_loop_kind(request):
    return request.param


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert [one.name for one in threading.enumerate() if one.name == "shardline-local-kinesis"] == []


def boto(kinesis, **changes):
    return boto3.client("kinesis", config=ONCE, **(kinesis.boto3_arguments | changes))


def put(kinesis, data=b"x", stream="s"):
    with contextlib.closing(boto(kinesis)) as client:
        return client.put_record(StreamName=stream, Data=data, PartitionKey="a")


def answers(kinesis):
    connection = http.client.HTTPConnection("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2]), timeout=5)
    try:
        connection.request("GET", "/_shardline/clock")
        return connection.getresponse().status == 200
    except ConnectionRefusedError:
        return False
    finally:
        connection.close()


# ---- its life


def test_with_serves_until_the_end_of_the_block():
    with LocalKinesis(stream="s") as kinesis:
        put(kinesis, b"hello")
        assert [one.data for one in kinesis.streams["s"].records] == [b"hello"]
        assert answers(kinesis)
    assert not answers(kinesis)


@pytest.mark.anyio
async def test_async_with_serves_until_the_end_of_the_block():
    async with LocalKinesis(stream="s", shards=2) as kinesis, kinesis.client() as client:
        await client.put_record("s", b"hello", "a")
        assert [one.data for one in kinesis.streams["s"].records] == [b"hello"]
        assert len(await client.list_shards("s")) == 2
    assert not answers(kinesis)


def test_the_server_ends_when_the_block_fails():
    with pytest.raises(ZeroDivisionError), LocalKinesis() as kinesis:
        raise ZeroDivisionError
    assert not answers(kinesis)


@pytest.mark.anyio
async def test_the_server_ends_when_the_block_is_cancelled():
    kinesis = LocalKinesis()
    with anyio.move_on_after(0.05) as scope:
        async with kinesis:
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert not answers(kinesis)


@pytest.mark.anyio
async def test_a_start_that_is_cancelled_leaves_nothing():
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with LocalKinesis():
            pytest.fail("the block was entered")  # pragma: no cover
    assert scope.cancelled_caught


def test_a_start_that_asyncio_itself_cancels_leaves_nothing():
    async def main():
        for turn in range(20):
            task = asyncio.ensure_future(LocalKinesis(stream="s").__aenter__())
            for _ in range(turn):
                await asyncio.sleep(0.0003)
            task.cancel()
            try:
                kinesis = await task
            except asyncio.CancelledError:
                continue
            await kinesis.__aexit__(None, None, None)  # the start was quicker

    asyncio.run(main())
    assert [one for one in threading.enumerate() if "kinesis" in one.name.lower()] == []


@pytest.mark.clock
def test_it_starts_and_stops_in_no_time():
    began_at = time.perf_counter()
    with LocalKinesis(stream="s"):
        started_at = time.perf_counter()
    assert started_at - began_at < 0.3
    assert time.perf_counter() - started_at < 0.3


def test_stopping_is_harmless_before_a_start_and_again():
    kinesis = LocalKinesis()
    kinesis.stop()
    kinesis.start()
    kinesis.stop()
    kinesis.stop()
    assert "not started" in repr(kinesis) or "stopped" in repr(kinesis)


def test_a_second_start_is_refused_while_it_runs():
    with LocalKinesis() as kinesis:
        with pytest.raises(UsageError, match=r"is already running at http://127.0.0.1:"):
            kinesis.start()
        assert answers(kinesis)


def test_it_can_be_started_again_at_the_same_address_and_is_empty():
    kinesis = LocalKinesis(stream="s")
    with kinesis:
        address = kinesis.endpoint_url
        kinesis.create_stream("other")
        put(kinesis)
    with kinesis:
        assert kinesis.endpoint_url == address
        assert list(kinesis.streams) == ["s"]
        assert kinesis.streams["s"].records == []
        put(kinesis)
        assert kinesis.requests.count("PutRecord") == 2


def test_what_was_stored_can_be_seen_after_the_end():
    with LocalKinesis(stream="s") as kinesis:
        put(kinesis)
    assert kinesis.streams["s"].record_count == 1
    assert kinesis.requests.count("PutRecord") == 1
    with pytest.raises(Closed, match="is not running"):
        kinesis.create_stream("t")


def test_before_the_start_there_is_nothing_to_see():
    kinesis = LocalKinesis()
    for look in (lambda: kinesis.endpoint_url, lambda: list(kinesis.streams), lambda: kinesis.create_stream("s")):
        with pytest.raises(Closed, match="use 'with' or 'async with'"):
            look()


def test_two_servers_side_by_side_know_nothing_of_each_other():
    with LocalKinesis(stream="s") as one, LocalKinesis(stream="s") as other:
        assert one.endpoint_url != other.endpoint_url
        put(one)
        one.faults.throttle()
        put(other)
        put(other)
        assert (one.streams["s"].record_count, other.streams["s"].record_count) == (1, 2)


def test_its_repr_says_where_it_is():
    kinesis = LocalKinesis(stream="s")
    assert repr(kinesis) == "<LocalKinesis, not started>"
    with kinesis:
        assert repr(kinesis) == f"<LocalKinesis {kinesis.endpoint_url}>"
        assert repr(kinesis.streams) == "<LocalStreams s>"
        assert repr(kinesis.streams["s"]) == "<LocalStream s>"
        kinesis.clock.freeze()
        assert repr(kinesis.clock).endswith(", frozen>")
    assert repr(kinesis).endswith(", stopped>")


# ---- stopping with something open


@pytest.mark.clock
def test_stopping_does_not_wait_for_idle_connections():
    with LocalKinesis() as kinesis:
        connections = []
        for _ in range(5):
            one = http.client.HTTPConnection("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2]), timeout=5)
            one.request("GET", "/_shardline/clock")
            one.getresponse().read()
            connections.append(one)
        began_at = time.perf_counter()
        kinesis.stop()
        assert time.perf_counter() - began_at < 0.3
        for one in connections:
            assert one.sock.recv(1) == b""
            one.close()


@pytest.mark.clock
@pytest.mark.parametrize("where", ["before", "after"])
def test_stopping_does_not_wait_for_late_answers(where):
    with LocalKinesis(stream="s") as kinesis:
        fault = kinesis.faults.latency(60, where=where)
        ended = []

        def call():
            try:
                put(kinesis)
            except Exception as error:  # noqa: BLE001 - whatever the client makes of it
                ended.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        while not fault.hits:
            time.sleep(0.005)
        began_at = time.perf_counter()
        kinesis.stop()
        assert time.perf_counter() - began_at < 0.3
        thread.join(5)
        assert len(ended) == 1


@pytest.mark.clock
@pytest.mark.anyio
async def test_stopping_does_not_wait_for_subscriptions():
    async with LocalKinesis(stream="s") as kinesis, kinesis.client() as client:
        await client.put_record("s", b"x", "a")
        consumer = await client.register_stream_consumer(kinesis.streams["s"].arn, "c", wait=True)
        async with client.subscribe_to_shard(consumer.arn, SHARD, "TRIM_HORIZON") as events:
            event = await anext(aiter(events))
            assert [one.data for one in event.records] == [b"x"]
            began_at = time.perf_counter()
            await anyio.to_thread.run_sync(kinesis.stop)
            assert time.perf_counter() - began_at < 0.3


# ---- failing to start


def test_a_port_that_is_taken_is_said_where_it_was_started():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        kinesis = LocalKinesis(port=port)
        with pytest.raises(UsageError, match=f"^cannot serve on 127.0.0.1 port {port}: .*address already in use"):
            kinesis.start()
    with kinesis:  # it was not damaged by that
        assert kinesis.endpoint_url.endswith(f":{port}")


@pytest.mark.anyio
async def test_a_failure_to_start_is_raised_from_async_with():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="cannot serve on"):
        async with LocalKinesis(port=taken.getsockname()[1]):
            pass  # pragma: no cover


def test_a_host_that_is_not_ours_is_refused():
    with pytest.raises(UsageError, match=r"cannot serve on no-such-host.invalid port 0: "):
        LocalKinesis(host="no-such-host.invalid").start()
    with pytest.raises(UsageError, match=r"cannot serve on 192.0.2.1 port 0: "):
        LocalKinesis(host="192.0.2.1").start()


def test_a_data_file_in_use_is_refused(tmp_path):
    with LocalKinesis(data=tmp_path / "data"), pytest.raises(UsageError, match="in use by another process"):
        LocalKinesis(data=tmp_path / "data").start()


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for name in [one for one in sys.modules if one.startswith("cryptography.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=r"pip install 'shardline\[tls\]'"):
        LocalKinesis(tls=True).start()


def test_a_stream_that_cannot_be_is_refused_and_ends_the_server():
    kinesis = LocalKinesis(stream="s", shards=2, limits=Limits(shards_per_account=1))
    with pytest.raises(UsageError, match=r"^the stream 's' cannot be created: .*exceed the shard limit"):
        kinesis.start()
    assert repr(kinesis) == "<LocalKinesis, not started>"  # it never listened
    assert not any(thread.name == "shardline-local-kinesis" for thread in threading.enumerate())


@pytest.mark.parametrize("data", [False, True])
def test_first_streams_are_there_before_it_answers(tmp_path, data):
    settings = {"data": tmp_path / "data"} if data else {}
    kinesis = LocalKinesis(stream=["a", "b"], shards=2, **settings)
    for _ in range(2):  # with a data file, the streams of the first life already exist
        with kinesis:
            assert {name: len(stream.shards) for name, stream in kinesis.streams.items()} == {"a": 2, "b": 2}
    with pytest.raises(UsageError, match="a stream's name must be"):
        LocalKinesis(stream=["a", "no spaces"])


def test_ctrl_c_ends_a_program_that_is_inside_the_block():
    code = """
from shardline.testing import LocalKinesis
import time
try:
    with LocalKinesis(stream="s") as kinesis:
        print("ready", flush=True)
        time.sleep(60)
finally:
    print(kinesis, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout.readline() == "ready\n"
        run.send_signal(signal.SIGINT)
        output, errors = run.communicate(timeout=5)
    assert output.endswith(", stopped>\n")
    assert errors.rstrip().endswith("KeyboardInterrupt")


def delay_start(monkeypatch, work):
    """Call this in the server's thread before it serves."""
    make = RunningServer._make_server
    monkeypatch.setattr(RunningServer, "_make_server", lambda self, stack: (work(), make(self, stack))[1])


def test_a_start_that_takes_too_long_is_given_up(monkeypatch):
    delay_start(monkeypatch, lambda: time.sleep(0.1))
    monkeypatch.setattr(running, "_START_TIMEOUT", 0.001)
    kinesis = LocalKinesis()
    with pytest.raises(UsageError, match=r"did not start within 0.001 s"):
        kinesis.start()
    assert not answers(kinesis)


def interrupt_the_waiting_start():
    """Send SIGINT to the main thread while it waits for the server's thread."""
    main = threading.main_thread().ident
    while "started.result" not in "".join(traceback.format_stack(sys._current_frames()[main])):
        time.sleep(0.001)
    signal.pthread_kill(main, signal.SIGINT)
    time.sleep(0.05)


def test_ctrl_c_inside_the_start_leaves_nothing(monkeypatch):
    kinesis = LocalKinesis()
    with monkeypatch.context() as patch:
        delay_start(patch, interrupt_the_waiting_start)
        with pytest.raises(KeyboardInterrupt):
            kinesis.start()
    assert not answers(kinesis)
    with kinesis:
        assert answers(kinesis)


def test_what_fails_at_the_end_is_raised_by_stop_once(monkeypatch, tmp_path):
    def fail(self):
        close(self)
        raise OSError("no space left")

    close = Storage.close
    monkeypatch.setattr(Storage, "close", fail)
    kinesis = LocalKinesis(data=tmp_path / "data")
    kinesis.start()
    with pytest.raises(OSError, match="no space left"):
        kinesis.stop()
    kinesis.stop()


# ---- wrong arguments


def test_a_stream_is_created_with_right_arguments_alone():
    with LocalKinesis(stream="s") as kinesis:
        for name, shards, message in [
            ("s", None, "the stream 's' cannot be created: .*already exists"),
            ("t", 0, "shards must be a whole number from 1 to 10000, not 0"),
            ("", None, "a stream's name must be 1 to 128 of the characters .*, not ''"),
            (None, None, "a stream's name must be .*, not None"),
            ("x" * 129, None, "a stream's name must be 1 to 128"),
        ]:
            with pytest.raises(UsageError, match=message):
                kinesis.create_stream(name, shards)
        assert list(kinesis.streams) == ["s"]


# ---- settings


def test_streams_are_created_past_rates_and_faults():
    with LocalKinesis() as kinesis:
        kinesis.faults.throttle()
        kinesis.faults.reset()
        for number in range(20):
            assert kinesis.create_stream(f"s{number}", shards=2).status == "ACTIVE"
        assert len(kinesis.streams) == 20
        assert kinesis.requests.total == 0
        with pytest.raises(KeyError):
            kinesis.streams["s20"]


def test_delays_are_the_servers():
    with LocalKinesis(delays=Delays(create=10)) as kinesis:
        stream = kinesis.create_stream("s")
        assert stream.status == "CREATING"
        kinesis.clock.advance(10)
        assert stream.status == "ACTIVE"


def test_limits_are_on_by_default():
    entries = [{"Data": b"x", "PartitionKey": "a"}] * 500
    for limits, failed in [(True, True), (False, False), (Limits(write_records_per_second=10), True)]:
        with LocalKinesis(stream="s", limits=limits) as kinesis, contextlib.closing(boto(kinesis)) as client:
            kinesis.clock.freeze()
            counts = [client.put_records(StreamName="s", Records=entries)["FailedRecordCount"] for _ in range(3)]
            assert (sum(counts) > 0) == failed


def test_a_stream_shows_its_shards_and_records_in_order():
    with LocalKinesis(stream="s", shards=3) as kinesis, contextlib.closing(boto(kinesis)) as client:
        for number in range(20):
            client.put_record(StreamName="s", Data=b"%d" % number, PartitionKey=str(number))
        stream = kinesis.streams["s"]
        assert stream.arn == "arn:aws:kinesis:us-east-1:000000000000:stream/s"
        shown = [shard.shard_id for shard in stream.shards]
        assert shown == [f"shardId-{number:012d}" for number in range(3)]
        assert sorted(int(one.data) for one in stream.records) == list(range(20))
        for shard in stream.shards:
            numbers = [int(one.sequence_number) for one in stream.records if one.shard_id == shard.shard_id]
            assert numbers == sorted(numbers)
        assert {one.key for one in stream.records} == {str(number) for number in range(20)}


def test_a_stream_that_was_deleted_says_so():
    with LocalKinesis(stream="s") as kinesis, contextlib.closing(boto(kinesis)) as client:
        stream = kinesis.streams["s"]
        client.delete_stream(StreamName="s")
        assert "s" not in kinesis.streams
        with pytest.raises(UsageError, match="the stream s has been deleted"):
            assert stream.records


def test_the_environment_points_boto3_at_it(monkeypatch):
    with LocalKinesis(stream="s", region="eu-west-1") as kinesis:
        for name, value in kinesis.environment.items():
            monkeypatch.setenv(name, value)
        with contextlib.closing(boto3.client("kinesis")) as client:
            assert client.list_streams()["StreamNames"] == ["s"]
        assert kinesis.requests.last.access_key == kinesis.credentials.access_key


def test_any_address_is_shown_as_one_that_can_be_reached():
    with LocalKinesis(host="0.0.0.0") as kinesis:
        assert kinesis.endpoint_url.startswith("http://127.0.0.1:")
        assert answers(kinesis)


# ---- clock, faults, requests


def test_the_clock_stands_moves_and_goes_on():
    kinesis = LocalKinesis(stream="s")
    kinesis.clock.freeze()  # before the start too
    begun_at = kinesis.clock.now()
    with kinesis:
        time.sleep(0.01)
        assert kinesis.clock.now() == begun_at
        kinesis.clock.advance(90)
        put(kinesis)
        assert kinesis.clock.is_frozen
        assert [one.arrived_at for one in kinesis.streams["s"].records] == [pytest.approx(begun_at + 90, abs=0.001)]
        kinesis.clock.resume()
        time.sleep(0.01)
        assert kinesis.clock.now() > begun_at + 90
        assert not kinesis.clock.is_frozen
        with pytest.raises(UsageError, match=r"the clock can advance by a number of seconds from 0 to .*, not -1"):
            kinesis.clock.advance(-1)


def test_a_fault_hits_as_often_as_its_count():
    with LocalKinesis(stream="s") as kinesis:
        fault = kinesis.faults.throttle(operation="PutRecord", count=2)
        for _ in range(2):
            with pytest.raises(ClientError, match="ProvisionedThroughputExceeded"):
                put(kinesis)
        put(kinesis)
        assert (fault.hits, fault.count_left) == (2, 0)
        seen = [(one.status, one.error) for one in kinesis.requests.find("PutRecord")]
        assert seen == [(400, "ProvisionedThroughputExceededException")] * 2 + [(200, None)]


def test_a_reshard_happens_when_its_time_has_come():
    with LocalKinesis(stream="s") as kinesis:
        kinesis.faults.reshard_at(delay=60, stream="s", action="split", shard=0)
        assert len(kinesis.streams["s"].shards) == 1
        kinesis.clock.advance(60)
        shards = kinesis.streams["s"].shards
        assert [one.parent_id for one in shards] == [None, SHARD, SHARD]
        assert [one.ending_sequence_number is None for one in shards] == [False, True, True]


def test_all_of_it_may_be_used_from_other_threads_while_it_serves():
    stop = threading.Event()
    bugs = []
    with LocalKinesis(stream="s", shards=4, limits=False) as kinesis:

        def serve():
            with contextlib.closing(boto(kinesis)) as client:
                while not stop.is_set():
                    answer = client.put_records(StreamName="s", Records=[{"Data": b"x", "PartitionKey": "a"}] * 50)
                    assert len(answer["Records"]) == 50

        def look(number):
            turn = 0
            while not stop.is_set():
                turn += 1
                kinesis.create_stream(f"s{number}-{turn}")
                fault = kinesis.faults.throttle(operation="ListShards", count=1)
                assert kinesis.streams["s"].record_count >= 0
                assert len(kinesis.streams["s"].shards) == 4
                kinesis.clock.freeze()
                kinesis.clock.advance(0.001)
                kinesis.clock.resume()
                assert kinesis.requests.count("PutRecords") >= 0
                fault.remove()

        def guarded(work, *arguments):
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - shown by the assertion below
                bugs.append(error)

        threads = [threading.Thread(target=guarded, args=(serve,)) for _ in range(2)]
        threads += [threading.Thread(target=guarded, args=(look, number)) for number in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        stop.set()
        for thread in threads:
            thread.join(10)
        assert bugs == []
        assert kinesis.streams["s"].record_count == 50 * kinesis.requests.count("PutRecords")
        assert kinesis.faults.rules == []


def test_looking_while_it_stops_neither_fails_nor_hangs():
    for _ in range(20):
        kinesis = LocalKinesis(stream="s")
        kinesis.start()
        seen = []

        def look(kinesis=kinesis, seen=seen):
            for _ in range(200):
                seen.append(kinesis.streams["s"].status)

        thread = threading.Thread(target=look)
        thread.start()
        kinesis.stop()
        thread.join(5)
        assert seen == ["ACTIVE"] * 200


# ---- persistence, TLS, signatures


def test_what_was_stored_outlives_the_server(tmp_path):
    with LocalKinesis(data=tmp_path / "data", stream="s", shards=2) as kinesis:
        put(kinesis, b"one")
        kinesis.create_stream("quiet", shards=3)
        before = kinesis.streams["s"].records
    with LocalKinesis(data=str(tmp_path / "data"), stream="s") as kinesis:
        assert kinesis.streams["s"].records == before
        assert len(kinesis.streams["s"].shards) == 2
        assert len(kinesis.streams["quiet"].shards) == 3
        put(kinesis, b"two")
        assert sorted(one.data for one in kinesis.streams["s"].records) == [b"one", b"two"]


def test_a_stream_created_past_http_is_kept_though_the_process_is_killed(tmp_path):
    code = f"""
from shardline.testing import LocalKinesis
import os, signal
kinesis = LocalKinesis(data={str(tmp_path / "data")!r})
kinesis.start()
kinesis.create_stream("s", shards=2)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=20).returncode == -signal.SIGKILL
    with LocalKinesis(data=tmp_path / "data") as kinesis:
        assert len(kinesis.streams["s"].shards) == 2


def test_tls_is_served_with_a_certificate_that_verifies():
    with LocalKinesis(tls=True, stream="s") as kinesis:
        assert kinesis.endpoint_url.startswith("https://127.0.0.1:")
        put(kinesis)
        with contextlib.closing(boto(kinesis, verify=True)) as client, pytest.raises(Exception, match="CERTIFICATE"):
            client.list_streams()
        assert kinesis.environment["AWS_CA_BUNDLE"] == kinesis.ca_path
        assert kinesis.requests.total == 1


@pytest.mark.anyio
async def test_tls_for_our_client():
    async with LocalKinesis(tls=True, stream="s", host="localhost") as kinesis, kinesis.client() as client:
        await client.put_record("s", b"x", "a")
        assert kinesis.endpoint_url.startswith("https:")
        assert kinesis.streams["s"].record_count == 1


def test_signatures_are_verified_if_asked_for():
    with LocalKinesis(verify_signatures=True, stream="s") as kinesis:
        put(kinesis)
        for wrong, code in [
            ({"aws_secret_access_key": "wrong"}, "InvalidSignatureException"),
            ({"aws_access_key_id": "AKIDEXAMPLE"}, "UnrecognizedClientException"),
        ]:
            with contextlib.closing(boto(kinesis, **wrong)) as client, pytest.raises(ClientError) as caught:
                client.list_streams()
            assert caught.value.response["Error"]["Code"] == code
        assert kinesis.requests.last.was_handled is False


def test_the_control_path_moves_the_same_clock_and_faults():
    with LocalKinesis() as kinesis:
        connection = http.client.HTTPConnection("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2]), timeout=5)
        for path, body in [
            ("clock", {"freeze": True, "advance": 10}),
            ("faults", {"kind": "throttle", "operation": "ListShards"}),
        ]:
            json_type = {"Content-Type": "application/json"}
            connection.request("POST", f"/_shardline/{path}", json.dumps(body), json_type)
            answer = connection.getresponse()
            assert answer.status == 200
            answer.read()
        connection.close()
        assert kinesis.clock.is_frozen
        assert kinesis.clock.now() > time.time() + 5
        assert [one.rule.kind for one in kinesis.faults.rules] == ["throttle"]


def status_of(kinesis, host, path="/_shardline/clock"):
    connection = http.client.HTTPConnection("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2]), timeout=5)
    try:
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    "allowed", ["kinesis", ["kinesis"], ("other", "KINESIS"), {"kinesis"}], ids=["one", "list", "tuple", "set"]
)
def test_a_server_is_called_by_the_names_that_it_allows(allowed):
    with LocalKinesis(allow_host=allowed) as kinesis:
        assert [status_of(kinesis, host) for host in ("kinesis", "localhost", "evil.example")] == [200, 200, 403]


def test_a_server_that_listens_on_a_name_is_called_by_it():
    with LocalKinesis(host="localhost") as kinesis:
        assert kinesis.endpoint_url.startswith("http://localhost:")
        assert boto3.client("kinesis", **kinesis.boto3_arguments).list_streams()["StreamNames"] == []


def test_the_certificate_has_the_allowed_names():
    with LocalKinesis(tls=True, allow_host=["kinesis", "*.example.com"]) as kinesis:
        address = ("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2]))
        context = ssl.create_default_context(cafile=kinesis.ca_path)
        for name in ("kinesis", "a.example.com", "localhost"):
            with context.wrap_socket(socket.create_connection(address, timeout=5), server_hostname=name) as checked:
                assert checked.version() == "TLSv1.3"
        with socket.create_connection(address, timeout=5) as plain, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain, server_hostname="evil.example")


def test_a_token_is_the_secret_key(caplog):
    token = "a-token-of-more-than-16-characters"
    with caplog.at_level("DEBUG"), LocalKinesis(stream="s", token=token) as kinesis:
        assert boto3.client("kinesis", **kinesis.boto3_arguments).list_streams()["StreamNames"] == ["s"]

        async def ask():
            async with kinesis.client() as client:
                return await client.list_streams()

        assert [stream.name for stream in asyncio.run(ask())] == ["s"]
        wrong = kinesis.boto3_arguments | {"aws_secret_access_key": "shardline-local"}
        with pytest.raises(ClientError, match="InvalidSignatureException"):
            boto3.client("kinesis", **wrong).list_streams()
        assert [status_of(kinesis, "localhost", f"/_shardline/{path}") for path in ("clock", "health")] == [403, 200]
        shown = f"{kinesis!r} {kinesis._server._settings!r} {kinesis.credentials!r} {caplog.text}"
    assert token not in shown


def test_clients_whose_clock_is_right_are_believed_when_the_servers_was_moved():
    with LocalKinesis(stream="s", verify_signatures=True) as kinesis, contextlib.closing(boto(kinesis)) as client:
        kinesis.clock.advance(86_400)
        assert client.list_streams()["StreamNames"] == ["s"]
        kinesis.clock.freeze()
        assert client.list_streams()["StreamNames"] == ["s"]
        kinesis.faults.clock_skew(-86_400 - 3_600)
        with pytest.raises(ClientError, match="Signature not yet current"):
            client.list_streams()


def test_a_server_whose_clock_was_moved_has_a_certificate_that_is_valid_today():
    kinesis = LocalKinesis(tls=True, stream="s")
    kinesis.clock.advance(10 * 365 * 86_400)
    with kinesis, contextlib.closing(boto(kinesis)) as client:
        assert client.list_streams()["StreamNames"] == ["s"]


# ---- outages and shared servers


def test_an_outage_refuses_connections_and_keeps_everything_else():
    with LocalKinesis(stream="orders") as kinesis:
        url = kinesis.endpoint_url
        client = boto3.client("kinesis", **kinesis.boto3_arguments, config=ONCE)
        client.put_record(StreamName="orders", Data=b"before", PartitionKey="k")
        kinesis.clock.freeze()
        now = kinesis.clock.now()
        fault = kinesis.faults.throttle(operation="PutRecord", count=1)
        with kinesis.outage():
            with pytest.raises(EndpointConnectionError):
                client.put_record(StreamName="orders", Data=b"lost", PartitionKey="k")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 5)
            assert kinesis.streams["orders"].record_count == 1, "the server can still be looked at"
        assert (kinesis.endpoint_url, kinesis.clock.now(), fault.hits) == (url, now, 0)
        with pytest.raises(client.exceptions.ProvisionedThroughputExceededException):
            client.put_record(StreamName="orders", Data=b"throttled", PartitionKey="k")
        client.put_record(StreamName="orders", Data=b"after", PartitionKey="k")
        assert [record.data for record in kinesis.streams["orders"].records] == [b"before", b"after"]


def test_an_outage_resets_a_connection_in_the_middle_of_its_answer():
    with LocalKinesis(stream="orders") as kinesis:
        fault = kinesis.faults.latency(300, operation="ListStreams")
        port = int(kinesis.endpoint_url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 30) as waiting:
            waiting.sendall(
                b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-amz-json-1.1\r\n"
                b"X-Amz-Target: Kinesis_20131202.ListStreams\r\nContent-Length: 2\r\n\r\n{}"
            )
            while not fault.hits:
                time.sleep(0.01)
            with kinesis.outage(), contextlib.suppress(ConnectionResetError):
                assert waiting.recv(100) == b""


def test_an_outage_ends_whatever_happens_inside():
    with LocalKinesis(stream="orders") as kinesis:
        with pytest.raises(RuntimeError, match="inside"), kinesis.outage():
            raise RuntimeError("inside")
        put(kinesis, stream="orders")


def test_a_server_can_be_stopped_in_an_outage_and_there_is_none_without_a_server():
    kinesis = LocalKinesis(stream="orders")
    with pytest.raises(Closed), kinesis.outage():
        pytest.fail("the server does not run")
    kinesis.start()
    with pytest.raises(Closed), kinesis.outage():
        kinesis.stop()
    with kinesis:
        assert list(kinesis.streams) == ["orders"]


@pytest.mark.anyio
async def test_an_outage_in_async_code():
    async with LocalKinesis(stream="orders") as kinesis, kinesis.client() as client:
        async with kinesis.outage():
            with pytest.raises(TransportError):
                await client.list_shards("orders")
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with kinesis.outage():
                pytest.fail("cancelled before the block")
        assert len(await client.list_shards("orders")) == 1, "no outage is left behind"


def test_a_reset_leaves_nothing_but_the_first_streams_and_the_time():
    with LocalKinesis(stream="orders", delays=Delays(delete=60)) as kinesis:
        client = boto3.client("kinesis", **kinesis.boto3_arguments)
        client.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
        kinesis.create_stream("other")
        client.register_stream_consumer(StreamARN=kinesis.streams["other"].arn, ConsumerName="reader")
        kinesis.faults.throttle(operation="PutRecord")
        kinesis.clock.advance(1_000)
        now = kinesis.clock.now()
        kinesis.reset()
        assert list(kinesis.streams) == ["orders"]
        assert (kinesis.streams["orders"].record_count, kinesis.requests.total) == (0, 0)
        assert kinesis.clock.now() >= now
        client.put_record(StreamName="orders", Data=b"y", PartitionKey="k")
    with pytest.raises(Closed):
        kinesis.reset()


def test_the_missing_extra_of_the_server_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "shardline.server.http_server", None)
    with pytest.raises(UsageError, match=r"^the embedded Kinesis needs an extra: pip install 'shardline\[local\]'$"):
        LocalKinesis()
