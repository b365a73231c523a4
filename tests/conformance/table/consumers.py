"""Scenarios of enhanced fan-out: consumers, and subscriptions over HTTP/1.1. HTTP/2 is in ``end_to_end``."""

from tests.conformance.expectation import CONSUMER_ARN, COUNT, SEQUENCE_NUMBER, TIME, Matching, Some
from tests.conformance.scenario import Call, Pause, Scenario, Stream, Subscribe, Wait, invalid, not_found, ok, refused
from tests.conformance.table.reading import record
from tests.conformance.table.streams import HALF, SHARD_0

CONSUMER = {
    "ConsumerName": "one",
    "ConsumerARN": CONSUMER_ARN,
    "ConsumerStatus": "ACTIVE",
    "ConsumerCreationTimestamp": TIME,
}
REGISTER = Call(
    "RegisterStreamConsumer",
    {"StreamARN": "$a_arn", "ConsumerName": "one"},
    ok({"Consumer": CONSUMER | {"ConsumerStatus": "CREATING"}}),
    keep={"consumer": "Consumer.ConsumerARN"},
)
HAS_CONSUMERS = (
    "DeleteStream can\u2019t delete $account:$a because there are consumers associated with this data stream. To delete $a "
    "anyway, set the EnforceConsumerDeletion parameter to true to force the deletion of all the consumers that are "
    "associated with it."
)
NO_CONSUMER = refused(
    "ResourceNotFoundException", "Consumer $a_arn/consumer/none:1500000000, account $account not found."
)
MISSING = "$a_arn/consumer/none:1500000000"


def subscribe(expect, kind="TRIM_HORIZON", shard=SHARD_0, consumer="$consumer", **more):
    members = {"ConsumerARN": consumer, "ShardId": shard, "StartingPosition": {"Type": kind}}
    return Subscribe(members, expect, **more)


SCENARIOS = (
    Scenario(
        "consumer-life",
        "A consumer is registered, described, listed and deregistered",
        streams={"a": Stream(1)},
        consumer_shards=2,
        seconds=90,
        steps=(
            REGISTER,
            Call(
                "RegisterStreamConsumer",
                {"StreamARN": "$a_arn", "ConsumerName": "one"},
                refused("ResourceInUseException"),
            ),
            Wait("a", consumer="one"),
            Call(
                "DescribeStreamConsumer",
                {"ConsumerARN": "$consumer"},
                ok({"ConsumerDescription": CONSUMER | {"ConsumerARN": "$consumer", "StreamARN": "$a_arn"}}),
            ),
            Call(
                "DescribeStreamConsumer",
                {"StreamARN": "$a_arn", "ConsumerName": "one"},
                ok({"ConsumerDescription": CONSUMER | {"ConsumerARN": "$consumer", "StreamARN": "$a_arn"}}),
            ),
            Call(
                "RegisterStreamConsumer",
                {"StreamARN": "$a_arn", "ConsumerName": "two"},
                ok({"Consumer": Some({"ConsumerName": "two"})}),
            ),
            Wait("a", consumer="two"),
            Call(
                "ListStreamConsumers",
                {"StreamARN": "$a_arn"},
                ok({"Consumers": [CONSUMER, CONSUMER | {"ConsumerName": "two"}]}),
            ),
            Call(
                "ListStreamConsumers",
                {"StreamARN": "$a_arn", "MaxResults": 1},
                ok(Some({"Consumers": [CONSUMER]})),
                keep={"token": "NextToken"},
            ),
            Call(
                "ListStreamConsumers",
                {"StreamARN": "$a_arn", "NextToken": "$token"},
                ok({"Consumers": [CONSUMER | {"ConsumerName": "two"}]}),
            ),
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a"},
                ok({"StreamDescriptionSummary": Some({"ConsumerCount": 2})}),
            ),
            Call("DeregisterStreamConsumer", {"StreamARN": "$a_arn", "ConsumerName": "two"}, ok()),
            Wait("a", "gone", consumer="two"),
            Call(
                "DescribeStreamConsumer",
                {"StreamARN": "$a_arn", "ConsumerName": "two"},
                refused("ResourceNotFoundException"),
            ),
            Call("DescribeStreamConsumer", {"ConsumerARN": MISSING}, NO_CONSUMER),
            Call("DeregisterStreamConsumer", {"ConsumerARN": MISSING}, NO_CONSUMER),
            Call("DescribeStreamConsumer", {"StreamARN": "$a_arn"}, invalid()),
            Call("DeleteStream", {"StreamName": "$a"}, refused("ResourceInUseException", HAS_CONSUMERS)),
            Call("DeleteStream", {"StreamName": "$a", "EnforceConsumerDeletion": True}, ok()),
            Wait("a", "gone"),
            Call("DescribeStreamConsumer", {"StreamARN": "$a_arn", "ConsumerName": "one"}, not_found("$a")),
        ),
    ),
    Scenario(
        "consumer-limit",
        "A stream has at most 20 consumers",
        streams={"a": Stream(1)},
        not_on_aws="twenty consumers would cost more than all other scenarios together",
        steps=(
            *(
                step
                for number in range(20)
                for step in (
                    Call(
                        "RegisterStreamConsumer",
                        {"StreamARN": "$a_arn", "ConsumerName": f"c{number}"},
                        ok({"Consumer": Some({"ConsumerStatus": "CREATING"})}),
                    ),
                    Wait("a", consumer=f"c{number}"),
                )
            ),
            Call(
                "RegisterStreamConsumer",
                {"StreamARN": "$a_arn", "ConsumerName": "one-more"},
                refused("LimitExceededException"),
            ),
        ),
    ),
    Scenario(
        "subscription",
        "Records are pushed to a subscriber, in JSON and in CBOR; a consumer has one subscription per shard",
        streams={"a": Stream(1)},
        consumer_shards=1,
        seconds=120,
        steps=(
            REGISTER,
            subscribe(
                refused(
                    "ResourceInUseException",
                    Matching(
                        r"Consumer one with creation timestamp \d+ under stream: $a , account $account is not in ACTIVE "
                        r"status\."
                    ),
                )
            ),
            Wait("a", consumer="one"),
            Call("PutRecord", {"StreamName": "$a", "Data": b"1", "PartitionKey": "k"}, ok(Some({}))),
            Call("PutRecord", {"StreamName": "$a", "Data": b"2", "PartitionKey": "k"}, ok(Some({}))),
            subscribe(
                {
                    "status": 200,
                    "first": "initial-response",
                    "records": [record("MQ=="), record("Mg==")],
                    "last": {"ContinuationSequenceNumber": SEQUENCE_NUMBER, "MillisBehindLatest": COUNT},
                },
                records=2,
            ),
            subscribe(
                refused(
                    "ResourceInUseException",
                    f"Another active subscription exists for this consumer: $account:$a:{SHARD_0}:one",
                ),
                kind="LATEST",
            ),
            Pause(6),
            subscribe(
                {
                    "status": 200,
                    "first": "initial-response",
                    "records": [record("MQ=="), record("Mg==")],
                    "last": {"ContinuationSequenceNumber": SEQUENCE_NUMBER, "MillisBehindLatest": COUNT},
                },
                records=2,
                cbor=True,
            ),
            Pause(6),
            subscribe(
                {
                    "status": 200,
                    "first": "initial-response",
                    "records": [],
                    "last": {"ContinuationSequenceNumber": SEQUENCE_NUMBER, "MillisBehindLatest": 0},
                },
                kind="LATEST",
            ),
            Pause(6),
            subscribe(refused("ResourceNotFoundException"), shard="shardId-000000000009"),
            subscribe(refused("ResourceNotFoundException"), consumer=MISSING),
            subscribe(invalid(), kind="AT_SEQUENCE_NUMBER"),
            subscribe(invalid(), kind="AT_TIMESTAMP"),
        ),
    ),
    Scenario(
        "subscription-end",
        "A subscription ends when its shard ends, and its last event names the child shards",
        streams={"a": Stream(1)},
        shards_at_most=2,
        consumer_shards=3,
        seconds=120,
        steps=(
            REGISTER,
            Wait("a", consumer="one"),
            Call("PutRecord", {"StreamName": "$a", "Data": b"1", "PartitionKey": "k"}, ok(Some({}))),
            Call("SplitShard", {"StreamName": "$a", "ShardToSplit": SHARD_0, "NewStartingHashKey": HALF}, ok()),
            Wait("a"),
            subscribe(
                {
                    "status": 200,
                    "first": "initial-response",
                    "records": [record("MQ==")],
                    "last": Some(
                        {
                            "ChildShards": [
                                Some({"ShardId": "shardId-000000000001"}),
                                Some({"ShardId": "shardId-000000000002"}),
                            ]
                        }
                    ),
                },
                records=2,
            ),
        ),
    ),
)
