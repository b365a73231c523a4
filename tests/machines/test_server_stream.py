"""Compares the server's model with a naive one, of lists. Records are put, trimmed and read through iterators that stay
open, while shards are split, merged and scaled: nothing is lost, nothing comes twice, and the order is kept.
"""

from dataclasses import replace
from random import Random

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from shardline.model.hashing import HASH_KEY_COUNT, HASH_KEY_MAX
from shardline.server.model.service import Service
from shardline.server.model.settings import Limits, ServiceSettings

BEGIN = 1_700_000_000.0
HOUR = 3600.0
RETENTION = 24 * HOUR


class NaiveShard:
    def __init__(self, start, end):
        self.start = start
        self.end = end
        self.records = []  # (arrival time, data, sequence number)
        self.closed_at = None


class Reader:
    """One iterator that is kept open, and the records that it must still return."""

    def __init__(self, shard_id, iterator, place):
        self.shard_id = shard_id
        self.iterator = iterator
        self.place = place


class ServerStream(RuleBasedStateMachine):
    readers = Bundle("readers")

    @initialize(shards=st.integers(1, 4), empty=st.sampled_from([0.0, 0.3]))
    def begin(self, shards, empty):
        limits = replace(Limits.without_rates(), iterator_life=None)
        self.service = Service(ServiceSettings(limits=limits, empty_page_chance=empty), Random(0), BEGIN)
        self.now = BEGIN
        self.count = 0
        self.call("CreateStream", ShardCount=shards)
        width = HASH_KEY_COUNT // shards
        ends = [*(width * part - 1 for part in range(1, shards)), HASH_KEY_MAX]
        self.shards = {}
        start = 0
        for end in ends:
            self.add(start, end)
            start = end + 1

    def add(self, start, end):
        self.shards[f"shardId-{len(self.shards):012d}"] = NaiveShard(start, end)

    def call(self, operation, **members):
        names = {} if operation == "GetRecords" else {"StreamName": "s"}
        answer = self.service.handle(operation, names | members, self.now)
        assert answer.refusal is None, (operation, answer.refusal.message)
        return msgspec.to_builtins(answer.body, builtin_types=(bytes,), enc_hook=list)

    def open_ids(self):
        pairs = [(shard.start, shard_id) for shard_id, shard in self.shards.items() if shard.closed_at is None]
        return [shard_id for _, shard_id in sorted(pairs)]

    def left(self, shard_id, place):
        """Return the records that a reader at ``place`` must still see, after retention."""
        horizon = self.now - RETENTION
        return [(at, one) for at, one in enumerate(self.shards[shard_id].records) if at >= place and one[0] >= horizon]

    def is_there(self, shard_id):
        closed_at = self.shards[shard_id].closed_at
        return closed_at is None or closed_at >= self.now - RETENTION

    # ---- writing

    @rule(keys=st.lists(st.integers(0, HASH_KEY_MAX), min_size=1, max_size=6), sizes=st.integers(0, 3))
    def put(self, keys, sizes):
        entries = []
        for key in keys:
            data = b"%d" % self.count + b"x" * sizes
            entries.append({"Data": data, "PartitionKey": "k", "ExplicitHashKey": str(key)})
            self.count += 1
        body = self.call("PutRecords", Records=entries)
        assert body["FailedRecordCount"] == 0
        for entry, key, result in zip(entries, keys, body["Records"], strict=True):
            (owner,) = [one for one in self.open_ids() if self.shards[one].start <= key <= self.shards[one].end]
            assert result["ShardId"] == owner
            self.shards[owner].records.append((round(self.now, 3), entry["Data"], result["SequenceNumber"]))

    # ---- resharding

    @rule(pick=st.integers(0, 100), fraction=st.floats(0.05, 0.95))
    def split(self, pick, fraction):
        ids = self.open_ids()
        shard_id = ids[pick % len(ids)]
        shard = self.shards[shard_id]
        at = shard.start + int((shard.end - shard.start) * fraction)
        if not shard.start + 1 < at < shard.end or len(ids) > 8:
            return
        self.call("SplitShard", ShardToSplit=shard_id, NewStartingHashKey=str(at))
        shard.closed_at = self.now
        self.add(shard.start, at - 1)
        self.add(at, shard.end)

    @precondition(lambda self: len(self.open_ids()) > 1)
    @rule(pick=st.integers(0, 100), swap=st.booleans())
    def merge(self, pick, swap):
        ids = self.open_ids()
        at = pick % (len(ids) - 1)
        low, high = ids[at], ids[at + 1]
        if swap:
            members = {"StreamName": "s", "ShardToMerge": high, "AdjacentShardToMerge": low}
            refusal = self.service.handle("MergeShards", members, self.now).refusal
            assert refusal.code == "InvalidArgumentException"
            return
        self.call("MergeShards", ShardToMerge=low, AdjacentShardToMerge=high)
        self.shards[low].closed_at = self.shards[high].closed_at = self.now
        self.add(self.shards[low].start, self.shards[high].end)

    # ---- time

    @rule(seconds=st.sampled_from([0.001, 0.5, 1.0, 60.0, HOUR, 7 * HOUR, 23 * HOUR]))
    def wait(self, seconds):
        self.now = round(self.now + seconds, 3)

    # ---- reading

    @rule(
        target=readers,
        pick=st.integers(0, 100),
        kind=st.sampled_from(["TRIM_HORIZON", "LATEST", "AT", "AFTER", "TIME"]),
        at=st.integers(0, 100),
    )
    def open_reader(self, pick, kind, at):
        ids = [one for one in self.shards if self.is_there(one)]
        shard_id = ids[pick % len(ids)]
        records = self.shards[shard_id].records
        members = {"ShardIteratorType": kind}
        place = len(records) if kind == "LATEST" else 0
        if kind in {"AT", "AFTER"}:
            if not records:
                return multiple()
            at %= len(records)
            members = {"ShardIteratorType": f"{kind}_SEQUENCE_NUMBER", "StartingSequenceNumber": records[at][2]}
            place = at if kind == "AT" else at + 1
        elif kind == "TIME":
            when = self.now - at * 600
            members = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": when}
            place = next((number for number, one in enumerate(records) if one[0] >= round(when, 3)), len(records))
        return Reader(shard_id, self.call("GetShardIterator", ShardId=shard_id, **members)["ShardIterator"], place)

    @rule(target=readers, reader=consumes(readers), limit=st.integers(1, 5))
    def read(self, reader, limit):
        if not self.is_there(reader.shard_id):
            refusal = self.service.handle("GetRecords", {"ShardIterator": reader.iterator}, self.now).refusal
            assert refusal.code == "ResourceNotFoundException"
            return multiple()
        page = self.call("GetRecords", ShardIterator=reader.iterator, Limit=limit)
        left = self.left(reader.shard_id, reader.place)
        seen = [(one["ApproximateArrivalTimestamp"], one["Data"], one["SequenceNumber"]) for one in page["Records"]]
        expected = [one for _, one in left[:limit]]
        assert seen == expected or (not seen and self.service.state.settings.empty_page_chance)
        if seen:
            reader.place = left[len(seen) - 1][0] + 1
        rest = left[len(seen) :]
        assert page["MillisBehindLatest"] == (round((self.now - rest[0][1][0]) * 1000) if rest else 0)
        at_end = not rest and self.shards[reader.shard_id].closed_at is not None
        assert ("NextShardIterator" not in page) == at_end == ("ChildShards" in page)
        if at_end:
            return multiple()
        reader.iterator = page["NextShardIterator"]
        return reader

    # ---- invariants

    @invariant()
    def the_shards_are_those_of_the_lists(self):
        if not hasattr(self, "shards"):
            return
        listed = self.call("ListShards")["Shards"]
        assert [one["ShardId"] for one in listed] == [one for one in self.shards if self.is_there(one)]
        for one in listed:
            shard = self.shards[one["ShardId"]]
            assert one["HashKeyRange"] == {"StartingHashKey": str(shard.start), "EndingHashKey": str(shard.end)}
            assert ("EndingSequenceNumber" in one["SequenceNumberRange"]) == (shard.closed_at is not None)

    def teardown(self):
        if not hasattr(self, "shards"):
            return
        numbers = [int(one[2]) for shard in self.shards.values() for one in shard.records]
        assert len(set(numbers)) == len(numbers)
        for shard_id in self.shards:
            if self.is_there(shard_id):
                self.drain(shard_id)

    def drain(self, shard_id):
        """Check that reading the whole shard from the horizon returns exactly the records of the list."""
        members = {"ShardId": shard_id, "ShardIteratorType": "TRIM_HORIZON"}
        iterator, found = self.call("GetShardIterator", **members)["ShardIterator"], []
        while iterator is not None:
            page = self.call("GetRecords", ShardIterator=iterator)
            found += [one["SequenceNumber"] for one in page["Records"]]
            iterator = page.get("NextShardIterator") if page["MillisBehindLatest"] or not page["Records"] else None
            if not page["Records"] and not page["MillisBehindLatest"] and len(found) >= len(self.left(shard_id, 0)):
                break
        assert found == [one[2] for _, one in self.left(shard_id, 0)]
        assert found == sorted(found, key=int)


TestServerStream = ServerStream.TestCase
TestServerStream.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
