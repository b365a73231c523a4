"""Are failed records put back unchanged, whichever program wrote them to a file?

The writers are the consumers (dead letters), ``put --failed`` and ``tail --output json``; the reader is ``put
--retry``.
"""

import base64
import json

import anyio
import pytest

import shardline as library
from shardline import FailurePolicy, ProducerConfig, deaggregate, sync

SOON = FailurePolicy(attempts=1)
TOP = str(2**128 - 1)
HEADERS = {"traceparent": "00-1", "odd": 'é "\n\t\x00 🗝', "proof-bin": "AP8="}
ALL_HEADERS = {b"with headers": HEADERS, b"both": {"a": ""}}
RECORDS = [
    # key, data, explicit hash key, headers
    ("text", "schlüssel 🗝".encode(), None),
    ("bytes", bytes(range(256)), None),
    ("empty", b"", None),
    ("looks like base64", base64.b64encode(b"hello"), None),
    ("JSON", b'{"data": "x", "version": 7, "buried_at": 1}', None),
    ("lines", b"one\ntwo\r\n\x00", None),
    ("a NUL", b"\xef\xbb\xbfwith a byte order mark", None),
    ('odd "key"\n\t\\ \u2028 \u0000 é 🗝', b"odd", None),
    ("k" * 256, b"long key", None),
    ("hashed low", b"low", "0"),
    ("hashed high", b"\xff\xfe", TOP),
    ("headed", b"with headers", None, HEADERS),
    ("hashed and headed", b"both", "0", {"a": ""}),
]


def stored(kinesis, stream="orders"):
    return sorted((one.key, one.data, one.explicit_hash_key) for one in deaggregate(kinesis.streams[stream].records))


def stored_headers(kinesis, stream="orders"):
    return {one.data: dict(one.headers) for one in deaggregate(kinesis.streams[stream].records) if one.headers}


@pytest.fixture
def connection(kinesis):
    return {
        "endpoint_url": kinesis.endpoint_url,
        "region": kinesis.region,
        "credentials": kinesis.credentials,
    }


def create_auto(connection, name):
    async def create():
        async with library.Client(**connection) as client:
            mode = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}, "RecordDistributionStrategy": "AUTO"}
            await client.call("CreateStream", {"StreamName": name} | mode)

    anyio.run(create)


def refuse(record):
    raise ValueError(f"no {record.key!r} \udcff")


def dead_letter_blocking(connection, target):
    with sync.Producer("orders", **connection) as producer:
        producer.put_many(RECORDS)
    with sync.Consumer("orders", until="latest", **connection) as consumer:
        consumer.run(refuse, policy=SOON, dead_letter=target)


def dead_letter_async(connection, target):
    async def run():
        async with library.Producer("orders", **connection) as producer:
            await producer.put_many(RECORDS)
        async with library.Consumer("orders", until="latest", **connection) as consumer:
            if not callable(target):
                await consumer.run(refuse, policy=SOON, dead_letter=target)
                return
            async with target() as producer:
                await consumer.run(refuse, policy=SOON, dead_letter=producer)

    anyio.run(run)


@pytest.mark.parametrize("dead_letter", [dead_letter_async, dead_letter_blocking], ids=["async", "blocking"])
def test_dead_letters_are_put_back_as_they_were(shardline, kinesis, connection, tmp_path, dead_letter):
    path = tmp_path / "dead.jsonl"
    dead_letter(connection, path)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert {(line["error"], line["attempts"]) for line in lines} == {("HandlerFailed", 1)}
    assert {line["version"] for line in lines} == {1, 2}
    assert all(line["message"].startswith("ValueError: no ") for line in lines)
    kinesis.create_stream("again", shards=2)
    ended = shardline("put", "again", "--retry", "dead.jsonl")
    assert ended.stderr.startswith(f"put {len(RECORDS)} records")
    assert stored(kinesis, "again") == stored(kinesis) == sorted([record[:3] for record in RECORDS], key=str)
    assert stored_headers(kinesis, "again") == stored_headers(kinesis) == ALL_HEADERS


@pytest.mark.parametrize("dead_letter", [dead_letter_async, dead_letter_blocking], ids=["async", "blocking"])
def test_dead_letters_in_a_stream_are_put_back_as_they_were(shardline, kinesis, connection, dead_letter):
    kinesis.create_stream("dead")
    kinesis.create_stream("again")
    dead_letter(connection, "dead")
    copied = shardline("tail", "dead", "--from", "TRIM_HORIZON", "--until", "latest", "--output", "json").stdout
    shardline("put", "again", "--records", "-", stdin=copied)
    # Kinesis returns no explicit hash key for a record that is alone in its entry, as a dead letter is.
    keys_and_data = sorted((key, data) for key, data, _ in stored(kinesis))
    assert sorted((key, data) for key, data, _ in stored(kinesis, "dead")) == keys_and_data
    assert sorted((key, data) for key, data, _ in stored(kinesis, "again")) == keys_and_data
    assert stored_headers(kinesis, "again") == stored_headers(kinesis, "dead") == ALL_HEADERS


@pytest.mark.parametrize("dead_letter", [dead_letter_async, dead_letter_blocking], ids=["async", "blocking"])
@pytest.mark.parametrize("target", ["a stream", "a producer"])
def test_a_dead_letter_loses_its_headers_rather_than_itself(kinesis, connection, dead_letter, target, caplog):
    create_auto(connection, "dead")
    if target == "a stream":
        dead_letter(connection, "dead")
    else:
        config = ProducerConfig(aggregation=False)
        if dead_letter is dead_letter_blocking:
            with sync.Producer("dead", config=config, **connection) as producer:
                dead_letter(connection, producer)
        else:
            dead_letter_async(connection, lambda: library.Producer("dead", config=config, **connection))
    found = kinesis.streams["dead"].records
    assert sorted(record.data for record in found) == sorted(data for _, data, *_ in RECORDS)
    assert "dead letters are written without their headers: headers are sent in aggregates" in caplog.text


def test_a_dead_letter_without_a_key_is_put_back_without_one(shardline, kinesis, connection, tmp_path):
    """Producers send keyless records with a generated key; only streams that ignore keys have records without one."""
    from shardline.aio.consumer.dead_letters import dead_letter_lines
    from shardline.core.consumer.failure_policy import DeadLetter
    from shardline.model.record import Record

    records = [Record(b"\xff keyless", None, "17"), Record(b"keyless", None)]
    (tmp_path / "dead.jsonl").write_bytes(dead_letter_lines(DeadLetter(records, 3, "timed out"), 1_700_000_000.0))
    first = json.loads((tmp_path / "dead.jsonl").read_bytes().splitlines()[1])
    assert (first["key"], first["message"], first["failed_at"]) == (None, "timed out", "2023-11-14T22:13:20.000Z")
    shardline("put", "orders", "--retry", "dead.jsonl")
    assert sorted(data for _, data, _ in stored(kinesis)) == [b"keyless", b"\xff keyless"]


def test_failed_puts_are_put_again_as_they_were(shardline, kinesis, connection, tmp_path):
    dead_letter_blocking(connection, tmp_path / "dead.jsonl")
    kinesis.create_stream("again", shards=2)
    kinesis.faults.throttle(operation="PutRecords", stream="again")
    ended = shardline(
        "put", "again", "--retry", "dead.jsonl", "--failed", "failed.jsonl", "--give-up-after", "1s", code=1
    )
    assert f"{len(RECORDS)} records failed" in ended.stderr
    kinesis.faults.clear()
    shardline("put", "again", "--retry", "failed.jsonl")
    assert stored(kinesis, "again") == stored(kinesis)


OLD = '{"key": "k", "data": "aGVsbG8=", "attempts": 2, "error": "ValueError: x", "buried_at": 1700000000.25}\n'
NEW = '{"version": 1, "key": "k", "data": "new"}\n'


@pytest.mark.parametrize("lines", [[OLD], [OLD, NEW], [NEW] * 3 + [OLD]], ids=["old", "old first", "old last"])
def test_an_old_file_of_dead_letters_is_refused_as_a_whole(shardline, kinesis, tmp_path, lines):
    (tmp_path / "dead.jsonl").write_text("".join(lines))
    ended = shardline("put", "orders", "--retry", "dead.jsonl", "--failed", "failed.jsonl", code=2)
    assert ended.stderr == (
        f"Error: dead.jsonl: line {len(lines) if lines[-1] is OLD else 1} is a dead letter in the format of an older "
        "Shardline, with base64 under data: rename that member to data_base64, and remove buried_at; nothing was put\n"
    )
    assert stored(kinesis) == []
    assert not (tmp_path / "failed.jsonl").exists()


def test_a_file_of_a_newer_format_is_refused_as_a_whole(shardline, kinesis, tmp_path):
    (tmp_path / "f").write_text(NEW + '{"version": 3, "key": "k", "data": "x", "colour": "red"}')
    ended = shardline("put", "orders", "--retry", "f", code=2)
    assert ended.stderr == (
        "Error: f: line 2 is a record in version 3 of the format: this Shardline reads versions 1 and 2; nothing was put\n"
    )
    assert stored(kinesis) == []


def test_old_lines_of_a_pipe_fail_one_by_one(shardline, kinesis, tmp_path):
    ended = shardline("put", "orders", "--retry", "-", "--failed", "f", stdin=(NEW + OLD).encode(), code=1)
    assert "line 2: a dead letter in the format of an older Shardline" in ended.stderr
    assert [data for _, data, _ in stored(kinesis)] == [b"new"]
    assert (tmp_path / "f").read_text() == OLD
