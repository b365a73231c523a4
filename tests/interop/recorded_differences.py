"""Lists the recorded answers of AWS that our server does not reproduce, with the reasons.

This module contains only data: ``test_recorded_differences.py`` checks that the server answers as the table says;
docs/tested/differences.md shows it. The other recordings are reproduced: ``test_recordings.py`` (LocalStack),
``test_recorded_refusals.py`` (kinesalite, moto), ``test_http_recordings.py`` (kinesalite).
"""

from dataclasses import dataclass, field

KINESALITE = "https://github.com/mhart/kinesalite/blob/c76689da192ab96c87c5db8f95c1e3fba1985433/test"
LOCALSTACK = "https://github.com/localstack/localstack/blob/8b9a79f05846835cf4dff63ab7eefdde9df83783/tests/aws"
MOTO = "https://github.com/getmoto/moto/blob/0af643a5dbfc98797f08ee64f5be3ef8002d56ff/tests/test_kinesis"
CHANGED = "AWS has changed since the recording"
ON_PURPOSE = "on purpose"
UNCLEAR = "sources disagree"


@dataclass(frozen=True)
class RecordedDifference:
    operations: tuple[str, ...]
    case: str
    recorded: str
    ours: str
    kind: str
    why: str
    source: str
    parameters: dict = field(default_factory=dict)
    """The members of the request that shows the difference. The stream ``known`` has three shards, ``ten`` has ten."""
    status: int = 200
    code: str | None = None
    has: tuple[str, ...] = ()
    """The paths of members that our answer has and the recording does not have."""
    is_by_hand: bool = False
    """Whether a separate test shows the difference."""


KNOWN = {"StreamName": "known"}
ELEVEN = [f"tag-{number}" for number in range(11)]
RECORDED_DIFFERENCES = (
    RecordedDifference(
        operations=("DeleteStream", "DescribeStream", "DescribeStreamSummary", "ListTagsForStream"),
        case="neither StreamName nor StreamARN",
        recorded="ValidationException: Value null at 'streamName'",
        ours="InvalidArgumentException",
        kind=CHANGED,
        why="StreamName became optional when StreamARN was added (2022). There is no recording of AWS's answer if both are "
        "missing. If other members are missing too, AWS's recorded text also names StreamName, and ours does not.",
        source=f"{KINESALITE}/deleteStream.js",
        status=400,
        code="InvalidArgumentException",
    ),
    RecordedDifference(
        operations=("IncreaseStreamRetentionPeriod",),
        case="RetentionPeriodHours 169",
        recorded="ValidationException: at most 168",
        ours="accepted",
        kind=CHANGED,
        why="Since 2020, records can be retained for up to 8,760 hours.",
        source=f"{KINESALITE}/increaseStreamRetentionPeriod.js",
        parameters={**KNOWN, "RetentionPeriodHours": 169},
    ),
    RecordedDifference(
        operations=("IncreaseStreamRetentionPeriod", "DecreaseStreamRetentionPeriod"),
        case="RetentionPeriodHours -1",
        recorded="ValidationException: at least 1",
        ours="InvalidArgumentException: Minimum allowed retention period is 24 hours.",
        kind=CHANGED,
        why="AWS's model no longer contains the recorded constraint (1 to 168): the member has no constraint.",
        source=f"{KINESALITE}/decreaseStreamRetentionPeriod.js",
        parameters={**KNOWN, "RetentionPeriodHours": -1},
        status=400,
        code="InvalidArgumentException",
    ),
    RecordedDifference(
        operations=("AddTagsToStream",),
        case="eleven tags",
        recorded="ValidationException: at most 10",
        ours="accepted",
        kind=CHANGED,
        why="According to AWS's current model, a stream may have 50 tags, and a request 200.",
        source=f"{KINESALITE}/addTagsToStream.js",
        parameters={**KNOWN, "Tags": dict.fromkeys(ELEVEN, "")},
    ),
    RecordedDifference(
        operations=("RemoveTagsFromStream",),
        case="eleven keys",
        recorded="ValidationException: at most 10",
        ours="accepted",
        kind=CHANGED,
        why="According to AWS's current model, a request may have 50 keys.",
        source=f"{KINESALITE}/removeTagsFromStream.js",
        parameters={**KNOWN, "TagKeys": ELEVEN},
    ),
    RecordedDifference(
        operations=("ListTagsForStream",),
        case="Limit 11",
        recorded="ValidationException: at most 10",
        ours="accepted",
        kind=CHANGED,
        why="According to AWS's current model, the limit is 50.",
        source=f"{KINESALITE}/listTagsForStream.js",
        parameters={**KNOWN, "Limit": 11},
    ),
    RecordedDifference(
        operations=("CreateStream",),
        case="no ShardCount",
        recorded="ValidationException: Value null at 'shardCount'",
        ours="an on-demand stream",
        kind=CHANGED,
        why="ShardCount became optional with the on-demand mode (2021). LocalStack recorded AWS's current behaviour.",
        source=f"{KINESALITE}/createStream.js",
        parameters={"StreamName": "on-demand"},
    ),
    RecordedDifference(
        operations=("CreateStream",),
        case="ShardCount 100000000000",
        recorded="ValidationException: at most 100000",
        ours="LimitExceededException: the limit of the account",
        kind=CHANGED,
        why="AWS's current model does not contain the constraint: the quota of the account limits the stream.",
        source=f"{KINESALITE}/createStream.js",
        parameters={"StreamName": "large", "ShardCount": 100_000_000_000},
        status=400,
        code="LimitExceededException",
    ),
    RecordedDifference(
        operations=("PutRecord",),
        case="1 MiB and a byte of data, with an empty name",
        recorded="two members are named: data and streamName",
        ours="streamName alone",
        kind=CHANGED,
        why="According to AWS's current model, a record may be 10 MiB. The lower limit of this stream is checked later, "
        "once the stream is known; the error text is then the same as in the recording.",
        source=f"{KINESALITE}/putRecord.js",
        parameters={"StreamName": "", "PartitionKey": "k", "Data": "A" * 1_398_104},
        status=400,
        code="ValidationException",
    ),
    RecordedDifference(
        operations=("GetRecords",),
        case="a closed shard at its end",
        recorded="a few empty pages with a NextShardIterator, and no ChildShards",
        ours="ChildShards and no NextShardIterator, without such empty pages",
        kind=CHANGED,
        why="ChildShards was added in 2020. AWS returns further iterators for a while, which would only slow tests down.",
        source=f"{KINESALITE}/mergeShards.js",
        is_by_hand=True,
    ),
    RecordedDifference(
        operations=("DescribeStream", "DescribeStreamSummary"),
        case="any",
        recorded="no StreamModeDetails",
        ours="StreamModeDetails",
        kind=CHANGED,
        why="Today, AWS's answers contain StreamModeDetails (recorded by LocalStack), and the summary contains further "
        "members of AWS's model.",
        source=f"{KINESALITE}/describeStream.js",
        parameters=KNOWN,
        has=("*.StreamModeDetails",),
    ),
    RecordedDifference(
        operations=("ListStreams",),
        case="any",
        recorded="StreamNames and HasMoreStreams alone",
        ours="also StreamSummaries and, if there are more streams, NextToken",
        kind=CHANGED,
        why="AWS's model has contained both members since 2022.",
        source=f"{KINESALITE}/listStreams.js",
        has=("StreamSummaries",),
    ),
    RecordedDifference(
        operations=("ListShards",),
        case="neither a name nor a token",
        recorded="`Either NextToken or StreamName should be provided.`",
        ours="a text that names StreamARN",
        kind=CHANGED,
        why="The text is older than StreamARN; the code is the same.",
        source=f"{KINESALITE}/listShards.js",
        status=400,
        code="InvalidArgumentException",
    ),
    RecordedDifference(
        operations=("any",),
        case="an Origin header, and OPTIONS",
        recorded="`access-control-allow-origin: *`",
        ours="no such header; OPTIONS is refused with 403",
        kind=ON_PURPOSE,
        why="Requests to AWS are signed, so a web page can do no harm. This server accepts unsigned requests: with the "
        "header, every web page that you visit could read and write its streams.",
        source=f"{KINESALITE}/connection.js",
        is_by_hand=True,
    ),
    RecordedDifference(
        operations=("any",),
        case="a refusal in XML",
        recorded="no Content-Type",
        ours="`Content-Type: application/xml`",
        kind=ON_PURPOSE,
        why="A client should not have to guess the type. Only requests that are not Kinesis requests are refused in XML.",
        source=f"{KINESALITE}/connection.js",
        is_by_hand=True,
    ),
    RecordedDifference(
        operations=("PutRecord", "PutRecords"),
        case="records of two shards",
        recorded="the shards share the counter in their sequence numbers",
        ours="each shard counts for itself",
        kind=ON_PURPOSE,
        why="AWS promises only the order within a shard. Apart from the counter, the numbers have AWS's layout.",
        source=f"{KINESALITE}/putRecord.js",
        is_by_hand=True,
    ),
    RecordedDifference(
        operations=("SubscribeToShard",),
        case="AT_TIMESTAMP in CBOR",
        recorded="status 500",
        ours="a subscription",
        kind=ON_PURPOSE,
        why="LocalStack notes this status next to a test that fails against AWS. No client should have to expect the "
        "status.",
        source=f"{LOCALSTACK}/services/kinesis/test_kinesis.py",
        is_by_hand=True,
    ),
    RecordedDifference(
        operations=("GetResourcePolicy", "DeleteResourcePolicy"),
        case="the ARN of a stream that does not exist",
        recorded="`Stream arn:aws:kinesis:us-east-1:000000000000:stream/absent under account 000000000000 not found.`",
        ours="`Stream absent under account 000000000000 not found.`",
        kind=UNCLEAR,
        why="moto's text contains the ARN. LocalStack recorded a text with the name for DescribeStream with an ARN, so ours "
        "contains the name in every operation.",
        source=f"{MOTO}/test_kinesis_resource_policy.py",
        parameters={"ResourceARN": "arn:aws:kinesis:us-east-1:000000000000:stream/absent"},
        status=400,
        code="ResourceNotFoundException",
    ),
    RecordedDifference(
        operations=("GetShardIterator",),
        case="the shard id 123, which does not exist",
        recorded="`Shard 123 in stream`",
        ours="`Shard shardId-000000000123 in stream`",
        kind=UNCLEAR,
        why="moto's text contains the id that was sent. kinesalite recorded that AWS writes the full id.",
        source=f"{MOTO}/test_kinesis.py",
        parameters={**KNOWN, "ShardId": "123", "ShardIteratorType": "LATEST"},
        status=400,
        code="ResourceNotFoundException",
    ),
    RecordedDifference(
        operations=("PutRecords",),
        case="501 entries",
        recorded="`Value at 'records' failed to satisfy constraint`",
        ours="`Value '[com.amazonaws.kinesis.v20131202.PutRecordsRequestEntry@..., ...]' at 'records' failed to satisfy "
        "constraint`",
        kind=UNCLEAR,
        why="kinesalite's text contains the value, and moto's does not. The same is true of data that is too long.",
        source=f"{MOTO}/test_kinesis_stream_limits.py",
        parameters={**KNOWN, "Records": [{"Data": "", "PartitionKey": "k"}] * 501},
        status=400,
        code="ValidationException",
    ),
    RecordedDifference(
        operations=("UpdateShardCount",),
        case="10 shards to 3",
        recorded="carried out",
        ours="InvalidArgumentException",
        kind=UNCLEAR,
        why="The reference forbids scaling below half of the shards, but moto's table, 'verified against AWS', contains it.",
        source=f"{MOTO}/test_kinesis_boto3.py",
        parameters={"StreamName": "ten", "TargetShardCount": 3, "ScalingType": "UNIFORM_SCALING"},
        status=400,
        code="InvalidArgumentException",
    ),
)

# What tests of moto expect that describe moto and not AWS, and what AWS does instead, with the source.
OF_MOTO = (
    ("gives records the sequence numbers 1 and 3", "AWS's numbers have 56 digits, in every recording"),
    ("accepts LATEST with a StartingSequenceNumber", "AWS refuses it, according to kinesalite"),
    ("accepts AT_TIMESTAMP with a time in the future", "AWS refuses it, according to kinesalite"),
    (
        "refuses an unknown ShardIteratorType with InvalidArgumentException",
        "AWS refuses it with ValidationException, according to kinesalite",
    ),
    (
        "refuses to merge shards that are not adjacent with a text that is only a shard's id",
        "AWS's text is a whole sentence, according to kinesalite",
    ),
    (
        "refuses to split a shard out of range with a text that names an EndingHashKey that is too low by 1",
        "AWS's text names the shard's own EndingHashKey, according to kinesalite",
    ),
    ("accepts ListShards with both NextToken and StreamName", "AWS refuses it, according to kinesalite"),
    ("lists 10 streams by default", "AWS lists 100, according to the API reference"),
    ("returns a limit of 6,000 shards in us-west-2", "AWS's limit is 20,000, according to the developer guide"),
    (
        "answers EnableEnhancedMonitoring for ALL with ALL",
        "AWS answers with the list of the metrics, according to the API reference",
    ),
    (
        "gives consumers an ARN without their creation time",
        "AWS's ARN contains this time, according to LocalStack and to the pattern in AWS's model",
    ),
    ("allows at most 5 MiB in a PutRecords request", "AWS allows 10 MiB, according to the API reference"),
)

INTRODUCTION = """\
Every answer that LocalStack recorded, and every error in the tests of kinesalite and moto that describes AWS, is either
reproduced by one of our tests or listed in this table. The [sources](differences.md#recordings-of-aws) are described with
the other tables. The column "Reason" states whether AWS has changed since the recording (according to the API reference,
botocore's model or a later recording), whether the difference is intended, or whether two sources disagree.
"""


def section():
    """Return the text of docs/tested/differences-recordings.md, without its heading."""
    lines = [
        INTRODUCTION,
        "| Operations | Case | AWS, as recorded | Shardline | Reason | Why |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in RECORDED_DIFFERENCES:
        cells = (
            ", ".join(row.operations),
            row.case,
            row.recorded,
            row.ours,
            row.kind,
            f"{row.why} [Recorded]({row.source})",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Some tests of moto are not in the table, because they describe moto, which differs from AWS:", ""]
    lines += [f"- moto {what}; {instead}." for what, instead in OF_MOTO]
    return "\n".join(lines) + "\n"
