"""Scenarios of programs that use our client, producer and consumer, from end to end."""

from tests.conformance import programs
from tests.conformance.scenario import Program, Scenario, Stream
from tests.conformance.table.streams import SHARD_0

ROUND_TRIP = {
    "failed": 0,
    "status": "ACTIVE",
    "open_shards": 1,
    "records": ["one", "two"],
    "missing": "ResourceNotFoundException",
}
ONE = {"a": Stream(1)}

SCENARIOS = (
    Scenario("client-json", "Our client puts and reads in JSON", [Program(programs.client_json, ROUND_TRIP)], ONE),
    Scenario("client-cbor", "Our client puts and reads in CBOR", [Program(programs.client_cbor, ROUND_TRIP)], ONE),
    Scenario(
        "client-http2", "Our client puts and reads over HTTP/2", [Program(programs.client_http2, ROUND_TRIP)], ONE
    ),
    Scenario(
        "client-by-arn",
        "Our client names a stream by its ARN",
        [Program(programs.client_by_arn, {"shard": SHARD_0, "name": "$a"})],
        {"a": Stream(1, shared=True)},
    ),
    Scenario(
        "fan-out-http2",
        "Records are pushed to our client over HTTP/2",
        [Program(programs.fan_out_http2, {"records": ["pushed"]})],
        ONE,
        consumer_shards=1,
        seconds=60,
    ),
    Scenario(
        "producer-aggregates",
        "Our producer aggregates records, and all of them arrive",
        [
            Program(
                programs.producer_aggregates, {"undelivered": 0, "delivered": 300, "aggregated": True, "records": True}
            )
        ],
        {"a": Stream(2)},
        seconds=60,
    ),
    Scenario(
        "producer-ordered",
        "Our producer keeps the order of a key's records",
        [Program(programs.producer_ordered, {"undelivered": 0, "in_order": True})],
        {"a": Stream(2)},
        seconds=60,
    ),
    Scenario(
        "producer-reshard",
        "Our producer loses nothing while its only shard is split",
        [Program(programs.producer_under_reshard, {"undelivered": 0, "failed": 0, "lost": 0, "shards": 3})],
        ONE,
        shards_at_most=2,
        seconds=120,
    ),
    Scenario(
        "consumer-reshard",
        "Two workers of a group read across a split: they read every record once, and the parent before its children",
        [Program(programs.consumer_group_across_reshards, {"lost": 0, "twice": 0, "parent_first": True, "shards": 3})],
        ONE,
        shards_at_most=2,
        seconds=150,
    ),
)
