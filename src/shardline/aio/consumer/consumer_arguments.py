"""Are the arguments of a consumer what they must be?

Each wrong one is a ``UsageError`` that names it, what was given, and what may be.
"""

import inspect
import time
from dataclasses import replace
from typing import Any, Final

from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.memory import MemoryLeases
from shardline.adapters.leases.store_urls import lease_store
from shardline.aio.client import Client
from shardline.aio.consumer.batches import Batch
from shardline.aio.consumer.worker_identity import new_worker_id
from shardline.aio.producer.validation import check_timeout
from shardline.core.consumer.consumer_config import ConsumerConfig
from shardline.core.consumer.failure_policy import FailurePolicy
from shardline.errors import UsageError
from shardline.model.position import Position, PositionKind, as_position
from shardline.model.record import Record
from shardline.ports import LeaseStore

_STARTS: Final = frozenset({PositionKind.TRIM_HORIZON, PositionKind.LATEST, PositionKind.AT_TIMESTAMP})
_SHARED_WITH_DYNAMODB: Final = ("region", "profile", "session", "credentials", "use_fips", "use_dualstack")


def check_settings(config: object, worker_id: str | None, max_leases: int | None) -> tuple[ConsumerConfig, str]:
    """The config with what was said beside it, and the worker's name."""
    if config is None:
        config = ConsumerConfig()
    if not isinstance(config, ConsumerConfig):
        raise UsageError(f"config must be a ConsumerConfig, not {type(config).__name__}")
    if max_leases is not None:
        config = replace(config, max_leases=max_leases)
    if worker_id is not None:
        config = replace(config, worker_id=worker_id)
    return config, config.worker_id or new_worker_id()


def check_start(start: object) -> Position:
    """Where a group may start: a place that every shard has."""
    position = as_position(start)
    if position.kind not in _STARTS:
        raise UsageError(f"start must be TRIM_HORIZON, LATEST or a time, which every shard has, not {position}")
    return position


def aws_access(connection: dict[str, Any], client: Client) -> AwsAccess:
    """How a store in DynamoDB reaches AWS: as Kinesis is reached, but at its own endpoint."""
    given = connection or client.access_settings()
    return AwsAccess(time.time, **{name: given[name] for name in _SHARED_WITH_DYNAMODB if name in given})


def check_batch(size: object, max_wait: object) -> float:
    """How long a batch waits for company."""
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise UsageError(f"a batch has a whole number of records, 1 or more, or None, not {size!r}")
    wait = check_timeout("max_wait", max_wait)
    if wait is None:
        raise UsageError("max_wait is a number of seconds, 0 or more, not None: a batch does not wait for ever")
    return wait


def check_done(done: object) -> None:
    if not isinstance(done, Record | Batch):
        raise UsageError(f"what is acknowledged is a Record or a Batch, not {type(done).__name__}")


def check_handler(handler: object, policy: object, *, has_dead_letter: bool) -> FailurePolicy:
    """The policy, with the last resort that was named."""
    if not callable(handler):
        raise UsageError(f"handler must be callable, not {type(handler).__name__}")
    if is_generator_function(handler):
        raise UsageError("handler must not be a generator function: calling one runs nothing of it; remove the yield")
    if policy is None:
        policy = FailurePolicy()
    if not isinstance(policy, FailurePolicy):
        raise UsageError(f"policy must be a FailurePolicy, not {type(policy).__name__}")
    if policy.finally_ == "dead-letter" and not has_dead_letter:
        raise UsageError("a policy that ends with dead letters needs dead_letter=, which says where they go")
    return replace(policy, finally_="dead-letter") if has_dead_letter else policy


def is_generator_function(handler: object) -> bool:
    """Whether calling it, plain or async, only makes a generator."""
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return any(is_kind(one) for is_kind in kinds for one in (handler, getattr(handler, "__call__", None)))  # noqa: B004 - its kind is asked


def check_bounds(until: object, idle_timeout: object) -> tuple[bool, float | None]:
    """Where a run ends, if anywhere: whether at the latest record, and after how long without any."""
    if until not in (None, "latest"):
        raise UsageError(f"until must be 'latest' or None, not {until!r}")
    return until is not None, check_timeout("idle_timeout", idle_timeout)


def make_store(
    store: object, *, group: str | None, stream: str, worker_id: str, connection: dict[str, Any], client: Client
) -> LeaseStore:
    """Where the leases are. Without a group there is nobody to share them with, and nothing to keep.

    Raises:
        UsageError: a group without a store (a silent default would let two machines read everything twice), a store
            without a group, or one that is none.
    """
    if group is None:
        if store is not None:
            raise UsageError("a store goes with a group: name the group whose leases it keeps")
        return MemoryLeases(f"reader {worker_id}", stream)
    if store is None:
        raise UsageError(
            "a group needs a store: 'sqlite:///leases.db' for the processes of one machine, 'redis://host' or "
            "'dynamodb://table' for many machines, 'memory:' for this process alone"
        )
    return lease_store(store, group=group, stream=stream, aws=aws_access(connection, client))
