"""Amazon Kinesis Data Streams for Python.

The public names, and nothing else. They load on first use: ``import shardline`` is cheap.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardline.aio.client import Client as Client
    from shardline.aio.subscription import Subscription as Subscription
    from shardline.codec.raw_records import aggregate as aggregate
    from shardline.codec.raw_records import deaggregate as deaggregate
    from shardline.core.requests import ShardFilter as ShardFilter
    from shardline.errors import Closed as Closed
    from shardline.errors import CredentialsError as CredentialsError
    from shardline.errors import RequestError as RequestError
    from shardline.errors import ServiceError as ServiceError
    from shardline.errors import ShardlineError as ShardlineError
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
else:  # hidden from type checkers: one that saw __getattr__ would believe every misspelt name
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
    "Client",
    "Closed",
    "Credentials",
    "CredentialsError",
    "Entry",
    "HashRange",
    "Position",
    "Record",
    "RequestError",
    "ServiceError",
    "Shard",
    "ShardFilter",
    "ShardlineError",
    "Subscription",
    "TransportError",
    "UsageError",
    "WaitTimeout",
    "__version__",
    "after_sequence_number",
    "aggregate",
    "at_sequence_number",
    "at_timestamp",
    "deaggregate",
    "hash_key_of",
]

_HOMES = {
    "Client": "aio.client",
    "Closed": "errors",
    "Credentials": "model.credentials",
    "CredentialsError": "errors",
    "Entry": "model.record",
    "HashRange": "model.hashing",
    "LATEST": "model.position",
    "Position": "model.position",
    "Record": "model.record",
    "RequestError": "errors",
    "ServiceError": "errors",
    "Shard": "model.shard",
    "ShardFilter": "core.requests",
    "ShardlineError": "errors",
    "Subscription": "aio.subscription",
    "TRIM_HORIZON": "model.position",
    "TransportError": "errors",
    "UsageError": "errors",
    "WaitTimeout": "errors",
    "after_sequence_number": "model.position",
    "aggregate": "codec.raw_records",
    "at_sequence_number": "model.position",
    "at_timestamp": "model.position",
    "deaggregate": "codec.raw_records",
    "hash_key_of": "model.hashing",
}


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
