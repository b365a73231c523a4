"""An example of every event, for the tests of sinks."""

from typing import get_args

from shardline import events as ev
from shardline.core.consumer.grant import Grant
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint
from shardline.model.position import TRIM_HORIZON

PRODUCER = ev.EventSource("producer", "orders", None, None, "kinesis.eu-west-1.amazonaws.com")
CONSUMER = ev.EventSource("consumer", "orders", "billing", "worker-1", "kinesis.eu-west-1.amazonaws.com")

THROTTLED = "ProvisionedThroughputExceededException"
FAILURE = ev.Failure(ev.FailureKind.THROTTLED, THROTTLED, "slow down")
_HANDLER = ("shard-1", "4959", 3, 5, 2, "KeyError", "a key is missing", "handle (app.py:7)")
LANES = (ev.LaneStats("shard-1", 3, 900, 1, 0.5, tripped=True), ev.LaneStats("shard-2", 1, 100, 0, 1.0, tripped=False))

EXAMPLES = {
    type(event): event
    for event in (
        ev.RequestAnswered(entries=4, records=200, size_bytes=8_000, duration=0.02, refused_entries=1, code=None),
        ev.RecordsDelivered(
            records=150,
            payload_bytes=6_000,
            latency=0.12,
            shards=(ev.ShardDelivery("shard-1", 100, 4_000, 0.12), ev.ShardDelivery("shard-2", 50, 2_000, 0.07)),
        ),
        ev.RecordsRetried(records=50, shard_id="shard-2", code=THROTTLED, message="slow down"),
        ev.RecordsFailed(records=2, code="Expired", message="not delivered in time"),
        ev.ShardsChanged(open_shards=4, opened=("shard-4",), vanished=("shard-3",)),
        ev.ShardMapFailed(FAILURE),
        ev.StreamUnknown(FAILURE),
        ev.DistributionChanged(auto=True),
        ev.AggregationStopped(FAILURE),
        ev.ChannelsFound(1),
        ev.ProducerReconfigured(0.5, 500.0, 1024.0),
        ev.ProducerMeasured(70, 2_800, 64_000_000, 1.5, 2, LANES),
        ev.LeaseGained("shard-1", Grant("worker-1", 1, 0.0), TRIM_HORIZON, Checkpoint(TRIM_HORIZON), HashRange(0, 9)),
        ev.ShardSought(
            "shard-1",
            Grant("worker-1", 1, 0.0),
            TRIM_HORIZON,
            Checkpoint(TRIM_HORIZON),
            HashRange(0, 9),
            TRIM_HORIZON,
        ),
        ev.HandOverAsked("shard-1", "worker-2", 12.0),
        ev.LeaseSurplus("shard-1", 12.0),
        ev.HandOverOverdue("shard-1"),
        ev.LeaseHandedOver("shard-1", "worker-2", 0.7),
        ev.LeaseLost("shard-1", "it expired"),
        ev.LeaseReleased("shard-1", finished=False),
        ev.StreamReplaced("it was re-created"),
        ev.ConsumerFailed("ListShards", FAILURE),
        ev.StreamMissing(FAILURE),
        ev.PositionLost("shard-1", TRIM_HORIZON, FAILURE),
        ev.RecordsTrimmed("shard-1", "the position is too old"),
        ev.ShardTrimmed("shard-1"),
        ev.TooManyUnacknowledged("shard-1", 10_000),
        ev.ShardsPaused(("shard-1", "shard-2"), is_all=True),
        ev.ShardsResumed(("shard-1",), is_all=False),
        ev.MaxLeasesChanged(2, before=None),
        ev.ReadFailed("shard-1", "GetRecords", FAILURE, 3.0),
        ev.Subscribed("shard-1", TRIM_HORIZON),
        ev.SubscriptionEnded("shard-1", None, 3.0),
        ev.StoreFailed(FAILURE, 1),
        ev.StoreRecovered(1),
        ev.ProgressLost(2),
        ev.ListingFailed("ListShards", FAILURE, 3.0),
        ev.WorkerIdShared("shard-1", "worker-1"),
        ev.Stalled(2.5),
        ev.HandlerRetried(*_HANDLER, retry_at=3.0),
        ev.RecordsDeadLettered(*_HANDLER),
        ev.DeadLetterFailed(*_HANDLER, retry_at=3.0),
        ev.HandlingStopped(*_HANDLER),
        ev.HandlerStuck("shard-1", "4959", 3, 5, 301.0),
        ev.HandlerRecovered("shard-1", 302.0),
        ev.PageRead("shard-1", 100, 4_000, 0.03, 2.0, "polling"),
        ev.RecordsFiltered("shard-1", 7),
        ev.RepeatsDropped("shard-1", 3),
        ev.DedupWindowOverflowed("shard-1", 2),
        ev.RecordsHandedOut("shard-1", 100),
        ev.RecordsHandled("shard-1", 100, 0.4),
        ev.Committed("shard-1", TRIM_HORIZON, 0.01),
        ev.HashRangesUncovered((HashRange(0, 9),)),
        ev.HashRangesCovered(60.0),
        ev.LagMeasured((ev.ShardLag("shard-1", 2.0, 5.0, 30, 10), ev.ShardLag("shard-2", 1.0, None, 5, 0))),
    )
}

PRODUCER_EXAMPLES = [EXAMPLES[kind] for kind in get_args(ev.ProducerEvent) if kind in EXAMPLES]
CONSUMER_EXAMPLES = [EXAMPLES[kind] for kind in get_args(ev.ConsumerEvent) if kind in EXAMPLES]
