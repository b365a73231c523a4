"""Answers the requests of all operations.

The whole service is one pure machine: ``handle(operation, request, now)``. It does no I/O, reads no clock, and takes
its random numbers from one seed.

Invariants:

- Every request gets exactly one answer. An invalid request is answered with a refusal, never with an exception.
- The same seed, requests and times produce the same answers.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from msgspec import Struct

from shardline.server.model import (
    account,
    channels,
    consumers,
    descriptions,
    inputs,
    management,
    policies,
    records,
    tags,
)
from shardline.server.model.refusals import Refused, unknown_operation
from shardline.server.model.settings import ServiceSettings
from shardline.server.model.state import ServiceState, Stored
from shardline.server.model.targets import stream_named

if TYPE_CHECKING:
    from random import Random

    from shardline.server.model.fault_rules import Plan
    from shardline.server.model.faults import Faults

OPERATIONS: Final[dict[str, Callable[[ServiceState, Any], object]]] = {
    "PutRecords": records.put_records,
    "PutRecord": records.put_record,
    "GetRecords": records.get_records,
    "GetShardIterator": records.get_shard_iterator,
    "ListShards": descriptions.list_shards,
    "ListStreams": descriptions.list_streams,
    "DescribeStream": descriptions.describe_stream,
    "DescribeStreamSummary": descriptions.describe_stream_summary,
    "DescribeLimits": descriptions.describe_limits,
    "DescribeAccountSettings": account.describe_account_settings,
    "UpdateAccountSettings": account.update_account_settings,
    "UpdateStreamWarmThroughput": account.update_warm_throughput,
    "PutResourcePolicy": policies.put_policy,
    "GetResourcePolicy": policies.get_policy,
    "DeleteResourcePolicy": policies.delete_policy,
    "CreateChannel": channels.create_channel,
    "DescribeChannel": channels.describe_channel,
    "ListChannels": channels.list_channels,
    "UpdateChannel": channels.update_channel,
    "DeleteChannel": channels.delete_channel,
    "CreateStream": management.create_stream,
    "DeleteStream": management.delete_stream,
    "SplitShard": management.split_shard,
    "MergeShards": management.merge_shards,
    "UpdateShardCount": management.update_shard_count,
    "IncreaseStreamRetentionPeriod": partial(management.set_retention, increase=True),
    "DecreaseStreamRetentionPeriod": partial(management.set_retention, increase=False),
    "AddTagsToStream": tags.add_tags,
    "RemoveTagsFromStream": tags.remove_tags,
    "ListTagsForStream": tags.list_tags,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "ListTagsForResource": tags.list_tags_for_resource,
    "StartStreamEncryption": management.start_encryption,
    "StopStreamEncryption": management.stop_encryption,
    "EnableEnhancedMonitoring": partial(management.set_monitoring, enable=True),
    "DisableEnhancedMonitoring": partial(management.set_monitoring, enable=False),
    "UpdateStreamMode": management.update_stream_mode,
    "UpdateMaxRecordSize": management.update_max_record_size,
    "UpdateStreamRecordDistributionStrategy": management.update_record_distribution,
    "RegisterStreamConsumer": consumers.register,
    "DescribeStreamConsumer": consumers.describe,
    "DeregisterStreamConsumer": consumers.deregister,
    "ListStreamConsumers": consumers.list_consumers,
}


@final
class Answer(NamedTuple):
    """The answer to a request: a body (a struct, a dict or ``None``), a refusal, or a subscription."""

    body: object = None
    refusal: Refused | None = None
    subscription: consumers.ServerSubscription | None = None
    plan: "Plan | None" = None
    """The effects of faults on the request. If ``plan.is_handled`` is false, there is neither a body nor a refusal."""


@final
class Service:
    """The whole service: its state, and the operations on it."""

    def __init__(self, settings: ServiceSettings, rng: "Random", now: float) -> None:
        self.state: ServiceState = ServiceState(settings, rng, now)
        self._subscriptions = consumers.Subscriptions()

    def use_faults(self, faults: "Faults") -> None:
        """Apply these faults to all further requests."""
        self.state.faults = faults

    def plan(self, operation: str, members: Struct, now: float) -> "Plan | None":
        """Return the effects of faults on a request, or ``None`` if there are no faults.

        The caller must pass the plan to ``handle``. Without it, ``handle`` would plan and count the hits a second time.
        """
        faults = self.state.faults
        if faults is None or not faults.for_requests:
            return None
        self.state.advance(now)
        return faults.plan(self.state, operation, members)

    def handle(
        self, operation: str, request: Struct | dict[str, Any], now: float, plan: "Plan | None" = None
    ) -> Answer:
        """Answer one request. ``request`` is a struct of ``inputs``, or a dict of its members."""
        try:
            if operation not in inputs.INPUTS:
                raise unknown_operation()
            members = inputs.read_values(operation, request) if isinstance(request, dict) else request
            plan = plan or self.plan(operation, members, now)
            self.state.advance(now)
            if plan is not None and not plan.is_handled:
                return Answer(plan=plan)
            if plan is not None and plan.refusal is not None:
                raise plan.refusal
            if operation not in inputs.DATA_PLANE:
                self.state.check_rate(operation, stream_named(members) or "")
            if isinstance(members, inputs.SubscribeToShard):
                return Answer(subscription=self._subscriptions.subscribe(self.state, members), plan=plan)
            return Answer(OPERATIONS[operation](self.state, members), plan=plan)
        except Refused as refusal:
            return Answer(refusal=refusal, plan=plan)

    def take_stored(self) -> list[Stored]:
        """Return the records stored since the last call. They must be persisted before the answer is sent."""
        stored, self.state.stored = self.state.stored, []
        return stored

    def take_changed(self) -> set[str]:
        """Return the names of the streams that have been changed or deleted since the last call."""
        changed, self.state.changed = self.state.changed, set()
        return changed
