"""The known differences of each endpoint, with the reason.

A difference that is not listed fails the run, and so does a listed one that no longer occurs. Patterns are those of
fnmatch.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.conformance.expectation import Mismatch


@dataclass(frozen=True)
class Difference:
    """One line of a report."""

    scenario: str
    at: int
    label: str
    mismatch: Mismatch

    def __str__(self) -> str:
        what = self.mismatch
        return (
            f"{self.scenario} | step {self.at} {self.label} | {what.field} | expected {what.expected} | got {what.got}"
        )


@dataclass(frozen=True)
class Known:
    scenario: str
    step: str
    """A pattern for "2 DescribeStream": the number of the step, and its label."""
    field: str
    why: str
    got: str = "*"
    sometimes: bool = False
    """Whether the difference depends on timing, so that its absence means nothing."""

    def explains(self, difference: Difference) -> bool:
        return (
            fnmatchcase(difference.scenario, self.scenario)
            and fnmatchcase(f"{difference.at} {difference.label}", self.step)
            and fnmatchcase(difference.mismatch.field, self.field)
            and fnmatchcase(difference.mismatch.got, self.got)
        )

    def __str__(self) -> str:
        return f"{self.scenario} | step {self.step} | {self.field} | got {self.got} | {self.why}"


@dataclass(frozen=True)
class Judgement:
    unknown: tuple[Difference, ...]
    known: tuple[Difference, ...]
    vanished: tuple[Known, ...]
    """Listed differences that did not occur, although all of their scenarios were played."""


def judge(
    differences: Iterable[Difference], listed: Collection[Known], played: Collection[str], table: Collection[str]
) -> Judgement:
    unknown, known, seen = [], [], set()
    for difference in differences:
        explanations = [entry for entry in listed if entry.explains(difference)]
        seen.update(explanations)
        (known if explanations else unknown).append(difference)
    vanished = []
    for entry in listed:
        about = [name for name in table if fnmatchcase(name, entry.scenario)]
        if entry not in seen and not entry.sometimes and all(name in played for name in about):
            vanished.append(entry)
    return Judgement(tuple(unknown), tuple(known), tuple(vanished))


# Patterns of scenarios that are not played on an endpoint at all, with the reason.
NOT_PLAYED = {
    "kinesis-local": {
        "iterator-expired": "its clock cannot be moved, and five minutes are too long",
        "list-token-expired": "the same",
        "channel-*": "it does not know channels",
        "creating-limit": "it makes any number of streams at a time",
        "scale-limit": "it grants any number of changes",
        "stream-creating": "its streams are there at once",
        "throttled-*": "it enforces no limits of shards, and a flood of requests stalls it",
    },
}

EMBEDDED: tuple[Known, ...] = ()
_MANY = "a difference of many answers: docs/tested/differences.md has it"
_CONSTRAINTS = "it checks constraints after other things, or not at all, and has other types for them"
KINESIS_LOCAL: tuple[Known, ...] = (
    Known("*", "*", "error.message", "its texts are its own"),
    Known("*", "*", "*", "it writes members that have no value as null, where AWS leaves them out", got="None"),
    Known("*", "*", "*EncryptionType", _MANY, got="'NONE'"),
    Known("*", "*", "*HashKeyRange.*HashKey", _MANY),
    Known("*", "*", "*StreamCreationTimestamp", "its times of creation have milliseconds"),
    Known("put-record", "4 PutRecord", "body.ShardId", "the same: the second shard begins one key too early"),
    Known("stream-life", "5 DescribeStreamSummary", "*", "it does not know StreamId and ChannelCount", got="absent"),
    Known("stream-life", "9 ListStreams", "*", "it lists streams in no order, and without summaries"),
    Known("stream-life", "11 DescribeStreamSummary", "*", "it deletes a stream within 50 ms", sometimes=True),
    Known(
        "stream-missing", "* UpdateStreamRecordDistributionStrategy", "error.__type", "it does not know the operation"
    ),
    Known("stream-by-arn", "5 DescribeStreamSummary", "*", "it believes the ARN, whatever the name says"),
    Known("stream-on-demand", "*", "*", "it reshards on-demand streams"),
    Known("account-limits", "1 DescribeLimits", "body.Channel*", "it does not know channels", got="absent"),
    Known("validation-*", "*", "error.__type", _CONSTRAINTS),
    Known(
        "validation-records", "* GetRecords", "*", "an iterator that it cannot read is a failure of its own", got="500"
    ),
    Known("validation-records", "* GetRecords", "error", "the same", got="absent"),
    Known("put-record", "* PutRecord", "error.__type", _CONSTRAINTS, got="'SerializationException'"),
    Known("put-sizes", "* PutRecord", "error.__type", _CONSTRAINTS),
    Known("put-sizes", "* PutRecords", "*", "it refuses entries that are too large one by one, and takes any request"),
    Known("*-dry-run", "*", "*", "it does not know DryRun"),
    Known(
        "read-wrong-positions", "* GetShardIterator", "*", "it ignores a number that does not belong, or says not found"
    ),
    Known("read-wrong-positions", "* GetRecords", "*", "an iterator that it cannot read is a failure of its own"),
    Known("read-positions", "* GetShardIterator", "*", "it takes no short ids of shards"),
    Known("split-and-merge", "3 DescribeStreamSummary", "*", "it reshards within 50 ms", sometimes=True),
    Known("split-and-merge", "4 MergeShards", "*", "the same", sometimes=True),
    Known(
        "split-and-merge", "6 ListShards", "*EndingSequenceNumber", "it ends a shard with a number of another layout"
    ),
    Known("split-and-merge", "10 SplitShard", "error.__type", _MANY),
    Known("split-refused", "*", "*", "it splits where a child has no keys"),
    Known("scale", "2 UpdateShardCount", "body.StreamARN", "it leaves the member out"),
    Known("list-filters", "* ListShards", "body.Shards", _MANY),
    Known("list-filters", "11 ListShards", "*", "it ignores StreamCreationTimestamp"),
    Known("consumer-life", "* DescribeStreamConsumer", "body.ConsumerDescription.Tags", "it describes tags", got="{}"),
    Known(
        "consumer-life", "* ListStreamConsumers", "*", "it gives a token with the last page, and none with the first"
    ),
    Known("consumer-life", "19 DeleteStream", "*", "it deletes the stream that it refuses to delete", sometimes=True),
    Known("subscription*", "* SubscribeToShard", "*", "it refuses in the events, and pushes other events"),
    Known("tags-by-arn", "8 ListTagsForResource", "body.Tags", "it forgets the tags of RegisterStreamConsumer"),
    Known("record-size", "1 UpdateMaxRecordSize", "body", "it has an answer"),
    Known("record-size", "5 PutRecord", "error.__type", _CONSTRAINTS),
    Known("record-distribution", "*", "*", "it does not know the operation"),
    Known("resource-policy", "*", "*", "without a policy it says not found, and it checks none"),
    Known("warm-throughput-refused", "*", "*", _CONSTRAINTS),
    Known("account-settings-refused", "*", "*", _CONSTRAINTS),
    Known("account-settings", "* UpdateAccountSettings", "body", "it has no answer"),
    Known("cbor", "5 DescribeStreamSummary", "error.__type", _CONSTRAINTS),
    Known("unreadable", "*", "*", "its types and texts are its own, and it takes any content type"),
    Known("signatures", "*", "*", "it checks no signatures"),
)
KNOWN = {"embedded": EMBEDDED, "kinesis-local": KINESIS_LOCAL}
