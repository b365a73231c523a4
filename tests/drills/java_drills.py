"""Drills with the Java KCL: it and our fleet take over each other's lease table, and it reads the records that we put.

They do not run in CI, because the KCL takes a minute and a half to start. ``store`` is ignored: the table is the KCL's,
in DynamoDB.
"""

import signal
import time

from fleet import STREAM, place_of, require, running_fleet, wait_for
from java_worker import START_LIMIT, JavaWorker, NewestJavaWorker
from verdict import finish, open_shards, require_parents_first

FLEET = {"lease_duration": 10.0, "checkpoint_interval": 1.0}


def numbered(first, last):
    return [(f"key-{number % 60}", b"%d" % number) for number in range(first, last)]


def stored(fleet):
    """Return how many entries the stream has: far fewer than records if they are aggregated."""
    return fleet.kinesis.streams[STREAM].record_count


def finished(fleet):
    """Return how many rows say that their shard was read to its end."""
    return sum(row.checkpoint.is_finished for row in fleet.leases().values())


def some_headers(data):
    """Of two records in three."""
    number = int(data)
    trace = {"traceparent": f"00-{number:032x}-b7ad6b7169203331-01"}
    return [None, trace, trace | {"long": "é" * 200, "empty": ""}][number % 3]


def java_reads(directory, store, *, full):
    """The Java KCL reads 12,000 records that our producer aggregated, with a split in between: it reads each of them
    once.

    Most of them have headers, which the KCL does not know. The last ones are aggregates of one record.
    """
    return java_reads_with(JavaWorker, directory)


def newest_java_reads(directory, store, *, full):
    """The newest KCL (3.5) reads the same 12,000 records as in `java-reads`: it reads each of them once."""
    return {"KCL": NewestJavaWorker.version()} | java_reads_with(NewestJavaWorker, directory)


def java_reads_with(worker, directory):
    with running_fleet(directory, "ministack", shards=4, **FLEET) as fleet:
        fleet.put(numbered(0, 6_000), aggregation=True, headers_of=some_headers)
        java = worker(fleet, "java")
        began = java.wait_for(lambda: fleet.tally().told("LeaseGained"), START_LIMIT, "the KCL has a lease")
        java.wait_for(lambda: not fleet.tally().lost, 60, "the KCL has read the first 6,000")
        fleet.call("split_shard", STREAM, open_shards(fleet)[0], wait=True)
        fleet.put(numbered(6_000, 11_990), aggregation=True, headers_of=some_headers)
        for number in range(11_990, 12_000):
            fleet.put(numbered(number, number + 1), aggregation=True, headers_of=some_headers)
        java.wait_for(lambda: not fleet.tally().lost, 180, "the KCL has read all, the children too")
        tally = finish(fleet, duplicates=0)
        require_parents_first(fleet, tally)
        require(stored(fleet) < len(tally.put) / 50, f"{stored(fleet)} entries: they were not aggregated")
        return {"began after": began, "entries": stored(fleet), "tally": tally}


def java_after_us(directory, store, *, full):
    """Our fleet leaves a lease table behind, with one worker closed and one killed: the KCL resumes from the
    checkpoints of our fleet.
    """
    with running_fleet(directory, "ministack", shards=4, **FLEET) as fleet:
        leaver, victim = fleet.start_all("a", "b", delay=0.001)
        fleet.wait_owned(["a", "b"], 30, "two workers share")
        fleet.put(numbered(0, 3_000), aggregation=True)
        fleet.call("split_shard", STREAM, open_shards(fleet)[0], wait=True)
        fleet.put(numbered(3_000, 6_000), aggregation=True)
        wait_for(lambda: finished(fleet), 60, "the parent is finished")
        leaver.end()
        time.sleep(0.5)  # the other worker has not read everything yet
        victim.signal(signal.SIGKILL)
        victim.process.wait()
        left = {shard: place_of(row.checkpoint) for shard, row in fleet.leases().items()}
        ours = fleet.tally()
        fleet.put(numbered(6_000, 9_000), aggregation=True)
        java = JavaWorker(fleet, "java")
        began = java.wait_for(lambda: fleet.tally().told("LeaseGained", "java"), START_LIMIT, "the KCL has a lease")
        java.wait_for(lambda: not fleet.tally().lost, 180, "the KCL has read the rest")
        tally = finish(fleet)
        replayed = [one for one in tally.journals["java"].handled if (1, *one.order) <= left.get(one.shard, (0, 0, 0))]
        require(not replayed, f"the KCL read {len(replayed)} records that we had committed, {replayed[:3]}")
        require(len(tally.repeated) < len(ours.first) / 2, f"that is a replay; {tally}")
        inside = sum(kind == 1 and sub > 0 for kind, _, sub in left.values())
        return {
            "began after": began,
            "we had handled": len(ours.first),
            "checkpoints inside aggregates": inside,
            "finished shards": finished(fleet),
            "tally": tally,
        }


def us_after_java(directory, store, *, full):
    """The KCL is killed while every checkpoint is inside an aggregate: our worker resumes with the next record of the
    aggregate.
    """
    with running_fleet(directory, "ministack", shards=4, **FLEET) as fleet:
        fleet.put(numbered(0, 6_000), aggregation=True)
        java = JavaWorker(fleet, "java", limit=700)
        stopped = lambda: {one.shard for one in fleet.tally().told("StoppedInside")}  # noqa: E731
        java.wait_for(lambda: len(stopped()) == 4, START_LIMIT, "the KCL stands inside an aggregate of every shard")
        java.kill()
        killed_at = time.monotonic()
        javas = len(fleet.tally().first)
        rows = fleet.leases()
        require(all(row.checkpoint.sequence_number.sub_sequence for row in rows.values()), f"all inside: {rows}")
        fleet.put(numbered(6_000, 9_000), aggregation=True)
        fleet.start_all("a", "b")
        took = fleet.wait_owned(["a", "b"], 40, "ours have taken over") - killed_at
        tally = finish(fleet, duplicates=0)
        return {"ours after": took, "the KCL had handled": javas, "tally": tally}


def java_fan_out(directory, store, *, full):
    """The KCL and our fleet read the same stream by fan-out at the same time, through a split: each of the two reads
    every record once.
    """
    with running_fleet(directory, "ministack", shards=4, **FLEET) as fleet:
        ours = {"group": "ours", "store": f"sqlite:///{directory}/ours.db", "fan_out": "ours"}
        fleet.put(numbered(0, 3_000), aggregation=True)
        java = JavaWorker(fleet, "java", retrieval="FANOUT")
        fleet.start_all("a", "b", **ours)
        began = java.wait_for(lambda: fleet.tally().told("LeaseGained", "java"), START_LIMIT, "the KCL has a lease")
        java.wait_for(lambda: len(names(fleet, "java")) == 3_000, 90, "the KCL has read the first 3,000")
        fleet.call("split_shard", STREAM, open_shards(fleet)[0], wait=True)
        fleet.put(numbered(3_000, 6_000), aggregation=True)
        java.wait_for(lambda: len(names(fleet, "java")) == 6_000, 180, "the KCL has read all, the children too")
        wait_for(lambda: len(names(fleet, "a", "b")) == 6_000, 60, "our fleet has read all")
        tally = finish(fleet, ordered=False)
        calls = fleet.kinesis.requests
        consumers = {one.name for one in fleet.call("list_stream_consumers", STREAM)}
        require(calls.count("GetRecords") == 0, f"{calls.count('GetRecords')} calls of GetRecords: somebody polled")
        journals = tally.journals
        handled = {"java": journals["java"].handled, "ours": journals["a"].handled + journals["b"].handled}
        for app, records in handled.items():
            found = [one.name for one in records]
            require(len(found) == len(set(found)), f"{app} read {len(found) - len(set(found))} records twice")
            require(set(found) == set(tally.put), f"{app} misses {len(set(tally.put) - set(found))} records")
        return {"began after": began, "registered consumers": len(consumers), "tally": tally}


def names(fleet, *workers):
    """The names of the records that these workers have handled."""
    journals = fleet.tally().journals
    return {one.name for worker in workers if worker in journals for one in journals[worker].handled}
