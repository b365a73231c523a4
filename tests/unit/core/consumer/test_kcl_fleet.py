"""A worker finds out whether a KCL fleet lives on its lease table, and behaves as a member of it."""

from random import Random

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer.assignment import ReadableLease
from shardline.core.consumer.kcl_fleet import (
    FleetMember,
    KclFleet,
    KclRole,
    fleet_members,
    longest_silence,
    metrics_place,
)
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.kcl_requests import (
    DeleteMetrics,
    KclRows,
    LeaderRow,
    MetricsPlace,
    MetricsRow,
    ReadKclRows,
    WriteMetrics,
)
from shardline.model.lease import Incarnation, Lease

OWN, AMONG = MetricsPlace.OWN_TABLE, MetricsPlace.LEASE_TABLE
ALONE, FOLLOWER, TAKER = KclRole.ALONE, KclRole.FOLLOWER, KclRole.TAKER
DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "no", maybe_received=False)
BROKEN = Failure(FailureKind.TRANSIENT, "Broken", "gone", maybe_received=True)
EPOCH = 1_700_000_000.5


class Driven:
    """A fleet as one worker sees it. The test sets the rows and the time."""

    def __init__(self, rows=None):
        self.now, self.rows = 0.0, KclRows() if rows is None else rows
        self.fleet = KclFleet("me", 10.0, 0.0)

    def poll(self):
        return self.fleet.poll_request(EPOCH + self.now, self.now)

    def look(self, rows=None, at=None):
        self.now = self.now if at is None else at
        self.rows = self.rows if rows is None else rows
        request = self.poll()
        while isinstance(request, WriteMetrics | DeleteMetrics):
            self.fleet.handle_written(request, self.now)
            request = self.poll()
        assert request == ReadKclRows()
        self.fleet.handle_rows(self.rows, self.now)
        return self.fleet.role

    def see(self, owner, counter, at=None, **fields):
        self.now = self.now if at is None else at
        self.fleet.handle_leases({"s": Lease("s", counter, owner, **fields)}, self.now)
        return self.fleet.role


def led(version="1", **fields):
    return KclRows(LeaderRow("java", version), has_metrics_table=True, **fields)


def following():
    driven = Driven(led("1"))
    driven.look()
    assert driven.look(led("2"), at=10.0) is FOLLOWER
    return driven


def test_a_live_owner_may_be_silent_for_two_failovers_and_a_discovery():
    assert longest_silence(10.0) == 30.0


def test_without_rows_the_worker_is_alone_and_writes_nothing():
    driven = Driven()
    assert driven.look() is ALONE
    assert driven.fleet.next_deadline() == 30.0
    assert driven.poll() is None
    assert driven.look(at=30.0) is ALONE
    assert driven.fleet.has_left


def test_rows_that_never_change_are_left_over():
    driven = Driven(led("old", metrics=(MetricsRow("java", 5),)))
    assert [driven.look(at=at) for at in (0.0, 10.0, 20.0, 90.0, 100.0)] == [ALONE] * 5


def test_a_leader_that_renews_its_lock_is_followed_until_it_is_silent():
    driven = following()
    assert driven.look(at=80.0) is FOLLOWER
    assert driven.look(at=90.0) is ALONE


def test_a_leader_that_appears_is_alive_and_one_that_released_its_lock_is_not():
    driven = Driven()
    driven.look()
    assert driven.look(led("1"), at=30.0) is FOLLOWER
    assert driven.look(KclRows(LeaderRow("java", "2", is_released=True)), at=40.0) is ALONE


def test_a_fleet_between_two_leaders_is_followed_while_its_metrics_rows_change():
    driven = Driven(KclRows(metrics=(MetricsRow("java", 5),), has_metrics_table=True))
    driven.look()
    changed = KclRows(metrics=(MetricsRow("java", 35),), has_metrics_table=True)
    assert driven.look(changed, at=30.0) is FOLLOWER
    assert driven.look(at=70.0) is FOLLOWER
    assert driven.look(at=80.0) is ALONE


def test_metrics_rows_of_shardline_are_no_sign_of_a_kcl():
    rows = [KclRows(metrics=(MetricsRow("me", at), MetricsRow("we", at, shardline="0.1.0"))) for at in (5, 35)]
    driven = Driven(rows[0])
    driven.look()
    assert driven.look(rows[1], at=30.0) is ALONE


def test_owners_that_renew_under_a_leader_that_was_just_found_are_followers():
    driven = Driven(led())
    driven.look()
    driven.see("java", 1)
    assert driven.see("java", 2, at=4.0) is FOLLOWER
    assert driven.see("java", 3, at=76.0) is TAKER  # the leader's row has not changed


def test_owners_without_a_leader_take_by_the_rules_of_kcl_2_until_they_are_silent():
    driven = Driven()
    driven.look()
    driven.see("java", 1)
    assert driven.see("java", 2, at=4.0) is TAKER
    assert driven.fleet.next_deadline() == 4.0  # looks at once for the rows of a newer KCL
    assert driven.look() is TAKER
    assert driven.poll() is None  # KCL 2 has no metrics rows
    assert driven.see("java", 2, at=33.9) is TAKER
    assert driven.see("java", 2, at=34.1) is ALONE


@pytest.mark.parametrize(
    "fields",
    [{}, {"incarnation": Incarnation("java", "x", 10.0)}],
)
def test_only_owners_without_an_incarnation_may_be_kcl_workers(fields):
    driven = Driven()
    driven.look()
    owner = "java" if fields else None
    driven.see(owner, 1, **fields)
    assert driven.see(owner, 2, at=4.0, **fields) is ALONE
    driven.see("me", 3)
    assert driven.see("me", 4, at=8.0) is ALONE


def test_a_lease_that_changes_with_its_owner_proves_nothing():
    driven = Driven()
    driven.look()
    driven.see("one", 1)
    assert driven.see("two", 2, at=4.0) is ALONE


@pytest.mark.parametrize(
    ("version", "writes"), [("CLIENT_VERSION_UPGRADE_FROM_2X", True), ("CLIENT_VERSION_2X", False)]
)
def test_a_fleet_that_migrates_takes_by_the_rules_of_kcl_2(version, writes):
    driven = Driven(led("1", client_version=version))
    driven.look()
    assert driven.look(led("2", client_version=version), at=10.0) is TAKER
    assert isinstance(driven.poll(), WriteMetrics) is writes


def test_a_follower_writes_its_metrics_row_every_30_seconds_and_looks_every_10():
    driven = following()
    request = driven.poll()
    assert request == WriteMetrics("me", 1_700_000_010, OWN, can_share_table=False)
    assert driven.poll() is None  # one request at a time
    assert driven.fleet.next_deadline() == NEVER
    driven.fleet.handle_written(request, 10.0)
    assert driven.fleet.next_deadline() == 20.0
    driven.look(led("3"), at=20.0)
    driven.look(led("4"), at=30.0)
    driven.now = 40.0
    assert driven.poll() == WriteMetrics("me", 1_700_000_040, OWN, can_share_table=False)


def test_a_failed_write_or_look_is_repeated_after_10_seconds():
    driven = following()
    driven.fleet.handle_failed(driven.poll(), BROKEN, 10.0)
    driven.now = 20.0
    request = driven.poll()
    assert isinstance(request, WriteMetrics)
    driven.fleet.handle_written(request, 20.0)
    driven.fleet.handle_failed(driven.poll(), BROKEN, 20.0)
    assert driven.fleet.next_deadline() == 30.0
    assert driven.fleet.role is FOLLOWER


def test_a_fleet_with_kcl_3_5_learns_that_we_can_share_the_table():
    driven = following()
    driven.rows = led("3", metrics=(MetricsRow("java", 1, can_share_table=True),))
    driven.fleet.handle_written(driven.poll(), 10.0)
    driven.look(at=20.0)
    driven.now = 40.0
    assert driven.poll() == WriteMetrics("me", 1_700_000_040, OWN, can_share_table=True)


def test_the_row_moves_with_the_rows_of_the_fleet():
    driven = following()
    driven.fleet.handle_written(driven.poll(), 10.0)
    assert driven.look(led("3", table_migration="TABLE_MIGRATION_STATUS_COMPLETE"), at=20.0) is FOLLOWER
    assert driven.fleet.next_deadline() == -NEVER
    assert driven.poll() == DeleteMetrics("me", OWN)
    driven.fleet.handle_written(DeleteMetrics("me", OWN), 20.0)
    driven.now = 40.0
    assert driven.poll() == WriteMetrics("me", 1_700_000_040, AMONG, can_share_table=True)


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_closes_deletes_its_row_first(fails):
    driven = following()
    written = driven.poll()
    driven.fleet.close()
    assert driven.poll() is None  # the write is still in flight
    assert not driven.fleet.has_left
    driven.fleet.handle_written(written, 10.0)
    assert driven.poll() == DeleteMetrics("me", OWN)
    if fails:
        driven.fleet.handle_failed(DeleteMetrics("me", OWN), BROKEN, 10.0)
    else:
        driven.fleet.handle_written(DeleteMetrics("me", OWN), 10.0)
    assert driven.fleet.has_left
    driven.now = 1_000.0
    assert driven.poll() is None
    assert driven.fleet.next_deadline() == NEVER


def test_a_denied_look_means_that_no_kcl_lives_and_is_reported_once():
    driven = Driven()
    for at in (0.0, 300.0):
        driven.now = at
        driven.fleet.handle_failed(driven.poll(), DENIED, at)
    [note] = driven.fleet.take_notes()
    assert "denied" in note
    assert driven.fleet.asks_kcl_owners
    driven.see("java", 1)
    assert driven.see("java", 2, at=304.0) is ALONE
    assert driven.look() is TAKER
    assert not driven.fleet.asks_kcl_owners


def test_a_change_of_role_is_reported_with_the_leader():
    driven = following()
    assert driven.fleet.take_notes() == [f"role on the KCL's lease table: {FOLLOWER.value} (leader 'java')"]
    driven.look(KclRows(), at=20.0)
    assert driven.fleet.take_notes() == [f"role on the KCL's lease table: {ALONE.value}"]


def test_the_leader_has_time_to_assign_a_lease_of_a_dead_worker():
    fleet = Driven().fleet
    assert not fleet.is_overdue(90.0)
    assert fleet.is_overdue(90.1)


INIT, DEPLOYED, PENDING, COMPLETE = (
    f"TABLE_MIGRATION_STATUS_{state}" for state in ("INIT", "DEPLOYED", "PENDING", "COMPLETE")
)
OLD, MOVED, DEAD = MetricsRow("old", 1), MetricsRow("moved", 1, place=AMONG), MetricsRow("dead", 1)


@pytest.mark.parametrize(
    ("rows", "place"),
    [
        (KclRows(), None),
        (KclRows(has_metrics_table=True), OWN),
        (KclRows(has_rows_among_leases=True), AMONG),
        (KclRows(has_metrics_table=True, has_rows_among_leases=True), OWN),
        (KclRows(has_rows_among_leases=True, table_migration=INIT), None),
        (KclRows(has_metrics_table=True, table_migration=PENDING), AMONG),
        (KclRows(has_metrics_table=True, table_migration=COMPLETE), AMONG),
        (KclRows(None, (MOVED, DEAD), has_metrics_table=True, table_migration=DEPLOYED), AMONG),
        (KclRows(None, (MOVED, OLD), has_metrics_table=True, table_migration=DEPLOYED), OWN),
        (KclRows(None, (MOVED, DEAD), has_metrics_table=True, table_migration=INIT), OWN),
        (KclRows(None, (DEAD,), has_metrics_table=True, table_migration=DEPLOYED), OWN),
    ],
)
def test_the_metrics_row_is_where_the_live_kcl_workers_keep_theirs(rows, place):
    assert metrics_place(rows, {"old", "moved"}) is place


def test_a_member_of_a_kcl_fleet_renews_as_often_as_the_kcl():
    assert Driven().fleet.renew_within(30.0) == 30.0
    assert following().fleet.renew_within(30.0) == 10.0
    assert following().fleet.renew_within(5.0) == 5.0


# ---- KCL 2


def owned(**counts):
    return [ReadableLease(f"{owner}-{number}", owner) for owner, most in counts.items() for number in range(most)]


def take(leases, max_leases=None, now=0.0, fleet=None, unreadable=()):
    return (fleet or KclFleet("me", 10.0, 0.0)).take_by_kcl_2(leases, unreadable, max_leases, Random(1), now)


def test_available_leases_are_taken_up_to_the_share():
    leases = [*owned(java=2, me=1), *(ReadableLease(f"free-{number}", None) for number in range(3))]
    assert len(take(leases).take) == 2
    assert len(take(leases, max_leases=2).take) == 1
    assert take(leases, max_leases=0).take == []


def test_leases_that_cannot_be_read_now_count_too():
    leases = [*owned(java=2, me=1), *(ReadableLease(f"free-{number}", None) for number in range(3))]
    assert len(take(leases, unreadable=["me", "java"]).take) == 2
    assert len(take(leases, unreadable=[None, None]).take) == 3


def test_very_old_leases_are_taken_beyond_the_share_and_first():
    free = [ReadableLease("new", None, 29.0), ReadableLease("old", None, 31.0)]
    assert take([*owned(java=1, me=3), *free]).take == ["old"]


def test_a_worker_with_its_share_takes_nothing():
    assert take([*owned(java=1, me=4), ReadableLease("free", None)]).take == []


def test_one_lease_is_stolen_from_the_worker_with_the_most_every_two_failovers():
    fleet = KclFleet("me", 10.0, 0.0)
    leases = owned(one=5, two=1)
    [stolen] = take(leases, fleet=fleet).ask
    assert stolen.owner == "one"
    assert take(leases, now=19.9, fleet=fleet).ask == []
    assert len(take(leases, now=20.0, fleet=fleet).ask) == 1


def test_a_refused_steal_is_tried_again_at_once():
    fleet = KclFleet("me", 10.0, 0.0)
    [stolen] = take(owned(one=5), fleet=fleet).ask
    assert take(owned(one=5), fleet=fleet).ask == []
    assert not fleet.handle_refused("another")
    assert fleet.handle_refused(stolen.shard_id)
    assert not fleet.handle_refused(stolen.shard_id)
    assert len(take(owned(one=5), fleet=fleet).ask) == 1


@pytest.mark.parametrize(("counts", "steals"), [({"one": 2, "two": 2}, 1), ({"one": 2, "me": 1}, 0), ({"one": 1}, 0)])
def test_no_lease_is_stolen_for_a_difference_of_one(counts, steals):
    assert len(take(owned(**counts)).ask) == steals


def test_a_full_worker_steals_nothing_and_no_lease_on_its_way_is_stolen():
    assert take(owned(one=4), max_leases=0).ask == []
    assert take([lease._replace(in_hand_over=True) for lease in owned(one=4)]).ask == []


# ---- for people


def test_the_members_of_a_led_fleet():
    metrics = (
        MetricsRow("a", 40, shardline="0.1.0"),
        MetricsRow("b", 40, can_share_table=True),
        MetricsRow("c", 40),
        MetricsRow("f", 40),
        MetricsRow("g", 39),
    )
    leases = [
        Lease("1", 1, "d"),
        Lease("2", 1, "e", incarnation=Incarnation("e", "x", 10.0)),
        Lease("3"),
        Lease("4", 1, "c"),
    ]
    assert fleet_members(KclRows(LeaderRow("f", "1"), metrics), leases, 100.0) == [
        FleetMember("a", "follower", "Shardline 0.1.0"),
        FleetMember("b", "follower", "KCL 3.5 or later"),
        FleetMember("c", "follower", "KCL 3.0 to 3.4"),
        FleetMember("d", "follower", "KCL 3"),
        FleetMember("e", "follower", "Shardline"),
        FleetMember("f", "leader", "KCL 3.0 to 3.4"),
    ]


@pytest.mark.parametrize(
    ("leader", "version"),
    [(LeaderRow("f", "1", is_released=True), "KCL 1 or 2"), (None, "KCL 1 or 2"), (LeaderRow("gone", "1"), "KCL 3")],
)
def test_the_members_of_a_fleet_without_a_leader(leader, version):
    assert fleet_members(KclRows(leader), [Lease("1", 1, "d")], 0.0) == [FleetMember("d", "worker", version)]


def test_a_fleet_of_ours_has_no_members_of_a_kcl_fleet():
    ours = Lease("2", 1, "e", incarnation=Incarnation("e", "x", 10.0))
    left_over = KclRows(LeaderRow("java", "1"), (MetricsRow("java", 1),))
    assert fleet_members(left_over, [ours, Lease("3")], 1_000.0) == []
