"""What does an HTTP/2 connection send, and how does it interpret the server's frames?

The server is h2 where it behaves well, and frames made by hand where it does not.
"""

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from shardline.adapters.http import http2_connection
from shardline.adapters.http.http2_connection import (
    CONNECTION_WINDOW,
    FRAME_MAX,
    STREAM_WINDOW,
    STREAM_WINDOW_MAX,
    Http2Connection,
)
from shardline.codec.http1 import BODY_MAX_BYTES, HttpError

HOST = "kinesis.example"
HEADERS = {"Authorization": "AWS4-HMAC-SHA256 ...", "X-Amz-Target": "Kinesis.PutRecords", "x-amz-date": "today"}
END_STREAM, END_HEADERS, ACK, PADDED = 0x1, 0x4, 0x1, 0x8
DATA, HEADERS_FRAME, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 5, 6, 7, 8, 9


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def number(value):
    return value.to_bytes(4, "big")


class Peers:
    """Our connection, and an h2 server."""

    def __init__(self, **settings):
        self.now = 100.0
        self.ours = Http2Connection(HOST, self.now)
        self.server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        codes = {SettingCodes[name.upper()]: value for name, value in settings.items()}
        self.server.local_settings = h2.settings.Settings(client=False, initial_values=codes)
        self.server.max_inbound_frame_size = self.server.local_settings.max_frame_size
        self.server.initiate_connection()
        self.seen = []
        self.exchange()

    def exchange(self):
        """Pass bytes back and forth until both sides are silent."""
        while True:
            to_server, to_us = self.ours.take_output(self.now), self.server.data_to_send()
            if not to_server and not to_us:
                return
            if to_server:
                self.seen += self.server.receive_data(to_server)
            if to_us:
                self.ours.handle_data(to_us, self.now)

    def open(self, body=b"body", *, whole=True, headers=None):
        opened = self.ours.open("/", HEADERS if headers is None else headers, body, self.now, is_whole=whole)
        self.exchange()
        return opened

    def answer(self, exchange, body=b"", *, status="200", end=True, headers=()):
        self.server.send_headers(exchange.number, [(":status", status), *headers], end_stream=end and not body)
        if body:
            self.server.send_data(exchange.number, body, end_stream=end)
        self.exchange()

    def feed(self, *frames):
        self.ours.handle_data(b"".join(frames), self.now)

    def events(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]


@pytest.fixture
def peers():
    return Peers()


def head(stream=1, *fields, flags=END_HEADERS):
    return frame(HEADERS_FRAME, flags, stream, hpack.Encoder().encode([(":status", "200"), *fields]))


# ---- the beginning


def test_it_begins_with_the_preface_and_settings_and_widens_its_window():
    ours = Http2Connection(HOST, 0.0)
    assert (ours.is_ready, ours.capacity) == (False, 0)
    output = ours.take_output(0.0)
    assert output.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    server.initiate_connection()
    changed, window = server.receive_data(output)
    told = {code.name: setting.new_value for code, setting in changed.changed_settings.items()}
    assert told["ENABLE_PUSH"] == 0
    assert told["INITIAL_WINDOW_SIZE"] == STREAM_WINDOW
    assert told["MAX_FRAME_SIZE"] == FRAME_MAX
    assert window.delta == CONNECTION_WINDOW - 65_535
    assert not ours.has_output


def test_it_is_ready_with_the_settings_of_the_server(peers):
    assert peers.ours.is_ready
    assert peers.ours.capacity == 100
    assert peers.ours.is_idle


@pytest.mark.parametrize(
    ("said", "is_http1"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True),
        (b"HTTP/1.0 505 No\r\n\r\n", True),
        (b"220 mail.example ESMTP\r\n", False),
        (frame(SETTINGS, ACK, 0), False),
        (frame(SETTINGS, 0, 1), False),
        (frame(PING, 0, 0, bytes(8)), False),
    ],
)
def test_a_server_that_does_not_speak_http2(said, is_http1):
    ours = Http2Connection(HOST, 0.0)
    for byte in said:
        ours.handle_data(bytes([byte]), 0.0)
    assert (ours.is_over, ours.is_ready, ours.speaks_http1) == (True, False, is_http1)
    assert ours.failure.code == "BadAnswer"


@pytest.mark.parametrize(("allowed", "capacity"), [(0, 0), (1, 1), (7, 7), (1000, 100)])
def test_no_more_exchanges_are_open_than_the_server_allows(allowed, capacity):
    peers = Peers(max_concurrent_streams=allowed)
    assert peers.ours.capacity == capacity
    for _ in range(capacity):
        peers.open()
    assert peers.ours.capacity == 0


def test_a_connection_that_has_used_its_stream_numbers_opens_no_more(peers):
    peers.ours._frames.highest_outbound_stream_id = 2**31 - 1
    assert peers.ours.capacity == 0


# ---- a request


def test_a_request(peers):
    peers.open(b"content")
    [request] = peers.events(h2.events.RequestReceived)
    assert dict(request.headers) == {
        ":method": "POST",
        ":scheme": "https",
        ":authority": HOST,
        ":path": "/",
        "authorization": "AWS4-HMAC-SHA256 ...",
        "x-amz-target": "Kinesis.PutRecords",
        "x-amz-date": "today",
        "content-length": "7",
    }
    [data] = peers.events(h2.events.DataReceived)
    assert (data.data, bool(data.stream_ended)) == (b"content", True)


def test_a_request_without_a_body_ends_with_its_head(peers):
    exchange = peers.open(b"")
    [request] = peers.events(h2.events.RequestReceived)
    assert request.stream_ended
    assert exchange.sent_at == peers.now


def test_the_signature_stays_out_of_the_table_of_headers(peers):
    block = peers.open() and peers.server.decoder.header_table.dynamic_entries
    names = {name for name, _ in block}
    assert b"authorization" not in names
    assert b"x-amz-target" in names


def test_no_header_reaches_a_log(caplog):
    caplog.set_level("DEBUG")
    peers = Peers()
    exchange = peers.open(headers={"x-amz-security-token": "token-SECRET"})
    peers.answer(exchange, b"well", headers=[("x-echo", "token-SECRET")])
    assert exchange.complete
    assert "SECRET" not in caplog.text
    assert not [record for record in caplog.records if record.name.startswith("hpack")]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [("x", "a\r\nb", "line end"), ("x\n", "a", "line end"), ("x", "\x00", "line end"), ("x", "\u20ac", "character")],
)
def test_a_header_that_http_cannot_carry(name, value, why, peers):
    with pytest.raises(HttpError, match=why):
        peers.open(headers={name: value})
    assert peers.ours.is_idle
    assert peers.open() is not None


def test_a_large_body_waits_for_the_windows_of_the_server(peers):
    body = bytes(range(256)) * 1000
    exchange = peers.open(body)
    got = b"".join(event.data for event in peers.events(h2.events.DataReceived))
    assert got == body[:65_535]
    assert exchange.sent_at is None
    assert not peers.ours.has_output
    peers.now = 107.0
    while exchange.sent_at is None:
        for event in peers.events(h2.events.DataReceived):
            peers.server.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        before, peers.seen = peers.seen, []
        peers.exchange()
        got += b"".join(event.data for event in peers.events(h2.events.DataReceived))
        assert before or peers.seen
    assert got == body
    assert (exchange.sent_at, exchange.moved_at) == (107.0, 107.0)


def test_bodies_are_sent_in_turn_and_in_shares():
    peers = Peers(initial_window_size=2**24)
    peers.server.increment_flow_control_window(2**24)
    peers.exchange()
    first = peers.ours.open("/", {}, bytes(1_000_000), peers.now, is_whole=True)
    second = peers.ours.open("/", {}, bytes(20_000), peers.now, is_whole=True)
    share = peers.ours.take_output(peers.now)
    assert 256 * 1024 <= len(share) < 300 * 1024
    events = peers.server.receive_data(share)
    order = [event.stream_id for event in events if isinstance(event, h2.events.DataReceived)]
    assert order[:4] == [first.number, second.number, first.number, second.number]
    assert second.sent_at is not None
    assert (first.sent_at, peers.ours.has_output) == (None, True)
    peers.exchange()
    assert first.sent_at is not None


def test_frames_are_as_large_as_the_server_accepts():
    peers = Peers(max_frame_size=20_000, initial_window_size=2**20)
    peers.server.increment_flow_control_window(2**20)
    peers.exchange()
    peers.open(bytes(100_000))
    assert {len(event.data) for event in peers.events(h2.events.DataReceived)} == {20_000}


def test_two_gibibytes_may_be_sent_over_a_connection(peers):
    """h2 adds up the server's window updates: it must learn what was sent, or it sees the window overflow."""
    peers.ours._frames.outbound_flow_control_window = 2**31 - 1
    peers.ours._sending.clear()
    exchange = peers.ours.open("/", {}, bytes(60_000), peers.now, is_whole=True)
    peers.ours.take_output(peers.now)
    peers.feed(frame(WINDOW, 0, 0, number(60_000)), frame(WINDOW, 0, exchange.number, number(60_000)))
    assert not peers.ours.is_over


# ---- an answer


def test_an_answer_as_a_whole(peers):
    exchange = peers.open()
    peers.answer(exchange, b"one", end=False, headers=[("x-a", "1"), ("x-a", "2"), ("content-length", "6")])
    assert (exchange.status, exchange.complete) == (200, False)
    assert peers.ours.take_changed() == []
    peers.now = 101.0
    peers.server.send_data(exchange.number, b"two", end_stream=True)
    peers.exchange()
    assert (exchange.complete, exchange.failure, exchange.heard_at) == (True, None, 101.0)
    assert peers.ours.take_changed() == [exchange]
    assert exchange.headers == {"x-a": "1, 2", "content-length": "6"}
    assert peers.ours.take(exchange) == b"onetwo"
    assert (peers.ours.is_idle, peers.ours.idle_since) == (True, 101.0)


def test_an_answer_in_chunks(peers):
    exchange = peers.open(whole=False)
    peers.answer(exchange, b"one", end=False)
    assert peers.ours.take_changed() == [exchange, exchange]
    assert peers.ours.take(exchange) == b"one"
    assert peers.ours.take(exchange) == b""
    peers.server.send_data(exchange.number, b"two", end_stream=True)
    peers.exchange()
    assert exchange.complete
    assert peers.ours.take(exchange) == b"two"


def test_an_answer_byte_by_byte(peers):
    exchange = peers.open(whole=False)
    peers.server.send_headers(exchange.number, [(":status", "200")])
    peers.server.send_data(exchange.number, b"x" * 300, end_stream=True)
    for byte in peers.server.data_to_send():
        peers.ours.handle_data(bytes([byte]), peers.now)
    assert (exchange.complete, peers.ours.take(exchange)) == (True, b"x" * 300)


def test_a_data_frame_is_passed_on_while_it_arrives(peers):
    exchange = peers.open(whole=False)
    peers.answer(exchange, b"", end=False)
    data = frame(DATA, END_STREAM, exchange.number, b"abcdef")
    peers.ours.handle_data(data[:11], peers.now)
    assert (exchange.complete, peers.ours.take(exchange)) == (False, b"ab")
    peers.ours.handle_data(data[11:14], peers.now)
    assert (exchange.complete, peers.ours.take(exchange)) == (False, b"cde")
    peers.ours.handle_data(data[14:] + frame(PING, 0, 0, bytes(8)), peers.now)
    assert (exchange.complete, exchange.received, peers.ours.take(exchange)) == (True, 6, b"f")
    peers.exchange()
    assert peers.events(h2.events.PingAckReceived)  # the next frame is read as well


def test_an_exchange_can_be_cancelled_in_the_middle_of_a_data_frame(peers):
    first, second = peers.open(whole=False), peers.open()
    peers.answer(first, b"", end=False)
    data = frame(DATA, END_STREAM, first.number, b"abcdef")
    peers.ours.handle_data(data[:12], peers.now)
    peers.ours.cancel(first, peers.now)
    peers.ours.handle_data(data[12:], peers.now)
    peers.exchange()
    peers.answer(second, b"well")
    assert (first.complete, second.complete, peers.ours.take(second)) == (False, True, b"well")


@pytest.mark.parametrize(("share", "is_view"), [(8, True), (9, False)])
def test_a_part_of_a_large_read_is_copied_if_the_rest_would_stay_in_memory(peers, share, is_view):
    exchange, other = peers.open(whole=False), peers.open(whole=False)
    peers.answer(exchange, b"", end=False)
    peers.answer(other, b"", end=False)
    size = 5_000
    rest = size * share - 2 * 9 - size
    peers.feed(frame(DATA, 0, exchange.number, bytes(size)) + frame(DATA, 0, other.number, bytes(rest)))
    assert isinstance(peers.ours.take(exchange), memoryview) is is_view


def test_an_answer_with_no_body_with_an_interim_one_and_with_trailers(peers):
    exchange = peers.open()
    peers.server.send_headers(exchange.number, [(":status", "100")])
    peers.exchange()
    assert exchange.status == 0
    peers.answer(exchange, status="503")
    assert (exchange.status, exchange.complete) == (503, True)
    exchange = peers.open()
    peers.answer(exchange, b"body", end=False)
    peers.server.send_headers(exchange.number, [("x-trailer", "1")], end_stream=True)
    peers.exchange()
    assert (exchange.complete, "x-trailer" in exchange.headers) == (True, False)


def test_padding_is_taken_off(peers):
    exchange = peers.open(whole=False)
    peers.feed(head(), frame(DATA, PADDED, 1, bytes([3]) + b"data" + bytes(3)), frame(DATA, END_STREAM, 1))
    assert (exchange.complete, peers.ours.take(exchange)) == (True, b"data")
    assert exchange.credit == STREAM_WINDOW - 8


def test_an_early_answer_ends_the_upload(peers):
    exchange = peers.open(bytes(200_000))
    peers.answer(exchange, b"too large", status="413")
    assert (exchange.complete, exchange.status) == (True, 413)
    [reset] = peers.events(h2.events.StreamReset)
    assert reset.error_code == ErrorCodes.NO_ERROR
    assert not peers.ours.has_output
    assert peers.ours.is_idle


def test_a_cancelled_exchange_resets_its_stream_and_leaves_the_others_alone(peers):
    first, second = peers.open(bytes(200_000)), peers.open()
    peers.ours.cancel(first, peers.now)
    peers.ours.cancel(first, peers.now)
    peers.server.send_headers(second.number, [(":status", "200")])
    peers.exchange()
    [reset] = peers.events(h2.events.StreamReset)
    assert (reset.stream_id, reset.error_code) == (first.number, ErrorCodes.CANCEL)
    peers.feed(frame(DATA, 0, first.number, b"late"))  # the exchange was in flight
    peers.feed(frame(DATA, END_STREAM, second.number, b"well"))
    assert (second.complete, peers.ours.take(second), first.is_over) == (True, b"well", False)


# ---- windows


def test_a_stream_that_is_not_read_gets_no_more_than_its_window_and_holds_up_no_other(peers):
    slow, other = peers.open(whole=False), peers.open()
    peers.answer(slow, end=False)
    sent = 0
    while room := peers.server.local_flow_control_window(slow.number):
        peers.server.send_data(slow.number, bytes(min(room, 16_384)))
        peers.exchange()
        sent += min(room, 16_384)
    assert sent == len(slow.body) == STREAM_WINDOW
    peers.answer(other, bytes(10_000))
    assert other.complete
    while len(slow.body) > 16_384:
        peers.ours.take(slow)
        peers.exchange()
    assert peers.server.local_flow_control_window(slow.number) == 0
    peers.ours.take(slow)
    peers.exchange()
    assert peers.server.local_flow_control_window(slow.number) == 2 * STREAM_WINDOW


def test_the_window_of_a_stream_grows_while_its_caller_keeps_up(peers):
    exchange = peers.open(whole=False)
    peers.answer(exchange, end=False)
    windows = []
    for _ in range(5):
        while room := peers.server.local_flow_control_window(exchange.number):
            peers.server.send_data(exchange.number, bytes(min(room, 16_384)))
            peers.ours.handle_data(peers.server.data_to_send(), peers.now)
        windows.append(len(exchange.body))
        while exchange.body:
            peers.ours.take(exchange)
        peers.exchange()
    assert windows == [STREAM_WINDOW, 2 * STREAM_WINDOW, *[STREAM_WINDOW_MAX] * 3]


def test_a_caller_that_waits_for_enough_bytes_is_woken_when_they_are_there(peers):
    exchange = peers.open(whole=False)
    peers.answer(exchange, end=False)
    peers.ours.take_changed()
    exchange.enough = 10
    for size, is_woken in ((9, False), (1, True)):
        peers.feed(frame(DATA, 0, exchange.number, bytes(size)))
        assert peers.ours.take_changed() == [exchange] * is_woken
    assert (peers.ours.take(exchange), exchange.body.take()) == (bytes(10), b"")


@pytest.mark.parametrize("padding", [0, 200])
def test_a_caller_that_waits_for_more_than_the_window_is_woken_when_it_should_be_reopened(peers, padding):
    """With padding, which counts as well, as many bytes as the caller waits for may never fit."""
    exchange = peers.open(whole=False)
    peers.answer(exchange, end=False)
    peers.ours.take_changed()
    exchange.enough = 10 * STREAM_WINDOW
    size = 2_048
    payload = bytes([padding]) + bytes(size - 1) if padding else bytes(size)
    sent = 0
    while not peers.ours.take_changed():
        sent += size
        assert sent <= STREAM_WINDOW // 2
        peers.feed(frame(DATA, PADDED if padding else 0, exchange.number, payload))
    assert sent == STREAM_WINDOW // 2
    while exchange.body:
        peers.ours.take(exchange)
    assert exchange.credit > STREAM_WINDOW


def test_the_end_wakes_a_caller_that_waits_for_more(peers):
    exchange = peers.open(whole=False)
    peers.answer(exchange, end=False)
    peers.ours.take_changed()
    exchange.enough = 10
    peers.feed(frame(DATA, END_STREAM, exchange.number, b"last"))
    assert peers.ours.take_changed() == [exchange]
    assert (exchange.complete, peers.ours.take(exchange)) == (True, b"last")


def test_an_answer_as_a_whole_is_taken_as_it_arrives(peers):
    exchange = peers.open()
    peers.answer(exchange, end=False)
    for _ in range(40 * STREAM_WINDOW // 16_384):  # 10 MiB: more than half of the connection's window, too
        peers.server.send_data(exchange.number, bytes(16_384))
        peers.exchange()
    peers.server.end_stream(exchange.number)
    peers.exchange()
    assert exchange.complete
    assert len(peers.ours.take(exchange)) == 40 * STREAM_WINDOW
    assert peers.server.outbound_flow_control_window > CONNECTION_WINDOW // 2


def test_an_answer_in_chunks_may_be_wanted_as_a_whole_later(peers):
    exchange = peers.open(whole=False)
    peers.answer(exchange, end=False)
    for _ in range(STREAM_WINDOW // 16_384):
        peers.server.send_data(exchange.number, bytes(16_384))
        peers.exchange()
    assert peers.server.local_flow_control_window(exchange.number) == 0
    peers.ours.want_whole(exchange)
    peers.ours.want_whole(exchange)
    peers.exchange()
    assert peers.server.local_flow_control_window(exchange.number) == 2 * STREAM_WINDOW


def test_a_server_that_sends_more_than_a_window(peers):
    exchange = peers.open(whole=False)
    peers.feed(head())
    for _ in range(STREAM_WINDOW // FRAME_MAX):
        peers.feed(frame(DATA, 0, 1, bytes(FRAME_MAX)))
    assert exchange.failure is None
    peers.feed(frame(DATA, 0, 1, b"x"))
    assert (exchange.failure.code, peers.ours.is_over) == ("BadAnswer", True)
    assert "window of the stream" in exchange.failure.message


def test_a_server_that_sends_more_than_the_window_of_the_connection(peers, monkeypatch):
    monkeypatch.setattr(http2_connection, "CONNECTION_WINDOW", 2**40)  # never reopened
    exchange = peers.open()
    peers.feed(head())
    for _ in range(CONNECTION_WINDOW // FRAME_MAX + 1):
        peers.feed(frame(DATA, 0, 1, bytes(FRAME_MAX)))
    assert "window of the connection" in exchange.failure.message


def test_a_server_that_makes_us_send_and_does_not_read_is_not_read(peers):
    for _ in range(70_000):
        peers.feed(frame(PING, 0, 0, bytes(8)))
        if peers.ours.is_congested:
            break
    assert peers.ours.is_congested
    assert len(peers.ours.take_output(peers.now)) > 1024 * 1024
    assert not peers.ours.is_congested


# ---- bad answers


BAD_ANSWERS = {
    "body first": [frame(DATA, 0, 1, b"x")],
    "the end first": [frame(DATA, END_STREAM, 1)],
    "a status of letters": [frame(HEADERS_FRAME, END_HEADERS, 1, hpack.Encoder().encode([(":status", "abc")]))],
    "a status of four digits": [frame(HEADERS_FRAME, END_HEADERS, 1, hpack.Encoder().encode([(":status", "2000")]))],
    "a status of zeros": [frame(HEADERS_FRAME, END_HEADERS, 1, hpack.Encoder().encode([(":status", "007")]))],
    "too long": [head(1, ("content-length", "3")), frame(DATA, 0, 1, b"four")],
    "a huge length": [head(1, ("content-length", str(BODY_MAX_BYTES + 1)))],
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_bad_answer_ends_its_own_exchange(name, peers):
    bad, other = peers.open(), peers.open()
    peers.feed(*BAD_ANSWERS[name])
    assert (bad.failure.code, bad.failure.maybe_received) == ("BadAnswer", True)
    assert HOST in bad.failure.message
    assert peers.ours.take_changed()[-1] is bad
    assert not peers.ours.is_over
    peers.server.reset_stream(bad.number)
    peers.server.data_to_send()
    peers.answer(other, b"well")
    assert other.complete


def test_a_body_without_an_end(peers, monkeypatch):
    monkeypatch.setattr(http2_connection, "BODY_MAX_BYTES", 100_000)
    exchange = peers.open()
    peers.feed(head(), frame(DATA, 0, 1, bytes(60_000)), frame(DATA, 0, 1, bytes(60_000)))
    assert "too long" in exchange.failure.message
    chunks = peers.open(whole=False)
    peers.feed(head(chunks.number))
    for _ in range(3):
        peers.feed(frame(DATA, 0, chunks.number, bytes(60_000)))
        peers.ours.take(chunks)
    assert chunks.failure is None


@pytest.mark.parametrize("ends_with", ["data", "headers"])
def test_an_answer_that_is_shorter_than_it_said(ends_with, peers):
    exchange = peers.open()
    if ends_with == "data":
        peers.feed(head(1, ("content-length", "9")), frame(DATA, END_STREAM, 1, b"four"))
    else:
        peers.feed(head(1, ("content-length", "9"), flags=END_HEADERS | END_STREAM))
    assert exchange.failure.code == "ConnectionReset"
    assert "cut short" in exchange.failure.message
    assert not peers.ours.is_over


BROKEN = {
    "a length of letters": [head(1, ("content-length", "x"))],
    "two lengths": [head(1, ("content-length", "3"), ("content-length", "4"))],
    "a huge frame": [frame(DATA, 0, 1, bytes(FRAME_MAX + 1))],
    "data of no stream": [frame(DATA, 0, 0, b"x")],
    "data of a stream of the server": [frame(DATA, 0, 2, b"x")],
    "data of a stream that was never opened": [frame(DATA, 0, 99, b"x")],
    "more padding than data": [head(), frame(DATA, PADDED, 1, b"\x09x")],
    "padding of nothing": [head(), frame(DATA, PADDED, 1)],
    "a push": [frame(PUSH, END_HEADERS, 1, number(2) + hpack.Encoder().encode([(":path", "/")]))],
    "headers that cannot be decompressed": [frame(HEADERS_FRAME, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff")],
    "headers of a stream that was never opened": [head(99)],
    "huge headers": [
        frame(HEADERS_FRAME, 0, 1, hpack.Encoder().encode([(":status", "200")])),
        *[frame(CONTINUATION, 0, 1, hpack.Encoder().encode([("x-x", "y" * 9000)], huffman=False)) for _ in range(9)],
        frame(CONTINUATION, END_HEADERS, 1),
    ],
    "a continuation of nothing": [frame(CONTINUATION, END_HEADERS, 1)],
    "a window that overflows": [frame(WINDOW, 0, 0, number(2**31 - 1))],
    "settings of a wrong length": [frame(SETTINGS, 0, 0, b"x")],
    "settings out of range": [frame(SETTINGS, 0, 0, (4).to_bytes(2, "big") + number(2**31))],
    "a short ping": [frame(PING, 0, 0, b"x")],
    "a short goodbye": [frame(GOAWAY, 0, 0, b"x")],
    "a goodbye of a stream": [frame(GOAWAY, 0, 1, bytes(8))],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_server_ends_the_connection(name, peers):
    first, second = peers.open(), peers.open(whole=False)
    peers.ours.take_changed()
    peers.feed(*BROKEN[name])
    assert peers.ours.is_over
    assert peers.ours.capacity == 0
    for exchange in (first, second):
        assert (exchange.failure.code, exchange.failure.maybe_received) == ("BadAnswer", True)
        assert exchange in peers.ours.take_changed() or exchange is second
    peers.ours.take_output(peers.now)
    peers.ours.cancel(first, peers.now)
    assert not peers.ours.has_output


# ---- resets and goodbyes


@pytest.mark.parametrize(
    ("code", "name", "maybe_received"),
    [
        (ErrorCodes.REFUSED_STREAM, "RequestRefused", False),
        (ErrorCodes.INTERNAL_ERROR, "ConnectionReset", True),
        (ErrorCodes.NO_ERROR, "ConnectionReset", True),
        (ErrorCodes.ENHANCE_YOUR_CALM, "ConnectionReset", True),
        (0xABCD, "ConnectionReset", True),
    ],
)
def test_a_stream_that_the_server_resets(code, name, maybe_received, peers):
    exchange, other = peers.open(), peers.open()
    peers.feed(frame(RST, 0, exchange.number, number(code)))
    assert (exchange.failure.code, exchange.failure.maybe_received) == (name, maybe_received)
    assert (getattr(code, "name", None) or f"error {code}") in exchange.failure.message
    assert other.failure is None
    peers.answer(other, b"well")
    assert other.complete


def test_a_reset_after_the_end_changes_nothing(peers):
    exchange = peers.open()
    peers.answer(exchange, b"well")
    peers.feed(frame(RST, 0, exchange.number, number(0)))
    assert (exchange.complete, exchange.failure, peers.ours.is_over) == (True, None, False)


def test_after_a_goodbye_established_streams_go_on_and_later_ones_were_not_received(peers):
    first, second, third = peers.open(whole=False), peers.open(bytes(200_000)), peers.open()
    peers.feed(frame(GOAWAY, 0, 0, number(2**31 - 1) + number(0)))  # a server announces its end, and then closes
    assert peers.ours.capacity == 0
    peers.feed(frame(GOAWAY, 0, 0, number(first.number) + number(0) + b"maintenance"))
    for exchange in (second, third):
        assert (exchange.failure.code, exchange.failure.maybe_received) == ("RequestRefused", False)
        assert "NO_ERROR" in exchange.failure.message
    assert not peers.ours.is_over
    peers.feed(head(), frame(DATA, 0, 1, b"event"), frame(PING, 0, 0, b"pingpong"))
    assert peers.ours.take(first) == b"event"
    assert b"pingpong" in peers.ours.take_output(peers.now)
    peers.feed(frame(DATA, END_STREAM, 1, b"last"))
    assert (first.complete, peers.ours.take(first)) == (True, b"last")
    assert (peers.ours.is_over, peers.ours.failure) == (True, None)


def test_a_goodbye_without_streams_ends_the_connection(peers):
    peers.feed(frame(GOAWAY, 0, 0, number(0) + number(11)))
    assert (peers.ours.is_over, peers.ours.capacity) == (True, 0)


def test_a_goodbye_ends_the_connection_when_the_last_caller_leaves(peers):
    exchange = peers.open()
    peers.feed(frame(GOAWAY, 0, 0, number(1) + number(0)))
    peers.ours.cancel(exchange, peers.now)
    assert peers.ours.is_over


def test_a_connection_that_ends_ends_its_exchanges(peers):
    unanswered, begun, done = peers.open(), peers.open(whole=False), peers.open()
    peers.answer(done, b"well")
    peers.answer(begun, b"some", end=False)
    peers.ours.handle_end("ConnectionReset", "", peers.now)
    peers.ours.handle_end("ConnectionReset", "again", peers.now)
    assert "closed by the server" in unanswered.failure.message
    assert "cut short" in begun.failure.message
    assert (done.complete, done.failure) == (True, None)
    assert peers.ours.take(begun) == b"some"
    assert peers.ours.is_over


def test_a_connection_that_ends_for_another_reason(peers):
    exchange = peers.open()
    peers.ours.handle_end("ConnectionReset", "reset by peer", peers.now)
    assert "reset by peer" in exchange.failure.message
    silent = Peers()
    exchange = silent.open()
    silent.ours.handle_end("ReadTimeout", "", silent.now)
    assert exchange.failure.code == "ReadTimeout"


# ---- pings and silence


def test_a_ping_is_answered(peers):
    peers.feed(frame(PING, 0, 0, b"12345678"))
    assert peers.ours.take_output(peers.now) == frame(PING, ACK, 0, b"12345678")


def test_a_silent_server_is_asked_and_then_given_up(peers):
    exchange = peers.open()
    peers.ours.handle_silence(110.0, 15.0)
    peers.exchange()
    assert exchange.failure is None  # it answered
    peers.ours.handle_silence(120.0, 15.0)
    assert peers.ours.has_output
    peers.ours.handle_silence(130.0, 15.0)
    assert (exchange.failure.code, exchange.failure.maybe_received) == ("ConnectionReset", True)
    assert "ping" in exchange.failure.message
    assert peers.ours.is_over
    peers.ours.handle_silence(140.0, 15.0)


def test_anything_that_is_heard_is_a_sign_of_life(peers):
    exchange = peers.open()
    peers.ours.handle_silence(110.0, 15.0)
    peers.ours.take_output(110.0)
    peers.ours.handle_data(frame(PING, 0, 0, bytes(8)), 111.0)
    assert peers.ours.heard_at == 111.0
    peers.ours.handle_silence(121.0, 15.0)
    assert exchange.failure is None


def test_an_idle_connection_ends_after_a_while(peers):
    peers.ours.handle_silence(110.0, 15.0)
    assert (peers.ours.is_over, peers.ours.has_output) == (False, False)
    peers.ours.handle_silence(115.0, 15.0)
    assert (peers.ours.is_over, peers.ours.failure) == (True, None)
