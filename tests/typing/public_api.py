"""How does a user's code look to a type checker? Read by mypy --strict and pyright, never run.

A line with ``type: ignore`` is a mistake that both must find: each reports an ignore that it does not need.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, assert_type

import shardline
from shardline import (
    LATEST,
    TRIM_HORIZON,
    Batch,
    Client,
    Closed,
    Consumer,
    ConsumerConfig,
    ConsumerStatus,
    Credentials,
    CredentialsError,
    DeadLetter,
    Entry,
    FailurePolicy,
    HandlerFailed,
    HashRange,
    HotKey,
    KeyStatus,
    Position,
    Record,
    RequestError,
    ServiceError,
    Shard,
    ShardFilter,
    ShardlineError,
    ShardStatus,
    Subscription,
    TransportError,
    UsageError,
    WaitTimeout,
    after_sequence_number,
    aggregate,
    at_sequence_number,
    at_timestamp,
    deaggregate,
    hash_key_of,
    implementation,
)

# The shapes of answers are not public names: users hold them without naming them.
from shardline.codec.shapes import (
    GetRecordsResponse,
    PutRecordResponse,
    PutRecordsResponse,
    RawRecord,
    StreamConsumer,
    StreamListing,
    StreamSummary,
    SubscribeToShardEvent,
)
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import ChildShard


async def writes(client: Client) -> None:
    assert_type(await client.put_records("orders", [Entry(b"x", "k"), Entry(b"x", None, "0")]), PutRecordsResponse)
    await client.put_records("orders", [(b"x", "k")])
    await client.put_records("orders", [(b"x", None, "0")])
    await client.put_records("orders", ((bytes([i]), str(i)) for i in range(3)))
    response = await client.put_records("orders", [(b"x", "k"), (b"x", "k", None), Entry(b"x", "k")])
    for result in response.records:
        assert_type(result.error_code, str | None)
        assert_type(result.sequence_number, str | None)
        assert_type(result.shard_id, str | None)
    assert_type(response.failed_count, int | None)
    one = await client.put_record("orders", b"x", "k", explicit_hash_key="0", sequence_number_for_ordering="5")
    assert_type(one, PutRecordResponse)
    assert_type(one.sequence_number, str)


async def mistakes(client: Client) -> None:
    """Each of these is an error to mypy: an ignore that is not needed fails the run."""
    await client.put_records("orders", ["text"])  # type: ignore[list-item]
    await client.put_records("orders", [("k", "x")])  # type: ignore[list-item]
    await client.put_record("orders", "text", "k")  # type: ignore[arg-type]
    await client.put_record("orders", b"x")  # type: ignore[call-arg]
    await client.get_records(5)  # type: ignore[arg-type]
    Client("eu-west-1")  # type: ignore[call-arg]
    Client(protocol="xml")  # type: ignore[arg-type]
    Record(b"x", "k").data = b"y"  # type: ignore[misc]
    HashRange(0, 1).start = 2  # type: ignore[misc]
    hash_key_of(b"k")  # type: ignore[arg-type]
    str(shardline.Produser)  # type: ignore[attr-defined]


async def reads(client: Client) -> None:
    iterator = await client.get_shard_iterator("orders", "shardId-000000000000", TRIM_HORIZON)
    assert_type(iterator, str)
    for position in (LATEST, "LATEST", 1_700_000_000, 1.5, datetime(2026, 1, 1, tzinfo=UTC)):
        await client.get_shard_iterator("orders", "shardId-000000000000", position)
    page = await client.get_records(iterator, limit=10, stream="orders")
    assert_type(page, GetRecordsResponse)
    assert_type(page.records, list[RawRecord])
    assert_type(page.next_iterator, str | None)
    assert_type(page.millis_behind_latest, int | None)
    assert_type(page.child_shards, tuple[ChildShard, ...])
    for raw in page.records:
        assert_type(raw.data, bytes)
        assert_type(raw.key, str | None)
        assert_type(raw.sequence_number, str)
        assert_type(raw.arrived_at, float | None)


async def subscribes(client: Client) -> None:
    subscription = client.subscribe_to_shard("arn", "shardId-000000000000", "LATEST")
    assert_type(subscription, Subscription)
    async for event in subscription:
        assert_type(event, SubscribeToShardEvent)
        assert_type(event.records, list[RawRecord])
        assert_type(event.continuation_sequence_number, str | None)
    async with client.subscribe_to_shard("arn", "shardId-000000000000", LATEST) as opened:
        assert_type(opened, Subscription)
    await subscription.aclose()


async def manages(client: Client) -> None:
    await client.create_stream("orders", shards=2, tags={"team": "a"}, wait=True)
    await client.create_stream("orders", mode="ON_DEMAND", wait=30.0)
    summary = await client.describe_stream_summary("orders")
    assert_type(summary, StreamSummary)
    assert_type(summary.mode, str)
    assert_type(summary.max_record_bytes, int)
    shards = await client.list_shards("orders", ShardFilter("AT_LATEST"))
    assert_type(shards, list[Shard])
    for shard in shards:
        assert_type(shard.hash_range, HashRange)
        assert_type(shard.parent_ids, tuple[str, ...])
        assert_type(shard.is_open, bool)
    assert_type(await client.list_shards("orders", "AT_LATEST"), list[Shard])
    assert_type(await client.list_streams(), list[StreamListing])
    assert_type(await client.register_stream_consumer("orders", "billing", wait=True), StreamConsumer)
    assert_type(await client.list_stream_consumers("orders"), list[StreamConsumer])
    assert_type(await client.list_tags_for_stream("orders"), dict[str, str])
    assert_type(await client.call("DescribeLimits"), dict[str, object])
    assert_type(await client.call("DescribeLimits", {}), dict[str, object])
    await client.delete_stream("orders", wait=True)


async def opens() -> None:
    async with Client(region="eu-west-1") as client:
        assert_type(client, Client)
        assert_type(client.region, str)
    settings = Client(
        endpoint_url="http://localhost:4567",
        credentials=Credentials("key", "secret"),
        protocol="cbor",
        verify=False,
        connect_timeout=1,
        read_timeout=5.0,
        max_connections=10,
        proxies={"https": "http://proxy:3128"},
    )
    await settings.start()
    await settings.close()


async def catches(attempt: Callable[[], Awaitable[None]]) -> None:
    try:
        await attempt()
    except (ServiceError, TransportError) as error:
        assert_type(error, ServiceError | TransportError)
        assert_type(error.code, str)
        assert_type(error.kind, str)
        assert_type(error.status, int | None)
        assert_type(error.retry_after, float | None)
        assert_type(error.retryable, bool)
        assert_type(error.maybe_received, bool)
    except RequestError as error:
        assert_type(error.request_id, str | None)
    except (Closed, CredentialsError, UsageError, WaitTimeout) as error:
        wide: ShardlineError = error
        assert_type(str(wide), str)


def values() -> None:
    assert_type(TRIM_HORIZON, Position)
    assert_type(at_timestamp(datetime(2026, 1, 1, tzinfo=UTC)), Position)
    assert_type(at_timestamp(5), Position)
    assert_type(at_sequence_number("5"), Position)
    assert_type(after_sequence_number(SequenceNumber(5)), Position)
    assert_type(hash_key_of("k"), int)
    assert_type(implementation, Literal["native", "pure"])
    assert_type(5 in HashRange(0, 9), bool)
    assert_type(HashRange(0, 9).overlaps(HashRange(5, 6)), bool)
    entry = Entry(b"x", "k")
    assert_type(entry.data, bytes)
    assert_type(entry.explicit_hash_key, str | None)
    assert_type(shardline.__version__, str)


def aggregates() -> None:
    assert_type(aggregate([("k", b"x"), ("k", b"x", "0")], within=HashRange(0, 9)), bytes)
    records = deaggregate(b"payload")
    assert_type(records, list[Record])
    deaggregate([b"payload", bytearray(b"payload"), memoryview(b"payload")])
    deaggregate({"Records": [{"Data": b"x", "SequenceNumber": "1"}]})
    deaggregate(records)
    for record in records:
        assert_type(record.data, bytes)
        assert_type(record.key, str | None)
        assert_type(record.sub_sequence, int)
        assert_type(record.aggregated, bool)
        assert_type(record.order, SequenceNumber)


async def consumes(client: Client) -> None:
    config = ConsumerConfig(lease_duration=10.0, checkpoint_interval=None, max_leases=4, ack="manual")
    async with Consumer("orders", group="billing", store="sqlite:///leases.db", config=config) as consumer:
        assert_type(consumer, Consumer[bytes])
        await consumer.wait_ready(timeout=5)
        async for record in consumer:
            assert_type(record, Record[bytes])
            assert_type(record.value, bytes)
            assert_type(consumer.ack(record), bool)
            if record.lease is not None:
                assert_type(record.lease.held, bool)
                assert_type(record.lease.token, int)
        async for batch in consumer.batches(max_records=100, max_wait=0.5):
            assert_type(batch, Batch[bytes])
            assert_type(batch.records, list[Record[bytes]])
            assert_type(batch[0], Record[bytes])
            assert_type(batch.ack(), bool)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    reader = Consumer("orders", client=client, start=start, until="latest", idle_timeout=5, deserializer=json.loads)
    assert_type(reader, Consumer[Any])
    await reader.start()
    status = reader.status()
    assert_type(status, ConsumerStatus)
    assert_type(status.shards, tuple[ShardStatus, ...])
    assert_type(status.handling_lag, float | None)
    assert_type(status.reading_lag, float | None)
    assert_type(status.in_hand, int)
    assert_type(status.keys, KeyStatus)
    assert_type(status.keys.hot, tuple[HotKey, ...])
    assert_type(status.handler_started_at, float | None)
    assert_type(reader.is_ready, bool)
    await reader.close(timeout=5)


async def handles(consumer: Consumer) -> None:
    async def handle(record: Record) -> None:
        assert_type(record.data, bytes)

    def handle_many(batch: Batch) -> None:
        assert_type(len(batch), int)

    def bury(letter: DeadLetter) -> None:
        assert_type(letter.attempts, int)

    await consumer.run(handle)
    await consumer.run(handle_many, batch=100, policy=FailurePolicy(attempts=3), dead_letter=bury)
    await consumer.run(handle, dead_letter="dead-orders")
    try:
        await consumer.run(handle, dead_letter=Path("dead.jsonl"))
    except HandlerFailed as error:
        assert_type(error.shard_id, str)
    Consumer("orders", until="tomorrow")  # type: ignore[call-overload]
    ConsumerConfig(ack="never")  # type: ignore[arg-type]
