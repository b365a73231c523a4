"""A coordinator on a KCL table plans, renews and leaves as a member of the KCL fleet."""

import pytest
from tests.harness.coordinator import Group, names, shard

from shardline.core.consumer.kcl_fleet import KclRole
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.kcl_requests import DeleteMetrics, KclRows, LeaderRow, ReadKclRows, WriteMetrics
from shardline.core.leases import AskHandOver, CommitCheckpoint, ReleaseLease, RenewLease, TakeLease
from shardline.model.lease import Lease

DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "no", maybe_received=False)


class Mixed:
    """One worker of ours, and Java workers that the test plays."""

    def __init__(self, javas=4, ours=0, **config):
        shards = [shard(number, part=(number, 4)) for number in range(4)]
        self.group = Group(*shards, kcl_failover=10.0, follows_kcl=True, **config)
        self.worker = self.group.worker("me")
        self.machine, self.counter = self.worker.machine, 1
        keys = names(*range(4))
        self.group.rows = {
            key: Lease(key, 1, "java" if number < javas else "me" if number < javas + ours else None)
            for number, key in enumerate(keys)
        }
        self.version, self.requests = 0, []
        self.led = self.denied = False
        self.answers = True
        pump = self.worker.pump

        def pump_and_answer():
            pump()
            if self.answers:
                self.answer()

        self.worker.pump = pump_and_answer

    def run(self, seconds, *, led=False, denied=False):
        """Let time pass. Java renews its leases and, if it leads, its lock."""
        self.led, self.denied = led, denied
        for _ in range(int(seconds / 2)):
            for key, row in [*self.group.rows.items()]:
                if row.holder == "java":
                    self.group.rows = self.group.rows | {key: Lease(key, row.counter + 1, "java")}
            self.group.run(2.0)
            self.version += 1

    def answer(self):
        kcl, now, led = self.machine.kcl, self.group.now, self.led
        while (request := self.machine.poll_kcl_request(now)) is not None:
            self.requests.append(request)
            if self.denied:
                kcl.handle_failed(request, DENIED, now)
            elif isinstance(request, ReadKclRows):
                leader = LeaderRow("java", str(self.version)) if led else None
                kcl.handle_rows(KclRows(leader, has_metrics_table=led), now)
            else:
                kcl.handle_written(request, now)

    def sent(self, kind):
        return [operation for _, _, operation, _ in self.group.log if isinstance(operation, kind)]


def test_a_follower_asks_for_nothing_and_takes_what_the_leader_assigns():
    mixed = Mixed()
    mixed.run(40, led=True)
    assert mixed.machine.kcl.role is KclRole.FOLLOWER
    assert not mixed.sent(AskHandOver)
    assert not mixed.sent(TakeLease)
    key = names(0)[0]
    mixed.group.rows = mixed.group.rows | {key: Lease(key, 1_000, "me")}
    mixed.run(4, led=True)
    assert [*mixed.machine.held.holdings] == [key]


def test_a_follower_takes_a_lease_that_the_leader_never_assigns():
    mixed = Mixed(javas=3)
    mixed.machine.limit_leases(0, mixed.group.now)
    mixed.run(20, led=True)
    mixed.machine.limit_leases(None, mixed.group.now)
    mixed.run(60, led=True)
    assert not mixed.machine.held.holdings
    mixed.run(30, led=True)
    assert [*mixed.machine.held.holdings] == names(3)


def test_an_overdue_lease_is_not_left_to_a_kcl_worker_with_fewer_leases():
    mixed = Mixed(javas=1, ours=2)
    mixed.machine.limit_leases(2, mixed.group.now)
    mixed.run(100, led=True)
    assert [*mixed.machine.held.holdings] == names(1, 2)
    mixed.machine.limit_leases(None, mixed.group.now)
    mixed.run(4, led=True)
    assert sorted(mixed.machine.held.holdings) == names(1, 2, 3)


def test_the_throughput_of_a_finished_shard_is_nothing():
    mixed = Mixed(javas=3, ours=1)
    mixed.run(20, led=True)
    [key] = names(3)
    mixed.worker.read(key, 1)
    mixed.run(4, led=True)
    assert mixed.group.rows[key].throughput > 0
    mixed.machine.end(key, [], mixed.group.now)
    mixed.run(80, led=True)
    row = mixed.group.rows[key]
    assert (row.checkpoint.is_finished, row.throughput, row.owner) == (True, 0.0, "me")


def test_a_long_lease_is_renewed_in_the_rhythm_of_the_kcl():
    mixed = Mixed(javas=3, ours=1, lease_duration=60.0)
    mixed.run(60, led=True)
    began = len(mixed.sent(RenewLease))
    mixed.run(30, led=True)
    assert len(mixed.sent(RenewLease)) - began >= 8


def test_renewals_carry_the_throughput_even_if_commits_come_more_often():
    mixed = Mixed(javas=3, ours=1)
    mixed.run(20, led=True)
    [key] = names(3)
    began = len(mixed.sent(RenewLease))
    for number in range(10):
        mixed.worker.read(key, number + 1)
        mixed.run(2, led=True)
    renewals = mixed.sent(RenewLease)[began:]
    assert len(renewals) >= 4
    assert renewals[-1].throughput > 0
    assert mixed.sent(CommitCheckpoint)


def test_alone_no_throughput_is_written():
    mixed = Mixed(javas=0, ours=4)
    mixed.run(20)
    assert {renewal.throughput for renewal in mixed.sent(RenewLease)} == {None}
    assert {type(request) for request in mixed.requests} == {ReadKclRows}


def test_the_metrics_row_is_deleted_before_a_lease_is_released():
    mixed = Mixed(javas=3, ours=1)
    mixed.run(40, led=True)
    assert any(isinstance(request, WriteMetrics) for request in mixed.requests)
    mixed.machine.close()
    mixed.answers = False
    request = mixed.machine.poll_kcl_request(mixed.group.now)
    assert isinstance(request, DeleteMetrics)
    mixed.group.run(1.0)
    assert not mixed.sent(ReleaseLease)
    mixed.machine.kcl.handle_written(request, mixed.group.now)
    mixed.group.run(1.0)
    assert len(mixed.sent(ReleaseLease)) == 1
    assert mixed.machine.is_closed


def test_among_kcl_2_workers_a_lease_is_stolen_at_a_time():
    mixed = Mixed()
    mixed.run(20)
    assert mixed.machine.kcl.role is KclRole.TAKER
    assert not mixed.sent(AskHandOver)
    assert len(mixed.machine.held.holdings) == 1
    mixed.run(24)
    assert len(mixed.machine.held.holdings) == 2


def test_a_lease_is_stolen_although_its_owner_commits_all_the_time():
    mixed = Mixed()
    answer = mixed.group.store.answer
    refused = []

    def answer_after_a_commit(request):
        """Let the owner commit between the scan and the first take."""
        if isinstance(request, TakeLease) and not refused:
            refused.append(request)
            row = mixed.group.rows[request.shard_id]
            mixed.group.rows = mixed.group.rows | {row.shard_id: Lease(row.shard_id, row.counter + 1, "java")}
        return answer(request)

    mixed.group.store.answer = answer_after_a_commit
    while not refused:
        mixed.run(2)
    assert len(mixed.machine.held.holdings) == 1


@pytest.mark.parametrize("denied", [False, True])
def test_kcl_owners_are_asked_only_if_the_rows_of_the_kcl_cannot_be_read(denied):
    mixed = Mixed()
    mixed.denied = denied
    mixed.group.run(3.0)
    assert bool(mixed.sent(AskHandOver)) is denied
