"""Does anything that a client sends over HTTP/2 raise, get logged, or leave a subscription behind?

The input is frames of all types, valid and invalid, in any order and cut anywhere, on a connection with a transport in
memory.
"""

import asyncio
import json
import logging
from random import Random

import hpack
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.server.access import Access
from shardline.server.endpoint import Endpoint
from shardline.server.front import Front
from shardline.server.http2 import Http2Connection
from shardline.server.http2_frames import PREFACE
from shardline.server.model.service import Service
from shardline.server.model.settings import Limits, ServiceSettings
from shardline.server.server_clock import ServerClock
from shardline.server.sockets import Timeouts

ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"
STREAMS = st.sampled_from([1, 3, 5, 7, 9, 11, 0, 2, 2**31 - 1])


class Memory(asyncio.Transport):
    """A socket that accepts everything, or nothing."""

    def __init__(self, protocol):
        super().__init__()
        self.protocol, self.sent, self.is_closed, self.is_full = protocol, bytearray(), False, False

    def write(self, data):
        self.sent += data

    def close(self):
        self.is_closed = True

    abort = close

    def get_write_buffer_size(self):
        return len(self.sent) if self.is_full else 0

    def pause_reading(self):
        pass

    def resume_reading(self):
        pass


def frame(kind, flags, stream, payload):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def odd(draw, usual, *unusual):
    """Draw mostly usual values: a request with several oddities gets no further than the first."""
    return usual if draw(st.integers(0, 9)) else draw(st.sampled_from(unusual))


@st.composite
def requests(draw, consumer):
    """Draw HEADERS and DATA of a request, complete or partial."""
    subscription = {"ConsumerARN": consumer, "ShardId": "0", "StartingPosition": {"Type": "TRIM_HORIZON"}}
    operation, members = draw(
        st.sampled_from(
            [
                ("SubscribeToShard", subscription),
                ("PutRecord", {"StreamName": "s", "Data": "eA==", "PartitionKey": "k"}),
                ("DescribeLimits", {}),
                ("Nothing", {}),
            ]
        )
    )
    headers = [
        (":method", odd(draw, "POST", "GET", "HEAD", "CONNECT")),
        (":path", odd(draw, "/", "/_shardline/health", "*", "")),
        (":scheme", "http"),
        (":authority", odd(draw, "localhost", "127.0.0.1:4567", "evil.example", "")),
        ("x-amz-target", f"Kinesis_20131202.{operation}"),
        ("content-type", "application/x-amz-json-1.1"),
        odd(draw, ("x-more", "x"), ("expect", "100-continue"), ("Upper", "x"), (":late", "x"), ("te", "x")),
    ]
    stream, body = draw(STREAMS), json.dumps(members).encode()
    pieces = [
        frame(1, odd(draw, 4, 5, 0), stream, hpack.Encoder().encode(headers)),
        odd(draw, b"", frame(9, 4, stream, b"")),
        frame(0, odd(draw, 1, 0), stream, body),
        odd(draw, b"", frame(3, 0, stream, bytes(4))),
    ]
    return b"".join(pieces)


def frames(consumer):
    payload = (
        st.binary(max_size=20) | st.just(bytes(4)) | st.just(bytes(8)) | st.just(b"\0\0\0\1") | st.just(b"\xff" * 4)
    )
    settings_payload = st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0, 1, 100, 65_535, 2**31 - 1, 2**32 - 1])), max_size=3
    ).map(lambda pairs: b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in pairs))
    return st.lists(
        requests(consumer)
        | requests(consumer)
        | st.builds(frame, st.integers(0, 12), st.integers(0, 255), STREAMS, payload)
        | st.builds(frame, st.just(8), st.just(0), STREAMS, st.integers(1, 2**20).map(lambda n: n.to_bytes(4, "big")))
        | settings_payload.map(lambda payload: frame(4, 0, 0, payload))
        | st.binary(max_size=30),
        max_size=12,
    ).map(b"".join)


async def play(data, cuts, is_full):
    clock = ServerClock()
    service = Service(ServiceSettings(limits=Limits.without_rates()), Random(1), clock.now())
    service.handle("CreateStream", {"StreamName": "s", "ShardCount": 1}, clock.now())
    service.handle("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c"}, clock.now())
    consumer = next(iter(service.state.consumers))
    connections = set()
    connection = Http2Connection(Front(Endpoint(service, clock), access=Access()), Timeouts(), connections)
    transport = Memory(connection)
    connection.connection_made(transport)
    sent = PREFACE + frame(4, 0, 0, b"") + data.draw(frames(consumer))
    for cut in cuts:
        if transport.is_closed:
            break
        connection.data_received(sent[:cut])
        sent = sent[cut:]
        if is_full:
            transport.is_full = not transport.is_full
            (connection.pause_writing if transport.is_full else connection.resume_writing)()
        await asyncio.sleep(0)
    if sent and not transport.is_closed:
        connection.data_received(sent)
    await asyncio.sleep(0)
    connection.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    left = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
    live = [one for one in service._subscriptions._live.values() if not one.ended]
    return connections, connection._streams, connection._held, connection._unsent, left, live


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(st.integers(1, 400), max_size=20), st.booleans())
def test_nothing_that_a_client_sends_raises_or_is_logged_or_stays(data, cuts, is_full):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger().addHandler(handler)
    try:
        outcome = asyncio.run(play(data, cuts, is_full))
    finally:
        logging.getLogger().removeHandler(handler)
    assert [record.getMessage() + str(record.exc_info) for record in records if record.levelno >= logging.WARNING] == []
    assert outcome == (set(), {}, 0, 0, [], [])
