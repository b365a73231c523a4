"""Tests of ``shardline.core.producer_events``."""

from typing import get_args, get_type_hints

import pytest

from shardline.core import producer_events as events
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.producer_events import (
    AggregationStopped,
    ChannelsFound,
    DistributionChanged,
    Event,
    LaneStats,
    ProducerMeasured,
    ProducerReconfigured,
    RecordsDelivered,
    RecordsFailed,
    RecordsRetried,
    RequestAnswered,
    ShardDelivery,
    ShardMapFailed,
    ShardsChanged,
    StreamUnknown,
)

FAILURE = Failure(FailureKind.DENIED, "AccessDeniedException", "not for you", 400)
EXAMPLES = [
    RequestAnswered(
        entries=3,
        records=40,
        size_bytes=2_000,
        duration=0.02,
        refused_entries=1,
        code="InternalFailure",
        started_at=1.7e9,
    ),
    RequestAnswered(
        entries=3, records=40, size_bytes=2_000, duration=0.02, refused_entries=0, code=None, started_at=1.7e9
    ),
    RecordsDelivered(40, 1_900, 0.12, (ShardDelivery("shardId-000000000000", 40, 1_900, 0.12),)),
    RecordsRetried(records=4, shard_id="shardId-000000000000", code="WrongShard", message="stored elsewhere"),
    RecordsRetried(records=4, shard_id=None, code="InternalFailure", message="again"),
    RecordsFailed(records=1, code="Expired", message="too late"),
    ShardsChanged(open_shards=2, opened=("shardId-000000000001",), vanished=()),
    ShardMapFailed(FAILURE),
    StreamUnknown(FAILURE),
    DistributionChanged(auto=True),
    AggregationStopped(FAILURE),
    ChannelsFound(1),
    ProducerReconfigured(0.1, 1_000.0, 1_048_576.0),
    ProducerMeasured(
        outstanding=4,
        buffered_bytes=400,
        buffer_max_bytes=1_000,
        oldest_waiting=0.1,
        requests_in_flight=1,
        lanes=(LaneStats("shardId-000000000000", 1, 10, 1, 1.0, tripped=False),),
    ),
]


def test_the_union_names_every_event_of_the_module():
    defined = {
        one
        for one in vars(events).values()
        if isinstance(one, type) and issubclass(one, tuple) and one.__module__ == events.__name__
    }
    assert set(get_args(Event)) == defined - {ShardDelivery} == {type(example) for example in EXAMPLES}


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_is_a_value(event):
    assert event == type(event)(*event)
    assert hash(event) == hash(type(event)(*event))
    with pytest.raises(AttributeError):
        setattr(event, event._fields[0], None)


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_an_event_has_no_place_for_data_or_keys(kind):
    """Events have only numbers, shard ids, codes, and our own or the service's messages."""
    hints = get_type_hints(kind)
    parts = {tuple[LaneStats, ...], tuple[ShardDelivery, ...]}
    assert set(hints.values()) <= {int, float, bool, str, str | None, tuple[str, ...], Failure} | parts
    assert set(get_type_hints(ShardDelivery)) == {"shard_id", "records", "payload_bytes", "latency"}
    assert not {"data", "key", "payload", "explicit_hash_key"} & set(hints)
