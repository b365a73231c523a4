"""The workers of a group are shown if KCL workers are among them."""

import time

import anyio
import pytest

from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.memory import MemoryLeases
from shardline.adapters.leases.store_urls import lease_store
from shardline.cli.groups.kcl_members import members_object, members_text, read_members
from shardline.core.consumer.kcl_fleet import FleetMember
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.kcl_requests import KclRows, LeaderRow, MetricsRow
from shardline.model.lease import Incarnation, Lease

DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "not allowed", maybe_received=False)
OURS = Lease("shardId-000000000001", 1, "ours", incarnation=Incarnation("ours", "x", 10.0))
JAVA, LED = FleetMember("java", "leader", "KCL 3.5 or later"), FleetMember("ours", "follower", "Shardline 0.1.0")


def members_of(answer, *leases, url="dynamodb://billing"):
    store = lease_store(url, group="g", stream="s", aws=AwsAccess(time.time, region="eu-west-1"))

    async def read():
        return answer

    store.read_kcl_rows = read
    return anyio.run(read_members, store, leases)


def test_members_are_judged_by_the_clock_of_this_machine():
    rows = KclRows(LeaderRow("java", "1"), (MetricsRow("java", int(time.time()), can_share_table=True),))
    assert members_of(rows, OURS) == [JAVA, FleetMember("ours", "follower", "Shardline")]


def test_rows_that_cannot_be_read_are_a_failure():
    assert members_of(DENIED, OURS) == DENIED


def test_other_stores_and_a_store_that_ignores_the_kcl_have_no_members():
    assert members_of(DENIED, OURS, url="dynamodb://billing?kcl=off") == []
    assert anyio.run(read_members, MemoryLeases("g", "s"), [OURS]) == []


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([JAVA, LED], "java (KCL 3.5 or later) leads; the followers: ours (Shardline 0.1.0)"),
        ([JAVA], "java (KCL 3.5 or later) leads; the followers: none"),
        (
            [FleetMember("java", "worker", "KCL 1 or 2"), FleetMember("ours", "worker", "Shardline")],
            "KCL workers share the leases, and no worker leads; the workers: java (KCL 1 or 2), ours (Shardline)",
        ),
    ],
)
def test_the_text_names_the_leader_and_the_versions(members, text):
    assert members_text(members) == text


def test_the_members_as_json():
    assert members_object([]) is None
    assert members_object(None) is None
    assert members_object([JAVA, LED]) == {
        "leader": "java",
        "workers": [
            {"worker": "java", "runs": "KCL 3.5 or later"},
            {"worker": "ours", "runs": "Shardline 0.1.0"},
        ],
    }
    assert members_object([LED._replace(part="worker")])["leader"] is None
