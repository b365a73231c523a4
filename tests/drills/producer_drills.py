"""Drills of a producer that may not send, and of all parts over a long time."""

import os
import time

from fleet import require, running_fleet, wait_for
from footprint import MIB, MemoryWatch, resident
from verdict import finish

BUFFER = 2_000


def full_buffer(directory, store, *, full):
    """Kinesis refuses every request for a minute (scaled down: 6 s): the buffer fills up, `put` waits, and nothing is
    lost.
    """
    minute = 60.0 if full else 6.0
    with running_fleet(directory, store, shards=4, lease_duration=5.0) as fleet:
        fleet.start_all("a")
        fault = fleet.kinesis.faults.unavailable(operation="PutRecords")
        putter = fleet.putter(buffer_max_records=BUFFER, record_ttl=300.0, ordered=True)
        wait_for(lambda: fault.hits, 60, "it meets the refusal")
        time.sleep(minute)
        memory = resident(putter.process.pid)
        require(fault.hits > 1, "it tries again")
        fleet.kinesis.faults.clear()
        wait_for(lambda: len(fleet.tally().put) > 2 * BUFFER, 60, "the producer goes on")
        putter.end()
        report = putter.report
        tally = finish(fleet, duplicates=0, limit=40.0)
        require(report["put"] == len(tally.put), f"every put was confirmed: {report}; {tally}")
        require(report["longest put"] > minute / 3, f"put never waited: {report}")
        require(report["undelivered at most"] <= BUFFER, f"the buffer has a limit: {report}")
        return {
            "longest put": report["longest put"],
            "undelivered at most": report["undelivered at most"],
            "memory": f"{memory / MIB:.0f} MiB",
            "tally": tally,
        }


def soak(directory, store, *, full):
    """Records are put at a steady rate for SOAK_SECONDS (600): the memory use of the producer and of both consumers
    stays flat.
    """
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    with running_fleet(directory, store, shards=4, lease_duration=10.0) as fleet:
        fleet.start_all("a", "b")
        fleet.wait_owned(["a", "b"], 15, "two workers share")
        putter = fleet.putter(rate=500, linger=0.1)
        watch = MemoryWatch({name: worker.process.pid for name, worker in fleet.workers.items()})
        time.sleep(seconds)
        watch.end()
        putter.end()
        tally = finish(fleet, duplicates=0, ordered=False, limit=60.0)
        slopes = watch.slopes(skip=min(120.0, seconds / 3))
        seen = {name: f"{size / MIB:.1f} MiB, {slope / MIB:+.3f} MiB/min" for name, (slope, size) in slopes.items()}
        # A leak of 30 bytes a record would be 0.86 MiB a minute in the producer, half of that in a consumer.
        steep = {name: seen[name] for name, (slope, _) in slopes.items() if slope > MIB / 4}
        require(not steep, f"memory grows: {steep}; {tally}")
        return {"for": seconds, **seen, "tally": tally}
