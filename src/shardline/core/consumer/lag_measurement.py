"""Measures how far behind this worker is, shard by shard.

``handling_lag`` defines the lags. This module finds the records that determine the lags: the records that user code
has, those that are waiting for user code, and those that were not read yet.
"""

from shardline.core.clock import Instant
from shardline.core.consumer.consumer_events import LagMeasured, ShardLag
from shardline.core.consumer.handling_lag import handling_lag
from shardline.core.consumer.handout import HandOut
from shardline.core.consumer.held_shard import HeldShard


def shard_lag(hand_out: HandOut, shard: HeldShard, now: Instant, service_now: float) -> ShardLag:
    """Return the lag of a held shard. ``service_now`` is the service's time, in seconds since 1970."""
    state, holding = hand_out.handling_state(shard), shard.holding
    tracker = None if holding is None else holding.tracker
    unacknowledged = None if tracker is None else tracker.oldest_unacknowledged
    arrivals = [record.arrived_at for record in (state.oldest, shard.next_record) if record is not None]
    if unacknowledged is not None:
        arrivals.append(unacknowledged[1])
    done = shard.done_early if shard.cursor is None else shard.cursor.done
    in_hand = state.records
    if tracker is not None and shard.is_manual:
        in_hand = tracker.unacknowledged + shard.unreported
    return ShardLag(
        shard_id=shard.shard_id,
        reading_lag=shard.reader.lag,
        handling_lag=handling_lag(arrivals, shard.reader.unread_age(now), shard.reader.lag, service_now),
        prefetched=state.waiting if shard.is_stopping else shard.records - state.records - done,
        in_hand=in_hand,
    )


def measure_lag(hand_out: HandOut, stream: str, now: Instant, service_now: float) -> LagMeasured:
    """Return the lag of all held shards of this stream."""
    held = [shard for key, shard in hand_out.shards.items() if key[0] == stream]
    return LagMeasured(tuple(shard_lag(hand_out, shard, now, service_now) for shard in held))
