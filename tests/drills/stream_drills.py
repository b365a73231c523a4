"""Drills in which the stream is resharded, wide, trimmed or has odd data, and in which the network is bad."""

import time

from fleet import STREAM, require, running_fleet, wait_for
from footprint import MIB, processor_time, resident
from verdict import LEASE, finish, open_shards, require_parents_first
from worker import name_of


def reshard(directory, store, *, full, start="TRIM_HORIZON"):
    """A stream is split, merged and scaled with UpdateShardCount under load, with a restart in between: nothing is
    lost, parents are read first, and no record is handled twice.
    """
    with running_fleet(directory, store, shards=2, lease_duration=LEASE) as fleet:
        if start == "TRIM_HORIZON":
            load = fleet.load()
            time.sleep(0.3)
        fleet.start_all("a", "b", start=start)
        if start == "LATEST":
            load = fleet.load()
        pause = 3.0 if full else 0.7
        time.sleep(pause)
        fleet.call("split_shard", STREAM, open_shards(fleet)[0], wait=True)
        time.sleep(pause)
        fleet.workers["a"].end()
        fleet.start("c", start=start)
        fleet.call("merge_shards", STREAM, *open_shards(fleet)[1:3], wait=True)
        time.sleep(pause)
        fleet.call("update_shard_count", STREAM, 4, wait=True)
        time.sleep(pause)
        fleet.call("update_shard_count", STREAM, 2, wait=True)
        time.sleep(pause)
        tally = finish(fleet, load, duplicates=0)
        parents = fleet.parents()
        require_parents_first(fleet, tally)
        require(len({one.shard for one in tally.handled}) > 4, "records came from many generations")
        # Start again after all workers have left: closed parents are not read again.
        before = len(tally.handled)
        fleet.start_all("again", start=start)
        time.sleep(pause)
        fleet.workers["again"].end()
        again = fleet.tally()
        require(len(again.handled) == before, f"a restart replayed {len(again.handled) - before} records")
        gained = again.gains(0.0)
        closed = set(parents) - set(open_shards(fleet))
        replayed = [one.shard for one in again.told("LeaseGained", "again") if one.shard in closed]
        require(not replayed, f"finished shards were taken again: {replayed}")
        return {"shards": len(parents), "taken": sum(gained.values()), "tally": tally}


def reshard_latest(directory, store, *, full):
    """The same as `reshard`, for a group that starts at LATEST: every record that was put after the workers were ready
    arrives.
    """
    return reshard(directory, store, full=full, start="LATEST")


def many_shards(directory, store, *, full):
    """A stream has 150 shards: all of them are read, including those on the second page of the listing."""
    shards = 150
    with running_fleet(directory, store, shards=shards, lease_duration=5.0) as fleet:
        facts = {}
        fleet.put([(f"key-{number}", b"%d" % number) for number in range(3000)])
        began_at = time.monotonic()
        fleet.start_all("a")
        fleet.wait_owned(["a"], 20, "one worker has 150 shards")
        facts["all owned after"] = time.monotonic() - began_at
        if full:
            began_at = time.monotonic()
            fleet.start_all("b")
            facts["shared after"] = fleet.wait_owned(["a", "b"], 60, "two share 150 shards") - began_at
        tally = finish(fleet, duplicates=0)
        facts["shards"] = len({one.shard for one in tally.handled})
        require(facts["shards"] == shards, f"records came from {facts['shards']} shards of {shards}")
        return {**facts, "tally": tally}


ODD = [
    b"\x00",
    b" ",
    b"null",
    b'{"__CHECKPOINT__": {"ShardId": "shardId-000000000000", "SequenceNumber": "999999999999999"}}',
    b'{"__CHECKPOINT__": 1}',
    b"SHARD_END",
    b"TRIM_HORIZON",
    b"\xf3\x89\x9a\xc2",  # the magic number of an aggregate, and nothing else
    b"\xf3\x89\x9a\xc2" + b"\x0a\x01a" + bytes(16),  # with a wrong digest
    b"\xf3\x89\x9a\xc2" + bytes(range(256)) * 4,
    b"\xff\xfe\x00\x01",
    b"\r\n\r\nHTTP/1.1 500 Internal Server Error\r\n\r\n",
    b'{"Records":[],"NextShardIterator":null}',
    b"12:hello world!,",
    b"'; DROP TABLE leases; --",
    b"x" * 1_000_000,
    "ключ \N{SNOWMAN} \N{GRINNING FACE}".encode(),
]


ODD_KEYS = [
    "a",
    " ",
    "\N{SNOWMAN}",
    "\x00",
    "shardId-000000000000",
    '{"a": 1}',
    "SHARD_END",
    "k" * 256,
    "\U0001f600" * 60,
]


def odd_data(directory, store, *, full):
    """Unusual data and keys arrive unchanged."""
    with running_fleet(directory, store, shards=2, lease_duration=LEASE) as fleet:
        entries = [(ODD_KEYS[index % len(ODD_KEYS)], data) for index, data in enumerate(ODD)]
        entries += [(key, f"key {index}".encode()) for index, key in enumerate(ODD_KEYS)]
        fleet.put(entries)
        fleet.start_all("a")
        tally = finish(fleet, duplicates=0)
        keys = {one.name: one.key for one in tally.handled}
        wrong = [key for key, data in entries if keys[name_of(data)] != ascii(key)]
        require(not wrong, f"keys that changed: {wrong}")
        return {"tally": tally}


def trimmed(directory, store, *, full):
    """Retention removes unread records: this is reported, and reading continues."""
    with running_fleet(directory, store, shards=2, lease_duration=LEASE) as fleet:
        fleet.put([(f"key-{number}", b"%d" % number) for number in range(100)])
        fleet.start_all("a")
        finish(fleet, duplicates=0)
        fleet.put([(f"key-{number}", b"%d" % number) for number in range(100, 200)])
        fleet.kinesis.clock.advance(25 * 3600)
        fleet.put([(f"key-{number}", b"%d" % number) for number in range(200, 300)])
        fleet.start_all("b")
        wait_for(lambda: len(fleet.tally().first) >= 200, 10, "what is left is read")
        fleet.workers["b"].end()
        tally = fleet.tally()
        loud = {one.shard for event in ("RecordsTrimmed", "PositionLost") for one in tally.told(event, "b")}
        require(len(loud) == 2, f"each shard says what it lost, not {sorted(loud)}")
        require(set(tally.lost) == {str(number) for number in range(100, 200)}, f"only what was trimmed: {tally}")
        tally.excuse(tally.lost, "trimmed by retention, and reported")
        return {"tally": tally}


def reshard_storm(directory, store, *, full, fan_out=None):
    """The stream is scaled to 1, 8, 3 and 5 shards under load, in the steps that UpdateShardCount allows: nothing is
    lost, and the order is kept.
    """
    with running_fleet(directory, store, shards=1, lease_duration=LEASE, fan_out=fan_out) as fleet:
        fleet.start_all("a", "b", "c")
        load = fleet.load()
        for count in (2, 4, 8, 4, 3, 5):
            time.sleep(3.0 if full else 0.5)
            fleet.call("update_shard_count", STREAM, count, wait=True)
        time.sleep(1.0)
        require(len(open_shards(fleet)) == 5, f"there are {len(open_shards(fleet))} open shards")
        tally = finish(fleet, load, duplicates=0, limit=40.0)
        require_parents_first(fleet, tally)
        return {"shards": len(fleet.parents()), "tally": tally}


def network_faults(directory, store, *, full):
    """Connections are reset, responses are cut, lost, delayed or invalid, and requests fail with status 500: nothing is
    lost.
    """
    with running_fleet(directory, store, shards=4, lease_duration=LEASE) as fleet:
        fleet.start_all("a", "b")
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        faults = fleet.kinesis.faults
        rules = [
            *(faults.reset(where, chance=0.03) for where in ("before", "after", "inside")),
            faults.truncate(share=0.5, chance=0.03),
            faults.error("InternalFailure", "on purpose", status=500, chance=0.03),
            faults.html(503, chance=0.03),
            faults.malformed(chance=0.03),
            faults.throttle(operation="GetRecords", chance=0.05),
            faults.expired_iterator(chance=0.03),
            faults.latency((0.0, 0.3), chance=0.2),
        ]
        time.sleep(45.0 if full else 8.0)
        hits = sum(rule.hits for rule in rules)
        require(all(rule.hits for rule in rules[:-1]) or not full, f"each happened: {[rule.hits for rule in rules]}")
        require(hits > 20, f"only {hits} faults: this says nothing")
        faults.clear()
        tally = finish(fleet, load, duplicates=0)
        return {"faults": hits, "tally": tally}


def idle_shards(directory, store, *, full):
    """One worker reads 1,000 empty shards: it holds all of them, and reads new records at once."""
    shards = 1_000
    with running_fleet(directory, store, shards=shards, lease_duration=10.0, list_interval=60.0) as fleet:
        began_at = time.monotonic()
        (worker,) = fleet.start_all("a")
        took = fleet.wait_owned(["a"], 120, "one worker has 1,000 shards") - began_at
        pid = worker.process.pid
        time.sleep(5.0)
        idle = 60.0 if full else 10.0
        before, before_at = processor_time(pid), time.monotonic()
        time.sleep(idle)
        used = (processor_time(pid) - before) / (time.monotonic() - before_at)
        asked_at = time.monotonic()
        fleet.put([(f"key-{number}", b"%d" % number) for number in range(500)])
        wait_for(lambda: not fleet.tally().lost, 30, "what came is read")
        facts = {
            "all owned after": took,
            "of a core": f"{used:.0%}",
            "memory": f"{resident(pid) / MIB:.0f} MiB",
            "500 read after": time.monotonic() - asked_at,
        }
        tally = finish(fleet, duplicates=0)
        require(not tally.told("LeaseLost"), "no lease was lost")
        return {**facts, "tally": tally}
