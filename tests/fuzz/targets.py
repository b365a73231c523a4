"""The fuzz targets: one function for each decoder of foreign bytes.

A target takes any bytes, and returns or raises nothing. An exception that the decoder does not document is a finding,
and so is a round trip that changes the value.

Invariants:

- A decoder raises only the exceptions that it documents.
- A value that was decoded, encoded and decoded again is unchanged.
- Time and memory are linear in the input, whatever lengths and depths it claims: the runner checks both.
"""

import json
import zlib
from contextlib import suppress
from hashlib import md5
from random import Random

import msgspec

from shardline import deserializers
from shardline._speedups import native, pure_twins
from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.aws.endpoints import parse_endpoint
from shardline.adapters.http.http2_connection import Http2Connection
from shardline.adapters.leases import lease_rows as rows
from shardline.adapters.leases.dynamodb_items import decode_item, encode_item
from shardline.adapters.leases.store_urls import lease_store
from shardline.codec import (
    aggregation,
    awscbor,
    awsjson,
    cbor,
    envelope,
    eventstream,
    http1,
    protobuf,
    raw_records,
    shapes,
)
from shardline.core.producer.kpl_properties import translate
from shardline.errors import UsageError
from shardline.model.hashing import HashRange, parse_explicit_hash_key
from shardline.model.position import parse_position
from shardline.model.sequence import SequenceNumber
from shardline.model.stream import parse_consumer_arn, parse_stream
from shardline.server import bodies
from shardline.server.access import Access
from shardline.server.endpoint import TARGET_PREFIX, Endpoint
from shardline.server.model.faults import Faults
from shardline.server.model.inputs import INPUTS
from shardline.server.model.refusals import Refused
from shardline.server.model.service import Service
from shardline.server.model.settings import Limits, ServiceSettings
from shardline.server.request_log import RequestLog
from shardline.server.server_clock import ServerClock
from shardline.server.signatures import Signatures

SHAPES = [
    shapes.PutRecordsResponse,
    shapes.GetRecordsResponse,
    shapes.GetShardIteratorResponse,
    shapes.ListShardsResponse,
    shapes.SubscribeToShardEvent,
    shapes.DescribeStreamSummaryResponse,
    shapes.ListStreamsResponse,
    shapes.DescribeStreamConsumerResponse,
    shapes.ListTagsForStreamResponse,
]
OPERATIONS = sorted(INPUTS)


def pick(data, choices):
    """Choose by the first byte; the rest is the input."""
    return choices[data[0] % len(choices)] if data else choices[0], data[1:]


def _json(data):
    """Read the input with Python's own reader, which is not tested here."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def as_text(data):
    return data.decode("utf-8", "surrogateescape")


# ---- the wire


def aggregate(data):
    """Decode a message under the right checksum, so that all of it is read; and the input as it is."""
    assert aggregation.split_columns(data) is None or aggregation.is_framed(data)
    framed = aggregation.MAGIC + data + md5(data, usedforsecurity=False).digest()
    if native is not None:
        assert native.split_message(framed) == pure_twins["split_message"](framed), "both forms agree"
    found = aggregation.split_columns(framed)
    if found is not None:
        keys, payloads, named, headers, _ = found  # a stamp is no header, and is not encoded again
        tags = {at: aggregation.encode_tags(own) for at, own in headers.items()}
        hash_keys = {at: hash_key for at, hash_key in enumerate(named) if hash_key is not None}
        again = aggregation.split_columns(aggregation.encode_aggregate(keys, payloads, hash_keys, tags))
        assert again is not None
        assert again[:4] == found[:4], "what was decoded, encoded again and decoded again, is the same"
        assert not again.stamps
    raw_records.deaggregate(framed)


def varints(data):
    with suppress(protobuf.WireError, IndexError):  # the caller stops at the end of the message
        value, at = protobuf.read_varint(data, 0)
        assert protobuf.read_varint(protobuf.encode_varint(value), 0)[0] == value, (
            "what was decoded, encoded again and decoded again, is the same"
        )
        assert 0 < at <= len(data)
    with suppress(protobuf.WireError, IndexError):
        assert protobuf.skip_unknown(data, 0, 3) > 0


def cbor_item(data):
    try:
        value = cbor.decode(data)
    except cbor.CborError:
        return
    with suppress(cbor.CborError):  # the seconds of a timestamp may be a number in any form
        assert _same(cbor.decode(cbor.encode(value)), value), (
            "what was decoded, encoded again and decoded again, is the same"
        )


def cbor_body(data):
    shape, body = pick(data, SHAPES)
    with suppress(envelope.BodyError):
        awscbor.decode(body, shape)
    with suppress(envelope.BodyError):
        awscbor.decode_any(body)


def json_body(data):
    shape, body = pick(data, SHAPES)
    with suppress(envelope.BodyError):
        answer = awsjson.decode(body, shape)
        if isinstance(answer, shapes.ListShardsResponse):
            with suppress(UsageError):
                _ = [shard.to_shard() for shard in answer.shards or ()]
    with suppress(envelope.BodyError):
        awsjson.decode_any(body)


def error_answer(data):
    status, body = pick(data, [400, 403, 404, 413, 429, 500, 503, 302])
    lines = as_text(body).split("\n", 2)
    headers = {"x-amzn-errortype": lines[0], "retry-after": lines[1]} if len(lines) > 2 else {}
    found = envelope.read_error(status, headers, body)
    assert found.code
    assert found.message
    assert found.retry_after is None or found.retry_after >= 0


def event_stream(data):
    """Decode the input in pieces; and as a frame with the right checksums, so that its headers are read."""
    decoder = eventstream.MessageDecoder()
    step = 1 + len(data) // 3
    with suppress(eventstream.FrameError):
        for at in range(0, len(data), step):
            decoder.feed(data[at : at + step])
        decoder.close()
    size, content = pick(data, range(256))
    headers = min(size, len(content))
    prelude = (len(content) + 16).to_bytes(4, "big") + headers.to_bytes(4, "big")
    frame = prelude + zlib.crc32(prelude).to_bytes(4, "big") + content
    frame += zlib.crc32(frame).to_bytes(4, "big")
    with suppress(eventstream.FrameError):
        (message,) = eventstream.MessageDecoder().feed(frame)
        again = eventstream.encode_message(message.headers, message.payload)
        assert eventstream.MessageDecoder().feed(again) == [message], (
            "what was decoded, encoded again and decoded again, is the same"
        )


def http_answer(data):
    step, content = pick(data, [1, 7, 100, 1 << 20])
    reader = http1.ResponseReader(of_connect=bool(step == 7))
    body = b""
    with suppress(http1.HttpError):
        for at in range(0, len(content), step):
            reader.feed(content[at : at + step])
            body += reader.take()
        reader.feed_end()
        assert reader.complete
        assert 200 <= reader.status <= 999
    assert len(body) <= len(content)


def http2_frames(data):
    """Read what a server sends over HTTP/2, after its settings, to a client with two requests."""
    step, content = pick(data, [1, 7, 100, 1 << 20])
    connection = Http2Connection("host", 0.0)
    connection.handle_data(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), 0.0)
    whole = connection.open("/", {}, b"body", 0.0, is_whole=True)
    chunks = connection.open("/", {}, bytes(70_000), 0.0, is_whole=False)
    taken = 0
    for at in range(0, len(content), step):
        if connection.is_over:
            break
        connection.handle_data(content[at : at + step], 1.0)
        connection.take_output(1.0)
        taken += len(connection.take(chunks))
    connection.handle_end("ConnectionReset", "", 2.0)
    assert whole.is_over
    assert chunks.is_over
    assert taken + len(whole.body) <= len(content)


def raw_record(data):
    """Read what users pass to ``deaggregate``: any JSON that a Lambda event may have."""
    with suppress(UsageError):
        raw_records.deaggregate(_json(data))


def user_values(data):
    for reader in (deserializers.json_lines, deserializers.json_list, deserializers.netstrings):
        with suppress(ValueError):
            reader(data)


# ---- stored data


def lease_row(data):
    with suppress(rows.RowError):
        lease = rows.decode_row(data)
        assert rows.decode_row(rows.encode_row(lease, data)) == lease, (
            "what was decoded, encoded again and decoded again, is the same"
        )


def lease_item(data):
    """Read a row of DynamoDB's table, in the service's JSON."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        item = msgspec.json.decode(data, type=dict[str, dict[str, str | list[str] | bool | None]])
        with suppress(rows.RowError):
            lease = decode_item(item)
            assert decode_item(encode_item(lease, "g", "s")) == lease, (
                "what was decoded, encoded again and decoded again, is the same"
            )


def store_url(data):
    aws = AwsAccess(wall_time=lambda: 0.0)
    with suppress(UsageError):
        lease_store(as_text(data), group="g", stream="s", aws=aws)
    with suppress(UsageError):
        parse_endpoint(as_text(data))


def kpl_properties(data):
    with suppress(UsageError):
        settings, untranslated = translate(as_text(data))
        assert all(map(str, [*settings, *untranslated]))


def small_texts(data):
    text = as_text(data)
    for parse in (parse_stream, parse_consumer_arn, parse_position, parse_explicit_hash_key, SequenceNumber.parse):
        with suppress(UsageError):
            parse(text)
    with suppress(UsageError):
        HashRange.parse(text, text)


# ---- the server


class Served:
    """The whole service without a socket; re-created now and then, so that it does not grow."""

    def __init__(self):
        self.calls = 0

    def reply(self, operation, content_type, body):
        if self.calls % 500 == 0:
            clock = ServerClock()
            self.service = Service(ServiceSettings(limits=Limits.without_rates()), Random(1), clock.now())
            faults = Faults(Random(1), clock.now)
            self.endpoint = Endpoint(self.service, clock, faults=faults, requests=RequestLog())
            self.service.handle("CreateStream", {"StreamName": "s", "ShardCount": 2}, clock.now())
        self.calls += 1
        reply = self.endpoint.reply({"content-type": content_type, "x-amz-target": TARGET_PREFIX + operation}, body)
        if reply.subscription is not None:
            reply.subscription.end()
        assert reply.status == 200 or 400 <= reply.status < 500, (reply.status, reply.body)


SERVED = Served()


def server_request(data):
    operation, rest = pick(data, OPERATIONS)
    content_type, body = pick(rest, [bodies.JSON, bodies.CBOR])
    with suppress(Refused):
        bodies.read_request(operation, content_type, body)
    SERVED.reply(operation, content_type, body)


def faults_file(data):
    """Read a file for ``shardline local --faults``, which is also the input of the control API."""
    described = _json(data)
    if isinstance(described, list) and all(isinstance(one, dict) for one in described):
        faults = Faults(Random(1), lambda: 0.0)
        with suppress(UsageError):
            faults.load(described)
        faults.clear()


def signature(data):
    lines = as_text(data).split("\n")
    names = ["authorization", "x-amz-date", "host", "x-amz-security-token"]
    headers = dict(zip(names, lines, strict=False))
    checker = Signatures({"AKID": ("secret", None)}, "us-east-1")
    refusal = checker.check("POST", f"/?{''.join(lines[4:])}", headers, b"", 1_700_000_000.0)
    assert isinstance(refusal, Refused), "nobody guesses a signature"
    refusal.message.encode()


def request_headers(data):
    """Judge the headers that decide whether the embedded Kinesis serves a request at all."""
    lines = as_text(data).split("\n")
    headers = dict(zip(["host", "origin", "sec-fetch-site", "content-type", "authorization"], lines, strict=False))
    access = Access(["kinesis"], token="0123456789abcdef")
    host = access.judge_host(headers.get("host"))
    control = access.judge_control(headers, has_body=bool(len(lines) % 2))
    assert control is not None or headers["authorization"].lower().startswith("bearer"), "nobody guesses a token"
    for refusal in (host, control):
        if refusal is not None:
            assert len(refusal.message.encode()) < 1_500


def _same(one, other):
    """Whether two values are equal. Not-a-number counts as equal to itself."""
    return repr(one) == repr(other)


TARGETS = {
    function.__name__: function
    for function in (
        aggregate,
        varints,
        cbor_item,
        cbor_body,
        json_body,
        error_answer,
        event_stream,
        http_answer,
        http2_frames,
        raw_record,
        user_values,
        lease_row,
        lease_item,
        request_headers,
        store_url,
        kpl_properties,
        small_texts,
        server_request,
        faults_file,
        signature,
    )
}
