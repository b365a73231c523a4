"""Amazon Kinesis Data Streams for Python.

This module holds the public names. Each name is loaded on first use, so ``import shardline`` is cheap.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardline._speedups import implementation as implementation
    from shardline.aio.client import Client as Client
    from shardline.aio.client import ConnectionArguments as ConnectionArguments
    from shardline.aio.consumer.async_consumer import Consumer as Consumer
    from shardline.aio.consumer.batches import Batch as Batch
    from shardline.aio.consumer.consumer_status import ConsumerStatus as ConsumerStatus
    from shardline.aio.consumer.consumer_status import KeyStatus as KeyStatus
    from shardline.aio.consumer.consumer_status import ShardStatus as ShardStatus
    from shardline.aio.consumer.fan_out import FanOut as FanOut
    from shardline.aio.producer.async_producer import Producer as Producer
    from shardline.aio.producer.delivery import Delivery as Delivery
    from shardline.aio.subscription import Subscription as Subscription
    from shardline.codec.raw_records import aggregate as aggregate
    from shardline.codec.raw_records import deaggregate as deaggregate
    from shardline.core.consumer.consumer_config import ConsumerConfig as ConsumerConfig
    from shardline.core.consumer.consumer_totals import ConsumerRates as ConsumerRates
    from shardline.core.consumer.consumer_totals import ConsumerTotals as ConsumerTotals
    from shardline.core.consumer.failure_policy import DeadLetter as DeadLetter
    from shardline.core.consumer.failure_policy import FailurePolicy as FailurePolicy
    from shardline.core.consumer.key_lanes import HotKey as HotKey
    from shardline.core.consumer.lifecycle import AssignedShard as AssignedShard
    from shardline.core.consumer.lifecycle import RevokedShard as RevokedShard
    from shardline.core.producer.producer_config import ProducerConfig as ProducerConfig
    from shardline.core.producer.producer_record import Attempt as Attempt
    from shardline.core.producer.producer_record import Receipt as Receipt
    from shardline.core.producer.producer_record import Undelivered as Undelivered
    from shardline.core.producer.producer_stats import ProducerStats as ProducerStats
    from shardline.core.requests import ShardFilter as ShardFilter
    from shardline.errors import BufferFull as BufferFull
    from shardline.errors import Closed as Closed
    from shardline.errors import CredentialsError as CredentialsError
    from shardline.errors import DeliveryFailed as DeliveryFailed
    from shardline.errors import FilterFailed as FilterFailed
    from shardline.errors import HandlerFailed as HandlerFailed
    from shardline.errors import HandlerProcessFailed as HandlerProcessFailed
    from shardline.errors import LeaseNotHeld as LeaseNotHeld
    from shardline.errors import RequestError as RequestError
    from shardline.errors import ServiceError as ServiceError
    from shardline.errors import ShardlineError as ShardlineError
    from shardline.errors import StoreError as StoreError
    from shardline.errors import StreamRecreated as StreamRecreated
    from shardline.errors import TransportError as TransportError
    from shardline.errors import UsageError as UsageError
    from shardline.errors import WaitTimeout as WaitTimeout
    from shardline.model.credentials import Credentials as Credentials
    from shardline.model.hashing import HashRange as HashRange
    from shardline.model.hashing import hash_key_of as hash_key_of
    from shardline.model.position import LATEST as LATEST
    from shardline.model.position import TRIM_HORIZON as TRIM_HORIZON
    from shardline.model.position import Position as Position
    from shardline.model.position import after_sequence_number as after_sequence_number
    from shardline.model.position import at_sequence_number as at_sequence_number
    from shardline.model.position import at_timestamp as at_timestamp
    from shardline.model.record import Entry as Entry
    from shardline.model.record import Record as Record
    from shardline.model.shard import Shard as Shard
    from shardline.ports import LeaseStore as LeaseStore
else:  # hidden from type checkers, which would accept every misspelt name if they saw __getattr__
    from importlib import import_module

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'shardline' has no attribute {name!r}")
        value: object = getattr(import_module(f"shardline.{home}"), name)
        globals()[name] = value
        return value


__all__ = [
    "LATEST",
    "TRIM_HORIZON",
    "AssignedShard",
    "Attempt",
    "Batch",
    "BufferFull",
    "Client",
    "Closed",
    "ConnectionArguments",
    "Consumer",
    "ConsumerConfig",
    "ConsumerRates",
    "ConsumerStatus",
    "ConsumerTotals",
    "Credentials",
    "CredentialsError",
    "DeadLetter",
    "Delivery",
    "DeliveryFailed",
    "Entry",
    "FailurePolicy",
    "FanOut",
    "FilterFailed",
    "HandlerFailed",
    "HandlerProcessFailed",
    "HashRange",
    "HotKey",
    "KeyStatus",
    "LeaseNotHeld",
    "LeaseStore",
    "Position",
    "Producer",
    "ProducerConfig",
    "ProducerStats",
    "Receipt",
    "Record",
    "RequestError",
    "RevokedShard",
    "ServiceError",
    "Shard",
    "ShardFilter",
    "ShardStatus",
    "ShardlineError",
    "StoreError",
    "StreamRecreated",
    "Subscription",
    "TransportError",
    "Undelivered",
    "UsageError",
    "WaitTimeout",
    "__version__",
    "after_sequence_number",
    "aggregate",
    "at_sequence_number",
    "at_timestamp",
    "deaggregate",
    "hash_key_of",
    "implementation",
]

_HOMES = {
    "AssignedShard": "core.consumer.lifecycle",
    "Attempt": "core.producer.producer_record",
    "Batch": "aio.consumer.batches",
    "BufferFull": "errors",
    "Client": "aio.client",
    "Closed": "errors",
    "ConnectionArguments": "aio.client",
    "Consumer": "aio.consumer.async_consumer",
    "ConsumerConfig": "core.consumer.consumer_config",
    "ConsumerRates": "core.consumer.consumer_totals",
    "ConsumerStatus": "aio.consumer.consumer_status",
    "ConsumerTotals": "core.consumer.consumer_totals",
    "Credentials": "model.credentials",
    "CredentialsError": "errors",
    "DeadLetter": "core.consumer.failure_policy",
    "Delivery": "aio.producer.delivery",
    "DeliveryFailed": "errors",
    "Entry": "model.record",
    "FailurePolicy": "core.consumer.failure_policy",
    "FanOut": "aio.consumer.fan_out",
    "FilterFailed": "errors",
    "HandlerFailed": "errors",
    "HandlerProcessFailed": "errors",
    "HashRange": "model.hashing",
    "HotKey": "core.consumer.key_lanes",
    "KeyStatus": "aio.consumer.consumer_status",
    "LATEST": "model.position",
    "LeaseNotHeld": "errors",
    "LeaseStore": "ports",
    "Position": "model.position",
    "Producer": "aio.producer.async_producer",
    "ProducerConfig": "core.producer.producer_config",
    "ProducerStats": "core.producer.producer_stats",
    "Receipt": "core.producer.producer_record",
    "Record": "model.record",
    "RequestError": "errors",
    "RevokedShard": "core.consumer.lifecycle",
    "ServiceError": "errors",
    "Shard": "model.shard",
    "ShardFilter": "core.requests",
    "ShardStatus": "aio.consumer.consumer_status",
    "ShardlineError": "errors",
    "StoreError": "errors",
    "StreamRecreated": "errors",
    "Subscription": "aio.subscription",
    "TRIM_HORIZON": "model.position",
    "TransportError": "errors",
    "Undelivered": "core.producer.producer_record",
    "UsageError": "errors",
    "WaitTimeout": "errors",
    "after_sequence_number": "model.position",
    "aggregate": "codec.raw_records",
    "at_sequence_number": "model.position",
    "at_timestamp": "model.position",
    "deaggregate": "codec.raw_records",
    "hash_key_of": "model.hashing",
    "implementation": "_speedups",
}


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
