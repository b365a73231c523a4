"""Do producers, consumers, records and batches carry the types of values? Read by mypy --strict and pyright, never run.

A line with ``type: ignore`` is a mistake that both must find: each reports an ignore that it does not need.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

import json
from collections.abc import Callable
from typing import Any, TypedDict, assert_type

from shardline import (
    Batch,
    Client,
    ConnectionArguments,
    Consumer,
    DeadLetter,
    Delivery,
    FailurePolicy,
    Producer,
    Receipt,
    Record,
    Undelivered,
    deaggregate,
    sync,
)


class Order(TypedDict):
    customer: str
    amount: int


def encode(order: Order) -> bytes:
    return json.dumps(order).encode()


def decode(data: bytes) -> Order:
    order: Order = json.loads(data)
    return order


# ---- producers


async def puts_bytes(client: Client) -> None:
    async with Producer("orders", client=client, close_timeout=5) as producer:
        assert_type(producer, Producer[bytes])
        assert_type(await producer.put(b"x", key="k"), Delivery)
        assert_type(await (await producer.put(b"x")), Receipt)
        producer.put_nowait(b"x", key="k", explicit_hash_key="0")
        await producer.put_many([("k", b"x"), (None, b"x")])
        await producer.put_many((str(number), b"x", "0") for number in range(3))
        await producer.put("text")  # type: ignore[arg-type]
        producer.put_nowait({"amount": 1})  # type: ignore[arg-type]
        await producer.put_many([("k", "text")])  # type: ignore[list-item]
        await producer.put_many([b"x"])  # type: ignore[list-item]


async def puts_orders(producer: Producer[Order]) -> None:
    async with Producer("orders", serializer=encode) as made:
        assert_type(made, Producer[Order])
        await made.put({"customer": "a", "amount": 1})
        await made.put(b"x")  # type: ignore[arg-type]
        await made.put({"customer": "a"})  # type: ignore[typeddict-item]
    await producer.put_many([("a", Order(customer="a", amount=1))])
    await producer.put_many([("a", b"x")])  # type: ignore[list-item]
    await Producer("orders", serializer=str.encode).put("text")
    async with Producer("orders", serializer=lambda value: json.dumps(value).encode()) as any_json:
        await any_json.put({"any": ["JSON"]})
        await any_json.put_many([("a", 1), (None, "text")])
    Producer("orders", serializer=json.dumps)  # type: ignore[arg-type]


def blocking_puts(optional: Callable[[str], bytes] | None) -> None:
    with sync.Producer("orders") as producer:
        assert_type(producer, sync.Producer[bytes])
        assert_type(producer.put(b"x", key="k", timeout=1), sync.Delivery)
        assert_type(producer.put(b"x").result(timeout=5), Receipt)
        producer.put("text")  # type: ignore[arg-type]
        producer.put_many([(None, "text")])  # type: ignore[list-item]
    with sync.Producer("orders", serializer=encode) as orders:
        assert_type(orders, sync.Producer[Order])
        orders.put({"customer": "a", "amount": 1})
        orders.put_nowait(b"x")  # type: ignore[arg-type]
    assert_type(sync.Producer("orders", serializer=optional), sync.Producer[str])


def bytes_producers_take_no_other_type(producer: Producer) -> None:
    assert_type(producer, Producer[bytes])
    orders: Producer[Order] = Producer("orders")  # type: ignore[assignment]
    assert_type(orders.outstanding, int)


# ---- outcomes


async def outcomes(delivery: Delivery, blocking: sync.Delivery) -> None:
    outcome = await delivery.outcome()
    assert_type(outcome, Receipt | Undelivered)
    if outcome.delivered is True:
        assert_type(outcome, Receipt)
    else:
        assert_type(outcome, Undelivered)
    match blocking.outcome(timeout=5):
        case Receipt() as receipt:
            assert_type(receipt.shard_id, str)
        case Undelivered() as failure:
            assert_type(failure.code, str)
    if isinstance(outcome, Undelivered):
        assert_type(outcome.maybe_stored, bool)
    str(outcome.code)  # type: ignore[union-attr]


# ---- consumers


async def reads_bytes() -> None:
    async with Consumer("orders", until="latest") as consumer:
        assert_type(consumer, Consumer[bytes])
        async for record in consumer:
            assert_type(record, Record[bytes])
            assert_type(record.value, bytes)
            record.value["amount"]  # type: ignore[call-overload]


async def reads_orders() -> None:
    async with Consumer("orders", group="billing", store="memory:", deserializer=decode) as consumer:
        assert_type(consumer, Consumer[Order])
        async for record in consumer:
            assert_type(record.value, Order)
            assert_type(record.data, bytes)
            consumer.ack(record)
        async for batch in consumer.batches():
            assert_type(batch, Batch[Order])
            assert_type(batch.values, list[Order])
            assert_type(batch[0].value["amount"], int)
            assert_type(batch[1:], list[Record[Order]])
            assert_type([record.value for record in batch], list[Order])
    assert_type(Consumer("orders", deserializer=json.loads), Consumer[Any])
    assert_type(Consumer("orders", deserializer=lambda data: data.decode()), Consumer[str])
    Consumer("orders", deserializer=encode)  # type: ignore[arg-type]


def blocking_reads() -> None:
    with sync.Consumer("orders", deserializer=decode) as consumer:
        assert_type(consumer, sync.Consumer[Order])
        for record in consumer:
            assert_type(record.value, Order)
        for batch in consumer.batches(max_records=10):
            assert_type(batch.values, list[Order])
    assert_type(sync.Consumer("orders"), sync.Consumer[bytes])
    assert_type([record.value for record in deaggregate(b"payload")], list[bytes])


# ---- handlers


async def handle_bytes(record: Record) -> None:
    assert_type(record.value, bytes)


async def handle_order(record: Record[Order]) -> None:
    assert_type(record.value["amount"], int)


def handle_any(record: Record[Any]) -> None:
    assert_type(record.data, bytes)


def handle_orders(batch: Batch[Order]) -> None:
    assert_type(batch.values, list[Order])


def bury(letter: DeadLetter) -> None:
    assert_type(letter.attempts, int)


async def handlers(consumer: Consumer[Order], plain: Consumer, dead: Producer, orders: Producer[Order]) -> None:
    await consumer.run(handle_order)
    await consumer.run(handle_any, policy=FailurePolicy(attempts=3), dead_letter=dead)
    await consumer.run(handle_orders, batch=100, max_wait=0.5, dead_letter=bury)
    await consumer.run(lambda record: record.value["amount"])
    await plain.run(handle_bytes)
    await consumer.run(handle_bytes)  # type: ignore[arg-type]
    await plain.run(handle_order)  # type: ignore[arg-type]
    await consumer.run(handle_orders)  # type: ignore[arg-type]
    await consumer.run(handle_order, batch=100)  # type: ignore[arg-type]
    await consumer.run(handle_order, dead_letter=orders)  # type: ignore[arg-type]
    await consumer.run(bury)  # type: ignore[arg-type]


def blocking_handlers(consumer: sync.Consumer[Order], dead: sync.Producer, other: Producer) -> None:
    consumer.run(handle_any)
    consumer.run(handle_orders, batch=10, dead_letter=dead)
    consumer.run(handle_orders)  # type: ignore[arg-type]
    consumer.run(handle_orders, batch=10, dead_letter=other)  # type: ignore[call-overload]


# ---- connection arguments


async def connections() -> None:
    connection: ConnectionArguments = {"region": "eu-west-1", "read_timeout": 10, "protocol": "cbor"}
    Client(**connection)
    Producer("orders", serializer=encode, **connection)
    Consumer("orders", deserializer=decode, **connection)
    sync.Producer("orders", **connection)
    sync.Consumer("orders", **connection, group="billing", store="memory:")
    misspelt: ConnectionArguments = {"regoin": "eu-west-1"}  # type: ignore[typeddict-unknown-key]
    assert misspelt
    Producer("orders", regoin="eu-west-1")  # type: ignore[call-overload]
    Consumer("orders", verify=5)  # type: ignore[call-overload]
    sync.Producer("orders", endpoint="http://localhost")  # type: ignore[call-overload]
    sync.Consumer("orders", profil="dev")  # type: ignore[call-overload]
