"""Aggregating and deaggregating raw records, by example."""

from base64 import b64encode
from datetime import UTC, datetime

import pytest
from tests.aggregates import build_aggregate, split_aggregate

from shardline.codec.raw_records import aggregate, deaggregate
from shardline.codec.shapes import GetRecordsResponse, RawRecord, SubscribeToShardEvent
from shardline.errors import UsageError
from shardline.model.hashing import WHOLE_RING, HashRange, hash_key_of
from shardline.model.record import Record

NUMBER = "49590338271490256608559692538361571095921575989136588898"
ARRIVED_AT = 1_545_084_650.987
MEMBERS = [("a", b"one", None), ("b", b"two", "7")]
AGGREGATE = aggregate(MEMBERS)


def from_boto3(data, **changes):
    return {
        "SequenceNumber": NUMBER,
        "ApproximateArrivalTimestamp": datetime.fromtimestamp(ARRIVED_AT, UTC),
        "Data": data,
        "PartitionKey": "outer",
        "EncryptionType": "NONE",
    } | changes


def from_lambda(data, **changes):
    """The event of https://docs.aws.amazon.com/lambda/latest/dg/with-kinesis.html."""
    return {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": "outer",
            "sequenceNumber": NUMBER,
            "data": b64encode(data).decode(),
            "approximateArrivalTimestamp": ARRIVED_AT,
        }
        | changes.pop("kinesis", {}),
        "eventSource": "aws:kinesis",
        "eventVersion": "1.0",
        "eventID": f"shardId-000000000006:{NUMBER}",
        "eventName": "aws:kinesis:record",
        "invokeIdentityArn": "arn:aws:iam::123456789012:role/lambda-role",
        "awsRegion": "us-east-2",
        "eventSourceARN": "arn:aws:kinesis:us-east-2:123456789012:stream/orders",
    } | changes


def from_firehose(data, /, **changes):
    """The event of https://docs.aws.amazon.com/lambda/latest/dg/services-kinesisfirehose.html."""
    return {
        "recordId": NUMBER + "0",
        "approximateArrivalTimestamp": 1_545_084_650_000,
        "data": b64encode(data).decode(),
        "kinesisRecordMetadata": {
            "shardId": "shardId-000000000006",
            "partitionKey": "outer",
            "approximateArrivalTimestamp": 1_545_084_650_987,
            "sequenceNumber": NUMBER,
            "subsequenceNumber": "",
        }
        | changes.pop("kinesisRecordMetadata", {}),
    } | changes


def outer(data, **changes):
    facts = {"key": "outer", "sequence_number": NUMBER, "arrived_at": ARRIVED_AT}
    return Record(data, **(facts | changes))


def members(**facts):
    return [
        Record(data, key, explicit_hash_key, sub_sequence=place, aggregated=True, **facts)
        for place, (key, data, explicit_hash_key) in enumerate(MEMBERS)
    ]


class TestAggregate:
    def test_is_what_the_producer_makes(self):
        assert build_aggregate(MEMBERS) == AGGREGATE

    def test_takes_pairs_triples_and_any_iterable(self):
        assert aggregate(iter([("a", b"one"), ["b", b"two", "7"]])) == AGGREGATE

    def test_takes_any_kind_of_bytes(self):
        assert aggregate([("a", bytearray(b"one")), ("b", memoryview(b"two"), "7")]) == AGGREGATE

    def test_one_record_makes_an_aggregate_too(self):
        assert split_aggregate(aggregate([("a", b"")])) == [("a", b"", None)]

    def test_headers_come_back(self):
        made = aggregate(
            [
                ("a", b"1", {"content-type": "text/plain"}),
                ("a", b"2"),
                ("b", b"3", "7", {"proof-bin": b"\x00"}),
                ("b", b"4", None, None),
                ["c", b"5", None, {}],
            ]
        )
        records = deaggregate(made)
        assert [record.headers for record in records] == [
            {"content-type": "text/plain"},
            {},
            {"proof-bin": "AA=="},
            {},
            {},
        ]
        assert [record.data for record in records] == [b"1", b"2", b"3", b"4", b"5"]
        assert records[2].explicit_hash_key == "7"
        assert deaggregate(records) == records

    def test_a_wrong_header_is_named(self):
        with pytest.raises(UsageError, match="record 1: the header 'a' must be a str, not int"):
            aggregate([("a", b""), ("a", b"", {"a": 1})])

    def test_none_makes_none(self):
        with pytest.raises(UsageError, match="at least one record"):
            aggregate([])

    @pytest.mark.parametrize("records", [None, 7, "ab", b"ab", {"a": b"one"}])
    def test_refuses_what_holds_no_records(self, records):
        with pytest.raises(UsageError, match="aggregate takes an iterable of tuples .* not " + type(records).__name__):
            aggregate(records)

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ("ab", r"expected a tuple \(key, data\).*not str"),
            (None, r"expected a tuple \(key, data\).*not NoneType"),
            (("a",), "not 1 values"),
            (("a", b"", None, None, None), "not 5 values"),
            ((None, b""), "partition key must be a str, not NoneType"),
            (("", b""), "1 to 256 characters"),
            (("k" * 257, b""), "1 to 256 characters"),
            (("\ud800", b""), "surrogate"),
            (("a", "text"), r"not str: .*\.encode\(\)"),
            (("a", 7), "data must be bytes, not int"),
            (("a", b"", 7), "explicit hash key must be a str"),
            (("a", b"", "007"), "explicit hash key must be a plain decimal"),
            (("a", b"", ""), "explicit hash key must be a plain decimal"),
        ],
    )
    def test_an_error_says_which_record(self, bad, message):
        with pytest.raises(UsageError, match=f"^record 2: .*{message}"):
            aggregate([("a", b"one"), ("b", b"two"), bad])


class TestWithin:
    """An aggregate has records of only one shard."""

    def test_everything_is_within_the_whole_ring(self):
        assert aggregate(MEMBERS, within=WHOLE_RING) == AGGREGATE

    def test_a_key_outside_is_refused_by_name(self):
        a, b = hash_key_of("a"), hash_key_of("b")
        assert aggregate([("a", b"")], within=HashRange(a, a))
        with pytest.raises(UsageError, match=rf"^record 1 \(key 'b'\) .* {b} is outside of {a}\.\.{a}"):
            aggregate([("a", b""), ("b", b"")], within=HashRange(a, a))

    def test_an_explicit_hash_key_counts_instead_of_the_key(self):
        assert aggregate([("a", b"", "7")], within=HashRange(7, 7))
        with pytest.raises(UsageError, match=r"^record 0 \(key 'a'\) .* 8 is outside"):
            aggregate([("a", b"", "8")], within=HashRange(7, 7))

    def test_must_be_a_hash_range(self):
        with pytest.raises(UsageError, match="within= takes a HashRange, not tuple"):
            aggregate(MEMBERS, within=(0, 7))


class TestPayloads:
    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_alone(self, kind):
        assert deaggregate(kind(AGGREGATE)) == members()
        assert deaggregate(kind(b"plain")) == [Record(b"plain", None)]

    def test_in_an_iterable(self):
        assert deaggregate(iter([b"plain", AGGREGATE, b""])) == [Record(b"plain", None), *members(), Record(b"", None)]

    def test_nothing(self):
        assert deaggregate([]) == []


class TestGetRecords:
    FACTS = {"sequence_number": NUMBER, "arrived_at": ARRIVED_AT}  # noqa: RUF012 - not changed

    def test_plain(self):
        assert deaggregate(from_boto3(b"plain")) == [outer(b"plain")]

    def test_aggregate(self):
        assert deaggregate(from_boto3(AGGREGATE)) == members(**self.FACTS)

    def test_a_time_may_be_a_number_or_absent(self):
        assert deaggregate(from_boto3(b"", ApproximateArrivalTimestamp=7))[0].arrived_at == 7.0
        assert deaggregate({"Data": b"x"}) == [Record(b"x", None)]

    def test_whole_responses(self):
        response = {"Records": [from_boto3(b"plain"), from_boto3(AGGREGATE)], "NextShardIterator": "AAA"}
        expected = [outer(b"plain"), *members(**self.FACTS)]
        assert deaggregate(response) == expected
        assert deaggregate([response, response]) == expected * 2
        assert deaggregate({"Records": []}) == []


class TestLambda:
    FACTS = {  # noqa: RUF012 - not changed
        "sequence_number": NUMBER,
        "arrived_at": ARRIVED_AT,
        "shard_id": "shardId-000000000006",
        "stream": "orders",
    }

    def test_plain(self):
        assert deaggregate(from_lambda(b"plain")) == [outer(b"plain", **self.FACTS)]

    def test_aggregate(self):
        assert deaggregate([from_lambda(AGGREGATE)]) == members(**self.FACTS)

    def test_whole_events(self):
        event = {"Records": [from_lambda(AGGREGATE), from_lambda(b"plain")]}
        assert deaggregate(event) == [*members(**self.FACTS), outer(b"plain", **self.FACTS)]

    @pytest.mark.parametrize(
        ("arn", "stream"),
        [
            ("arn:aws-cn:kinesis:cn-north-1:123456789012:stream/orders", "orders"),
            ("arn:aws:kinesis:us-east-2:123456789012:stream/orders/consumer/billing:1545084650", "orders"),
            ("arn:aws:kinesis:EXAMPLE", None),
            (None, None),
        ],
    )
    def test_the_stream_comes_from_the_arn(self, arn, stream):
        assert deaggregate(from_lambda(b"", eventSourceARN=arn))[0].stream == stream

    @pytest.mark.parametrize("event_id", ["", "no shard", None])
    def test_the_shard_may_be_unknown(self, event_id):
        assert deaggregate(from_lambda(b"", eventID=event_id))[0].shard_id is None

    def test_everything_but_the_data_may_be_absent(self):
        assert deaggregate({"kinesis": {"data": "eA=="}}) == [Record(b"x", None)]


class TestFirehose:
    FACTS = {  # noqa: RUF012 - not changed
        "sequence_number": NUMBER,
        "arrived_at": ARRIVED_AT,
        "shard_id": "shardId-000000000006",
    }

    def test_plain(self):
        assert deaggregate(from_firehose(b"plain")) == [outer(b"plain", **self.FACTS)]

    def test_aggregate(self):
        assert deaggregate(from_firehose(AGGREGATE)) == members(**self.FACTS)

    def test_whole_events(self):
        event = {
            "invocationId": "invoked123",
            "deliveryStreamArn": "arn:aws:firehose:us-east-2:123456789012:deliverystream/to-s3",
            "sourceKinesisStreamArn": "arn:aws:kinesis:us-east-2:123456789012:stream/orders",
            "region": "us-east-2",
            "records": [from_firehose(AGGREGATE), from_firehose(b"plain")],
        }
        facts = self.FACTS | {"stream": "orders"}
        assert deaggregate(event) == [*members(**facts), outer(b"plain", **facts)]

    def test_put_into_firehose_directly(self):
        record = {"recordId": "1", "approximateArrivalTimestamp": 1_545_084_650_987, "data": "eA=="}
        assert deaggregate(record) == [Record(b"x", None, arrived_at=ARRIVED_AT)]

    @pytest.mark.parametrize("number", [None, "", "0", 0])
    def test_the_first_of_an_aggregate_or_none(self, number):
        (record,) = deaggregate(from_firehose(b"x", kinesisRecordMetadata={"subsequenceNumber": number}))
        assert (record.sub_sequence, record.aggregated) == (0, False)

    @pytest.mark.parametrize("number", ["3", 3])
    def test_what_firehose_took_out_of_an_aggregate_is_not_opened_again(self, number):
        raw = from_firehose(AGGREGATE, kinesisRecordMetadata={"subsequenceNumber": number})
        assert deaggregate(raw) == [outer(AGGREGATE, **self.FACTS, sub_sequence=3, aggregated=True)]


class TestOurRecords:
    def test_plain(self):
        record = Record(b"plain", "k", "7", "1", shard_id="s", arrived_at=1.0, stream="t")
        assert deaggregate(record) == [record]

    def test_aggregate(self):
        record = Record(AGGREGATE, "k", None, "1", shard_id="s", arrived_at=1.0, stream="t")
        found = deaggregate([record])
        assert found == members(sequence_number="1", shard_id="s", arrived_at=1.0, stream="t")
        assert {type(each) for each in found} == {Record}
        assert [each.order.sub_sequence for each in found] == [0, 1]

    def test_what_came_out_of_an_aggregate_is_not_opened_again(self):
        wrapped = Record(aggregate([("k", AGGREGATE)]), "k", None, "1")
        once = deaggregate(wrapped)
        assert once == [Record(AGGREGATE, "k", None, "1", aggregated=True)]
        assert deaggregate(once) == once


class TestMixtures:
    def test_all_forms_together_keep_their_order(self):
        raw = [b"1", from_boto3(b"2"), {"Records": [from_lambda(b"3"), b"4"]}, from_firehose(b"5"), Record(b"6", "k")]
        assert [record.data for record in deaggregate(raw)] == [b"1", b"2", b"3", b"4", b"5", b"6"]

    def test_many_aggregates_and_other_records_keep_their_order(self):
        """More than are checked side by side, so that a group ends in the middle."""
        raw, expected = [], []
        for number in range(50):
            name = str(number).encode()
            raw += [aggregate([("k", name), ("k", name + b"b")]), name + b"c", bytearray(AGGREGATE[:-1] + b"x")]
            expected += [name, name + b"b", name + b"c", AGGREGATE[:-1] + b"x"]
        assert [record.data for record in deaggregate(iter(raw))] == expected

    def test_the_index_of_a_mistake_counts_all_records(self):
        with pytest.raises(UsageError, match=r"^record 40: "):
            deaggregate([AGGREGATE] * 40 + [7])


class TestMistakes:
    @pytest.mark.parametrize("records", [None, 7, "text"])
    def test_no_records_at_all(self, records):
        with pytest.raises(UsageError, match="deaggregate takes bytes, .* not " + type(records).__name__):
            deaggregate(records)

    @pytest.mark.parametrize("record", [None, "text", 7, [b"nested"], {}, {"data": "eA=="}, {"recordId": "1"}])
    def test_no_record(self, record):
        with pytest.raises(UsageError, match="^record 1: expected bytes, .* not " + type(record).__name__):
            deaggregate([b"plain", record])

    def test_an_event_is_no_record_of_an_event(self):
        with pytest.raises(UsageError, match=r"^record 0: expected .* not dict"):
            deaggregate({"Records": [{"Records": []}]})

    @pytest.mark.parametrize("records", [None, "text", b"bytes", {"Data": b""}])
    def test_an_event_without_a_list(self, records):
        with pytest.raises(UsageError, match="'Records' must hold a list of records, not " + type(records).__name__):
            deaggregate({"Records": records})

    @pytest.mark.parametrize("text", ["e", "eA", "eA==\n", "e A==", "eA===", "_-==", "é==="])
    @pytest.mark.parametrize("form", ["lambda", "firehose"])
    def test_bad_base64(self, text, form):
        raw = from_lambda(b"", kinesis={"data": text}) if form == "lambda" else from_firehose(b"", data=text)
        with pytest.raises(UsageError, match=r"^record 2: its data is not valid base64"):
            deaggregate([b"", b"", raw])

    @pytest.mark.parametrize(
        ("raw", "message"),
        [
            (from_boto3("eA=="), "'Data' must be bytes, as boto3 returns it, not str"),
            (from_boto3(7), "data must be bytes, not int"),
            (from_boto3(b"", PartitionKey=7), "'PartitionKey' must be a str, not int"),
            (from_boto3(b"", SequenceNumber=7), "'SequenceNumber' must be a str, not int"),
            (from_boto3(b"", ApproximateArrivalTimestamp="now"), "'ApproximateArrivalTimestamp' must be a datetime"),
            (from_boto3(b"", ApproximateArrivalTimestamp=True), "'ApproximateArrivalTimestamp' must be a datetime"),
            (from_boto3(b"", ApproximateArrivalTimestamp=datetime(2018, 12, 17)), "needs a time zone"),  # noqa: DTZ001
            ({"kinesis": "text"}, "'kinesis' must be a mapping, not str"),
            ({"kinesis": None}, "its data must be a str of base64, not NoneType"),
            (from_lambda(b"", kinesis={"data": b"eA=="}), "its data must be a str of base64, not bytes"),
            (from_lambda(b"", eventID=7), "'eventID' must be a str, not int"),
            (from_firehose(b"", kinesisRecordMetadata={"shardId": 7}), "'shardId' must be a str, not int"),
            (from_firehose(b"", kinesisRecordMetadata={"subsequenceNumber": "x"}), "'subsequenceNumber' .* not 'x'"),
            (from_firehose(b"", kinesisRecordMetadata={"subsequenceNumber": -1}), "'subsequenceNumber' .* not -1"),
            (from_firehose(b"", kinesisRecordMetadata={"subsequenceNumber": "٣"}), "'subsequenceNumber'"),
        ],
    )
    def test_wrong_fields(self, raw, message):
        with pytest.raises(UsageError, match=f"^record 0: .*{message}"):
            deaggregate(raw)


class TestWhatOurClientReads:
    """This also works for records, pages and events of ``Client``."""

    RAW = RawRecord(aggregate([("a", b"1"), ("b", b"2")]), "7", key="a", arrived_at=1.5)
    PLAIN = RawRecord(b"plain", "8", key=None, arrived_at=2.5)

    @pytest.mark.parametrize(
        "given",
        [
            [RAW, PLAIN],
            GetRecordsResponse([RAW, PLAIN]),
            SubscribeToShardEvent([RAW, PLAIN]),
        ],
    )
    def test_is_opened(self, given):
        assert deaggregate(given) == [
            Record(b"1", "a", sequence_number="7", sub_sequence=0, arrived_at=1.5, aggregated=True),
            Record(b"2", "b", sequence_number="7", sub_sequence=1, arrived_at=1.5, aggregated=True),
            Record(b"plain", None, sequence_number="8", arrived_at=2.5),
        ]

    def test_one_record_is_opened(self):
        assert [record.key for record in deaggregate(self.RAW)] == ["a", "b"]


def test_an_invalid_time_is_reported():
    """Regression: it raised an OverflowError."""
    kinesis = {"data": "eA==", "partitionKey": "k", "sequenceNumber": NUMBER, "approximateArrivalTimestamp": 10**400}
    with pytest.raises(UsageError, match=r"record 0: .*is not a time"):
        deaggregate({"Records": [{"kinesis": kinesis, "eventSource": "aws:kinesis"}]})
