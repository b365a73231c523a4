"""Tests of the doctor's check of a group's leases, on a real store."""

import time

import anyio
import pytest

from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.sqlite import SqliteLeases
from shardline.cli.doctor import checks
from shardline.cli.doctor.checks import check_coverage
from shardline.cli.doctor.diagnoses import Verdict
from shardline.cli.groups.group_store import StorePlace
from shardline.core.consumer.kcl_fleet import FleetMember
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import CreateLease
from shardline.model.hashing import HASH_KEY_MAX, HashRange
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END

HALF = HASH_KEY_MAX // 2
LOWER, UPPER = HashRange(0, HALF), HashRange(HALF + 1, HASH_KEY_MAX)


@pytest.fixture
def findings_of(tmp_path):
    """Return the findings about a group with these rows: (hash range, whether the shard is finished)."""

    def findings(*rows, stream="orders", check_store=None):
        path = tmp_path / "leases.db"

        async def check():
            leases = SqliteLeases(path, group="billing", stream="orders")
            await leases.open()
            for number, (found, is_finished) in enumerate(rows):
                lease = Lease(f"shardId-{number:012d}", hash_range=found)
                if is_finished:
                    lease = Lease(lease.shard_id, hash_range=found, checkpoint=Checkpoint(SHARD_END))
                await leases.apply(CreateLease(lease))
            await leases.close()
            place = StorePlace(f"sqlite:///{path}", AwsAccess(time.time))
            return await (check_coverage(place, stream) if check_store is None else check_store(place))

        return anyio.run(check)

    return findings


def test_leases_that_cover_all_hash_keys_are_fine(findings_of):
    (finding,) = findings_of((LOWER, False), (UPPER, False))
    assert (finding.check, finding.verdict) == ("coverage of billing", Verdict.OK)


def test_a_hole_is_a_failure_with_its_size(findings_of):
    (finding,) = findings_of((LOWER, False), (UPPER, True))
    assert finding.verdict is Verdict.FAILED
    assert "no lease covers 50 % of the hash keys" in finding.seen


def test_leases_without_hash_ranges_are_not_checked(findings_of):
    (finding,) = findings_of((None, False))
    assert finding.verdict is Verdict.NOT_CHECKED


def test_groups_on_other_streams_are_left_out(findings_of):
    assert findings_of((LOWER, False), stream="payments") == []


@pytest.mark.parametrize(
    ("members", "found"),
    [
        ([], []),
        (
            [FleetMember("java", "leader", "KCL 3.0 to 3.4")],
            [(Verdict.OK, "java (KCL 3.0 to 3.4) leads; the followers: none")],
        ),
        (
            Failure(FailureKind.DENIED, "AccessDeniedException", "not allowed", maybe_received=False),
            [(Verdict.NOT_CHECKED, "not allowed")],
        ),
    ],
)
def test_the_workers_of_a_kcl_fleet_are_a_finding(findings_of, monkeypatch, members, found):
    async def read(_, leases):
        assert [lease.shard_id for lease in leases] == ["shardId-000000000000"]
        return members

    monkeypatch.setattr(checks, "read_members", read)
    findings = findings_of((LOWER, False), (UPPER, True), check_store=checks.check_kcl)
    assert [(finding.verdict, finding.seen) for finding in findings] == found
    assert {finding.check for finding in findings} <= {"KCL workers of billing"}
