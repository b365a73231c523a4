"""The recorded answers of AWS from which our server differs, with the reasons.

This is data: ``test_recorded_differences.py`` checks that the server answers as the table says;
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
    """The members of the request that shows the difference, for each operation. ``known`` is a stream of three shards,
    ``ten`` of ten.
    """
    status: int = 200
    code: str | None = None
    has: tuple[str, ...] = ()
    """Members of our answer, by their path, which the recording does not have."""
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
        why="StreamName became optional when StreamARN came (2022). AWS's answer to neither is not recorded. Where "
        "other members are missing too, AWS's recorded text names StreamName among them, and ours does not.",
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
        why="Records can be retained for 8,760 hours since 2020.",
        source=f"{KINESALITE}/increaseStreamRetentionPeriod.js",
        parameters={**KNOWN, "RetentionPeriodHours": 169},
    ),
    RecordedDifference(
        operations=("IncreaseStreamRetentionPeriod", "DecreaseStreamRetentionPeriod"),
        case="RetentionPeriodHours -1",
        recorded="ValidationException: at least 1",
        ours="InvalidArgumentException: Minimum allowed retention period is 24 hours.",
        kind=CHANGED,
        why="The recorded constraint, from 1 to 168, is not in AWS's model any more: the member has none.",
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
        why="A stream has up to 50 tags, and a request up to 200, by AWS's model of today.",
        source=f"{KINESALITE}/addTagsToStream.js",
        parameters={**KNOWN, "Tags": dict.fromkeys(ELEVEN, "")},
    ),
    RecordedDifference(
        operations=("RemoveTagsFromStream",),
        case="eleven keys",
        recorded="ValidationException: at most 10",
        ours="accepted",
        kind=CHANGED,
        why="A request has up to 50 keys, by AWS's model of today.",
        source=f"{KINESALITE}/removeTagsFromStream.js",
        parameters={**KNOWN, "TagKeys": ELEVEN},
    ),
    RecordedDifference(
        operations=("ListTagsForStream",),
        case="Limit 11",
        recorded="ValidationException: at most 10",
        ours="accepted",
        kind=CHANGED,
        why="The limit is 50, by AWS's model of today.",
        source=f"{KINESALITE}/listTagsForStream.js",
        parameters={**KNOWN, "Limit": 11},
    ),
    RecordedDifference(
        operations=("CreateStream",),
        case="no ShardCount",
        recorded="ValidationException: Value null at 'shardCount'",
        ours="an on-demand stream",
        kind=CHANGED,
        why="ShardCount became optional with the on-demand mode (2021). LocalStack recorded what it means today.",
        source=f"{KINESALITE}/createStream.js",
        parameters={"StreamName": "on-demand"},
    ),
    RecordedDifference(
        operations=("CreateStream",),
        case="ShardCount 100000000000",
        recorded="ValidationException: at most 100000",
        ours="LimitExceededException: the limit of the account",
        kind=CHANGED,
        why="The constraint is not in AWS's model of today: what limits a stream is the quota of its account.",
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
        why="By AWS's model of today a record has up to 10 MiB. That this stream takes 1 MiB is found out later, when the "
        "stream is known: then the text is the recorded one.",
        source=f"{KINESALITE}/putRecord.js",
        parameters={"StreamName": "", "PartitionKey": "k", "Data": "A" * 1_398_104},
        status=400,
        code="ValidationException",
    ),
    RecordedDifference(
        operations=("GetRecords",),
        case="a closed shard at its end",
        recorded="a few empty pages with a NextShardIterator, and no ChildShards",
        ours="no NextShardIterator at once, and ChildShards",
        kind=CHANGED,
        why="ChildShards came in 2020. AWS hands out more iterators for a while; a test should not have to wait for that.",
        source=f"{KINESALITE}/mergeShards.js",
        is_by_hand=True,
    ),
    RecordedDifference(
        operations=("DescribeStream", "DescribeStreamSummary"),
        case="any",
        recorded="no StreamModeDetails",
        ours="StreamModeDetails",
        kind=CHANGED,
        why="AWS's answers have it today (recorded by LocalStack), and the summary has further members of AWS's model.",
        source=f"{KINESALITE}/describeStream.js",
        parameters=KNOWN,
        has=("*.StreamModeDetails",),
    ),
    RecordedDifference(
        operations=("ListStreams",),
        case="any",
        recorded="StreamNames and HasMoreStreams alone",
        ours="StreamSummaries and, with more to come, NextToken too",
        kind=CHANGED,
        why="They are in AWS's model since 2022.",
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
        why="AWS's requests are signed, so that a web page can do no harm. This server takes unsigned requests: with the "
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
        why="A client should not have to guess. Such a refusal answers requests that are not for Kinesis.",
        source=f"{KINESALITE}/connection.js",
        is_by_hand=True,
    ),
    RecordedDifference(
        operations=("PutRecord", "PutRecords"),
        case="records of two shards",
        recorded="the shards share the counter in their sequence numbers",
        ours="each shard counts for itself",
        kind=ON_PURPOSE,
        why="Nothing but the order within a shard is promised. The digits of a number are otherwise AWS's.",
        source=f"{KINESALITE}/putRecord.js",
        is_by_hand=True,
    ),
    RecordedDifference(
        operations=("SubscribeToShard",),
        case="AT_TIMESTAMP in CBOR",
        recorded="status 500",
        ours="a subscription",
        kind=ON_PURPOSE,
        why="LocalStack notes it beside a test that fails against AWS. No client should have to expect it.",
        source=f"{LOCALSTACK}/services/kinesis/test_kinesis.py",
        is_by_hand=True,
    ),
    RecordedDifference(
        operations=("GetResourcePolicy", "DeleteResourcePolicy"),
        case="the ARN of a stream that does not exist",
        recorded="`Stream arn:aws:kinesis:us-east-1:000000000000:stream/absent under account 000000000000 not found.`",
        ours="`Stream absent under account 000000000000 not found.`",
        kind=UNCLEAR,
        why="moto has the ARN in the text. LocalStack recorded the name for DescribeStream with an ARN, and ours has the "
        "name in every operation.",
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
        why="moto has the id of the request. kinesalite recorded that AWS writes it out.",
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
        why="moto's text has no value, kinesalite's has it. The same is true of data that is too long.",
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
        why="The reference forbids to go below half of the shards. moto's table of numbers 'verified against AWS' has it.",
        source=f"{MOTO}/test_kinesis_boto3.py",
        parameters={"StreamName": "ten", "TargetShardCount": 3, "ScalingType": "UNIFORM_SCALING"},
        status=400,
        code="InvalidArgumentException",
    ),
)

# Tests of moto, by what they check, that describe moto and not AWS. The second part states the contradiction.
OF_MOTO = (
    ("sequence numbers such as 1 and 3", "every recorded number"),
    ("LATEST with a StartingSequenceNumber, and an AT_TIMESTAMP of the future", "kinesalite: both are refused"),
    ("an unknown ShardIteratorType is InvalidArgumentException", "kinesalite: ValidationException"),
    ("merging shards that are not adjacent: the text is a shard's id", "kinesalite has the text"),
    ("splitting out of range: the text has an EndingHashKey of one less", "kinesalite: the shard's own"),
    ("ListShards with both NextToken and StreamName", "kinesalite: it is refused"),
    ("ListStreams lists 10 streams by default", "the reference: 100"),
    ("DescribeLimits: 6,000 shards in us-west-2", "the developer guide: 20,000"),
    ("EnableEnhancedMonitoring with ALL answers ALL", "the reference: the list of the metrics"),
    ("the ARN of a consumer without its creation time", "LocalStack, and the pattern in AWS's model"),
    ("at most 5 MiB in a PutRecords", "the reference: 10 MiB"),
)

INTRODUCTION = """\
Every answer that LocalStack recorded, and every error in the tests of kinesalite and moto that describes AWS, is either
reproduced by one of our tests or listed in this table. The [sources](differences.md#recordings-of-aws) are described with
the other tables. The column "Reason" says whether AWS has changed since the recording (by the API reference, by
botocore's model or by a later recording), whether the difference is intended, or whether two sources disagree.
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
    lines += ["", "These tests of moto are not in the table, because they describe moto:", ""]
    lines += [f"- {what} ({contradicted});" for what, contradicted in OF_MOTO]
    lines[-1] = lines[-1].removesuffix(";") + "."
    return "\n".join(lines) + "\n"
