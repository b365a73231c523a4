"""Does a large fleet read no more than a small one, and still replace dead workers in time?"""

import scale

SHARDS, LEASE_DURATION = 128, 10.0


def rows_of(workers, **settings):
    return {row["phase"]: row for row in scale.simulate(SHARDS, workers, seconds=60.0, **settings)}


def test_the_reads_do_not_grow_with_the_fleet():
    small, large = (
        float(rows_of(workers, only="settled")["settled"]["equivalents of full scans per s"]) for workers in (16, 64)
    )
    assert large < 1.2 * small
    per_interval = large * scale.SCAN_INTERVAL
    assert per_interval < 4 * scale.WATCHERS
    before = rows_of(64, only="settled", watchers=None)["settled"]
    assert float(before["equivalents of full scans per s"]) > 2.5 * large


def test_a_lost_worker_is_replaced_within_a_lease_duration_and_three_scans():
    lost = rows_of(32, only="one worker")["one worker is lost"]
    last = lost["leases of dead workers taken after (median, 99 %, last)"].split(" / ")[-1]
    assert float(last.removesuffix(" s")) <= LEASE_DURATION + 3 * scale.SCAN_INTERVAL
    assert lost["to move at the end"] == 0


def test_a_fleet_is_balanced_after_workers_join_and_leave():
    for phase in ("join", "leave", "restarts", "third"):
        (found,) = rows_of(16, only=phase, restarted=3).values()
        assert found["to move at the end"] == 0
        assert found["balanced after"] != "-"
