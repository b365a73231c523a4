"""Lists the differences between our server and AWS, and between our server and kinesis-local 0.6.2, with the reasons.

Others recorded the answers of AWS.

This module has the table of kinesis-local: ``test_differential.py`` checks that nothing else differs, and that each
listed difference still exists. The other tables are in modules of their own, each with its test. ``python
tests/interop/differences.py`` writes the pages and the artefacts of docs/tested from all of them.
"""

from dataclasses import dataclass
from pathlib import Path
from runpy import run_path

recorded = run_path(str(Path(__file__).parent / "recorded_differences.py"))
TEXTS = run_path(str(Path(__file__).with_name("texts.py")))
REFERENCE = "https://docs.aws.amazon.com/kinesis/latest/APIReference"
GUIDE = "https://docs.aws.amazon.com/streams/latest/dev"
VALIDATION = "ValidationException (400)"
INVALID = "InvalidArgumentException (400)"
LIMIT = "LimitExceededException (400)"
MISSING = "ResourceNotFoundException (400)"
NONE = "none"
ABSENT = "absent"
# What supports our answer: AWS's documentation, or answers of AWS that are recorded in tests of other projects, which ran
# against AWS. We made no call to AWS.
DOCUMENTED = "documented"
RECORDED = "recorded from AWS"
ALL_PASSED = "7d62e92f4b44feafd79cd796211d2ba05026195a"  # its message says that all tests pass against AWS
KINESALITE = f"https://github.com/mhart/kinesalite/tree/{ALL_PASSED}/test"
LIST_SHARDS = "https://github.com/mhart/kinesalite/blob/c76689da192ab96c87c5db8f95c1e3fba1985433/test/listShards.js"
LOCALSTACK = (
    "https://github.com/localstack/localstack/blob/337ca87260ceaf86855e423a95f14050c5f970e2/"
    "tests/aws/services/kinesis/test_kinesis.snapshot.json"
)
MOTO = (
    "https://github.com/getmoto/moto/blob/d7dd8fb4c58f680d15408247183dbe35dc3e9c7c/tests/test_kinesis/"
    "test_kinesis_boto3.py"
)


@dataclass(frozen=True)
class Difference:
    """A difference in an answer, or in one field of an answer. Without ``cases``, the field differs in every call."""

    operations: tuple[str, ...]
    field: str
    theirs: object
    ours: object
    why: str
    source: str
    cases: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    """Where AWS's answer is recorded, if the recording decides the case or helps to read the reference."""
    basis: str = DOCUMENTED

    def explains(self, observed):
        return (
            observed.operation in self.operations
            and (not self.cases or observed.case in self.cases)
            and (observed.path == self.field or observed.path.endswith((f".{self.field}", f"].{self.field}")))
            and (str(observed.theirs), str(observed.ours)) == (str(self.theirs), str(self.ours))
        )


def api(operation):
    return f"{REFERENCE}/API_{operation}.html"


def kinesalite(operation):
    """Return a file of kinesalite's tests, at the commit at which all of them passed against AWS."""
    return f"https://github.com/mhart/kinesalite/blob/{ALL_PASSED}/test/{operation}.js"


CONSTRAINTS = (
    "The reference states the constraints of each member (length, range, pattern, a set of values). A value that violates "
    "a constraint causes a ValidationException, according to the developer guide's page on dry runs and to the recorded "
    "answers. We assume the same for operations without recordings (consumers, encryption, monitoring, UpdateShardCount, "
    "UpdateMaxRecordSize)."
)
DRY_RUNS = f"{GUIDE}/kds-dryrun-validation.html"
SCALING = ("scaled to 2", "scaled to 4", "scaled up and down", "3 scaled to 6 and back")

DIFFERENCES = (
    Difference(
        operations=(
            "add_tags_to_stream", "create_stream", "decrease_stream_retention_period", "describe_stream",
            "describe_stream_summary", "disable_enhanced_monitoring", "enable_enhanced_monitoring", "get_records",
            "get_shard_iterator", "increase_stream_retention_period", "list_stream_consumers", "list_streams",
            "list_tags_for_stream", "merge_shards", "put_record", "put_records", "register_stream_consumer",
            "remove_tags_from_stream", "split_shard", "start_stream_encryption", "stop_stream_encryption",
            "update_max_record_size", "update_shard_count",
        ),
        cases=(
            "0 shards", "1023 KiB", "10241 KiB", "129 characters", "129 characters of key",
            "257 characters of PartitionKey", "257 characters of value", "AFTER_SEQUENCE_NUMBER empty",
            "AFTER_SEQUENCE_NUMBER x", "AT_SEQUENCE_NUMBER empty", "AT_SEQUENCE_NUMBER x", "ExplicitHashKey -1",
            "ExplicitHashKey 01", "ExplicitHashKey of 40 digits", "Limit 0", "Limit 10001", "MaxResults 0",
            "MaxResults 10001", "a space in the name", "a space in the shard's id", "an empty PartitionKey",
            "an empty key", "an empty name", "at -1", "more than 1 MiB of data",
        ),
        field="Error", theirs=INVALID, ours=VALIDATION, why=CONSTRAINTS, source=DRY_RUNS, records=(KINESALITE,),
        basis=RECORDED,
    ),
    Difference(
        operations=(
            "create_stream", "enable_enhanced_monitoring", "get_records", "get_shard_iterator", "list_shards",
            "put_record", "put_records", "register_stream_consumer", "update_shard_count",
        ),
        cases=(
            "a filter of no type", "an entry has no PartitionKey", "an unknown metric", "an unknown type",
            "another ScalingType", "mode NONE", "no ARN", "no Data", "no PartitionKey", "no ScalingType", "no ShardId",
            "no ShardIteratorType", "no iterator", "no name",
        ),
        field="Error", theirs="SerializationException (400)", ours=VALIDATION,
        why=f"{CONSTRAINTS} SerializationException is for members of a wrong type.", source=DRY_RUNS,
        records=(KINESALITE,), basis=RECORDED,
    ),
    Difference(
        operations=("get_records", "list_shards", "put_record", "put_records", "split_shard"),
        cases=(
            "ExplicitHashKey empty", "ExplicitHashKey x", "MaxResults 0", "SequenceNumberForOrdering is no number",
            "an empty iterator", "at nothing", "at x",
        ),
        field="Error", theirs="500 (500)", ours=VALIDATION,
        why=f"{CONSTRAINTS} A mistake of the client is no failure of the service.", source=DRY_RUNS,
        records=(KINESALITE, LIST_SHARDS), basis=RECORDED,
    ),
    Difference(
        operations=("add_tags_to_stream", "list_shards", "list_tags_for_stream", "put_records", "remove_tags_from_stream"),
        cases=("501 entries", "Limit 51", "MaxResults 10001", "no entries", "no keys", "no tags"),
        field="Error", theirs=NONE, ours=VALIDATION, why=CONSTRAINTS, source=DRY_RUNS,
        records=(KINESALITE, LIST_SHARDS), basis=RECORDED,
    ),
    Difference(
        operations=("list_shards",), cases=("a space in the name",), field="Error", theirs=MISSING, ours=VALIDATION,
        why=CONSTRAINTS, source=DRY_RUNS, records=(LIST_SHARDS,), basis=RECORDED,
    ),
    Difference(
        operations=("create_stream",), cases=("ShardCount 0",), field="Error", theirs=LIMIT, ours=VALIDATION,
        why=CONSTRAINTS, source=api("CreateStream"), records=(kinesalite("createStream"),), basis=RECORDED,
    ),
    Difference(
        operations=("create_stream",), cases=("PROVISIONED, no ShardCount",), field="Error", theirs=NONE, ours=INVALID,
        why="With the provisioned mode, 'you must specify the number of shards': a request without the number is invalid.",
        source=api("CreateStream"),
    ),
    Difference(
        operations=("describe_stream_summary",), cases=("no ShardCount",), field="StreamModeDetails.StreamMode",
        theirs="PROVISIONED", ours="ON_DEMAND",
        why="A provisioned stream needs a number of shards. If a request has neither a mode nor a number, AWS creates a stream "
        "of four shards, as many as an on-demand stream has at first. The mode that AWS then reports is not recorded.",
        source=api("CreateStream"), records=(LOCALSTACK,),
    ),
    Difference(
        operations=("put_record",), cases=("SequenceNumberForOrdering 7",), field="Error", theirs=INVALID, ours=NONE,
        why="AWS also reads numbers of older layouts. Small numbers have the oldest layout, and never lie in the future.",
        source=api("PutRecord"), records=(kinesalite("putRecord"),), basis=RECORDED,
    ),
    Difference(
        operations=("split_shard", "merge_shards", "update_shard_count"), cases=("an on-demand stream",),
        field="Error", theirs=NONE, ours=VALIDATION,
        why="These operations are for provisioned streams; ValidationException says that the stream is on-demand.",
        source=api("SplitShard"),
    ),
    Difference(
        operations=("put_record",), cases=("1 MiB of data and a key",), field="Error", theirs=NONE, ours=VALIDATION,
        why="The size of a record is the size of its data and its partition key together.", source=api("PutRecord"),
    ),
    Difference(
        operations=("put_records",), cases=("more than 1 MiB of data",), field="Error", theirs=NONE, ours=VALIDATION,
        why="An entry fails only with ProvisionedThroughputExceededException or InternalFailure. An invalid entry makes the "
        "service refuse the whole request.",
        source=api("PutRecordsResultEntry"),
    ),
    Difference(
        operations=("put_record", "put_records"), field="EncryptionType", theirs="NONE", ours=ABSENT,
        why="The member is optional. AWS's answers about a stream that is not encrypted do not contain it, while the "
        "description of the stream says NONE.",
        source=api("PutRecord"), records=(kinesalite("putRecord"), kinesalite("putRecords")), basis=RECORDED,
    ),
    Difference(
        operations=("get_records",), field="EncryptionType", theirs="NONE", ours=ABSENT,
        why="The reason is the same as for PutRecord.", source=api("Record"), records=(kinesalite("getRecords"), LOCALSTACK), basis=RECORDED,
    ),
    Difference(
        operations=("get_records",), field="MillisBehindLatest", theirs=0, ours="behind",
        why="Zero means that there are no more records. kinesis-local returns zero while records of the same PutRecords "
        "request as the last record are still unread.",
        source=api("GetRecords"),
    ),
    Difference(
        operations=("get_records",), cases=("a broken iterator",), field="Error", theirs="500 (500)", ours=INVALID,
        why="An iterator that the service did not issue is an invalid parameter.",
        source=api("GetRecords"), records=(kinesalite("getRecords"),), basis=RECORDED,
    ),
    Difference(
        operations=("get_shard_iterator",),
        cases=(
            "AT_SEQUENCE_NUMBER of another shard", "AFTER_SEQUENCE_NUMBER of another shard", "AT_SEQUENCE_NUMBER 7",
            "AFTER_SEQUENCE_NUMBER 7",
        ),
        field="Error", theirs=MISSING, ours=INVALID,
        why="The stream and the shard exist: only the sequence number is invalid.",
        source=api("GetShardIterator"), records=(kinesalite("getShardIterator"),), basis=RECORDED,
    ),
    Difference(
        operations=("get_shard_iterator",), cases=("a number with LATEST",), field="Error", theirs=NONE, ours=INVALID,
        why="StartingSequenceNumber is used with AT_SEQUENCE_NUMBER and AFTER_SEQUENCE_NUMBER. AWS refuses it with "
        "LATEST and TRIM_HORIZON.",
        source=api("GetShardIterator"), records=(kinesalite("getShardIterator"),), basis=RECORDED,
    ),
    Difference(
        operations=("list_shards",), cases=("filter AT_TRIM_HORIZON", "filter AT_TIMESTAMP long ago"), field="Shards",
        theirs=["0", "1", "2", "3", "4", "5"], ours=["0", "1", "2"],
        why="AT_TRIM_HORIZON selects the shards that were open at that time, and a time before the horizon means the "
        "horizon. Shards that later splits and merges created are not among them.",
        source=api("ShardFilter"),
    ),
    Difference(
        operations=("list_shards",), cases=("ExclusiveStartShardId of no shard", "filter AFTER_SHARD_ID 9"),
        field="Shards", theirs=["0", "1", "2", "3", "4", "5"], ours=[],
        why="The list starts with the shard whose id follows the given id. A reader that has seen the last shard must "
        "not get all of them again.",
        source=api("ListShards"),
    ),
    Difference(
        operations=("list_shards",), cases=("another StreamCreationTimestamp",), field="Error", theirs=NONE, ours=MISSING,
        why="The time distinguishes streams of the same name: no stream has this name and this time.",
        source=api("ListShards"),
    ),
    Difference(
        operations=("list_shards", "describe_stream"), field="SequenceNumberRange.EndingSequenceNumber",
        theirs="that of another shard", ours="its own",
        why="A sequence number belongs to one shard. kinesis-local ends all shards that are closed in the same second with "
        "the same number.",
        source=f"{GUIDE}/key-concepts.html",
    ),
    Difference(
        operations=("list_shards", "describe_stream"), field="SequenceNumberRange.StartingSequenceNumber",
        theirs="that of another shard", ours="its own",
        why="A sequence number belongs to one shard. kinesis-local starts a merged shard where its parent started.",
        source=f"{GUIDE}/key-concepts.html",
    ),
    Difference(
        operations=("list_shards",), cases=("an on-demand stream", *SCALING), field="HashKeyRange.StartingHashKey",
        theirs="rounded otherwise", ours="rounded",
        why="Uniform shards have the same size: each of two shards has 2^127 keys. kinesis-local divides one key too few, "
        "so its halves differ in size.",
        source=api("UpdateShardCount"),
    ),
    Difference(
        operations=("list_shards",), cases=("an on-demand stream", *SCALING), field="HashKeyRange.EndingHashKey",
        theirs="rounded otherwise", ours="rounded", why="The reason is the same; the end of a range is one key before the next start.",
        source=api("UpdateShardCount"),
    ),
    Difference(
        operations=("list_shards",), cases=("2 scaled to 3",), field="Shards", theirs=["2", "3", "4"], ours=["3", "6", "7"],
        why="Uniform shards have the same size. kinesis-local splits one of the two shards, which leaves a half and two "
        "quarters.",
        source=api("UpdateShardCount"),
    ),
    Difference(
        operations=("list_streams",), field="StreamSummaries", theirs=ABSENT, ours="present",
        why="The answer has a summary of each stream.", source=api("ListStreams"),
    ),
    Difference(
        operations=("describe_stream_summary",), field="ChannelCount", theirs=ABSENT, ours=0,
        why="The summary counts the channels of the stream.", source=api("StreamDescriptionSummary"),
    ),
    Difference(
        operations=("describe_stream_summary",), field="StreamId", theirs=ABSENT, ours="an id",
        why="The summary contains the id of the stream.", source=api("StreamDescriptionSummary"),
    ),
    Difference(
        operations=("describe_stream_summary",), field="MaxRecordSizeInKiB", theirs=ABSENT, ours=1024,
        why="The summary contains the size limit of a record.", source=api("StreamDescriptionSummary"),
    ),
    Difference(
        operations=("describe_stream_summary",), cases=("an on-demand stream", "no ShardCount"),
        field="RecordDistributionStrategy", theirs=ABSENT, ours="USER_PARTITION_KEY", why="The summary of an on-demand stream contains its strategy.",
        source=api("StreamDescriptionSummary"),
    ),
    Difference(
        operations=("split_shard",), cases=("at the first key", "at the second key", "at the last key"), field="Error",
        theirs=NONE, ours=INVALID,
        why="Both children need keys. kinesis-local creates a shard that ends before it starts. AWS also refuses the "
        "second and the last key.",
        source=api("SplitShard"), records=(kinesalite("splitShard"),), basis=RECORDED,
    ),
    Difference(
        operations=("split_shard", "merge_shards"), cases=("a closed shard",), field="Error",
        theirs="ResourceInUseException (400)", ours=INVALID,
        why="ResourceInUseException is about the stream, which is ACTIVE. A closed shard 'has already been merged or "
        "split, and thus is not eligible for merging or splitting': InvalidArgumentException.",
        source=api("SplitShard"), records=(MOTO, "https://github.com/mhart/kinesalite/issues/109"), basis=RECORDED,
    ),
    Difference(
        operations=("update_shard_count",), cases=("less than half",), field="Error", theirs=NONE, ours=INVALID,
        why="The operation cannot scale to less than half of the current count. The error is the same as for a target of "
        "more than double the count, for which the two servers agree.",
        source=api("UpdateShardCount"),
    ),
    Difference(
        operations=("update_shard_count",), field="StreamARN", theirs=ABSENT, ours="present",
        why="The answer has the ARN of the stream.", source=api("UpdateShardCount"),
    ),
    Difference(
        operations=("list_stream_consumers",), field="NextToken", theirs="a token", ours=ABSENT,
        why="There is a token when there are more consumers than were listed.", source=api("ListStreamConsumers"),
    ),
    Difference(
        operations=("list_stream_consumers",), cases=("the first of two pages",), field="NextToken", theirs=ABSENT,
        ours="a token", why="There is a token when there are more consumers than were listed, as in this case.", source=api("ListStreamConsumers"),
    ),
    Difference(
        operations=("list_stream_consumers",), cases=("a broken NextToken",), field="Error", theirs=NONE, ours=INVALID,
        why="A token comes from an answer, and 'unambiguously identifies the stream'. A token that identifies no stream is "
        "an invalid parameter, which is the meaning of InvalidArgumentException. In ListShards, both servers refuse it.",
        source=api("ListStreamConsumers"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Detail:
    """A behaviour of AWS beyond the fields of one answer."""

    what: str
    aws: str
    seen: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]
    """The files and functions that show that our server does the same."""
    ours: str = "the same"


def _kinesalite(*files):
    """Return files of kinesalite's tests, by name."""
    return tuple((f"kinesalite's `{name}.js`", kinesalite(name)) for name in files)


_UNIT = "tests/unit/server/model"
LOCALSTACK_TESTS = ("LocalStack's `test_kinesis.py`", LOCALSTACK.replace(".snapshot.json", ".py"))
RISINGWAVE = ("RisingWave's issue 9961", "https://github.com/risingwavelabs/risingwave/issues/9961")
SPLITS = ("a walk through splitting and merging", "https://brandur.org/kinesis-by-example")
UPDATES = ("moto's test_update_shard_count", MOTO)

DETAILS = (
    Detail(
        what="Short shard ids",
        aws="Only the number in a shard id matters, alone or after a hyphen: `0`, `shardId-0` and `x-000` all mean the "
        "first shard. An id without a number of at most 2147483647 is refused before the stream is looked up. GetRecords "
        "and GetShardIterator use the same text for a missing shard and a missing stream.",
        ours="The same, even for SubscribeToShard, ExclusiveStartShardId and ShardFilter, for which there are no recordings.",
        seen=_kinesalite("getShardIterator", "getRecords", "splitShard", "mergeShards"),
        tests=(
            f"{_UNIT}/test_records.py::test_a_short_shard_id_is_as_good_as_the_full_one",
            "tests/interop/test_recorded_refusals.py::test_a_refused_request",
            f"{_UNIT}/test_records.py::test_an_iterator_of_a_missing_stream_names_the_shard",
            f"{_UNIT}/test_management.py::test_shards_are_split_and_merged_by_short_ids_too",
        ),
    ),
    Detail(
        what="ShardIterator in quotes",
        aws="GetRecords accepts an iterator with quotation marks around it.",
        seen=(LOCALSTACK_TESTS,),
        tests=(f"{_UNIT}/test_records.py::test_an_iterator_may_be_in_quotes",),
    ),
    Detail(
        what="StreamARN of GetRecords",
        aws="The reference lists the parameter, but does not say what happens if the stream is not the iterator's.",
        ours="A stream other than the iterator's is refused with InvalidArgumentException, and a stream of another account "
        "with ResourceNotFoundException.",
        seen=(("API reference", api("GetRecords")),),
        tests=(f"{_UNIT}/test_records.py::test_the_stream_of_an_iterator_may_be_named_beside_it",),
    ),
    Detail(
        what="Layout of sequence numbers",
        aws="47 hexadecimal digits: `2`, the second in which the shard began (9), the last digit of the shard (1), the number in "
        "the shard (16), `00`, the second of arrival (9), the shard (8), `2`. The start numbers of a stream's shards are "
        "22300745198530623141535718272648361505980432 apart, and begin 2 to 7 seconds before the stream was created.",
        ours="Shardline uses the same layout. The start numbers begin 3 seconds before the creation. Each shard has its own counter, while "
        "on AWS several shards share one. Shards in a data file of an earlier version keep their numbers.",
        seen=(*_kinesalite("createStream", "putRecord"), SPLITS),
        tests=(
            f"{_UNIT}/test_sequence_numbers.py::test_the_numbers_of_aws_are_made_and_read",
            f"{_UNIT}/test_streams.py::test_the_numbers_of_a_new_streams_shards_begin_before_the_stream_was_created",
            "tests/unit/server/test_storage.py::test_a_file_of_schema_1_keeps_the_numbers_of_its_shards",
        ),
    ),
    Detail(
        what="Start of a child shard",
        aws="The numbers of a child begin one second after the ending sequence numbers of its parents. Until that second has passed, "
        "AWS still puts records into the closed parent.",
        ours="Shardline uses the same numbers. The parent gets no more records once it is closed.",
        seen=(*_kinesalite("splitShard", "mergeShards"), SPLITS),
        tests=(
            f"{_UNIT}/test_sequence_numbers.py::test_on_aws_children_begin_a_second_after_the_ending_number_of_their_parents",
        ),
    ),
    Detail(
        what="StartingSequenceNumber of another shard",
        aws="AWS reads numbers of all three layouts that it has used. AWS refuses a number of another shard with a text "
        "that names that shard, and a number of an earlier stream with a text that says that the number did not come "
        "from this stream. AWS answers a number of the oldest layout, such as 0, with InternalFailure (500).",
        seen=_kinesalite("getShardIterator"),
        tests=("tests/interop/test_recorded_refusals.py::test_a_refused_request",),
    ),
    Detail(
        what="SequenceNumberForOrdering",
        aws="A number that cannot be read, or that lies in the future, is refused. Numbers of other shards and of older "
        "layouts, such as 0, are accepted.",
        seen=_kinesalite("putRecord"),
        tests=(
            f"{_UNIT}/test_records.py::test_an_ordering_number_of_any_shard_and_layout_is_accepted",
            "tests/interop/test_recorded_refusals.py::test_a_refused_request",
            f"{_UNIT}/test_records.py::test_an_ordering_number_of_the_future_is_refused",
        ),
    ),
    Detail(
        what="Shard ids of UpdateShardCount",
        aws="After scaling from 4 to 3 shards, the shards 6, 9 and 10 are open. Open and closed shards together number 6 "
        "after scaling from 2 to 4, 15 from 4 to 5, 37 from 10 to 13, and 6 from 4 to 2.",
        ours="The same. moto has two more figures, which contradict these and are not reproduced: 7 shards after scaling "
        "from 5 to 3 (here 13, of equal size), and 17 from 10 to 3, which AWS refuses because 3 is less than half of 10.",
        seen=(RISINGWAVE, UPDATES),
        tests=(
            f"{_UNIT}/test_streams.py::test_scaling_from_4_to_3_gives_the_shards_the_ids_that_aws_gives_them",
            f"{_UNIT}/test_streams.py::test_scaling_creates_as_many_shards_as_on_aws",
        ),
    ),
    Detail(
        what="ListShards: members beside NextToken",
        aws="AWS answers `NextToken and StreamName cannot be provided together.` with InvalidArgumentException, and "
        "refuses StreamARN, ExclusiveStartShardId and ShardFilter in the same way. MaxResults is allowed.",
        ours="The same. StreamCreationTimestamp is refused in the same way, because the reference says that it cannot be "
        "specified together with a token. ListStreamConsumers refuses StreamCreationTimestamp in the same words.",
        seen=(
            (
                "an issue of Terraform's AWS provider",
                "https://github.com/hashicorp/terraform-provider-aws/issues/40494",
            ),
            ("an issue of the AWS CLI", "https://github.com/aws/aws-cli/issues/9635"),
            (
                "a pull request to the AWS tool for scaling",
                "https://github.com/awslabs/amazon-kinesis-scaling-utils/pull/82",
            ),
            ("a pull request to the KCL", "https://github.com/awslabs/amazon-kinesis-client/pull/788"),
        ),
        tests=(
            f"{_UNIT}/test_descriptions.py::test_nothing_stands_beside_a_token",
            "tests/interop/test_clients_of_others.py::test_boto3_pages_through_every_listing",
        ),
    ),
    Detail(
        what="Resource policies",
        aws="Without a policy, GetResourcePolicy answers `{}`. A policy comes back unchanged. Deleting an absent policy "
        "is an error, and so is a policy for a stream that does not exist.",
        ours="The same; the text for an absent policy comes from moto. A policy is stored and returned, but grants nothing, because "
        "there are no other accounts. In a policy, only Statement, Effect, Principal and Action are checked.",
        seen=(("LocalStack's recordings", LOCALSTACK),),
        tests=(
            f"{_UNIT}/test_policies.py::test_a_policy_is_stored_returned_and_deleted",
            f"{_UNIT}/test_policies.py::test_a_policy_must_say_who_may_do_what",
        ),
    ),
    Detail(
        what="A policy for a consumer that is not ACTIVE",
        aws="`Consumer c with creation timestamp t under stream s and account a is not in ACTIVE status.`",
        seen=(
            (
                "an issue of CloudFormation",
                "https://github.com/aws-cloudformation/cloudformation-coverage-roadmap/issues/2442",
            ),
        ),
        tests=(f"{_UNIT}/test_policies.py::test_what_is_not_active_gets_none",),
    ),
    Detail(
        what="StreamId",
        aws="The reference lists the member for requests and for DescribeStreamSummary, as reserved for future use.",
        ours="In requests, the form of the id is checked, but the id identifies no stream. DescribeStreamSummary returns an id that stays "
        "the same across restarts.",
        seen=(("API reference", api("DescribeStreamSummary")),),
        tests=(f"{_UNIT}/test_descriptions.py::test_an_id_names_no_stream",),
    ),
    Detail(
        what="Account settings",
        aws="A minimum throughput billing commitment lasts at least 24 hours. If the commitment is disabled earlier, it ends after "
        "24 hours, unless it is enabled again. With a commitment, an on-demand stream may have 50 registered consumers; other "
        "streams may have 20.",
        seen=(
            ("API reference", api("MinimumThroughputBillingCommitmentInput")),
            ("API reference", api("RegisterStreamConsumer")),
        ),
        tests=(
            f"{_UNIT}/test_commitment.py::test_an_end_within_24_hours_is_put_off",
            f"{_UNIT}/test_account.py::test_the_consumer_limit_follows_the_accounts_mode",
        ),
    ),
    Detail(
        what="Warm throughput",
        aws="On-demand streams of accounts with a commitment can have a warm throughput of up to 10 GiBps. "
        "UpdateStreamWarmThroughput scales the stream accordingly.",
        ours="The number is checked, stored and returned, but changes neither the shards nor their limits.",
        seen=(("API reference", api("UpdateStreamWarmThroughput")),),
        tests=(
            f"{_UNIT}/test_account.py::test_a_warm_throughput_is_reached_over_time",
            f"{_UNIT}/test_account.py::test_only_on_demand_streams_of_accounts_with_a_commitment_are_warm",
        ),
    ),
    Detail(
        what="Channels",
        aws="A channel delivers the records of an on-demand stream to a bucket or to a table. A stream has at most one "
        "channel of each kind, and cannot be deleted while it has a channel. Data freshness is 300 to 900 seconds.",
        ours="Channels are checked, stored, described and counted, but deliver nothing, so none of them fails. The form of "
        "their ARN (`channel/NAME`), the form of their id and the default prefix of a dead-letter queue (`error/`) are our "
        "own, because there is no recording of them.",
        seen=(("API reference", api("CreateChannel")), ("developer guide", f"{GUIDE}/data-delivery-quotas.html")),
        tests=(
            f"{_UNIT}/test_channels.py::test_one_channel_for_each_kind_of_destination",
            f"{_UNIT}/test_channels.py::test_a_stream_with_channels_cannot_be_deleted",
            f"{_UNIT}/test_channels.py::test_whatever_is_asked_for_is_described",
        ),
    ),
    Detail(
        what="Base64",
        aws="Base64 is read strictly: line breaks, white space, missing padding, the alphabet for URLs and surplus bits are "
        "refused with SerializationException.",
        seen=_kinesalite("helpers"),
        tests=(f"{_UNIT}/test_constraints.py::test_base64_is_strict",),
    ),
    Detail(
        what="Creation times",
        aws="Creation times are whole seconds.",
        ours="The same. If a stream is deleted and re-created within a second, the new stream gets the next second and "
        "other start numbers, so that consumers can tell the two streams apart.",
        seen=(*_kinesalite("createStream"), LOCALSTACK_TESTS),
        tests=(
            f"{_UNIT}/test_descriptions.py::test_creation_times_are_whole_seconds",
            f"{_UNIT}/test_state.py::test_streams_of_one_name_are_distinguished_however_soon_one_follows_the_other",
        ),
    ),
    Detail(
        what="DeleteStream while the stream is CREATING",
        aws="The request is accepted, and the stream is DELETING, without shards.",
        seen=_kinesalite("deleteStream"),
        tests=(f"{_UNIT}/test_management.py::test_a_stream_may_be_deleted_while_it_is_created",),
    ),
    Detail(
        what="UpdateStreamMode, twice in 24 hours",
        aws="A stream's mode can be changed twice within 24 hours. The text of the refusal is not recorded.",
        ours="The third change is refused with LimitExceededException, unless limits are switched off.",
        seen=(("Developer guide", f"{GUIDE}/how-do-i-size-a-stream.html"),),
        tests=(f"{_UNIT}/test_management.py::test_the_mode_is_changed_twice_a_day",),
    ),
    Detail(
        what="Characters and number of tags",
        aws="Unicode letters, numbers and spaces and `_ . / = + - @` are accepted. A percent sign is refused with a text of "
        "its own. A stream has up to 50 tags, but the text of the refusal still says 10. Keys that begin with `aws:` are "
        "reserved.",
        ours="The same wherever tags are given: AddTagsToStream, TagResource, CreateStream and RegisterStreamConsumer. A "
        "colon is accepted too. The text for reserved keys is not recorded.",
        seen=_kinesalite("addTagsToStream", "removeTagsFromStream", "listTagsForStream"),
        tests=(
            f"{_UNIT}/test_tags.py::test_characters_that_aws_does_not_know_are_refused_in_its_words",
            f"{_UNIT}/test_tags.py::test_a_percent_sign_is_refused_in_words_of_its_own",
            f"{_UNIT}/test_tags.py::test_characters_that_aws_knows",
            f"{_UNIT}/test_tags.py::test_the_limit_and_reserved_keys_hold_wherever_tags_are_given",
        ),
    ),
)


NOTE = "<!-- Written by tests/interop/differences.py from its tables: change those. -->"

SUMMARY = """# Differences from AWS

{note}

The embedded server imitates AWS. The server was compared with answers of AWS that the tests of other projects recorded,
and with [kinesis-local](https://www.npmjs.com/package/kinesis-local) 0.6.2, an independent emulator of Kinesis. No call
was made to AWS for these pages. If you have an account, a [single command](conformance-on-aws.md) compares the server
with AWS itself.

| table | rows | |
| --- | --- | --- |
| [Differences from recordings of AWS](differences-recordings.md) | {recorded} | recorded answers that the server does not reproduce, with the reason |
| [Details of AWS](differences-details.md) | {details} | what the recordings show beyond single fields, and whether the server does the same |
| [Error texts](differences-texts.tsv) | {texts} | AWS's texts, and where each was seen |
| [Differences from kinesis-local](differences-kinesis-local.tsv) | {local} | fields in which the two servers differ, and what supports our answer |

Every row has a test, so that the tables stay accurate. `python tests/interop/differences.py` writes these tables.

## Recordings of AWS

| source | content | why it counts as AWS's answer |
| --- | --- | --- |
| [LocalStack](https://github.com/localstack/localstack/tree/8b9a79f05846835cf4dff63ab7eefdde9df83783/tests/aws/services/kinesis) | AWS's answers, field by field, with the date of each | The tests ran against AWS, and the recording is a file. |
| [kinesalite](https://github.com/mhart/kinesalite/tree/c76689da192ab96c87c5db8f95c1e3fba1985433/test) | requests with the status, code and text of AWS's answer | The author says in [a commit of 2018](https://github.com/mhart/kinesalite/commit/7d62e92f4b44feafd79cd796211d2ba05026195a) that all tests pass against AWS. The tests of ListShards were added days later to the same suite. |
| [moto](https://github.com/getmoto/moto/tree/0af643a5dbfc98797f08ee64f5be3ef8002d56ff/tests/test_kinesis) | error texts, numbers of shards | The [pull request](https://github.com/getmoto/moto/pull/4540) that added them says that they were seen on AWS. Most other tests of moto describe moto. |

## Error texts

A test sends a request for each row and compares the whole text. The names in the texts are those of the test: the
stream `s` of the account 000000000000. Texts without a source are our own, because AWS's texts are not known. The texts about
channels and about most limits of the account are also ours.

The member that holds the text is `message`; for SerializationException, it is `Message`. The member is absent where AWS
sends no text: UnknownOperationException, InternalFailure, and an unparseable body ([`kinesalite
connection.js`](https://github.com/mhart/kinesalite/blob/c76689da192ab96c87c5db8f95c1e3fba1985433/test/connection.js)).

Another test violates every constraint of botocore's model, one at a time
(`tests/unit/server/model/test_broken_constraints.py`), except minimum lengths of 0, which no value can violate. AWS prints
at most ten violated constraints, in an order that varies. We use the order in the recordings from before 2017.

## kinesis-local

The same calls go to both servers, through boto3, and the answers are compared field by field. Sequence numbers,
iterators, times and message texts are not compared. The comparison also leaves out states that last for milliseconds (CREATING,
UPDATING, DELETING), DescribeLimits, SubscribeToShard, the order of ParentShards, and ListStreams after an unknown name,
where kinesis-local lists all streams. The column "Basis" says what supports our answer: AWS's documentation, or a recording.
"""

DETAILS_HEAD = f"""# Details of AWS

{NOTE}

The [recordings of AWS](differences.md#recordings-of-aws) show these details, which go beyond the fields of a single
answer. Each row has tests. `tests/interop/differences.py` names the tests for each row.
"""

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tested"


def files():
    """Return the text of every file that is generated from the tables, by its path."""
    counts = {
        "recorded": len(recorded["RECORDED_DIFFERENCES"]),
        "details": len(DETAILS),
        "texts": len(TEXTS["TEXTS"]),
        "local": len(DIFFERENCES),
    }
    recordings = f"# Differences from recordings of AWS\n\n{NOTE}\n\n{recorded['section']()}"
    return {
        FOLDER / "differences.md": SUMMARY.format(note=NOTE, **counts),
        FOLDER / "differences-recordings.md": recordings,
        FOLDER / "differences-details.md": f"{DETAILS_HEAD}\n{_details_table()}",
        FOLDER / "differences-texts.tsv": TEXTS["table"](),
        FOLDER / "differences-kinesis-local.tsv": _kinesis_local_table(),
    }


def _details_table():
    lines = ["| Detail | AWS | Shardline | Seen in |", "| --- | --- | --- | --- |"]
    for detail in DETAILS:
        seen = ", ".join(f"[{name}]({address})" for name, address in detail.seen)
        lines.append(f"| {detail.what} | {detail.aws} | {detail.ours} | {seen} |")
    return "\n".join(lines) + "\n"


def _kinesis_local_table():
    lines = ["Operations\tCase\tField\tkinesis-local\tShardline\tWhy\tBasis\tReference\tRecorded"]
    for entry in DIFFERENCES:
        operations = ", ".join(_camel(operation) for operation in entry.operations)
        cases = "; ".join(entry.cases) or "any"
        cells = (operations, cases, entry.field, _said(entry.theirs), _said(entry.ours), entry.why, entry.basis)
        lines.append("\t".join((*cells, entry.source, " ".join(entry.records))))
    return "\n".join(lines) + "\n"


def _camel(operation):
    return "".join(part.capitalize() for part in operation.split("_"))


def _said(value):
    return f"shards {', '.join(value) or 'none'}" if isinstance(value, list) else str(value)


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
