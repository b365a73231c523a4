"""Drills in which the lease store is down, slow, throttled or full."""

import time

from fleet import require, running_fleet, wait_for
from verdict import LEASE, finish


def store_down(directory, store, *, full):
    """The store is unreachable for longer than a lease duration: reading stops safely, and continues when the store is
    back.
    """
    lease = 5.0 if full else LEASE
    with running_fleet(directory, store, shards=4, lease_duration=lease) as fleet:
        fleet.start_all("a", "b")
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        time.sleep(1.0)
        went_at = time.monotonic()
        with fleet.store.down():
            time.sleep(lease + 2.0)
            back_at = time.monotonic()
        tally = fleet.tally()
        during = [one.at - went_at for one in tally.handled if went_at < one.at < back_at]
        require(during, "reading goes on within the lease")
        require(max(during) <= lease + 0.5, f"records were handled {max(during):.2f} s after the store had gone")
        wait_for(lambda: fleet.tally().handled[-1].at > back_at, 15, "reading goes on when the store is back")
        resumed = next(one.at for one in fleet.tally().handled if one.at > back_at) - back_at
        fleet.wait_owned(["a", "b"], 15, "they share again")
        tally = finish(fleet, load)
        old = [one for one in tally.repeated if tally.first[one.name].at < went_at - 1.5]
        require(not old, f"duplicates of what was committed before: {old[:3]}")
        return {"read on for": max(during), "resumed after": resumed, "tally": tally}


def slow_store(directory, store, *, full):
    """Every write to the store takes long, but less than a lease duration: no worker loses a lease, and no record is
    handled twice.
    """
    lease = 10.0 if full else 4.0
    with running_fleet(directory, store, shards=4, lease_duration=lease) as fleet:
        fleet.start_all("a", "b")
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        with fleet.store.slow(lease / 10):
            time.sleep(2.5 * lease)
        tally = finish(fleet, load, duplicates=0)
        require(not tally.told("LeaseLost"), "no lease was lost")
        return {"each write": lease / 10, "tally": tally}


def throttled(directory, store, *, full):
    """DynamoDB throttles half of all requests: the leases are kept, and no record is handled twice."""
    lease = 10.0
    with running_fleet(directory, "dynamodb", shards=4, lease_duration=lease) as fleet:
        fleet.start_all("a", "b")
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        with fleet.store.throttled(0.5) as refused:
            time.sleep(40.0 if full else 8.0)
            count = refused()
        require(count > 5, f"only {count} requests were refused: this says nothing")
        tally = finish(fleet, load, duplicates=0)
        require(not tally.told("LeaseLost"), "no lease was lost")
        return {"requests refused": count, "tally": tally}


def store_full(directory, store, *, full):
    """The store has no room for writes for longer than a lease duration: this is reported, reading stops safely, and it
    continues when there is room.

    On SQLite, the disk (a small tmpfs) is full to the last byte; on Redis, the memory that it may use.
    """
    lease = 10.0 if full else LEASE
    with running_fleet(
        directory, {"sqlite": "small-sqlite"}.get(store, store), shards=4, lease_duration=lease
    ) as fleet:
        fleet.start_all("a", "b")
        load = fleet.load()
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        time.sleep(1.0)
        went_at = time.monotonic()
        with fleet.store.full():
            time.sleep(lease + 2.0)
            back_at = time.monotonic()
        told = fleet.tally().told("StoreFailed", since=went_at)
        require(told, "it is told")
        wait_for(lambda: fleet.tally().handled[-1].at > back_at, 15, "reading goes on when there is room")
        fleet.wait_owned(["a", "b"], 15, "they share again")
        tally = finish(fleet, load)
        old = [one for one in tally.repeated if tally.first[one.name].at < went_at - 1.5]
        require(not old, f"duplicates of what was committed before: {old[:3]}")
        return {"reported as": told[0].shard.partition("code='")[2].partition("'")[0], "tally": tally}
