"""Decides whether a drill passed.

Every drill passes only if each record that was put was handled, there are no more duplicates than the drill allows, the
records of a key came in order, and no checkpoint ever went back.
"""

from fleet import STREAM, require, require_promise

LEASE = 2.0


def finish(fleet, load=None, *, duplicates=None, ordered=True, limit=20.0):
    """End the load and the workers, and count the records."""
    if load is not None:
        load.stop()
    fleet.wait_drained(limit)
    for worker in fleet.workers.values():
        if worker.process.poll() is None:
            worker.end()
    fleet.leases()
    tally = fleet.tally()
    require(tally.put, "nothing was put: this drill says nothing")
    require_promise(not tally.lost, f"lost {len(tally.lost)} records, the first {tally.lost[:5]}; {tally}")
    require_promise(not tally.unknown, f"handled what was never put: {tally.unknown[:5]}; {tally}")
    if ordered:
        late = tally.out_of_order
        require_promise(
            not late, f"{len(late)} records came after a later one of their key, the first {late[:2]}; {tally}"
        )
    if duplicates is not None:
        require(len(tally.repeated) <= duplicates, f"duplicates {tally.repeated[:3]}; {tally}")
    back = fleet.checkpoints_went_back()
    require_promise(not back, f"checkpoints went back: {back[:3]}")
    return tally


def require_parents_first(fleet, tally):
    early = tally.before_parents(fleet.parents())
    require_promise(not early, f"{len(early)} records were handled before the end of a parent, the first {early[:2]}")


def open_shards(fleet):
    """Return the open shards in the order of their hash ranges."""
    shards = [one for one in fleet.kinesis.streams[STREAM].shards if one.ending_sequence_number is None]
    return [one.shard_id for one in sorted(shards, key=lambda one: one.hash_range.start)]
