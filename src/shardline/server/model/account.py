"""Emulates the account's billing mode and the warm throughput of its streams.

An account with a minimum throughput billing commitment is in the mode that AWS calls On-demand Advantage. Only in that
mode do on-demand streams have a warm throughput.

Invariant:

- A stream's warm throughput is stored and reported. It changes neither the shards nor their limits.
"""

from typing import Final

from shardline.model.limits import WARM_THROUGHPUT_MAX_MIBPS
from shardline.server.model import inputs
from shardline.server.model.refusals import Refused, limit_exceeded
from shardline.server.model.state import ServiceState
from shardline.server.model.streams import Change, ServerStream

_WARM_UPDATE: Final = "warm"  # the kind of the pending change


def describe_account_settings(state: ServiceState, request: inputs.Nothing) -> dict[str, object]:
    del request
    return {"MinimumThroughputBillingCommitment": state.commitment.describe(state.now)}


def update_account_settings(state: ServiceState, request: inputs.UpdateAccountSettings) -> dict[str, object]:
    if request.minimum_throughput_billing_commitment.status == "ENABLED":
        state.commitment = state.commitment.enable(state.now)
    else:
        state.commitment = state.commitment.disable(state.now)
    return {"MinimumThroughputBillingCommitment": state.commitment.describe(state.now)}


def update_warm_throughput(state: ServiceState, request: inputs.UpdateStreamWarmThroughput) -> dict[str, object]:
    stream = state.active(request.stream_name, request.stream_arn)
    check_warm_throughput(state, stream.mode, request.warm_throughput, "UpdateStreamWarmThroughput")
    ready_at = state.now + state.settings.delays.update
    stream.begin("UPDATING", Change(ready_at, _WARM_UPDATE, number=request.warm_throughput))
    warm = warm_throughput(state, stream)
    state.note_change(stream)
    return {"StreamName": stream.name, "StreamARN": stream.arn, "WarmThroughput": warm}


def check_warm_throughput(state: ServiceState, mode: str, mibps: int | None, operation: str) -> None:
    """Refuse a warm throughput for a stream that cannot have one. ``None`` means no warm throughput."""
    if mibps is None:
        return
    if mode != "ON_DEMAND":
        raise Refused(
            "ValidationException",
            f"{operation}: only streams in the on-demand mode have a warm throughput.",
        )
    if not state.commitment.is_enabled(state.now):
        raise Refused(
            "ValidationException",
            f"{operation}: a warm throughput needs an account that has MinimumThroughputBillingCommitment enabled.",
        )
    if mibps > WARM_THROUGHPUT_MAX_MIBPS:
        raise limit_exceeded(
            f"{operation} cannot scale a stream to more than {WARM_THROUGHPUT_MAX_MIBPS} MiBps: {mibps} were asked for."
        )


def warm_throughput(state: ServiceState, stream: ServerStream) -> dict[str, object] | None:
    """Return the member WarmThroughput of DescribeStreamSummary. The default is 1 MiBps per open shard."""
    if not has_advantage(state, stream):
        return None
    target = stream.warm_mibps
    if stream.pending is not None and stream.pending.kind == _WARM_UPDATE:
        target = stream.pending.number
    current = len(stream.open_shards) if stream.warm_mibps is None else stream.warm_mibps
    described: dict[str, object] = {"CurrentMiBps": current}
    return described if target is None else described | {"TargetMiBps": target}


def has_advantage(state: ServiceState, stream: ServerStream) -> bool:
    """Return whether the stream is an On-demand Advantage stream, as AWS calls it."""
    return stream.mode == "ON_DEMAND" and state.commitment.is_enabled(state.now)
