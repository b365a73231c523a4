"""Do clients that use HTTP/2 in cleartext get the same answers as others?

They are httpcore2 with prior knowledge, h2 driven by hand where frames matter, and boto3 over HTTP/1.1 on the same
port.
"""

import asyncio
import base64
import contextlib
import json
import socket
import threading
import time

import boto3
import cbor2
import h2.config
import h2.connection
import h2.events
import httpcore2
import pytest

from shardline.codec.eventstream import MessageDecoder
from shardline.testing import LocalKinesis

SHARD = "shardId-000000000000"
JSON = "application/x-amz-json-1.1"
CBOR = "application/x-amz-cbor-1.1"


@pytest.fixture
def kinesis():
    with LocalKinesis(stream="s") as running:
        yield running


@pytest.fixture
def pool():
    with httpcore2.ConnectionPool(http1=False, http2=True) as pool:
        yield pool


def head(operation, content_type=JSON):
    return {"x-amz-target": f"Kinesis_20131202.{operation}", "content-type": content_type}


def ask(pool, kinesis, operation, members, **options):
    answer = pool.request(
        "POST", kinesis.endpoint_url, headers=head(operation), content=json.dumps(members).encode(), **options
    )
    assert answer.extensions["http_version"] == b"HTTP/2"
    return answer.status, json.loads(answer.content or b"null"), {k.decode(): v.decode() for k, v in answer.headers}


def register(pool, kinesis):
    _, answer, _ = ask(
        pool,
        kinesis,
        "RegisterStreamConsumer",
        {"StreamARN": kinesis.streams["s"].arn, "ConsumerName": "c"},
    )
    return answer["Consumer"]["ConsumerARN"]


def subscribing(consumer):
    return {"ConsumerARN": consumer, "ShardId": SHARD, "StartingPosition": {"Type": "TRIM_HORIZON"}}


def test_records_go_in_and_come_out_over_http2(kinesis, pool):
    records = [{"Data": base64.b64encode(b"%d" % n).decode(), "PartitionKey": "a"} for n in range(500)]
    status, answer, headers = ask(pool, kinesis, "PutRecords", {"StreamName": "s", "Records": records})
    assert (status, answer["FailedRecordCount"]) == (200, 0)
    assert headers["content-type"] == JSON
    assert headers["x-amzn-requestid"]
    assert "date" in headers
    wanted = {"StreamName": "s", "ShardId": SHARD, "ShardIteratorType": "TRIM_HORIZON"}
    _, answer, _ = ask(pool, kinesis, "GetShardIterator", wanted)
    _, page, _ = ask(pool, kinesis, "GetRecords", {"ShardIterator": answer["ShardIterator"]})
    assert [base64.b64decode(one["Data"]) for one in page["Records"]] == [b"%d" % n for n in range(500)]
    assert len(pool.connections) == 1


def test_a_large_page_comes_whole(pool):
    with LocalKinesis(stream="s", limits=False) as kinesis:
        data = base64.b64encode(bytes(1_000_000)).decode()
        for _ in range(5):
            status, _, _ = ask(pool, kinesis, "PutRecord", {"StreamName": "s", "Data": data, "PartitionKey": "a"})
            assert status == 200
        wanted = {"StreamName": "s", "ShardId": SHARD, "ShardIteratorType": "TRIM_HORIZON"}
        _, answer, _ = ask(pool, kinesis, "GetShardIterator", wanted)
        _, page, _ = ask(pool, kinesis, "GetRecords", {"ShardIterator": answer["ShardIterator"]})
        assert sum(len(base64.b64decode(one["Data"])) for one in page["Records"]) == 5_000_000


def test_cbor_over_http2(kinesis, pool):
    body = cbor2.dumps({"StreamName": "s", "Data": b"x", "PartitionKey": "a"})
    answer = pool.request("POST", kinesis.endpoint_url, headers=head("PutRecord", CBOR), content=body)
    assert dict(answer.headers)[b"content-type"] == CBOR.encode()
    assert cbor2.loads(answer.content)["ShardId"] == SHARD
    assert [one.data for one in kinesis.streams["s"].records] == [b"x"]


def test_an_error_over_http2(kinesis, pool):
    status, answer, headers = ask(pool, kinesis, "DescribeStreamSummary", {"StreamName": "nobody"})
    assert (status, answer["__type"]) == (400, "ResourceNotFoundException")
    assert headers["x-amzn-errortype"] == "ResourceNotFoundException"


def test_the_control_path_over_http2(kinesis, pool):
    url = f"{kinesis.endpoint_url}/_shardline"
    fault = json.dumps({"kind": "throttle", "operation": "ListShards"}).encode()
    json_type = {"content-type": "application/json"}
    assert pool.request("POST", f"{url}/faults", headers=json_type, content=fault).status == 200
    assert pool.request("POST", f"{url}/faults", headers={"content-type": "text/plain"}, content=fault).status == 415
    assert pool.request("GET", f"{url}/clock", headers={"host": "evil.example"}).status == 403
    assert ask(pool, kinesis, "ListShards", {"StreamName": "s"})[0] == 400
    seen = pool.request("GET", f"{url}/requests?operation=ListShards&limit=1")
    assert dict(seen.headers)[b"content-type"].startswith(b"application/json")
    assert [one["error"] for one in json.loads(seen.content)["requests"]] == ["LimitExceededException"]
    assert pool.request("GET", f"{url}/nothing").status == 404


def test_a_subscription_over_http2_brings_what_comes(kinesis, pool):
    consumer = register(pool, kinesis)
    body = json.dumps(subscribing(consumer)).encode()
    decoder = MessageDecoder()
    got = []
    with pool.stream("POST", kinesis.endpoint_url, headers=head("SubscribeToShard"), content=body) as answer:
        assert answer.status == 200
        assert dict(answer.headers)[b"content-type"] == b"application/vnd.amazon.eventstream"
        pieces = answer.iter_stream()
        messages = iter(message for piece in pieces for message in decoder.feed(piece))
        assert next(messages).headers[":event-type"] == "initial-response"
        for number in range(3):  # each is put while the subscription is open, on the same connection
            put = {"StreamName": "s", "Data": base64.b64encode(b"%d" % number).decode(), "PartitionKey": "a"}
            assert ask(pool, kinesis, "PutRecord", put)[0] == 200
            while len(got) <= number:
                event = json.loads(bytes(next(messages).payload))
                got += [base64.b64decode(one["Data"]) for one in event["Records"]]
    assert got == [b"0", b"1", b"2"]
    assert len(pool.connections) == 1


def test_a_subscription_whose_client_has_gone_is_over(kinesis):
    with httpcore2.ConnectionPool(http1=False, http2=True) as pool:
        consumer = register(pool, kinesis)
        body = json.dumps(subscribing(consumer)).encode()
        with pool.stream("POST", kinesis.endpoint_url, headers=head("SubscribeToShard"), content=body) as answer:
            next(answer.iter_stream())
            assert live_subscriptions(kinesis) == 1
    wait_until(lambda: live_subscriptions(kinesis) == 0)


def test_a_subscription_that_its_client_resets_is_over(kinesis, pool):
    consumer = register(pool, kinesis)
    with by_hand(kinesis, "SubscribeToShard", json.dumps(subscribing(consumer)).encode()) as (client, plain):
        client.end_stream(1)
        plain.sendall(client.data_to_send())
        while not any(isinstance(event, h2.events.DataReceived) for event in client.receive_data(plain.recv(65_536))):
            pass
        assert live_subscriptions(kinesis) == 1
        client.reset_stream(1)
        plain.sendall(client.data_to_send())
        wait_until(lambda: live_subscriptions(kinesis) == 0)


def live_subscriptions(kinesis):
    held = vars(kinesis._server.service._subscriptions).values()
    return sum(not one.ended for some in held if isinstance(some, dict) for one in some.values())


def wait_until(true):
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextlib.contextmanager
def by_hand(kinesis, operation, body):
    """A connection with an incomplete request."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    pseudo = {":method": "POST", ":path": "/", ":scheme": "http", ":authority": "localhost"}
    client.send_headers(1, list((pseudo | head(operation)).items()))
    client.send_data(1, body)
    with socket.create_connection(("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2])), timeout=5) as plain:
        yield client, plain


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ([(":authority", "localhost")], "200"),
        ([(":authority", "[::1]:4567"), ("host", "[::1]:4567")], "200"),
        ([("host", "127.0.0.1")], "200"),
        ([(":authority", "evil.example")], "403"),
        ([("host", "evil.example")], "403"),
        ([(":authority", "user@localhost")], "400"),
        ([("host", "localhost"), ("host", "localhost")], "reset"),  # h2 considers these three malformed
        ([(":authority", "localhost"), ("host", "evil.example")], "reset"),
        ([], "reset"),
    ],
)
def test_the_authority_of_http2_is_the_host(kinesis, hosts, status):
    settings = h2.config.H2Configuration(client_side=True, validate_outbound_headers=False, header_encoding="utf-8")
    client = h2.connection.H2Connection(settings)
    client.initiate_connection()
    pseudo = [(":method", "GET"), (":path", "/_shardline/clock"), (":scheme", "http")]
    client.send_headers(1, pseudo + hosts, end_stream=True)
    found = None
    with socket.create_connection(("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2])), timeout=5) as plain:
        plain.sendall(client.data_to_send())
        while found is None:
            received = plain.recv(65_536)
            for event in client.receive_data(received) if received else ["closed"]:
                if isinstance(event, h2.events.ResponseReceived):
                    found = dict(event.headers)[":status"]
                elif event == "closed" or isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
                    found = "reset"
    assert found == status


def test_a_late_answer_does_not_hold_up_those_beside_it(kinesis):
    async def main():
        async with httpcore2.AsyncConnectionPool(http1=False, http2=True) as pool:

            async def ask(operation, members):
                body = json.dumps(members).encode()
                answer = await pool.request("POST", kinesis.endpoint_url, headers=head(operation), content=body)
                return answer.status, time.perf_counter()

            await ask("DescribeLimits", {})
            late = asyncio.ensure_future(ask("ListShards", {"StreamName": "s"}))
            await asyncio.sleep(0.05)
            quick = await ask("DescribeStreamSummary", {"StreamName": "s"})
            return await late, quick, len(pool.connections)

    kinesis.faults.latency(0.4, operation="ListShards")
    (status, late_at), (other, quick_at), connections = asyncio.run(main())
    assert (status, other, connections) == (200, 200, 1)
    assert late_at - quick_at > 0.2


# ---- connections that break


@pytest.mark.parametrize(("where", "stored"), [("before", 0), ("after", 1), ("inside", 1)])
def test_a_reset_ends_the_connection(kinesis, pool, where, stored):
    kinesis.faults.reset(where, operation="PutRecord", count=1)
    put = {"StreamName": "s", "Data": "eA==", "PartitionKey": "a"}
    with pytest.raises((httpcore2.ReadError, httpcore2.RemoteProtocolError, httpcore2.WriteError)):
        ask(pool, kinesis, "PutRecord", put, extensions={"timeout": {"read": 5}})
    assert kinesis.streams["s"].record_count == stored
    assert ask(pool, kinesis, "PutRecord", put)[0] == 200  # on another connection


def test_a_truncated_answer_ends_early(kinesis, pool):
    kinesis.faults.truncate(at=5, operation="DescribeLimits")
    got = []
    with (
        pytest.raises((httpcore2.ReadError, httpcore2.RemoteProtocolError)),
        pool.stream("POST", kinesis.endpoint_url, headers=head("DescribeLimits"), content=b"{}") as answer,
    ):
        got.extend(answer.iter_stream())
    assert len(b"".join(got)) == 5


def test_a_fan_out_reset_ends_the_connection(kinesis, pool):
    consumer = register(pool, kinesis)
    kinesis.faults.fan_out_reset()
    body = json.dumps(subscribing(consumer)).encode()
    with (
        pytest.raises((httpcore2.ReadError, httpcore2.RemoteProtocolError)),
        pool.stream("POST", kinesis.endpoint_url, headers=head("SubscribeToShard"), content=body) as answer,
    ):
        for _ in answer.iter_stream():
            pass


def test_a_subscription_that_ends_cleanly_ends_the_stream(kinesis, pool):
    consumer = register(pool, kinesis)
    kinesis.faults.fan_out_end()
    body = json.dumps(subscribing(consumer)).encode()
    with pool.stream("POST", kinesis.endpoint_url, headers=head("SubscribeToShard"), content=body) as answer:
        assert b"initial-response" in b"".join(answer.iter_stream())
    assert ask(pool, kinesis, "DescribeLimits", {})[0] == 200


def test_garbage_ends_its_own_connection_alone(kinesis, pool, caplog):
    port = int(kinesis.endpoint_url.rpartition(":")[2])
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for garbage in (b"\0" * 100, preface + b"\xff" * 100, preface + b"\0\0\4\0\1\0\0\0\1abcd", b"GET / HTTP/9\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
            plain.sendall(garbage)
            plain.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while plain.recv(65_536):
                    pass
    assert ask(pool, kinesis, "DescribeLimits", {})[0] == 200
    assert caplog.records == []


def test_a_body_over_the_limit_is_refused(kinesis, pool):
    def pieces():
        for _ in range(65):
            yield bytes(1 << 20)

    answer = pool.request("POST", kinesis.endpoint_url, headers=head("PutRecord"), content=pieces())
    assert answer.status == 413
    assert ask(pool, kinesis, "DescribeLimits", {})[0] == 200


def test_a_request_that_breaks_off_is_not_carried_out(kinesis):
    put = json.dumps({"StreamName": "s", "Data": "eA==", "PartitionKey": "a"}).encode()
    with by_hand(kinesis, "PutRecord", put) as (client, plain):
        client.reset_stream(1)
        plain.sendall(client.data_to_send())
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(65_536):
            pass
    assert kinesis.requests.total == 0
    assert kinesis.streams["s"].records == []


# ---- beside HTTP/2


def test_http1_is_served_on_the_same_port(kinesis):
    with contextlib.closing(boto3.client("kinesis", **kinesis.boto3_arguments)) as client:
        client.put_record(StreamName="s", Data=b"x", PartitionKey="a")
        consumer = client.register_stream_consumer(StreamARN=kinesis.streams["s"].arn, ConsumerName="c")
        events = client.subscribe_to_shard(**subscribing(consumer["Consumer"]["ConsumerARN"]))["EventStream"]
        event = next(iter(events))
        assert [one["Data"] for one in event["SubscribeToShardEvent"]["Records"]] == [b"x"]
        events.close()


def test_signatures_are_verified_over_http2(pool):
    with LocalKinesis(verify_signatures=True) as kinesis:
        status, answer, _ = ask(pool, kinesis, "DescribeLimits", {})
        assert (status, answer["__type"]) == (400, "MissingAuthenticationTokenException")
        with contextlib.closing(boto3.client("kinesis", **kinesis.boto3_arguments)) as client:
            client.describe_limits()


@pytest.mark.clock
def test_stopping_does_not_wait_for_what_is_open(pool):
    with LocalKinesis(stream="s") as kinesis:
        consumer = register(pool, kinesis)
        body = json.dumps(subscribing(consumer)).encode()
        fault = kinesis.faults.latency(60, operation="ListShards")

        def call():
            with (
                httpcore2.ConnectionPool(http1=False, http2=True) as other,
                contextlib.suppress(httpcore2.NetworkError, httpcore2.ProtocolError),
            ):
                ask(other, kinesis, "ListShards", {"StreamName": "s"})

        thread = threading.Thread(target=call)
        thread.start()
        while not fault.hits:
            time.sleep(0.005)
        with (
            contextlib.suppress(httpcore2.NetworkError, httpcore2.ProtocolError),
            pool.stream("POST", kinesis.endpoint_url, headers=head("SubscribeToShard"), content=body) as answer,
        ):
            next(answer.iter_stream())
            began_at = time.perf_counter()
            kinesis.stop()
            assert time.perf_counter() - began_at < 0.5
        thread.join(5)
        assert not thread.is_alive()


def test_many_requests_share_a_connection(kinesis):
    async def main():
        async with httpcore2.AsyncConnectionPool(http1=False, http2=True) as pool:

            async def put(number):
                members = {"StreamName": "s", "Data": "eA==", "PartitionKey": str(number)}
                body = json.dumps(members).encode()
                answer = await pool.request("POST", kinesis.endpoint_url, headers=head("PutRecord"), content=body)
                return answer.status

            await put(0)
            statuses = await asyncio.gather(*[put(number) for number in range(1, 200)])
            return statuses, len(pool.connections)

    statuses, connections = asyncio.run(main())
    assert statuses == [200] * 199
    assert connections == 1
    assert kinesis.streams["s"].record_count == 200
