"""The written cases of the comparison with kinesis-local.

Each function takes the two servers and a name for its own stream. The label of a call says what is odd about it: a
difference is listed under that label. Requests that kinesis-local wrongly accepts come last, or have their own stream,
so that the two servers stay alike.
"""

import time
from datetime import UTC, datetime, timedelta
from functools import reduce

LAST_KEY = (1 << 128) - 1
SHARD = "shardId-{:012d}".format
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def moment(before=0.02, after=0.02):
    """Return a time between the past and the following calls; kinesis-local dates shards by the second."""
    time.sleep(before)
    now = datetime.now(UTC)
    time.sleep(after)
    return now


def arn_of(stream):
    return f"arn:aws:kinesis:us-east-1:000000000000:stream/{stream}"


def said(keep, *path):
    """Return a value of an earlier answer, for each server its own."""
    return lambda kept: reduce(lambda value, name: value[name], path, kept[keep])


def number(keep, at):
    return said(keep, "Records", at, "SequenceNumber")


def streams(both, stream):
    both("create_stream", StreamName=stream, ShardCount=3)
    both("create_stream", "the stream is there", StreamName=stream, ShardCount=3)
    both.wait(stream)
    both("create_stream", "the stream is there", StreamName=stream, ShardCount=1)
    both("describe_stream", StreamName=stream)
    both("describe_stream_summary", StreamName=stream)
    both("describe_stream", StreamARN=arn_of(stream))
    both("describe_stream", StreamName=stream, Limit=2)
    both("describe_stream", StreamName=stream, Limit=2, ExclusiveStartShardId=SHARD(1))
    both("describe_stream", StreamName=stream, ExclusiveStartShardId=SHARD(2))
    both("describe_stream", "Limit 0", StreamName=stream, Limit=0)
    both("describe_stream", "Limit 10001", StreamName=stream, Limit=10_001)
    both("describe_stream", "nothing names a stream")
    both("create_stream", "no ShardCount", StreamName=f"{stream}-2")
    both.wait(f"{stream}-2")
    both("describe_stream_summary", "no ShardCount", StreamName=f"{stream}-2")
    mode = {"StreamModeDetails": {"StreamMode": "PROVISIONED"}}
    both("create_stream", "PROVISIONED, no ShardCount", StreamName=f"{stream}-5", **mode)
    both("create_stream", "ShardCount 0", StreamName=f"{stream}-3", ShardCount=0)
    both("create_stream", "a space in the name", StreamName="a name", ShardCount=1)
    both("create_stream", "an empty name", StreamName="", ShardCount=1)
    both("create_stream", "129 characters", StreamName="x" * 129, ShardCount=1)
    both("create_stream", "no name", ShardCount=1)
    both("create_stream", "mode NONE", StreamName=f"{stream}-4", StreamModeDetails={"StreamMode": "NONE"})
    for operation, more in {
        "split_shard": {"ShardToSplit": SHARD(0), "NewStartingHashKey": "100"},
        "merge_shards": {"ShardToMerge": SHARD(0), "AdjacentShardToMerge": SHARD(1)},
        "update_shard_count": {"TargetShardCount": 2, "ScalingType": "UNIFORM_SCALING"},
    }.items():
        name = f"{stream}-{operation}"
        both("create_stream", StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"})
        both.wait(name)
        both("describe_stream_summary", "an on-demand stream", StreamName=name)
        both("list_shards", "an on-demand stream", StreamName=name)
        both(operation, "an on-demand stream", StreamName=name, **more)


def unknown_streams(both, stream):
    """This does not include DeleteStream: kinesis-local deletes a stream that is later created under the name."""
    requests = {
        "describe_stream": {},
        "describe_stream_summary": {},
        "list_shards": {},
        "put_record": {"Data": b"x", "PartitionKey": "k"},
        "put_records": {"Records": [{"Data": b"x", "PartitionKey": "k"}]},
        "get_shard_iterator": {"ShardId": SHARD(0), "ShardIteratorType": "LATEST"},
        "split_shard": {"ShardToSplit": SHARD(0), "NewStartingHashKey": "100"},
        "merge_shards": {"ShardToMerge": SHARD(0), "AdjacentShardToMerge": SHARD(1)},
        "update_shard_count": {"TargetShardCount": 2, "ScalingType": "UNIFORM_SCALING"},
        "increase_stream_retention_period": {"RetentionPeriodHours": 48},
        "decrease_stream_retention_period": {"RetentionPeriodHours": 24},
        "add_tags_to_stream": {"Tags": {"a": "b"}},
        "remove_tags_from_stream": {"TagKeys": ["a"]},
        "list_tags_for_stream": {},
        "start_stream_encryption": {"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"},
        "stop_stream_encryption": {"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"},
        "enable_enhanced_monitoring": {"ShardLevelMetrics": ["ALL"]},
        "disable_enhanced_monitoring": {"ShardLevelMetrics": ["ALL"]},
    }
    for operation, more in requests.items():
        both(operation, "unknown stream", StreamName=stream, **more)
        both(operation, "a space in the name", StreamName="a name", **more)
        both(operation, "nothing names a stream", **more)
    arn = arn_of(stream)
    both("register_stream_consumer", "unknown stream", StreamARN=arn, ConsumerName="c")
    both("describe_stream_consumer", "unknown stream", StreamARN=arn, ConsumerName="c")
    both("list_stream_consumers", "unknown stream", StreamARN=arn)
    both("deregister_stream_consumer", "unknown stream", StreamARN=arn, ConsumerName="c")
    both("update_stream_mode", "unknown stream", StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    both("register_stream_consumer", "no ARN", StreamARN="stream", ConsumerName="c")


def puts(both, stream):
    both.create(stream, 3)
    third = (1 << 128) // 3
    edges = sorted({0, LAST_KEY, *(part * third + more for part in (1, 2) for more in (-1, 0, 1))})
    both.put(stream, edges)
    both("put_records", StreamName=stream, Records=[{"Data": b"", "PartitionKey": key} for key in "äbc"])
    both("put_record", StreamName=stream, Data=b"\x00\xff", PartitionKey="k", keep="one")
    one = {"StreamName": stream, "Data": b"x", "PartitionKey": "k"}
    both("put_record", **one, SequenceNumberForOrdering=said("one", "SequenceNumber"))
    both("put_record", StreamARN=arn_of(stream), Data=b"2", PartitionKey="k" * 256)
    both("put_record", "SequenceNumberForOrdering is no number", **one, SequenceNumberForOrdering="x")
    both("put_record", "an empty PartitionKey", **one | {"PartitionKey": ""})
    both("put_record", "257 characters of PartitionKey", **one | {"PartitionKey": "k" * 257})
    both("put_record", "no PartitionKey", StreamName=stream, Data=b"x")
    both("put_record", "no Data", StreamName=stream, PartitionKey="k")
    odd = {"2^128": str(LAST_KEY + 1), "-1": "-1", "x": "x", "empty": "", "01": "01", "of 40 digits": "9" * 40}
    for words, key in odd.items():
        both("put_record", f"ExplicitHashKey {words}", **one, ExplicitHashKey=key)
        entries = [{"Data": b"x", "PartitionKey": "k", "ExplicitHashKey": key}]
        both("put_records", f"ExplicitHashKey {words}", StreamName=stream, Records=entries)
    both("put_record", "1 MiB with its key", **one | {"Data": b"x" * (1024 * 1024 - 1)})
    both("put_record", "1 MiB of data and a key", **one | {"Data": b"x" * 1024 * 1024})
    both("put_record", "more than 1 MiB of data", **one | {"Data": b"x" * (1024 * 1024 + 1)})
    large = [{"Data": b"x" * (1024 * 1024 + 1), "PartitionKey": "k"}]
    both("put_records", "more than 1 MiB of data", StreamName=stream, Records=large)
    both("put_records", "no entries", StreamName=stream, Records=[])
    both("put_records", "501 entries", StreamName=stream, Records=[{"Data": b"", "PartitionKey": "k"}] * 501)
    both("put_records", "an entry has no PartitionKey", StreamName=stream, Records=[{"Data": b"x"}])
    # This is the last call: it succeeds on only one server, so that later sequence numbers could not be compared.
    both("put_record", "SequenceNumberForOrdering 7", **one, SequenceNumberForOrdering="7")


def listings(both, stream):
    both.create(stream, 3)
    before = moment(0, 1.1)
    both("split_shard", StreamName=stream, ShardToSplit=SHARD(0), NewStartingHashKey=str(1 << 126))
    both.wait(stream)
    between = moment(1.1, 1.1)
    both("merge_shards", StreamName=stream, ShardToMerge=SHARD(4), AdjacentShardToMerge=SHARD(1))
    both.wait(stream)
    now = moment(1.1, 0)
    both("list_shards", StreamName=stream)
    both("list_shards", StreamARN=arn_of(stream))
    both("list_shards", StreamName=stream, ExclusiveStartShardId=SHARD(1))
    both("list_shards", StreamName=stream, ExclusiveStartShardId=SHARD(5))
    both("list_shards", "ExclusiveStartShardId of no shard", StreamName=stream, ExclusiveStartShardId=SHARD(9))
    for kind in ("AT_TRIM_HORIZON", "FROM_TRIM_HORIZON", "AT_LATEST"):
        both("list_shards", f"filter {kind}", StreamName=stream, ShardFilter={"Type": kind})
    for kind in ("AT_TIMESTAMP", "FROM_TIMESTAMP"):
        for words, when in {
            "long ago": LONG_AGO, "before the split": before, "between split and merge": between, "now": now,
        }.items():  # fmt: skip
            wanted = {"Type": kind, "Timestamp": when}
            both("list_shards", f"filter {kind} {words}", StreamName=stream, ShardFilter=wanted)
        both("list_shards", f"filter {kind} without Timestamp", StreamName=stream, ShardFilter={"Type": kind})
    for shard in (0, 1, 3, 5, 9):
        wanted = {"Type": "AFTER_SHARD_ID", "ShardId": SHARD(shard)}
        both("list_shards", f"filter AFTER_SHARD_ID {shard}", StreamName=stream, ShardFilter=wanted)
    both("list_shards", "AFTER_SHARD_ID without ShardId", StreamName=stream, ShardFilter={"Type": "AFTER_SHARD_ID"})
    both("list_shards", "a filter of no type", StreamName=stream, ShardFilter={"Type": "AT_NOON"})
    both("list_shards", keep="page 1", StreamName=stream, MaxResults=2)
    both("list_shards", keep="page 2", NextToken=said("page 1", "NextToken"), MaxResults=2)
    both("list_shards", keep="page 3", NextToken=said("page 2", "NextToken"))
    token = said("page 1", "NextToken")
    both("list_shards", "NextToken and StreamName", StreamName=stream, NextToken=token)
    both("list_shards", "NextToken and StreamARN", StreamARN=arn_of(stream), NextToken=token)
    both("list_shards", "NextToken and ExclusiveStartShardId", ExclusiveStartShardId=SHARD(0), NextToken=token)
    both("list_shards", "NextToken and ShardFilter", ShardFilter={"Type": "AT_LATEST"}, NextToken=token)
    both("list_shards", "NextToken and StreamCreationTimestamp", StreamCreationTimestamp=LONG_AGO, NextToken=token)
    both("list_shards", "a broken NextToken", NextToken="nonsense")
    both("list_shards", "nothing names a stream")
    both("list_shards", "MaxResults 0", StreamName=stream, MaxResults=0)
    both("list_shards", "MaxResults 10001", StreamName=stream, MaxResults=10_001)
    both("describe_stream_summary", keep="described", StreamName=stream)
    created = said("described", "StreamDescriptionSummary", "StreamCreationTimestamp")
    both("list_shards", "StreamCreationTimestamp", StreamName=stream, StreamCreationTimestamp=created)
    both("list_shards", "another StreamCreationTimestamp", StreamName=stream, StreamCreationTimestamp=LONG_AGO)
    both("list_streams", "Limit 0", Limit=0)
    both("list_streams", "Limit 10001", Limit=10_001)
    last = f"zz-{stream}"
    both.create(last, 1)
    both.create(f"{last}-1", 1)
    both("list_streams", ExclusiveStartStreamName=last, Limit=10)


def reads(both, stream):
    both.create(stream, 3)
    shards = [(1 << 128) // 3 * part for part in range(3)]
    before = moment()
    both.put(stream, [shards[0]] * 5, keep="first")
    between = moment()
    both.put(stream, [shards[0], shards[1]] * 2, keep="second")
    time.sleep(0.02)
    both.iterate(stream, SHARD(0), "TRIM_HORIZON", pages=5, limit=2)
    both.iterate(stream, SHARD(0), "TRIM_HORIZON", pages=2)
    both.iterate(stream, SHARD(0), "LATEST", pages=2)
    both.iterate(stream, SHARD(2), "TRIM_HORIZON", case="an empty shard", pages=2)
    both("list_shards", keep="described", StreamName=stream)
    start = said("described", "Shards", 0, "SequenceNumberRange", "StartingSequenceNumber")
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        for at in (0, 2, 4):
            both.iterate(stream, SHARD(0), kind, pages=2, limit=4, StartingSequenceNumber=number("first", at))
        both.iterate(stream, SHARD(0), kind, StartingSequenceNumber=number("second", 2))
        both.iterate(
            stream, SHARD(0), kind, case=f"{kind} of another shard", StartingSequenceNumber=number("second", 1)
        )
        both.iterate(stream, SHARD(0), kind, case=f"{kind} without a number")
        for words in ("7", "x", ""):
            both.iterate(stream, SHARD(0), kind, case=f"{kind} {words or 'empty'}", StartingSequenceNumber=words)
        both.iterate(stream, SHARD(0), kind, case=f"{kind} of the shard's start", StartingSequenceNumber=start)
    for when in (LONG_AGO, before, between):
        both.iterate(stream, SHARD(0), "AT_TIMESTAMP", Timestamp=when)
    ahead = datetime.now(UTC) + timedelta(hours=1)
    both.iterate(stream, SHARD(0), "AT_TIMESTAMP", case="AT_TIMESTAMP in an hour", Timestamp=ahead)
    both.iterate(stream, SHARD(0), "AT_TIMESTAMP", case="AT_TIMESTAMP without a time")
    both.iterate(stream, SHARD(0), "AT_NOON", case="an unknown type")
    both.iterate(stream, SHARD(9), "LATEST", case="unknown shard")
    both.iterate(stream, "a shard", "LATEST", case="a space in the shard's id")
    both.iterate(stream, SHARD(0), "LATEST", case="a number with LATEST", StartingSequenceNumber=number("first", 0))
    both.iterate(stream, SHARD(0), "TRIM_HORIZON", case="a time with TRIM_HORIZON", Timestamp=before)
    both("get_shard_iterator", "no ShardId", StreamName=stream, ShardIteratorType="LATEST")
    both("get_shard_iterator", "no ShardIteratorType", StreamName=stream, ShardId=SHARD(0))
    both.iterate(stream, SHARD(0), "TRIM_HORIZON", case="Limit 0", limit=0)
    both.iterate(stream, SHARD(0), "TRIM_HORIZON", case="Limit 10001", limit=10_001)
    both.iterate(stream, SHARD(0), "TRIM_HORIZON", case="Limit 10000", limit=10_000)
    both("get_records", "a broken iterator", ShardIterator="nonsense")
    both("get_records", "an empty iterator", ShardIterator="")
    both("get_records", "no iterator")


def splits(both, stream):
    for words, key in {
        "the first key": 0, "the second key": 1, "the third key": 2, "the last key but one": LAST_KEY - 1,
        "the last key": LAST_KEY, "past all keys": LAST_KEY + 1, "-1": -1, "x": "x", "nothing": "",
    }.items():  # fmt: skip
        name = f"{stream}-{words.replace(' ', '-')}"
        both.create(name, 1)
        both("split_shard", f"at {words}", StreamName=name, ShardToSplit=SHARD(0), NewStartingHashKey=str(key))
        both.wait(name)


def reshards(both, stream):
    both.create(stream, 3)
    third = (1 << 128) // 3
    both.put(stream, [0, third, 2 * third], keep="first")
    split = {"StreamName": stream, "ShardToSplit": SHARD(1)}
    both("split_shard", "unknown shard", StreamName=stream, ShardToSplit=SHARD(9), NewStartingHashKey="9")
    both("split_shard", **split, NewStartingHashKey=str(third + 1000))
    both.wait(stream)
    both("split_shard", "a closed shard", **split, NewStartingHashKey=str(third + 2000))
    both.put(stream, [third, third + 1000, third + 999, 2 * third])
    time.sleep(0.01)
    for shard in range(5):
        both.iterate(stream, SHARD(shard), "TRIM_HORIZON", pages=3)
        both.iterate(stream, SHARD(shard), "LATEST", pages=2)
    both("describe_stream", keep="described", StreamName=stream)
    merge = {"StreamName": stream, "ShardToMerge": SHARD(0)}
    both("merge_shards", "the upper shard first", **merge | {"ShardToMerge": SHARD(3)}, AdjacentShardToMerge=SHARD(0))
    both("merge_shards", "not adjacent", **merge, AdjacentShardToMerge=SHARD(2))
    both("merge_shards", "a closed shard", **merge, AdjacentShardToMerge=SHARD(1))
    both("merge_shards", "with itself", **merge, AdjacentShardToMerge=SHARD(0))
    both("merge_shards", "unknown shard", **merge, AdjacentShardToMerge=SHARD(9))
    both("merge_shards", StreamName=stream, ShardToMerge=SHARD(0), AdjacentShardToMerge=SHARD(3))
    both.wait(stream)
    both.put(stream, [0, third, third + 1000])
    time.sleep(0.01)
    for shard in range(6):
        both.iterate(stream, SHARD(shard), "TRIM_HORIZON", pages=3)
    both("list_shards", StreamName=stream)
    both("describe_stream_summary", StreamName=stream)
    count = {"StreamName": stream, "ScalingType": "UNIFORM_SCALING"}
    both("update_shard_count", "more than double", **count, TargetShardCount=7)
    both("update_shard_count", "less than half", **count, TargetShardCount=1)
    both.wait(stream)
    both("update_shard_count", "0 shards", **count, TargetShardCount=0)
    both("update_shard_count", "another ScalingType", StreamName=stream, TargetShardCount=4, ScalingType="ODD")
    both("update_shard_count", "no ScalingType", StreamName=stream, TargetShardCount=4)


def scaling(both, stream):
    both.create(stream, 1)
    for target in (2, 4, 2, 1):
        scaled(both, stream, target)
        both("list_shards", f"scaled to {target}", StreamName=stream, ShardFilter={"Type": "AT_LATEST"})
    both("list_shards", "scaled up and down", StreamName=stream)
    both.create(two := f"{stream}-2", 1)
    both("split_shard", StreamName=two, ShardToSplit=SHARD(0), NewStartingHashKey=str(1 << 127))
    both.wait(two)
    scaled(both, two, 3)
    both("list_shards", "2 scaled to 3", StreamName=two, ShardFilter={"Type": "AT_LATEST"})
    both.create(three := f"{stream}-3", 3)
    for target in (6, 3, 3):
        scaled(both, three, target)
    both("list_shards", "3 scaled to 6 and back", StreamName=three)


def scaled(both, stream, target):
    both("update_shard_count", StreamName=stream, TargetShardCount=target, ScalingType="UNIFORM_SCALING")
    both.wait(stream)


def settings(both, stream):
    both.create(stream, 1, Tags={"first": "1"})
    tags = {"StreamName": stream}
    both("list_tags_for_stream", **tags)
    both("add_tags_to_stream", **tags, Tags={"a": "1", "b": "2", "c": ""})
    both("add_tags_to_stream", **tags, Tags={"a": "3"})
    both("list_tags_for_stream", **tags)
    both("list_tags_for_stream", **tags, Limit=2)
    both("list_tags_for_stream", **tags, ExclusiveStartTagKey="a", Limit=1)
    both("list_tags_for_stream", **tags, ExclusiveStartTagKey="first")
    both("remove_tags_from_stream", **tags, TagKeys=["a", "unknown"])
    both("list_tags_for_stream", **tags)
    both("list_tags_for_stream", "Limit 0", **tags, Limit=0)
    both("list_tags_for_stream", "Limit 51", **tags, Limit=51)
    both("add_tags_to_stream", "no tags", **tags, Tags={})
    both("add_tags_to_stream", "an empty key", **tags, Tags={"": "x"})
    both("add_tags_to_stream", "129 characters of key", **tags, Tags={"k" * 129: "x"})
    both("add_tags_to_stream", "257 characters of value", **tags, Tags={"k": "x" * 257})
    both("add_tags_to_stream", "51 tags", **tags, Tags={f"k{n}": "x" for n in range(51)})
    both("add_tags_to_stream", "a key that begins with aws:", **tags, Tags={"aws:x": "x"})
    both("remove_tags_from_stream", "no keys", **tags, TagKeys=[])
    both("tag_resource", ResourceARN=arn_of(stream), Tags={"z": "26"})
    both("list_tags_for_resource", ResourceARN=arn_of(stream))
    both("untag_resource", ResourceARN=arn_of(stream), TagKeys=["z", "first"])
    both("list_tags_for_resource", ResourceARN=arn_of(stream))
    more, less = "increase_stream_retention_period", "decrease_stream_retention_period"
    for operation, words, hours in (
        (more, "", 48), (more, "the same", 48), (more, "less", 24), (more, "8761 hours", 8761), (more, "0 hours", 0),
        (less, "more", 72), (less, "the same", 48), (less, "23 hours", 23), (less, "", 24), (less, "0 hours", 0),
    ):  # fmt: skip
        both(operation, words, StreamName=stream, RetentionPeriodHours=hours)
        both("describe_stream_summary", StreamName=stream)
    key = {"StreamName": stream, "KeyId": "alias/aws/kinesis"}
    both("start_stream_encryption", "encryption NONE", **key, EncryptionType="NONE")
    both("start_stream_encryption", **key, EncryptionType="KMS")
    both.wait(stream)
    both("describe_stream_summary", "an encrypted stream", StreamName=stream)
    both("put_record", "an encrypted stream", StreamName=stream, Data=b"x", PartitionKey="k")
    both.put(stream, [0], case="an encrypted stream")
    both.iterate(stream, SHARD(0), "TRIM_HORIZON", case="an encrypted stream")
    both("stop_stream_encryption", **key, EncryptionType="KMS")
    both.wait(stream)
    both("describe_stream", "after encryption", StreamName=stream)
    metrics = ["IncomingBytes", "OutgoingBytes"]
    both("enable_enhanced_monitoring", StreamName=stream, ShardLevelMetrics=metrics)
    both("disable_enhanced_monitoring", StreamName=stream, ShardLevelMetrics=metrics[:1])
    both("enable_enhanced_monitoring", "ALL", StreamName=stream, ShardLevelMetrics=["ALL"])
    both("disable_enhanced_monitoring", "ALL", StreamName=stream, ShardLevelMetrics=["ALL"])
    both("enable_enhanced_monitoring", "an unknown metric", StreamName=stream, ShardLevelMetrics=["Odd"])
    both("update_stream_mode", StreamARN=arn_of(stream), StreamModeDetails={"StreamMode": "ON_DEMAND"})
    both.wait(stream)
    both("describe_stream", StreamName=stream)
    both("update_max_record_size", StreamARN=arn_of(stream), MaxRecordSizeInKiB=2048)
    both("update_max_record_size", "1023 KiB", StreamARN=arn_of(stream), MaxRecordSizeInKiB=1023)
    both("update_max_record_size", "10241 KiB", StreamARN=arn_of(stream), MaxRecordSizeInKiB=10_241)


def consumers(both, stream):
    both.create(stream, 1)
    arn = arn_of(stream)
    both("list_stream_consumers", StreamARN=arn)
    for name in ("b", "a", "c"):
        both.register(arn, name, keep=name)
    both("register_stream_consumer", "the consumer is there", StreamARN=arn, ConsumerName="a")
    both("register_stream_consumer", "a space in the name", StreamARN=arn, ConsumerName="a name")
    both("register_stream_consumer", "no name", StreamARN=arn)
    both("describe_stream_consumer", StreamARN=arn, ConsumerName="a")
    consumer_arn = said("a", "Consumer", "ConsumerARN")
    both("describe_stream_consumer", ConsumerARN=consumer_arn)
    both("describe_stream_consumer", "unknown consumer", StreamARN=arn, ConsumerName="z")
    both("describe_stream_consumer", "unknown ConsumerARN", ConsumerARN=f"{arn}/consumer/z:1700000000")
    both("describe_stream_consumer", "nothing names a consumer")
    both("describe_stream_consumer", "no name", StreamARN=arn)
    both("list_stream_consumers", StreamARN=arn)
    both("list_stream_consumers", "the first of two pages", StreamARN=arn, MaxResults=2)
    both("list_stream_consumers", "MaxResults 0", StreamARN=arn, MaxResults=0)
    both("list_stream_consumers", "MaxResults 10001", StreamARN=arn, MaxResults=10_001)
    both("list_stream_consumers", "a broken NextToken", StreamARN=arn, NextToken="nonsense")
    both("describe_stream_summary", StreamName=stream)
    both("deregister_stream_consumer", StreamARN=arn, ConsumerName="b")
    both("deregister_stream_consumer", "unknown consumer", StreamARN=arn, ConsumerName="z")
    both("deregister_stream_consumer", "nothing names a consumer")
    both.wait_without_consumer(arn, "b")
    both("list_stream_consumers", StreamARN=arn)
    both("delete_stream", "it has consumers", StreamName=stream)
    both("delete_stream", StreamName=stream, EnforceConsumerDeletion=True)
    both.wait_without(stream)
    both("describe_stream_summary", "a stream that is gone", StreamName=stream)
    both("list_stream_consumers", "a stream that is gone", StreamARN=arn)
    both("describe_stream_consumer", "a stream that is gone", ConsumerARN=consumer_arn)


CASES = (streams, unknown_streams, puts, listings, reads, splits, reshards, scaling, settings, consumers)
