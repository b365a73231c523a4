"""Does the server follow HTTP/2 frame by frame, and behave well with clients that do not?

The client is h2 driven by hand on a plain socket, with bytes that h2 would not send.
"""

import base64
import contextlib
import json
import resource
import socket
import ssl
import time

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest

from shardline.codec.eventstream import MessageDecoder
from shardline.server.http2_frames import PREFACE
from shardline.testing import LocalKinesis

SHARD = "shardId-000000000000"
JSON = "application/x-amz-json-1.1"
MIB = 1024 * 1024


class Wire:
    """A connection, and the data that has arrived on each of its streams."""

    def __init__(self, kinesis, *, window=65_535, receive_buffer=None, context=None):
        host, port = "127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2])
        plain = socket.socket()
        if receive_buffer is not None:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.settimeout(20)
        plain.connect((host, port))
        self.socket = plain if context is None else context.wrap_socket(plain, server_hostname="localhost")
        self.frames = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False)
        )
        values = {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window, h2.settings.SettingCodes.ENABLE_PUSH: 0}
        self.frames.local_settings = h2.settings.Settings(client=True, initial_values=values)
        self.frames.initiate_connection()
        self.heads, self.bodies, self.ended, self.resets = {}, {}, set(), {}
        self.terminated = None
        self.events = []
        self.gives_room = True
        self.flush()

    def close(self):
        self.socket.close()

    def flush(self):
        self.socket.sendall(self.frames.data_to_send())

    def begin(self, operation, *, end=False, **headers):
        stream = self.frames.get_next_available_stream_id()
        pseudo = {":method": "POST", ":path": "/", ":scheme": "http", ":authority": "localhost"}
        named = {"x-amz-target": f"Kinesis_20131202.{operation}", "content-type": JSON}
        self.frames.send_headers(stream, list((pseudo | named | headers).items()), end_stream=end)
        self.bodies[stream] = b""
        return stream

    def ask(self, operation, members=None, **headers):
        stream = self.begin(operation, **headers)
        self.frames.send_data(stream, json.dumps(members or {}).encode(), end_stream=True)
        self.flush()
        return stream

    def receive(self):
        """Read the data that has arrived. Return ``False`` at the end of the connection."""
        try:
            data = self.socket.recv(65_536)
        except ConnectionResetError:
            data = b""
        for event in self.frames.receive_data(data) if data else []:
            self.events.append(event)
            if isinstance(event, h2.events.ResponseReceived):
                self.heads[event.stream_id] = dict(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] += event.data
                if self.gives_room and event.flow_controlled_length:
                    self.frames.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.resets[event.stream_id] = event.error_code
            elif isinstance(event, h2.events.ConnectionTerminated):
                self.terminated = event.error_code
        if data:
            with contextlib.suppress(OSError):
                self.flush()
        return bool(data)

    def until(self, true):
        while not true():
            assert self.receive(), "the connection has ended"

    def until_the_end(self):
        while self.receive():
            pass

    def answer(self, stream):
        self.until(lambda: stream in self.ended)
        return int(self.heads[stream][":status"]), json.loads(self.bodies[stream] or b"null")

    def call(self, operation, members=None, **headers):
        return self.answer(self.ask(operation, members, **headers))


@pytest.fixture
def kinesis():
    with LocalKinesis(stream="s", limits=False) as running:
        yield running


@pytest.fixture
def connect(kinesis):
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(contextlib.closing(Wire(kinesis, **options)))


@pytest.fixture
def wire(connect):
    return connect()


def put(wire, data, count=1):
    for _ in range(count):
        members = {"StreamName": "s", "Data": base64.b64encode(data).decode(), "PartitionKey": "a"}
        stream = wire.begin("PutRecord")
        body = memoryview(json.dumps(members).encode())
        while body:
            room = min(wire.frames.local_flow_control_window(stream), wire.frames.max_outbound_frame_size)
            if not room:
                assert wire.receive()
                continue
            wire.frames.send_data(stream, body[:room])
            body = body[room:]
            wire.flush()
        wire.frames.end_stream(stream)
        wire.flush()
        assert wire.answer(stream)[0] == 200


def iterator(wire):
    members = {"StreamName": "s", "ShardId": SHARD, "ShardIteratorType": "TRIM_HORIZON"}
    return wire.call("GetShardIterator", members)[1]["ShardIterator"]


def subscribe(wire, kinesis, name="c"):
    arn = kinesis.streams["s"].arn
    status, answer = wire.call("RegisterStreamConsumer", {"StreamARN": arn, "ConsumerName": name})
    assert status == 200
    position = {"Type": "TRIM_HORIZON"}
    members = {"ConsumerARN": answer["Consumer"]["ConsumerARN"], "ShardId": SHARD, "StartingPosition": position}
    stream = wire.ask("SubscribeToShard", members)
    wire.until(lambda: b"initial-response" in wire.bodies[stream])
    return stream


def pushed(wire, stream):
    """Return the data of the records that a subscription has received."""
    messages = MessageDecoder().feed(wire.bodies[stream])
    events = [
        json.loads(bytes(one.payload)) for one in messages if one.headers[":event-type"] == "SubscribeToShardEvent"
    ]
    return [base64.b64decode(record["Data"]) for event in events for record in event["Records"]]


def live(kinesis):
    return kinesis._server.call(
        lambda: sum(not one.ended for one in kinesis._server.service._subscriptions._live.values())
    )


def wait_until(true):
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# ---- GOAWAY, RST_STREAM


def test_established_streams_go_on_after_the_clients_goaway(kinesis, connect):
    wire, other = connect(), connect()
    late = kinesis.faults.latency(0.3, operation="DescribeLimits", count=1)
    stream, slow = subscribe(wire, kinesis), wire.ask("DescribeLimits")
    wait_until(lambda: late.hits)
    # A GOAWAY that bypasses the client's own h2, which would close.
    wire.socket.sendall(b"\0\0\10\7\0\0\0\0\0" + bytes(8))
    for data in (b"1", b"2"):
        put(other, data)
        wire.until(lambda wanted=data: wanted in pushed(wire, stream))
    assert wire.answer(slow)[0] == 200
    assert pushed(wire, stream) == [b"1", b"2"]
    kinesis.faults.fan_out_end()
    wire.until(lambda: stream in wire.ended)
    wire.until_the_end()  # the connection ends with its last stream
    assert wire.terminated is None


def test_goaway_without_streams_ends_the_connection(wire):
    assert wire.call("DescribeLimits")[0] == 200
    wire.socket.sendall(b"\0\0\10\7\0\0\0\0\0" + bytes(8))
    wire.until_the_end()


def test_a_reset_stream_ends_its_subscription_alone(kinesis, wire):
    first, second = subscribe(wire, kinesis, "c"), subscribe(wire, kinesis, "d")
    assert live(kinesis) == 2
    wire.frames.reset_stream(first)
    wire.flush()
    wait_until(lambda: live(kinesis) == 1)
    put(wire, b"x")
    wire.until(lambda: pushed(wire, second) == [b"x"])
    assert pushed(wire, first) == []


def test_a_complete_request_that_is_reset_at_once_is_carried_out_and_harms_nothing(kinesis, wire):
    stream = wire.begin("PutRecord")
    body = json.dumps({"StreamName": "s", "Data": "eA==", "PartitionKey": "a"}).encode()
    wire.frames.send_data(stream, body, end_stream=True)
    wire.frames.reset_stream(stream)  # in the same packet
    wire.flush()
    assert wire.call("DescribeLimits")[0] == 200
    assert kinesis.streams["s"].record_count == 1


def test_a_flood_of_resets_ends_the_connection(kinesis, connect):
    wire = connect()
    with contextlib.suppress(ConnectionError):
        for _ in range(3_000):
            wire.frames.reset_stream(wire.begin("DescribeLimits"))
            wire.flush()
    wire.until_the_end()
    assert wire.terminated in {h2.errors.ErrorCodes.ENHANCE_YOUR_CALM, None}  # None: the end came before it was read
    assert connect().call("DescribeLimits")[0] == 200
    assert kinesis.requests.total < 1_200


# ---- flow control


@pytest.mark.parametrize("window", [1_000, 65_535, 4 * MIB])
def test_a_page_larger_than_the_window_comes_whole(connect, window):
    wire = connect(window=window)
    size = 20_000 if window == 1_000 else 1_000_000
    put(wire, bytes(size), 4)
    _, page = wire.call("GetRecords", {"ShardIterator": iterator(wire)})
    assert [len(base64.b64decode(one["Data"])) for one in page["Records"]] == [size] * 4


def test_a_window_that_settings_widen_lets_the_rest_through(wire, connect):
    put(wire, bytes(200_000))
    slow = connect(window=0)
    slow.gives_room = False
    found = iterator(wire)
    stream = slow.ask("GetRecords", {"ShardIterator": found})
    slow.until(lambda: stream in slow.heads)
    slow.frames.increment_flow_control_window(10 * MIB)
    slow.frames.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: MIB})
    slow.flush()
    status, page = slow.answer(stream)
    assert (status, len(page["Records"])) == (200, 1)


def test_a_client_without_room_delays_no_other_client(kinesis, wire):
    put(wire, bytes(500_000))
    found = iterator(wire)
    wire.gives_room = False
    stuck = wire.ask("GetRecords", {"ShardIterator": found})
    wire.until(lambda: len(wire.bodies[stuck]) >= 65_000)
    with contextlib.closing(Wire(kinesis)) as other:
        assert other.call("DescribeLimits")[0] == 200
    wire.frames.increment_flow_control_window(10 * MIB)
    wire.frames.increment_flow_control_window(10 * MIB, stuck)
    wire.flush()
    assert len(wire.answer(stuck)[1]["Records"]) == 1


def test_a_body_over_the_limit_is_refused_and_not_kept(kinesis, wire):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    stream = wire.begin("PutRecord")
    piece = bytes(16_384)
    for _ in range(65 * MIB // len(piece)):
        while wire.frames.local_flow_control_window(stream) < len(piece):
            assert wire.receive()
        wire.frames.send_data(stream, piece)
        wire.flush()
    wire.frames.end_stream(stream)
    wire.flush()
    status, answer = wire.answer(stream)
    assert (status, answer["__type"]) == (413, "RequestEntityTooLargeException")
    [connection] = kinesis._server.call(lambda: list(kinesis._server.http.http2))
    assert connection._held == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_a_body_that_never_ends_is_reset(wire):
    stream = wire.begin("PutRecord")
    piece = bytes(16_384)
    while stream not in wire.resets:
        if wire.frames.local_flow_control_window(stream) < len(piece):
            assert wire.receive()
            continue
        wire.frames.send_data(stream, piece)
        wire.flush()
        assert sum(wire.resets.values()) == 0
    assert wire.resets[stream] == h2.errors.ErrorCodes.ENHANCE_YOUR_CALM
    assert wire.call("DescribeLimits")[0] == 200


def test_a_client_that_does_not_read_gets_no_more_answers(kinesis, wire, connect):
    """Two hundred pages of 10 MB would be 2 GB: the server creates some of them, and waits for the client."""
    for _ in range(10):
        put(wire, bytes(1_000_000))
    found = iterator(wire)
    lazy = connect(window=2**31 - 1, receive_buffer=4_096)
    before = kinesis.requests.total
    for _ in range(200):
        lazy.ask("GetRecords", {"ShardIterator": found})
    time.sleep(1)
    assert kinesis.requests.total - before < 20
    [held] = kinesis._server.call(lambda: [one._unsent for one in kinesis._server.http.http2 if one._unsent])
    assert held < 100 * MIB
    assert wire.call("DescribeLimits")[0] == 200


def test_a_flood_of_pings_from_a_client_that_does_not_read_is_not_buffered(kinesis, connect):
    lazy = connect(receive_buffer=4_096)
    ping = b"\0\0\10\6\0\0\0\0\0" + bytes(8)
    lazy.socket.settimeout(1)
    sent = 0
    with contextlib.suppress(TimeoutError):
        while sent < 200 * MIB:
            sent += lazy.socket.send(ping * 4_000)
    assert sent < 100 * MIB  # the server reads no more requests
    [held] = kinesis._server.call(
        lambda: [one._transport.get_write_buffer_size() for one in kinesis._server.http.http2]
    )
    assert held < 6 * MIB
    assert connect().call("DescribeLimits")[0] == 200


# ---- frames


def test_a_thousand_streams_are_served_at_once_and_the_rest_is_refused(kinesis, wire):
    wire.until(lambda: wire.frames.remote_settings.max_concurrent_streams == 1_000)
    open_streams = [wire.begin("PutRecord") for _ in range(1_000)]
    wire.flush()
    body = json.dumps({"StreamName": "s", "Data": "eA==", "PartitionKey": "a"}).encode()
    for stream in open_streams:
        wire.frames.send_data(stream, body, end_stream=True)
        wire.flush()
    assert {wire.answer(stream)[0] for stream in open_streams} == {200}
    assert kinesis.streams["s"].record_count == 1_000


def test_trailers_continuations_and_expect(wire):
    stream = wire.begin("DescribeLimits", expect="100-continue", **{"x-long": "x" * 40_000})  # three frames
    wire.flush()
    wire.until(lambda: any(isinstance(one, h2.events.InformationalResponseReceived) for one in wire.events))
    wire.frames.send_data(stream, b"{}")
    wire.frames.send_headers(stream, [("x-trailer", "y")], end_stream=True)
    wire.flush()
    assert wire.answer(stream)[0] == 200


def test_ping_is_answered_and_unknown_frames_are_not(wire):
    wire.frames.ping(b"12345678")
    wire.flush()
    wire.socket.sendall(b"\0\0\3\xee\0\0\0\0\0abc")
    wire.until(lambda: any(isinstance(one, h2.events.PingAckReceived) for one in wire.events))
    assert wire.call("DescribeLimits")[0] == 200


def test_oversized_headers_end_the_connection(connect):
    wire = connect()
    wire.begin("DescribeLimits", end=True, **{f"x-{n}": "y" * 8_000 for n in range(10)})
    wire.flush()
    wire.until_the_end()
    assert wire.terminated is not None
    assert connect().call("DescribeLimits")[0] == 200


def test_a_header_that_never_ends_ends_the_connection(connect):
    wire = connect()
    with contextlib.suppress(ConnectionError):
        wire.socket.sendall(b"\0\0\1\1\0\0\0\0\1\x82" + b"\0\0\1\11\0\0\0\0\1\x84" * 100)
    wire.until_the_end()
    assert connect().call("DescribeLimits")[0] == 200


@pytest.mark.parametrize(
    "garbage", [PREFACE + b"\xff" * 100, PREFACE + b"\0\0\4\0\1\0\0\0\1abcd", PREFACE[:20] + b"xxxx"]
)
def test_garbage_ends_its_own_connection_alone(kinesis, connect, garbage, caplog):
    with socket.create_connection(("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2])), timeout=10) as plain:
        plain.sendall(garbage)
        plain.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while plain.recv(65_536):
                pass
    assert connect().call("DescribeLimits")[0] == 200
    assert caplog.records == []


def test_the_preface_may_come_byte_by_byte(kinesis):
    class Slow(Wire):
        def flush(self):
            for one in self.frames.data_to_send():
                self.socket.sendall(bytes((one,)))

    with contextlib.closing(Slow(kinesis)) as wire:
        wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert wire.call("DescribeLimits")[0] == 200


def test_head_has_the_length_and_no_body(wire):
    stream = wire.begin("", end=True, **{":method": "HEAD", ":path": "/_shardline/health"})
    wire.flush()
    assert wire.answer(stream) == (200, None)
    assert int(wire.heads[stream]["content-length"]) > 10


# ---- beside HTTP/2


def test_an_upgrade_to_h2c_is_served_over_http1(kinesis):
    """A server may ignore Upgrade (RFC 9110, 7.8); Java's HttpClient sends it with every first request."""
    with socket.create_connection(("127.0.0.1", int(kinesis.endpoint_url.rpartition(":")[2])), timeout=10) as plain:
        plain.sendall(
            b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nContent-Type: application/x-amz-json-1.1\r\n"
            b"X-Amz-Target: Kinesis_20131202.DescribeLimits\r\nContent-Length: 2\r\n\r\n{}"
        )
        assert plain.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(("offered", "agreed"), [(["h2"], "h2"), (["http/1.1"], "http/1.1"), ([], None)])
def test_alpn_decides_with_tls(offered, agreed):
    with LocalKinesis(tls=True) as kinesis:
        context = ssl.create_default_context(cafile=kinesis.ca_path)
        if offered:
            context.set_alpn_protocols(offered)
        port = int(kinesis.endpoint_url.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            assert tls.selected_alpn_protocol() == agreed
            if agreed == "h2":
                assert tls.recv(9)[3] == 4  # SETTINGS, before the client has sent anything
            else:
                tls.sendall(b"GET /_shardline/health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert tls.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_http2_over_tls(kinesis):
    del kinesis
    with LocalKinesis(tls=True, stream="s", limits=False) as secure:
        context = ssl.create_default_context(cafile=secure.ca_path)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with contextlib.closing(Wire(secure, context=context)) as wire:
            put(wire, bytes(1_000_000), 3)
            assert len(wire.call("GetRecords", {"ShardIterator": iterator(wire)})[1]["Records"]) == 3
            stream = subscribe(wire, secure)
            wire.until(lambda: len(pushed(wire, stream)) == 3)


def test_many_answers_share_a_narrow_window(kinesis, connect):
    """A client extends the connection's window only when half of it is used: no stream may be forgotten."""
    wire = connect()
    put(wire, bytes(30_000))
    found = iterator(wire)
    streams = [wire.ask("GetRecords", {"ShardIterator": found}) for _ in range(150)]
    assert {len(wire.answer(stream)[1]["Records"]) for stream in streams} == {1}
    assert kinesis._server.call(lambda: [len(one._blocked) for one in kinesis._server.http.http2]) == [0]


def test_answers_and_resets_in_one_packet(kinesis, connect):
    """Streams are blocked, reset and extended all at once: the rest of the connection continues."""
    wire = connect()
    put(wire, bytes(300_000))
    found = iterator(wire)
    wire.gives_room = False
    streams = [wire.ask("GetRecords", {"ShardIterator": found}) for _ in range(4)]
    wire.until(lambda: all(stream in wire.heads for stream in streams))
    wire.frames.increment_flow_control_window(10 * MIB)
    for stream in streams[:3]:
        wire.frames.increment_flow_control_window(10 * MIB, stream)
        wire.frames.reset_stream(stream)
    wire.frames.increment_flow_control_window(10 * MIB, streams[3])
    wire.flush()
    assert len(wire.answer(streams[3])[1]["Records"]) == 1
    assert kinesis._server.call(lambda: [len(one._streams) for one in kinesis._server.http.http2]) == [0]


@pytest.mark.clock
def test_a_thousand_idle_subscriptions_of_one_connection_use_less_than_three_percent_of_a_core():
    with LocalKinesis(limits=False) as kinesis:
        kinesis.create_stream("s", shards=50)
        with contextlib.closing(Wire(kinesis, window=MIB)) as wire:
            arn = kinesis.streams["s"].arn
            for number in range(20):
                members = {"StreamARN": arn, "ConsumerName": f"c{number}"}
                consumer = wire.call("RegisterStreamConsumer", members)[1]["Consumer"]["ConsumerARN"]
                for shard in range(50):
                    position = {"ShardId": f"shardId-{shard:012d}", "StartingPosition": {"Type": "LATEST"}}
                    wire.ask("SubscribeToShard", {"ConsumerARN": consumer, **position})
            wait_until(lambda: live(kinesis) == 1_000)
            share = 1.0
            for _ in range(3):  # the best of three: on a busy machine, the same work takes more processor time
                used, until = kinesis._server.call(time.thread_time), time.monotonic() + 10
                while time.monotonic() < until:
                    assert wire.receive()
                share = min(share, (kinesis._server.call(time.thread_time) - used) / 10)
                if share < 0.03:
                    break
        beats = [body.count(b"SubscribeToShardEvent") for body in wire.bodies.values()]
    assert sorted(beats)[20] >= 2  # all but the 20 registrations
    assert share < 0.03, f"{share:.1%} of a core"
