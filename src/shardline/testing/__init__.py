"""A local Kinesis for tests: ``LocalKinesis``, and fixtures for pytest in ``shardline.testing.plugin``.

``LeaseStoreContract`` tests a lease store.

The names are loaded on first use, so a test suite that does not use the fixtures pays nothing for them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardline.server.model.settings import Delays as Delays
    from shardline.server.model.settings import Limits as Limits
    from shardline.testing.lease_store_contract import BatchingLeaseStoreContract as BatchingLeaseStoreContract
    from shardline.testing.lease_store_contract import LeaseStoreContract as LeaseStoreContract
    from shardline.testing.lease_store_contract import MakeStore as MakeStore
    from shardline.testing.local_kinesis import LocalClock as LocalClock
    from shardline.testing.local_kinesis import LocalKinesis as LocalKinesis
    from shardline.testing.local_streams import LocalStream as LocalStream
else:  # hidden from type checkers: with __getattr__ in sight, they would accept every misspelt name
    from importlib import import_module

    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module 'shardline.testing' has no attribute {name!r}")
        value: object = getattr(import_module(f"shardline.{module}"), name)
        globals()[name] = value
        return value


__all__ = [
    "BatchingLeaseStoreContract",
    "Delays",
    "LeaseStoreContract",
    "Limits",
    "LocalClock",
    "LocalKinesis",
    "LocalStream",
    "MakeStore",
]

_MODULES = {
    "BatchingLeaseStoreContract": "testing.lease_store_contract",
    "Delays": "server.model.settings",
    "LeaseStoreContract": "testing.lease_store_contract",
    "Limits": "server.model.settings",
    "LocalClock": "testing.local_kinesis",
    "LocalKinesis": "testing.local_kinesis",
    "LocalStream": "testing.local_streams",
    "MakeStore": "testing.lease_store_contract",
}


def __dir__() -> list[str]:
    return sorted(_MODULES)
