"""Draws sequences of calls from a seed.

Both servers agree on the shards at every step, so that the next step can be drawn from the state of ours. Streams begin
with a number of shards whose ranges both servers compute alike.
"""

import random
import time
from datetime import UTC, datetime

STEPS = 25
LAST_KEY = (1 << 128) - 1
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
NARROW = 1_000


def arn_of(stream):
    return f"arn:aws:kinesis:us-east-1:000000000000:stream/{stream}"


def number(keep, at):
    return lambda kept: kept[keep]["Records"][at]["SequenceNumber"]


def walk(both, stream, seed):
    rng = random.Random(seed)
    both.create(stream, rng.choice((1, 3, 5)))
    for step in range(STEPS):
        kind, weights = zip(*WALK.items(), strict=True)
        rng.choices(kind, weights)[0](both, stream, rng, f"step {step}")
    both("describe_stream", StreamName=stream)
    both("describe_stream_summary", StreamName=stream)
    time.sleep(0.01)
    for shard in both("list_shards", StreamName=stream)["Shards"]:
        both.iterate(stream, shard["ShardId"], "TRIM_HORIZON", pages=10, limit=rng.choice((None, 3)))


def shards_of(both, stream, *, is_open=True):
    found = both("list_shards", StreamName=stream)["Shards"]
    kept = [one for one in found if not (is_open and "EndingSequenceNumber" in one["SequenceNumberRange"])]
    return sorted(kept, key=lambda one: int(one["HashKeyRange"]["StartingHashKey"]))


def span_of(shard):
    return int(shard["HashKeyRange"]["StartingHashKey"]), int(shard["HashKeyRange"]["EndingHashKey"])


def walk_puts(both, stream, rng, step):
    keys = [key for shard in shards_of(both, stream) for key in span_of(shard)]
    keys += [rng.randrange(LAST_KEY) for _ in range(3)]
    both.put(stream, rng.choices(keys, k=rng.randint(1, 8)), keep=step)
    words = [{"Data": rng.randbytes(9), "PartitionKey": chr(rng.randrange(97, 0x3000))} for _ in range(3)]
    both("put_records", StreamName=stream, Records=words)


def walk_reads(both, stream, rng, step):
    time.sleep(0.01)
    shard = rng.choice(shards_of(both, stream, is_open=False))
    reading = {"pages": rng.randint(1, 4), "limit": rng.choice((None, 1, 3))}
    both.iterate(stream, shard["ShardId"], rng.choice(("TRIM_HORIZON", "LATEST")), **reading)
    read = both.ours.kept["page"].get("Records")
    if read:
        kind = rng.choice(("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"))
        both.theirs.kept["read"], both.ours.kept["read"] = both.theirs.kept["page"], both.ours.kept["page"]
        which = number("read", rng.randrange(len(read)))
        both.iterate(stream, shard["ShardId"], kind, StartingSequenceNumber=which, **reading)


def walk_lists(both, stream, rng, step):
    ids = [shard["ShardId"] for shard in shards_of(both, stream, is_open=False)]
    both("list_shards", StreamName=stream, ShardFilter={"Type": "AFTER_SHARD_ID", "ShardId": rng.choice(ids)})
    both("list_shards", StreamName=stream, ShardFilter={"Type": "AT_LATEST"})
    both("list_shards", StreamName=stream, ShardFilter={"Type": "FROM_TIMESTAMP", "Timestamp": LONG_AGO})
    page = both("list_shards", keep="shards", StreamName=stream, MaxResults=rng.randint(1, len(ids)))
    while "NextToken" in page:
        page = both("list_shards", keep="shards", NextToken=lambda kept: kept["shards"]["NextToken"], MaxResults=2)


def walk_splits(both, stream, rng, step):
    shard = rng.choice(shards_of(both, stream))
    start, end = span_of(shard)
    if end - start < NARROW:
        return
    at = rng.choice((start + 2, (start + end) // 2, end - 1, rng.randint(start + 2, end - 1)))
    both("split_shard", StreamName=stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(at))
    both.wait(stream)


def walk_merges(both, stream, rng, step):
    shards = shards_of(both, stream)
    if len(shards) > 1:
        at = rng.randrange(len(shards) - 1)
        pair = {"ShardToMerge": shards[at]["ShardId"], "AdjacentShardToMerge": shards[at + 1]["ShardId"]}
        both("merge_shards", StreamName=stream, **pair)
        both.wait(stream)


def walk_settings(both, stream, rng, step):
    tags = {f"k{rng.randrange(6)}": f"{step}" for _ in range(2)}
    both("add_tags_to_stream", StreamName=stream, Tags=tags)
    both("remove_tags_from_stream", StreamName=stream, TagKeys=[f"k{rng.randrange(6)}"])
    both("list_tags_for_stream", StreamName=stream, Limit=rng.randint(1, 4))
    hours = rng.choice((24, 25, 48, 8760))
    kind = rng.choice(("increase", "decrease"))
    both(f"{kind}_stream_retention_period", StreamName=stream, RetentionPeriodHours=hours)
    both("describe_stream_summary", StreamName=stream)


def walk_consumers(both, stream, rng, step):
    """Consumers are only registered: kinesis-local keeps some that are deregistered while the stream changes."""
    arn, name = arn_of(stream), f"consumer-{rng.randrange(6)}"
    if "Error" in both("describe_stream_consumer", StreamARN=arn, ConsumerName=name):
        both.register(arn, name)
    both("list_stream_consumers", StreamARN=arn)


WALK = {
    walk_puts: 5, walk_reads: 5, walk_lists: 3, walk_splits: 2, walk_merges: 2, walk_settings: 1, walk_consumers: 1,
}  # fmt: skip
