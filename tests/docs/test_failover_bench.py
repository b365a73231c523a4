"""Does the failover benchmark count the workers' journals correctly?"""

import sys
import time
from pathlib import Path

import pytest

from shardline import ConsumerConfig

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    import bench_failover

    yield bench_failover
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


class Journals:
    """Stands in for a worker's process, which has handled these records: (time, shard, number) each."""

    def __init__(self, name, *handled):
        self.name = name
        self._handled = handled

    def news(self):
        import failover_fleet

        found, self._handled = self._handled, ()
        return [failover_fleet.Handled(*one, self.name) for one in found]


@pytest.fixture
def fleet_of(bench):
    def make(*workers):
        fleet = object.__new__(bench.Fleet)
        fleet.workers = {worker.name: worker for worker in workers}
        fleet._dead = []
        fleet._handled = []
        return fleet

    return make


class Stopped:
    def __init__(self, put):
        self._put = put

    def stop(self):
        return self._put


@pytest.mark.parametrize(
    ("settings", "limit"),
    [({}, 12.0), ({"lease_duration": 2.0}, 4.0), ({"lease_duration": 4.0, "scan_interval": 1.5}, 8.0)],
)
def test_the_bound_is_a_lease_two_scans_and_a_second(bench, settings, limit):
    assert bench.bound(ConsumerConfig(**settings)) == limit


def test_a_wait_ends_when_another_worker_has_handled_a_record_of_the_shard(fleet_of):
    dead = Journals("a", (1.0, "s1", 0), (1.1, "s2", 1), (2.05, "s1", 4))
    alive = Journals("b", (1.2, "s3", 2), (2.5, "s3", 5), (4.0, "s2", 1), (4.5, "s2", 6), (5.0, "s1", 0))
    fleet = fleet_of(dead, alive)
    assert fleet.owners(2.0) == {"s1": "a", "s2": "a", "s3": "b"}
    assert fleet.first_by_others("a", 2.0) == {"s2": 2.0, "s1": 3.0}


def test_there_is_no_answer_before_every_shard_goes_on(fleet_of):
    fleet = fleet_of(Journals("a", (1.0, "s1", 0), (1.1, "s2", 1)), Journals("b", (1.2, "s3", 2), (4.0, "s2", 1)))
    assert fleet.first_by_others("a", 2.0) == {}


def test_the_workers_share_when_each_shard_had_one_and_the_shares_are_equal(bench, fleet_of):
    now = time.monotonic()
    mine = [(now - 0.1, f"s{number}", number) for number in range(8)]
    assert fleet_of(Journals("a", *mine[:4]), Journals("b", *mine[4:])).is_settled()
    assert not fleet_of(Journals("a", *mine[:6]), Journals("b", *mine[6:])).is_settled()  # not equal
    assert not fleet_of(Journals("a", *mine[:4]), Journals("b", *mine[4:7])).is_settled()  # a shard is not read
    assert not fleet_of(Journals("a", *mine[:5]), Journals("b", *mine[4:])).is_settled()  # a shard has two owners
    old = [(at - 5.0, shard, number) for at, shard, number in mine]
    assert not fleet_of(Journals("a", *old[:4]), Journals("b", *old[4:])).is_settled()


def test_the_longest_pause_is_that_of_one_shard(bench, fleet_of):
    handled = fleet_of(
        Journals("a", (0.0, "s1", 0), (1.1, "s1", 1), (1.2, "s2", 2), (1.9, "s2", 3), (9.0, "s2", 5)),
        Journals("b", (2.0, "s1", 4)),
    ).handled()
    assert bench.longest_pause(handled, 1.0, 3.0) == pytest.approx(0.9)


def test_lost_and_twice_are_counted_with_what_was_done_then(bench, fleet_of, monkeypatch, capsys):
    monkeypatch.setattr(bench, "DRAIN_LIMIT", 0.0)
    seen = bench.Seen(acts=[(1.5, bench.KILL), (3.0, bench.JOIN)])
    fleet = fleet_of(
        Journals("a", (1.0, "s1", 0), (1.1, "s1", 1)), Journals("b", (2.0, "s1", 1), (3.5, "s1", 2), (3.6, "s1", 2))
    )
    bench.count(fleet, Stopped(4), seen)
    assert (seen.put, seen.lost) == (4, 1)
    assert seen.twice == {bench.KILL: 1, bench.JOIN: 1, bench.TERM: 0, bench.STOP: 0}
    seen.waits.update({bench.KILL: [3.9], bench.TERM: [2.1], bench.STOP: [4.1]})
    seen.first_records, seen.first_of_process, seen.pauses = [1.9], [4.9], [2.1]
    met = bench.report("lease of 2 s", ConsumerConfig(lease_duration=2.0), seen)
    assert met == [True, False, False, True, False, False, False]
    assert "3 handled, 1 lost" in capsys.readouterr().out


def test_a_journal_is_read_line_by_line_as_it_grows(bench, tmp_path, monkeypatch):
    import failover_fleet

    monkeypatch.setattr(failover_fleet, "WORKER", "-V")  # Python prints its version and ends
    worker = failover_fleet.Worker("w", {}, tmp_path)
    worker.process.wait()
    journal = tmp_path / "w.journal"
    assert worker.news() == []
    journal.write_text("1.5\n2.0 s1 7\n3.0 s2")
    assert worker.news() == [(2.0, "s1", 7, "w")]
    assert worker.consumer_started_at == 1.5
    journal.write_text("1.5\n2.0 s1 7\n3.0 s2 8\n")
    assert worker.news() == [(3.0, "s2", 8, "w")]
    assert worker.news() == []
