"""Tests of ``server.model.records``."""

import hashlib

import pytest

from shardline.model.hashing import HASH_KEY_COUNT
from shardline.server.model.sequence_numbers import Numbering
from shardline.server.model.settings import Limits

KIB, MIB = 1024, 1024 * 1024
HOUR = 3600.0
FIRST = "shardId-000000000000"


# ---- putting


def test_a_put_is_routed_by_the_md5_of_its_key(server):
    server.create(shards=4)
    for key in ("a", "user-1", "\u00e9", "x" * 256, "\U0001f600" * 256):
        shard = int.from_bytes(hashlib.md5(key.encode()).digest(), "big") * 4 // HASH_KEY_COUNT
        assert server.put(b"x", key)["ShardId"] == f"shardId-{shard:012d}"
        (result,) = server.put_many([(b"x", key)])["Records"]
        assert result["ShardId"] == f"shardId-{shard:012d}"


def test_an_explicit_hash_key_beats_the_key(server):
    server.create(shards=2)
    assert server.put(b"x", "a", hash_key=0)["ShardId"] == FIRST
    assert server.put(b"x", "a", hash_key=HASH_KEY_COUNT - 1)["ShardId"] == "shardId-000000000001"


@pytest.mark.parametrize("hash_key", [HASH_KEY_COUNT, 10**39 - 1])
def test_a_hash_key_off_the_ring_is_an_invalid_argument(server, hash_key):
    server.create()
    entry = {"Data": b"x", "PartitionKey": "k", "ExplicitHashKey": str(hash_key)}
    assert server.refused("PutRecord", StreamName="s", **entry) == "InvalidArgumentException"
    good = {"Data": b"x", "PartitionKey": "k"}
    assert server.refused("PutRecords", StreamName="s", Records=[good, entry]) == "InvalidArgumentException"
    assert server.read() == []  # everything was refused


def test_put_records_answers_entry_by_entry(server):
    server.create(shards=2)
    body = server.put_many([(b"%d" % number, str(number)) for number in range(20)])
    assert body["FailedRecordCount"] == 0
    assert all(set(entry) == {"SequenceNumber", "ShardId"} for entry in body["Records"])
    numbers = [int(entry["SequenceNumber"]) for entry in body["Records"] if entry["ShardId"] == FIRST]
    assert numbers == sorted(set(numbers))
    assert sorted(server.read(0) + server.read(1), key=int) == [b"%d" % number for number in range(20)]


def test_a_request_takes_500_entries_and_not_one_more(server):
    server.create()
    entry = {"Data": b"x", "PartitionKey": "k"}
    assert len(server.call("PutRecords", StreamName="s", Records=[entry] * 500)["Records"]) == 500
    assert server.refused("PutRecords", StreamName="s", Records=[entry] * 501) == "ValidationException"
    assert server.refused("PutRecords", StreamName="s", Records=[]) == "ValidationException"


def test_a_request_takes_10_mib_with_its_keys_and_not_one_byte_more(server):
    server.create()
    entry = {"Data": bytes(MIB - 1), "PartitionKey": "k"}
    assert server.call("PutRecords", StreamName="s", Records=[entry] * 10)["FailedRecordCount"] == 0
    more = [*[entry] * 10, {"Data": b"", "PartitionKey": "k"}]
    assert server.refused("PutRecords", StreamName="s", Records=more) == "InvalidArgumentException"


def test_the_largest_record_is_a_property_of_the_stream(server):
    server.create()

    def put(size):
        return server.answer("PutRecord", StreamName="s", Data=bytes(size - 1), PartitionKey="k").refusal

    assert put(MIB) is None
    assert put(MIB + 1).code == "ValidationException"
    assert "'data'" in put(MIB + 1).message
    server.call("UpdateMaxRecordSize", StreamARN=server.arn(), MaxRecordSizeInKiB=2048)
    assert server.summary()["MaxRecordSizeInKiB"] == 2048
    assert put(2 * MIB) is None
    assert put(2 * MIB + 1).code == "ValidationException"
    records = [{"Data": b"x", "PartitionKey": "k"}, {"Data": bytes(3 * MIB), "PartitionKey": "k"}]
    assert server.refused("PutRecords", StreamName="s", Records=records) == "ValidationException"
    assert "'records.2.member.data'" in server.why("PutRecords", StreamName="s", Records=records)


def test_a_key_counts_as_its_utf8_bytes(server):
    server.create()
    members = {"StreamName": "s", "PartitionKey": "\u00e9" * 10}
    server.call("PutRecord", Data=bytes(MIB - 20), **members)
    assert server.refused("PutRecord", Data=bytes(MIB - 19), **members) == "ValidationException"


def test_a_missing_key_is_refused(server):
    server.create()
    assert server.refused("PutRecord", StreamName="s", Data=b"x") == "ValidationException"
    assert "'partitionKey'" in server.why("PutRecord", StreamName="s", Data=b"x")
    assert server.refused("PutRecords", StreamName="s", Records=[{"Data": b"x"}]) == "ValidationException"


ORDERING = {"StreamName": "s", "Data": b"x", "PartitionKey": "a", "ExplicitHashKey": "0"}


@pytest.mark.parametrize(
    "after",
    [
        0,
        1,
        12,
        0x20000000000000000000000000000000000000000000002,
        0x20000000000000000000000000000000000000000000001,
        0x20000000000000000000000000000000000000800000002,
    ],
)
def test_an_ordering_number_of_any_shard_and_layout_is_accepted(server, after):
    """Recorded in kinesalite's putRecord.js; small numbers are common as the first one."""
    server.create()
    assert server.call("PutRecord", SequenceNumberForOrdering=str(after), **ORDERING)


def test_an_ordering_number_of_the_future_is_refused(server):
    server.create(shards=2)
    first = server.call("PutRecord", **ORDERING)["SequenceNumber"]
    second = server.call("PutRecord", SequenceNumberForOrdering=first, **ORDERING)["SequenceNumber"]
    assert int(second) > int(first)
    of_the_other_shard = server.put(b"y", hash_key=2**128 - 1)["SequenceNumber"]
    assert server.call("PutRecord", SequenceNumberForOrdering=of_the_other_shard, **ORDERING)
    not_given_out = str(int(second) + (7 << 80))
    assert (
        server.refused("PutRecord", SequenceNumberForOrdering=not_given_out, **ORDERING) == "InvalidArgumentException"
    )
    in_a_minute = str(Numbering(0, int(server.now) + 60).make(1, int(server.now) + 60))
    assert server.refused("PutRecord", SequenceNumberForOrdering=in_a_minute, **ORDERING) == "InvalidArgumentException"


def test_ordered_puts_go_on_through_a_reshard(server):
    """The numbers of a child begin in the second after its parent's end, so they are not from the future."""
    server.create()
    number = server.call("PutRecord", **ORDERING)["SequenceNumber"]
    for lowest, at in ((0, 2**100), (1, 2**99), (3, 2**98)):
        server.split(lowest, at)
        for _ in range(2):
            last, number = (
                number,
                server.call("PutRecord", SequenceNumberForOrdering=number, **ORDERING)["SequenceNumber"],
            )
            assert int(number) > int(last)


def test_under_auto_distribution_keys_are_kept_and_count_for_nothing(server):
    server.call(
        "CreateStream", StreamName="s", StreamModeDetails={"StreamMode": "ON_DEMAND"}, RecordDistributionStrategy="AUTO"
    )
    keyed = {"Data": b"keyed", "PartitionKey": "k", "ExplicitHashKey": "0"}
    results = [
        server.call("PutRecords", StreamName="s", Records=[keyed, {"Data": b"keyless"}])["Records"] for _ in range(50)
    ]
    assert {entry["ShardId"] for entries in results for entry in entries} == {f"shardId-{n:012d}" for n in range(4)}
    records = [one for shard in range(4) for one in server.page(server.iterator(shard))["Records"]]
    assert {(one["Data"], one.get("PartitionKey")) for one in records} == {(b"keyed", "k"), (b"keyless", None)}
    server.call(
        "UpdateStreamRecordDistributionStrategy",
        StreamARN=server.arn(),
        RecordDistributionStrategy="USER_PARTITION_KEY",
    )
    assert server.refused("PutRecord", StreamName="s", Data=b"x") == "ValidationException"


def test_the_encryption_type_is_returned(server):
    server.create()
    server.put(b"plain")
    server.call("StartStreamEncryption", StreamName="s", EncryptionType="KMS", KeyId="alias/aws/kinesis")
    assert server.put(b"secret")["EncryptionType"] == "KMS"
    assert server.put_many([(b"secret", "k")])["EncryptionType"] == "KMS"
    records = server.page(server.iterator())["Records"]
    assert [one.get("EncryptionType") for one in records] == [None, "KMS", "KMS"]


# ---- rates of writing


def test_exactly_1000_records_pass_in_a_second_and_the_next_fails_alone(make_server):
    server = make_server(limits=Limits()).create()
    entries = [(b"x", "k")] * 500
    assert server.put_many(entries)["FailedRecordCount"] == 0
    assert server.put_many(entries[:499])["FailedRecordCount"] == 0
    body = server.put_many(entries[:3])
    assert body["FailedRecordCount"] == 2
    codes = [entry.get("ErrorCode") for entry in body["Records"]]
    assert codes == [None, *["ProvisionedThroughputExceededException"] * 2]
    assert set(body["Records"][1]) == {"ErrorCode", "ErrorMessage"}
    message = body["Records"][1]["ErrorMessage"]
    assert message == f"Rate exceeded for shard {FIRST} in stream s under account 000000000000."
    entry = {"StreamName": "s", "Data": b"x", "PartitionKey": "k"}
    assert server.refused("PutRecord", **entry) == "ProvisionedThroughputExceededException"
    server.pass_time(0.1)
    assert server.put_many([(b"x", "k")] * 101)["FailedRecordCount"] == 1
    server.pass_time(1)
    assert len(server.read()) == 1100


def test_exactly_one_mib_passes_in_a_second(make_server):
    server = make_server(limits=Limits()).create()
    half = bytes(512 * KIB - 1)
    body = server.put_many([(half, "k"), (half, "k"), (b"", "k")])
    assert [entry.get("ErrorCode") is None for entry in body["Records"]] == [True, True, False]
    server.pass_time(0.5)
    assert server.put_many([(half, "k"), (b"", "k")])["FailedRecordCount"] == 1


def test_a_full_shard_does_not_stop_another(make_server):
    server = make_server(limits=Limits()).create(shards=2)
    full = {"Data": bytes(MIB - 1), "PartitionKey": "k", "ExplicitHashKey": "0"}
    other = {"Data": b"x", "PartitionKey": "k", "ExplicitHashKey": str(HASH_KEY_COUNT - 1)}
    body = server.call("PutRecords", StreamName="s", Records=[full, full, other, full])
    assert [entry.get("ErrorCode") is None for entry in body["Records"]] == [True, False, True, False]
    assert server.read(0) == [full["Data"]]
    assert server.read(1) == [b"x"]


def test_a_record_of_10_mib_passes_a_full_bucket_and_leaves_a_debt(make_server):
    server = make_server(limits=Limits()).create(MaxRecordSizeInKiB=10240)
    large = bytes(10 * MIB - 1)
    server.put(large)
    entry = {"StreamName": "s", "Data": b"x" * KIB, "PartitionKey": "k"}
    server.pass_time(9)
    assert server.refused("PutRecord", **entry) == "ProvisionedThroughputExceededException"
    server.pass_time(0.01)
    assert server.call("PutRecord", **entry)
    server.pass_time(0.9)
    assert server.refused("PutRecord", **(entry | {"Data": large})) == "ProvisionedThroughputExceededException"
    server.pass_time(0.2)
    assert server.put(large)


@pytest.mark.parametrize(
    ("limits", "failed"),
    [
        (Limits(write_records_per_second=None), 0),
        (Limits(write_records_per_second=2, write_bytes_per_second=None), 3),
        (Limits(write_records_per_second=None, write_bytes_per_second=8), 1),
        (Limits.without_rates(), 0),
    ],
)
def test_each_write_rate_can_be_changed_and_switched_off(make_server, limits, failed):
    server = make_server(limits=limits).create()
    assert server.put_many([(b"x", "k")] * 5)["FailedRecordCount"] == failed


def test_the_size_of_a_request_can_be_switched_off(make_server):
    limits = Limits(request_max_bytes=None, write_bytes_per_second=None)
    server = make_server(limits=limits).create()
    assert len(server.put_many([(bytes(MIB - 1), "k")] * 11)["Records"]) == 11


# ---- iterators


@pytest.mark.parametrize("shard_id", ["0", "shardId-0", "shardId-000000000000000000", "anything-0"])
def test_a_short_shard_id_is_as_good_as_the_full_one(server, shard_id):
    """Recorded in kinesalite's getShardIterator.js."""
    server.create(shards=2).put(b"x", hash_key=0)
    assert server.read(shard_id) == [b"x"]
    server.call("RegisterStreamConsumer", StreamARN=server.arn(), ConsumerName="c")
    (consumer,) = server.call("ListStreamConsumers", StreamARN=server.arn())["Consumers"]
    position = {"ShardId": shard_id, "StartingPosition": {"Type": "TRIM_HORIZON"}}
    subscription = server.answer("SubscribeToShard", ConsumerARN=consumer["ConsumerARN"], **position).subscription
    assert [one.data for one in subscription.poll(server.now).records] == [b"x"]
    assert server.ids(ExclusiveStartShardId=shard_id) == [1]
    assert server.ids(ShardFilter={"Type": "AFTER_SHARD_ID", "ShardId": shard_id}) == [1]
    described = server.call("DescribeStream", StreamName="s", ExclusiveStartShardId=shard_id)
    assert [one["ShardId"] for one in described["StreamDescription"]["Shards"]] == ["shardId-000000000001"]


def test_every_type_of_iterator(server):
    server.create()
    puts = []
    for number in range(5):
        puts.append(server.put(b"%d" % number)["SequenceNumber"])
        server.pass_time(10)
    assert server.read(kind="TRIM_HORIZON") == [b"0", b"1", b"2", b"3", b"4"]
    assert server.read(kind="LATEST") == []
    assert server.read(kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=puts[2]) == [b"2", b"3", b"4"]
    assert server.read(kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=puts[2]) == [b"3", b"4"]
    assert server.read(kind="AT_TIMESTAMP", Timestamp=server.now - 30) == [b"2", b"3", b"4"]
    assert server.read(kind="AT_TIMESTAMP", Timestamp=server.now - 29) == [b"3", b"4"]
    assert server.read(kind="AT_TIMESTAMP", Timestamp=0) == [b"0", b"1", b"2", b"3", b"4"]
    assert server.read(kind="AT_TIMESTAMP", Timestamp=server.now) == []
    start = server.shards()[0]["SequenceNumberRange"]["StartingSequenceNumber"]
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        assert len(server.read(kind=kind, StartingSequenceNumber=start)) == 5


def test_latest_stays_where_it_was_made(server):
    server.create().put(b"old")
    iterator = server.iterator(kind="LATEST")
    server.put(b"new")
    assert [one["Data"] for one in server.page(iterator)["Records"]] == [b"new"]


def test_the_time_of_a_record_finds_it_whatever_the_fraction_of_a_millisecond(server):
    server.create()
    for step in range(50):
        server.pass_time(0.000_31)
        server.put(b"%d" % step)
        record = server.page(server.iterator())["Records"][-1]
        assert server.read(kind="AT_TIMESTAMP", Timestamp=record["ApproximateArrivalTimestamp"])[-1] == b"%d" % step
        server.read(kind="AT_TIMESTAMP", Timestamp=server.now)


@pytest.mark.parametrize(
    "members",
    [
        {"ShardIteratorType": "AT_SEQUENCE_NUMBER"},
        {"ShardIteratorType": "AFTER_SEQUENCE_NUMBER"},
        {"ShardIteratorType": "AT_TIMESTAMP"},
        {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1_700_000_000.01},  # the future
        {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1, "StartingSequenceNumber": "1"},
        {"ShardIteratorType": "TRIM_HORIZON", "StartingSequenceNumber": "1"},
        {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "1"},
        {"ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "9" * 56},
    ],
)
def test_a_position_that_makes_no_sense_is_an_invalid_argument(server, members):
    server.create()
    assert server.refused("GetShardIterator", StreamName="s", ShardId=FIRST, **members) == "InvalidArgumentException"


def test_a_number_of_an_earlier_stream_is_refused_in_the_words_of_aws(server):
    """Recorded in kinesalite's getShardIterator.js, like the other refused numbers (``kinesalite_recordings``)."""
    server.create()
    number = str(Numbering(0, int(server.now) - 1000).make(1, 0))
    position = {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "AT_SEQUENCE_NUMBER"}
    assert server.why("GetShardIterator", StartingSequenceNumber=number, **position) == (
        f"StartingSequenceNumber {number} used in GetShardIterator on shard shardId-000000000000 in stream s under account "
        "000000000000 is invalid because it did not come from this stream."
    )


def test_a_number_of_another_shard_or_from_the_future_is_an_invalid_argument(server):
    server.create(shards=2)
    other = server.put(b"x", hash_key=HASH_KEY_COUNT - 1)["SequenceNumber"]
    members = {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "AFTER_SEQUENCE_NUMBER"}
    assert server.refused("GetShardIterator", StartingSequenceNumber=other, **members) == "InvalidArgumentException"
    number = int(server.put(b"x", hash_key=0)["SequenceNumber"])
    future = str(number + (1 << 80))
    assert server.refused("GetShardIterator", StartingSequenceNumber=future, **members) == "InvalidArgumentException"
    last = str(number | 0x7FFFFFFFFFFFFFFF << 80)
    assert server.refused("GetShardIterator", StartingSequenceNumber=last, **members) == "InvalidArgumentException"
    server.split(0, at=5)
    end = server.shards()[0]["SequenceNumberRange"]["EndingSequenceNumber"]
    assert server.read(kind="AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=end) == []


def test_an_iterator_lives_300_seconds_and_no_longer(server):
    server.create().put(b"x")
    iterator = server.iterator()
    server.pass_time(300)
    following = server.page(iterator)["NextShardIterator"]
    server.pass_time(0.001)
    assert server.refused("GetRecords", ShardIterator=iterator) == "ExpiredIteratorException"
    server.pass_time(299.999)
    assert server.page(following)["Records"] == []


def test_an_iterator_can_live_forever(make_server):
    server = make_server(limits=Limits(iterator_life=None)).create()
    iterator = server.iterator()
    server.pass_time(9999)
    assert server.page(iterator)["Records"] == []


@pytest.mark.parametrize("iterator", ["x", "AAAAAAAAAAE=", "AAAA" * 100, "\u00e9", " "])
def test_a_garbage_iterator_is_an_invalid_argument(server, iterator):
    server.create()
    assert server.refused("GetRecords", ShardIterator=iterator) == "InvalidArgumentException"


def test_an_iterator_of_another_server_or_of_a_listing_is_an_invalid_argument(make_server):
    server, other = make_server(seed=1).create(shards=2), make_server(seed=2).create()
    assert server.refused("GetRecords", ShardIterator=other.iterator()) == "InvalidArgumentException"
    token = server.call("ListShards", StreamName="s", MaxResults=1)["NextToken"]
    assert server.refused("GetRecords", ShardIterator=token) == "InvalidArgumentException"


def test_an_iterator_of_a_deleted_or_recreated_stream_finds_no_stream(server):
    server.create()
    iterator = server.iterator()
    server.call("DeleteStream", StreamName="s")
    assert server.refused("GetRecords", ShardIterator=iterator) == "ResourceNotFoundException"
    server.pass_time(1).create()
    assert server.refused("GetRecords", ShardIterator=iterator) == "ResourceNotFoundException"


def test_an_iterator_of_a_missing_stream_names_the_shard(server):
    """Recorded in kinesalite's getRecords.js and getShardIterator.js: one text for a missing stream and shard."""
    server.create(shards=2)
    second = server.iterator(1)
    missing = "Shard shardId-000000000001 in stream s under account 000000000000 does not exist"
    server.call("DeleteStream", StreamName="s")
    position = {"StreamName": "s", "ShardId": "shardId-1", "ShardIteratorType": "LATEST"}
    assert server.why("GetRecords", ShardIterator=second) == missing
    assert server.why("GetShardIterator", **position) == missing
    server.pass_time(1).create(shards=1)
    assert server.why("GetRecords", ShardIterator=second) == missing
    assert server.why("GetShardIterator", **position) == missing


def test_an_iterator_may_be_in_quotes(server):
    """Recorded in LocalStack's test_get_records_shard_iterator_with_surrounding_quotes."""
    server.create().put(b"x")
    iterator = server.iterator()
    assert [one["Data"] for one in server.page(f'"{iterator}"')["Records"]] == [b"x"]
    for broken in (f'"{iterator}', f'{iterator}"', f'""{iterator}""', f"'{iterator}'", '"', '""'):
        assert server.refused("GetRecords", ShardIterator=broken) == "InvalidArgumentException"


def test_the_stream_of_an_iterator_may_be_named_beside_it(server):
    server.create().create("t").put(b"x")
    iterator = server.iterator()
    assert [one["Data"] for one in server.page(iterator, StreamARN=server.arn())["Records"]] == [b"x"]
    assert server.refused("GetRecords", ShardIterator=iterator, StreamARN=server.arn("t")) == "InvalidArgumentException"
    elsewhere = server.arn().replace("000000000000", "123456789012")
    assert server.refused("GetRecords", ShardIterator=iterator, StreamARN=elsewhere) == "ResourceNotFoundException"
    assert server.refused("GetRecords", ShardIterator=iterator, StreamARN="s") == "ValidationException"


# ---- pages


def test_pages_of_a_limit_go_on_where_the_last_ended(server):
    server.create()
    server.put_many([(b"%d" % number, "k") for number in range(7)])
    iterator, pages = server.iterator(), []
    for _ in range(4):
        page = server.page(iterator, Limit=3)
        pages.append([one["Data"] for one in page["Records"]])
        iterator = page["NextShardIterator"]
    assert pages == [[b"0", b"1", b"2"], [b"3", b"4", b"5"], [b"6"], []]
    server.put(b"7")
    assert [one["Data"] for one in server.page(iterator)["Records"]] == [b"7"]


def test_an_iterator_can_be_used_again(server):
    server.create().put(b"x")
    iterator = server.iterator()
    first, again = server.page(iterator), server.page(iterator)
    assert first["Records"] == again["Records"]
    assert first["NextShardIterator"] != again["NextShardIterator"]


def test_a_page_holds_10_mib_and_10000_records_at_most(server):
    server.create()
    entry = (bytes(MIB - 1), "k")
    server.put_many([entry] * 10)
    server.put_many([entry] * 2)
    page = server.page(server.iterator())
    assert len(page["Records"]) == 10
    assert len(server.page(page["NextShardIterator"])["Records"]) == 2
    server.create("many")
    for _ in range(21):
        server.put_many([(b"", "k")] * 500, name="many")
    page = server.page(server.iterator(name="many"))
    assert len(page["Records"]) == 10_000
    assert len(server.page(page["NextShardIterator"])["Records"]) == 500


def test_millis_behind_latest_is_how_long_the_next_record_has_waited(server):
    server.create()
    for number in range(3):
        server.put(b"%d" % number)
        server.pass_time(10)
    page = server.page(server.iterator(), Limit=1)
    assert page["MillisBehindLatest"] == 20_000
    page = server.page(page["NextShardIterator"], Limit=1)
    assert page["MillisBehindLatest"] == 10_000
    page = server.page(page["NextShardIterator"], Limit=1)
    assert page["MillisBehindLatest"] == 0


def test_a_record_is_shown_as_aws_shows_it(server):
    server.create()
    number = server.put(b"data", "key")["SequenceNumber"]
    (record,) = server.page(server.iterator())["Records"]
    expected = {
        "SequenceNumber": number,
        "Data": b"data",
        "PartitionKey": "key",
        "ApproximateArrivalTimestamp": server.now,
    }
    assert record == expected


def test_a_closed_shard_ends_with_its_children(server):
    server.create()
    server.put_many([(b"0", "k"), (b"1", "k")])
    iterator = server.iterator()
    server.split()
    page = server.page(iterator, Limit=1)
    assert "ChildShards" not in page
    page = server.page(page["NextShardIterator"], Limit=1)
    assert [one["Data"] for one in page["Records"]] == [b"1"]
    assert "NextShardIterator" not in page
    assert page["MillisBehindLatest"] == 0
    half = HASH_KEY_COUNT // 2
    assert page["ChildShards"] == [
        {
            "ShardId": "shardId-000000000001",
            "ParentShards": [FIRST],
            "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(half - 1)},
        },
        {
            "ShardId": "shardId-000000000002",
            "ParentShards": [FIRST],
            "HashKeyRange": {"StartingHashKey": str(half), "EndingHashKey": str(HASH_KEY_COUNT - 1)},
        },
    ]
    for kind in ("LATEST", "TRIM_HORIZON"):
        assert "NextShardIterator" not in server.page(server.iterator(kind=kind))


def test_a_merged_child_names_both_parents(server):
    server.create(shards=2)
    server.merge(0, 1)
    (child,) = server.page(server.iterator(0))["ChildShards"]
    assert child["ShardId"] == "shardId-000000000002"
    assert child["ParentShards"] == [FIRST, "shardId-000000000001"]


def test_pages_are_empty_while_catching_up_where_that_is_asked_for(make_server):
    server = make_server(empty_page_chance=0.5).create()
    server.put_many([(b"%d" % number, "k") for number in range(50)])
    server.pass_time(1)
    iterator, found, empty = server.iterator(), [], 0
    while len(found) < 50:
        page = server.page(iterator, Limit=1)
        found += [one["Data"] for one in page["Records"]]
        if not page["Records"]:
            empty += 1
            assert page["MillisBehindLatest"] == 1000
        iterator = page["NextShardIterator"]
    assert found == [b"%d" % number for number in range(50)]
    assert 20 < empty < 100


# ---- retention


def test_retention_moves_the_horizon(server):
    server.create()
    first = server.put(b"first")["SequenceNumber"]
    kept = server.iterator()
    server.pass_time(12 * HOUR)
    server.put(b"second")
    server.pass_time(12 * HOUR)
    assert server.read() == [b"first", b"second"]
    server.pass_time(0.001)
    assert server.read() == [b"second"]
    assert server.read(kind="AT_TIMESTAMP", Timestamp=0) == [b"second"]
    assert server.read(kind="AT_SEQUENCE_NUMBER", StartingSequenceNumber=first) == [b"second"]
    assert server.refused("GetRecords", ShardIterator=kept) == "ExpiredIteratorException"
    server.pass_time(12 * HOUR)
    assert server.read() == []
    assert int(server.put(b"third")["SequenceNumber"]) > int(first)
    assert server.read() == [b"third"]


def test_an_open_iterator_goes_on_after_what_was_trimmed(make_server):
    server = make_server(limits=Limits(iterator_life=None)).create()
    server.put(b"first")
    iterator = server.iterator()
    server.pass_time(24 * HOUR + 1)
    server.put(b"second")
    assert [one["Data"] for one in server.page(iterator)["Records"]] == [b"second"]


def test_closed_shards_vanish_with_their_last_record(server):
    server.create()
    server.put(b"x")
    server.pass_time(HOUR)
    server.split()
    server.pass_time(24 * HOUR)
    assert server.ids() == [0, 1, 2]
    iterator = server.iterator()
    server.pass_time(0.001)
    assert server.ids() == [1, 2]
    assert server.shards()[0]["ParentShardId"] == FIRST
    assert server.refused("GetRecords", ShardIterator=iterator) == "ResourceNotFoundException"


def test_what_has_expired_stays_so_when_retention_grows(server):
    server.create().put(b"old")
    server.pass_time(25 * HOUR)
    server.call("IncreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=48)
    assert server.read() == []
    server.put(b"new")
    server.pass_time(47 * HOUR)
    assert server.read() == [b"new"]
    server.call("DecreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=24)
    server.call("IncreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=48)
    assert server.read() == []


def test_expired_records_are_removed_even_if_they_are_never_read(server):
    server.create(shards=2)
    server.put(b"x", hash_key=0)
    server.pass_time(24 * HOUR + 61)
    server.put(b"y", hash_key=HASH_KEY_COUNT - 1)
    logs = [shard.log.records for shard in server.service.state.streams["s"].shards.values()]
    assert [len(records) for records in logs] == [0, 1]


# ---- rates of reading


def test_five_reads_a_second_and_shard(make_server):
    server = make_server(limits=Limits(iterator_calls_per_second=None)).create(shards=2)
    iterator, other = server.iterator(0), server.iterator(1)
    for _ in range(5):
        server.page(iterator)
    assert server.refused("GetRecords", ShardIterator=iterator) == "ProvisionedThroughputExceededException"
    assert server.page(other)["Records"] == []
    for _ in range(20):
        server.pass_time(0.2)
        server.page(iterator)
        assert server.refused("GetRecords", ShardIterator=iterator) == "ProvisionedThroughputExceededException"


def test_five_iterators_a_second_and_shard(make_server):
    server = make_server(limits=Limits()).create(shards=2)
    for _ in range(5):
        server.iterator(0)
    members = {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "LATEST"}
    assert server.refused("GetShardIterator", **members) == "ProvisionedThroughputExceededException"
    assert server.iterator(1)


def test_a_page_of_10_mib_blocks_the_next_five_seconds(make_server):
    server = make_server(limits=Limits(write_bytes_per_second=None)).create()
    server.put_many([(bytes(MIB - 1), "k")] * 10)
    iterator = server.page(server.iterator())["NextShardIterator"]
    server.pass_time(4.999)
    assert server.refused("GetRecords", ShardIterator=iterator) == "ProvisionedThroughputExceededException"
    server.pass_time(0.001)
    assert server.page(iterator)["Records"] == []


def test_two_mib_a_second_are_read_and_then_no_more(make_server):
    server = make_server(limits=Limits(write_bytes_per_second=None)).create()
    server.put_many([(bytes(MIB - 1), "k")] * 6)
    iterator = server.iterator()
    for _ in range(3):  # the third borrows
        iterator = server.page(iterator, Limit=1)["NextShardIterator"]
    assert server.refused("GetRecords", ShardIterator=iterator) == "ProvisionedThroughputExceededException"
    server.pass_time(0.5)
    assert len(server.page(iterator, Limit=1)["Records"]) == 1


def test_read_rates_can_be_switched_off(make_server):
    limits = Limits(read_calls_per_second=None, read_bytes_per_second=None, iterator_calls_per_second=None)
    server = make_server(limits=limits).create()
    for _ in range(50):
        assert server.read() == []


# ---- dry runs

DRY = "DryRunOperationException"
RECORD = {"StreamName": "s", "Data": b"x", "PartitionKey": "k"}


def test_a_dry_run_puts_nothing_and_gives_out_no_number(make_server):
    server, twin = make_server().create(), make_server().create()
    server.service.state.keeps_stored = True
    entries = {"StreamName": "s", "Records": [{"Data": b"x", "PartitionKey": "k"}] * 3}
    assert server.refused("PutRecord", **RECORD, DryRun=True) == DRY
    assert server.refused("PutRecords", **entries, DryRun=True) == DRY
    assert server.read() == []
    assert server.service.take_stored() == []
    assert server.put(b"x") == twin.put(b"x")
    for not_dry in (False, None):
        assert "SequenceNumber" in server.call("PutRecord", **RECORD, DryRun=not_dry)
        assert server.call("PutRecords", **entries, DryRun=not_dry)["FailedRecordCount"] == 0


def test_a_dry_run_reads_nothing(server):
    server.create()
    server.put(b"x")
    members = {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "TRIM_HORIZON"}
    assert server.refused("GetShardIterator", **members, DryRun=True) == DRY
    iterator = server.iterator()
    assert server.refused("GetRecords", ShardIterator=iterator, DryRun=True) == DRY
    assert len(server.page(iterator, DryRun=False)["Records"]) == 1


def test_a_dry_run_reports_errors_first(server):
    server.create()
    entry = {"Data": b"x", "PartitionKey": "k"}
    off = {"ExplicitHashKey": str(HASH_KEY_COUNT)}
    position = {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "LATEST"}
    for operation, members, code in (
        ("PutRecord", RECORD | {"StreamName": "t"}, "ResourceNotFoundException"),
        ("PutRecord", RECORD | {"PartitionKey": ""}, "ValidationException"),
        ("PutRecord", RECORD | {"Data": bytes(MIB)}, "ValidationException"),
        ("PutRecord", RECORD | off, "InvalidArgumentException"),
        ("PutRecord", RECORD | {"SequenceNumberForOrdering": "9" * 56}, "InvalidArgumentException"),
        ("PutRecords", {"StreamName": "t", "Records": [entry]}, "ResourceNotFoundException"),
        ("PutRecords", {"StreamName": "s", "Records": [entry] * 501}, "ValidationException"),
        ("PutRecords", {"StreamName": "s", "Records": [entry, entry | off]}, "InvalidArgumentException"),
        ("GetShardIterator", position | {"ShardId": "shardId-000000000009"}, "ResourceNotFoundException"),
        ("GetShardIterator", position | {"ShardIteratorType": "AT_TIMESTAMP"}, "InvalidArgumentException"),
        ("GetRecords", {"ShardIterator": "nonsense"}, "InvalidArgumentException"),
        ("GetRecords", {"ShardIterator": "x", "Limit": 0}, "ValidationException"),
    ):
        assert server.refused(operation, **members, DryRun=True) == code
        assert server.refused(operation, **members) == code
    iterator = server.iterator()
    server.pass_time(301)
    assert server.refused("GetRecords", ShardIterator=iterator, DryRun=True) == "ExpiredIteratorException"
    assert server.refused("PutRecord", **RECORD, DryRun="maybe") == "SerializationException"


def test_a_dry_run_costs_nothing_and_is_throttled_where_the_request_would_be(make_server):
    rates = {"write_records_per_second": 2, "read_calls_per_second": 1, "iterator_calls_per_second": 1}
    server = make_server(limits=Limits(control_calls_per_second={}, **rates)).create()
    position = {"StreamName": "s", "ShardId": FIRST, "ShardIteratorType": "LATEST"}
    entries = {"StreamName": "s", "Records": [{"Data": b"x", "PartitionKey": "k"}] * 2}
    for _ in range(5):
        assert server.refused("PutRecord", **RECORD, DryRun=True) == DRY
        assert server.refused("PutRecords", **entries, DryRun=True) == DRY
        assert server.refused("GetShardIterator", **position, DryRun=True) == DRY
    iterator = server.iterator()
    for _ in range(5):
        assert server.refused("GetRecords", ShardIterator=iterator, DryRun=True) == DRY
    server.page(iterator)
    assert server.call("PutRecords", **entries)["FailedRecordCount"] == 0
    throttled = "ProvisionedThroughputExceededException"
    assert server.refused("PutRecord", **RECORD, DryRun=True) == throttled
    assert server.refused("GetShardIterator", **position, DryRun=True) == throttled
    assert server.refused("GetRecords", ShardIterator=iterator, DryRun=True) == throttled
    # the request itself would be answered, entry by entry
    assert server.refused("PutRecords", **entries, DryRun=True) == DRY


def test_a_dry_run_draws_no_chance_where_records_are_spread_by_chance(make_server):
    auto = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}, "RecordDistributionStrategy": "AUTO"}
    server, twin = make_server(), make_server()
    entries = {"StreamName": "s", "Records": [{"Data": b"x"}] * 20}
    for one in (server, twin):
        one.call("CreateStream", StreamName="s", **auto)
    assert server.refused("PutRecord", StreamName="s", Data=b"x", DryRun=True) == DRY
    assert server.refused("PutRecords", **entries, DryRun=True) == DRY
    assert server.call("PutRecords", **entries) == twin.call("PutRecords", **entries)
