"""AWS's answers to LocalStack's tests, as data.

LocalStack runs its tests against AWS and keeps AWS's answers in snapshot files, with the date of each. This table has
the calls of every such test about Kinesis, and the fields of the answers. A test without a snapshot asserts a few facts
instead, which are here, too. Each entry has the file, the test and the date; the commit is ``COMMIT``.

In the answers, ``<sequence_number:1>`` is a value of that kind: the same number means the same value, and another
number another value. ``<name>`` in a parameter is a value that an earlier call of the scenario kept.
"""

from dataclasses import dataclass, field

COMMIT = "8b9a79f05846835cf4dff63ab7eefdde9df83783"  # of 2026-03-23
KINESIS = "tests/aws/services/kinesis/test_kinesis.py::TestKinesis"
CLOUDFORMATION = "tests/aws/services/cloudformation/resources"
API_GATEWAY = "tests/aws/services/apigateway/test_apigateway_kinesis.py"
POLICY_DATE = "2025-08-01"


@dataclass(frozen=True)
class Call:
    """One request. ``keep`` names values of the answer for later calls, by their path."""

    operation: str
    parameters: dict = field(default_factory=dict)
    keep: dict[str, str] = field(default_factory=dict)
    cbor: bool = False
    """Whether the call is sent in CBOR over plain HTTP instead of in JSON by boto3."""


@dataclass(frozen=True)
class Read:
    """Read the events of the subscription, without empty ones, until this many records have arrived or it ends."""

    records: int


@dataclass(frozen=True)
class Wait:
    """Let this many seconds pass."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """The answer to the previous step: the part at ``path``, and the scenario's id."""

    name: str
    recorded: object
    path: str = ""


@dataclass(frozen=True)
class Refusal:
    """The refusal of the previous step. None: the test does not state the code or the text."""

    name: str
    status: int = 400
    code: str | None = None
    message: str | None = None


@dataclass(frozen=True)
class Scenario:
    test: str
    date: str
    """The date of the recording or, without one, of the last validation against AWS. Empty: validated, without a date.
    """
    steps: tuple


STREAM = {"StreamName": "recorded"}
ARN = "arn:aws:kinesis:us-east-1:111111111111:stream/recorded"
ROOT = "arn:aws:iam::111111111111:root"
ABSENT_ARN = "arn:aws:kinesis:us-east-1:111111111111:stream/wrong-stream-name"
ONE_SHARD = Call("CreateStream", {**STREAM, "ShardCount": 1})
DESCRIBE = Call(
    "DescribeStream",
    STREAM,
    keep={
        "shard": "StreamDescription.Shards.0.ShardId",
        "start": "StreamDescription.Shards.0.SequenceNumberRange.StartingSequenceNumber",
    },
)
FROM_START = Call(
    "GetShardIterator",
    {
        **STREAM,
        "ShardId": "<shard>",
        "ShardIteratorType": "AT_SEQUENCE_NUMBER",
        "StartingSequenceNumber": "<start>",
    },
    keep={"iterator": "ShardIterator"},
)
LATEST = Call(
    "GetShardIterator",
    {**STREAM, "ShardId": "<shard>", "ShardIteratorType": "LATEST"},
    keep={"iterator": "ShardIterator"},
)
READ = {"ShardIterator": "<iterator>"}
OK = {"ResponseMetadata": {"HTTPStatusCode": 200}}
CONSUMER = (
    ONE_SHARD,
    DESCRIBE,
    Call("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "c1"}, keep={"consumer": "Consumer.ConsumerARN"}),
)


def described(starting="0", ending="340282366920938463463374607431768211455"):
    return {
        "StreamDescription": {
            "EncryptionType": "NONE",
            "EnhancedMonitoring": [{"ShardLevelMetrics": []}],
            "HasMoreShards": False,
            "RetentionPeriodHours": 24,
            "Shards": [
                {
                    "HashKeyRange": {"EndingHashKey": ending, "StartingHashKey": starting},
                    "SequenceNumberRange": {"StartingSequenceNumber": "<sequence_number:1>"},
                    "ShardId": "<shard_id:1>",
                }
            ],
            "StreamARN": ARN,
            "StreamCreationTimestamp": "<timestamp>",
            "StreamModeDetails": {"StreamMode": "PROVISIONED"},
            "StreamName": "recorded",
            "StreamStatus": "ACTIVE",
        },
        **OK,
    }


def record(number, data, key="1"):
    return {
        "SequenceNumber": f"<sequence_number:{number}>",
        "ApproximateArrivalTimestamp": "<timestamp>",
        "Data": data,
        "PartitionKey": key,
    }


def hellos():
    return [record(number + 1, b"Hello world_%d" % number) for number in range(5)]


def subscription(position, puts):
    return (
        *CONSUMER,
        Call("SubscribeToShard", {"ConsumerARN": "<consumer>", "ShardId": "<shard>", "StartingPosition": position}),
        *puts,
        Read(5),
    )


def policy(sid, action):
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Sid": sid, "Effect": "Allow", "Principal": {"AWS": ROOT}, "Action": action, "Resource": ARN},
        ],
    }


HELLO_ENTRIES = [{"Data": b"Hello world_%d" % number, "PartitionKey": "1"} for number in range(5)]
ONE_BY_ONE = tuple(Call("PutRecords", {**STREAM, "Records": [entry]}) for entry in HELLO_ENTRIES)
WRITE = policy("AllowCrossAccountWrite", "kinesis:PutRecord")
READ_AND_WRITE = policy("AllowCrossAccountReadWrite", ["kinesis:PutRecord", "kinesis:GetRecords"])
LIFECYCLE = [b"", b"a" * 1000, b"test", "ünicödé 统一码 💣💻🔥".encode()]  # sorted by the data, as in the recording

SCENARIOS = [
    Scenario(
        f"{KINESIS}::test_create_stream_without_stream_name_raises",
        "2024-06-10",
        (Call("CreateStream"), Refusal("create_stream_without_stream_name")),
    ),
    Scenario(
        f"{KINESIS}::test_create_stream_without_shard_count",
        "2022-08-26",
        (
            Call("CreateStream", STREAM),
            DESCRIBE,
            Answer(
                "create_stream_without_shard_count",
                [
                    {
                        "ShardId": f"<shard_id:{number}>",
                        "HashKeyRange": {"StartingHashKey": "<hash_key>", "EndingHashKey": "<hash_key>"},
                        "SequenceNumberRange": {"StartingSequenceNumber": f"<sequence_number:{number}>"},
                    }
                    for number in range(1, 5)
                ],
                path="StreamDescription.Shards",
            ),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_resource_policy_crud",
        POLICY_DATE,
        (
            Call("CreateStream", STREAM),
            Call("GetResourcePolicy", {"ResourceARN": ARN}),
            Answer("policy_default", {"Policy": {}, **OK}),
            Call("PutResourcePolicy", {"ResourceARN": ARN, "Policy": WRITE}),
            Answer("policy_put", OK),
            Call("GetResourcePolicy", {"ResourceARN": ARN}),
            Answer("policy_after_put", {"Policy": WRITE, **OK}),
            Call("PutResourcePolicy", {"ResourceARN": ARN, "Policy": READ_AND_WRITE}),
            Answer("policy_update", OK),
            Call("GetResourcePolicy", {"ResourceARN": ARN}),
            Answer("policy_after_update", {"Policy": READ_AND_WRITE, **OK}),
            Call("DeleteResourcePolicy", {"ResourceARN": ARN}),
            Answer("policy_delete", OK),
            Call("GetResourcePolicy", {"ResourceARN": ARN}),
            Answer("policy_after_delete", {"Policy": {}, **OK}),
            Call("DeleteResourcePolicy", {"ResourceARN": ARN}),
            Refusal("policy_delete_absent"),
            Call(
                "PutResourcePolicy",
                {
                    "ResourceARN": ABSENT_ARN,
                    "Policy": {**WRITE, "Statement": [{**WRITE["Statement"][0], "Resource": ABSENT_ARN}]},
                },
            ),
            Refusal("policy_put_absent_stream"),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_stream_consumers",
        "2022-08-26",
        (
            ONE_SHARD,
            Call("ListStreamConsumers", {"StreamARN": ARN}),
            Answer("consumers_none", [], path="Consumers"),
            Call(
                "RegisterStreamConsumer",
                {"StreamARN": ARN, "ConsumerName": "consumer"},
                keep={"consumer": "Consumer.ConsumerARN"},
            ),
            Call("ListStreamConsumers", {"StreamARN": ARN}),
            Answer(
                "consumers_list",
                [
                    {
                        "ConsumerName": "consumer",
                        "ConsumerARN": "<consumer_arn:1>",
                        "ConsumerStatus": "ACTIVE",
                        "ConsumerCreationTimestamp": "<timestamp>",
                    }
                ],
                path="Consumers",
            ),
            Call("DescribeStreamConsumer", {"StreamARN": ARN, "ConsumerARN": "<consumer>"}),
            Answer(
                "consumers_describe",
                {
                    "ConsumerARN": "<consumer_arn:1>",
                    "ConsumerCreationTimestamp": "<timestamp>",
                    "ConsumerName": "consumer",
                    "ConsumerStatus": "ACTIVE",
                    "StreamARN": ARN,
                },
                path="ConsumerDescription",
            ),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_subscribe_to_shard",
        "2025-08-19",
        (
            *subscription({"Type": "TRIM_HORIZON"}, [Call("PutRecords", {**STREAM, "Records": HELLO_ENTRIES})]),
            Answer(
                "subscribe_trim_horizon",
                [
                    {
                        "Records": hellos(),
                        "ContinuationSequenceNumber": "<continuation:1>",
                        "MillisBehindLatest": 0,
                    }
                ],
            ),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_subscribe_to_shard_with_at_timestamp",
        "2024-06-21",
        (
            *subscription({"Type": "AT_TIMESTAMP", "Timestamp": 1420070400}, ONE_BY_ONE),
            Answer("subscribe_at_timestamp", hellos(), path="*.Records"),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_subscribe_to_shard_with_sequence_number_as_iterator",
        "2022-08-26",
        (
            *subscription({"Type": "AT_SEQUENCE_NUMBER", "SequenceNumber": "<start>"}, ONE_BY_ONE),
            Answer("subscribe_at_sequence_number", hellos(), path="*.Records"),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_get_records",
        "2024-07-04",
        (
            ONE_SHARD,
            Call("PutRecords", {**STREAM, "Records": [{"Data": b"SGVsbG8gd29ybGQ=", "PartitionKey": "1"}]}),
            DESCRIBE,
            FROM_START,
            Call("GetRecords", READ, keep={"arrived": "Records.0.ApproximateArrivalTimestamp"}),
            Answer("get_records_json", [record(1, b"SGVsbG8gd29ybGQ=")], path="Records"),
            Call("GetRecords", READ, cbor=True),
            Answer(
                "get_records_cbor",
                [{**record(1, b"SGVsbG8gd29ybGQ="), "ApproximateArrivalTimestamp": "<arrived>"}],
                path="Records",
            ),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_get_records_empty_stream",
        "2024-07-04",
        (
            ONE_SHARD,
            DESCRIBE,
            FROM_START,
            Call("GetRecords", READ),
            Answer("get_records_empty_json", [], path="Records"),
            Call("GetRecords", READ, cbor=True),
            Answer("get_records_empty_cbor", [], path="Records"),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_record_lifecycle_data_integrity",
        "2022-08-25",
        (
            ONE_SHARD,
            DESCRIBE,
            FROM_START,
            *(Call("PutRecord", {**STREAM, "Data": data, "PartitionKey": "1"}) for data in LIFECYCLE),
            Call("GetRecords", READ),
            Answer(
                "record_lifecycle",
                [record(number, data) for number, data in enumerate(LIFECYCLE, 1)],
                path="Records",
            ),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_subscribe_to_shard_timeout",
        "",
        (
            *CONSUMER,
            Call(
                "SubscribeToShard",
                {"ConsumerARN": "<consumer>", "ShardId": "<shard>", "StartingPosition": {"Type": "TRIM_HORIZON"}},
            ),
            Wait(301),
            Call("PutRecords", {**STREAM, "Records": [{"Data": b"Hello world", "PartitionKey": "1"}]}),
            Read(1),
            Answer("subscribe_timeout", []),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_add_tags_to_stream",
        "2022-08-25",
        (
            ONE_SHARD,
            Call("AddTagsToStream", {**STREAM, "Tags": {"foo": "bar"}}),
            Call("ListTagsForStream", STREAM),
            Answer("tags", {"Tags": [{"Key": "foo", "Value": "bar"}], "HasMoreTags": False, **OK}),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_get_records_next_shard_iterator",
        "",
        (
            Call("CreateStream", STREAM),
            DESCRIBE,
            LATEST,
            Answer("next_iterator_of_get_shard_iterator", "<shard_iterator:1>", path="ShardIterator"),
            Call("GetRecords", READ, keep={"iterator": "NextShardIterator"}),
            Answer("next_iterator_of_get_records", "<shard_iterator:2>", path="NextShardIterator"),
            Call("GetRecords", READ),
            Answer("next_iterator_of_the_next", "<shard_iterator:3>", path="NextShardIterator"),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_get_records_shard_iterator_with_surrounding_quotes",
        "",
        (
            ONE_SHARD,
            Call("PutRecords", {**STREAM, "Records": [{"Data": b"Hello world", "PartitionKey": "1"}]}),
            DESCRIBE,
            FROM_START,
            Call("GetRecords", {"ShardIterator": '"<iterator>"'}),
            Answer("quoted_iterator", [record(1, b"Hello world")], path="Records"),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_subscribe_to_shard_with_at_timestamp_cbor",
        "2024-07-30",
        (
            ONE_SHARD,
            Call("DescribeStream", {"StreamARN": ARN}, keep={"shard": "StreamDescription.Shards.0.ShardId"}, cbor=True),
            Answer("cbor_creation_time", "<whole_timestamp>", path="StreamDescription.StreamCreationTimestamp"),
            Call(
                "GetShardIterator",
                {"StreamARN": ARN, "ShardId": "<shard>", "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": "<now>"},
                cbor=True,
            ),
            Answer("cbor_iterator_at_timestamp", "<shard_iterator:1>", path="ShardIterator"),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_cbor_blob_handling",
        "2024-07-31",
        (
            ONE_SHARD,
            Call("PutRecord", {**STREAM, "Data": b"hello world 1", "PartitionKey": "key-1"}, cbor=True),
            DESCRIBE,
            FROM_START,
            Call("GetRecords", READ, cbor=True),
            Answer("cbor_blob", [record(1, b"hello world 1", "key-1")], path="Records"),
        ),
    ),
    Scenario(
        f"{KINESIS}::test_cbor_exceptions",
        "2025-09-04",
        (
            Call("DescribeStream", {"StreamARN": ABSENT_ARN}, cbor=True),
            Refusal(
                "cbor_exception",
                400,
                "ResourceNotFoundException",
                "Stream wrong-stream-name under account 111111111111 not found.",
            ),
        ),
    ),
    Scenario(
        # The calls of its Lambda function. The SDK for Java sends them in CBOR.
        "tests/aws/services/kinesis/test_kinesis.py::TestKinesisJavaSDK::test_subscribe_to_shard_with_java_sdk_v2_lambda",
        "2024-07-31",
        (
            Call("CreateStream", {**STREAM, "ShardCount": 1}),
            Call("DescribeStream", {"StreamARN": ARN}, keep={"shard": "StreamDescription.Shards.0.ShardId"}, cbor=True),
            Call(
                "GetShardIterator",
                {"StreamARN": ARN, "ShardId": "<shard>", "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": "<now>"},
                keep={"iterator": "ShardIterator"},
                cbor=True,
            ),
            Call(
                "PutRecord", {"StreamARN": ARN, "Data": b"test-string", "PartitionKey": "test-partition-key"}, cbor=True
            ),
            Call("GetRecords", {"StreamARN": ARN, **READ}, cbor=True),
            Answer("java_sdk", [record(1, b"test-string", "test-partition-key")], path="Records"),
        ),
    ),
    Scenario(
        f"{CLOUDFORMATION}/test_kinesis.py::test_stream_creation",
        "2022-09-12",
        (ONE_SHARD, DESCRIBE, Answer("described_provisioned", described(ending="<hash_key>"))),
    ),
    Scenario(
        f"{CLOUDFORMATION}/test_kinesis.py::test_default_parameters_kinesis",
        "2024-07-02",
        (ONE_SHARD, DESCRIBE, Answer("described_default", described())),
    ),
    Scenario(
        f"{CLOUDFORMATION}/test_lambda.py::TestCfnLambdaIntegrations::test_cfn_lambda_kinesis_source",
        "2024-10-12",
        (ONE_SHARD, DESCRIBE, Answer("described_as_a_source", described("<hash_key>", "<hash_key>"))),
    ),
    Scenario(
        # API Gateway passes the bodies of the request and of the answer through.
        f"{API_GATEWAY}::test_apigateway_to_kinesis[PutRecord]",
        "2024-11-20",
        (
            ONE_SHARD,
            DESCRIBE,
            LATEST,
            Call("PutRecord", {**STREAM, "Data": b'{"kinesis": "snapshot"}', "PartitionKey": "test"}),
            Answer("put_record", {"SequenceNumber": "<sequence_number:1>", "ShardId": "<shard_id:1>", **OK}),
            Call("GetRecords", READ),
            Answer(
                "put_record_read",
                {
                    "MillisBehindLatest": 0,
                    "NextShardIterator": "<shard_iterator:1>",
                    "Records": [record(1, b'{"kinesis": "snapshot"}', "test")],
                    **OK,
                },
            ),
        ),
    ),
    Scenario(
        f"{API_GATEWAY}::test_apigateway_to_kinesis[PutRecords]",
        "2024-11-20",
        (
            ONE_SHARD,
            DESCRIBE,
            LATEST,
            Call(
                "PutRecords",
                {
                    **STREAM,
                    "Records": [{"Data": b'{"foo": "bar%d"}' % number, "PartitionKey": "20"} for number in range(1, 4)],
                },
            ),
            Answer(
                "put_records",
                {
                    "FailedRecordCount": 0,
                    "Records": [
                        {"SequenceNumber": f"<sequence_number:{number}>", "ShardId": "<shard_id:1>"}
                        for number in range(1, 4)
                    ],
                    **OK,
                },
            ),
            Call("GetRecords", READ),
            Answer(
                "put_records_read",
                {
                    "MillisBehindLatest": 0,
                    "NextShardIterator": "<shard_iterator:1>",
                    "Records": [record(number, b'{"foo": "bar%d"}' % number, "20") for number in range(1, 4)],
                    **OK,
                },
            ),
        ),
    ),
]
