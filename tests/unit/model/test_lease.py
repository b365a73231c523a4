"""Leases and checkpoints as values."""

import math
from dataclasses import replace

import pytest

from shardline.errors import UsageError
from shardline.model.lease import Checkpoint, Fence, Incarnation, Lease
from shardline.model.position import (
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    after_sequence_number,
    at_sequence_number,
    at_timestamp,
)
from shardline.model.sequence import SequenceNumber

SHARD = "shardId-000000000000"


@pytest.mark.parametrize("position", [TRIM_HORIZON, LATEST, SHARD_END, at_timestamp(1), at_sequence_number("5")])
def test_a_checkpoint_stands_at_a_position(position):
    assert Checkpoint(position).position is position


def test_a_checkpoint_after_a_record_is_refused_for_it_would_lose_the_tail_of_an_aggregate():
    with pytest.raises(UsageError, match=r"not AFTER_SEQUENCE_NUMBER\(5\)"):
        Checkpoint(after_sequence_number("5"))


def test_a_checkpoint_tells_its_sequence_number_with_the_place_in_the_aggregate():
    assert Checkpoint(at_sequence_number(SequenceNumber(5, 2))).sequence_number == SequenceNumber(5, 2)
    assert Checkpoint(TRIM_HORIZON).sequence_number is None


def test_a_checkpoint_is_finished_at_shard_end_alone():
    assert Checkpoint(SHARD_END).is_finished
    assert not Checkpoint(LATEST).is_finished
    assert not Checkpoint(at_sequence_number("5")).is_finished


def test_a_checkpoint_has_begun_when_something_was_committed():
    assert Checkpoint(SHARD_END).has_begun
    assert Checkpoint(at_sequence_number("5")).has_begun
    for first in (LATEST, TRIM_HORIZON, at_timestamp(5.0)):
        assert not Checkpoint(first).has_begun


def test_a_new_lease_starts_at_the_oldest_record_and_has_no_owner():
    lease = Lease(SHARD)
    assert lease.checkpoint == Checkpoint(TRIM_HORIZON)
    assert (lease.counter, lease.owner, lease.owner_switches, lease.checkpoint_owner) == (0, None, 0, None)
    assert (lease.parent_ids, lease.child_ids, lease.hash_range) == (frozenset(), frozenset(), None)


@pytest.mark.parametrize("field", ["counter", "owner_switches"])
def test_a_lease_counts_up_from_0(field):
    assert getattr(replace(Lease(SHARD), **{field: 1}), field) == 1
    with pytest.raises(UsageError, match="must not be negative"):
        replace(Lease(SHARD), **{field: -1})


# ---- hand-overs


@pytest.mark.parametrize(("owner", "draining", "holder"), [(None, None, None), ("a", None, "a"), ("b", "a", "a")])
def test_the_holder_is_the_owner_or_who_still_drains(owner, draining, holder):
    lease = Lease(SHARD, 3, owner, checkpoint_owner=draining)
    assert lease.holder == holder
    assert lease.fence == Fence(3, owner, draining)


# ---- LATEST


def test_a_lease_at_latest_resumes_where_latest_was_said():
    lease = Lease(SHARD, checkpoint=Checkpoint(LATEST), latest_at=1_700_000_000.5)
    assert lease.resume_at == at_timestamp(1_700_000_000.5)
    assert replace(lease, latest_at=None).resume_at == LATEST
    assert Lease(SHARD, checkpoint=Checkpoint(at_sequence_number("5"))).resume_at == at_sequence_number("5")


def test_only_latest_has_a_time_and_it_is_one():
    with pytest.raises(UsageError, match="latest_at is only for the checkpoint LATEST, not for TRIM_HORIZON"):
        Lease(SHARD, latest_at=1.0)
    with pytest.raises(UsageError, match="seconds since 1970"):
        Lease(SHARD, checkpoint=Checkpoint(LATEST), latest_at=-1.0)


@pytest.mark.parametrize("throughput", [-1.0, float("nan"), float("inf")])
def test_a_throughput_is_a_finite_number(throughput):
    assert Lease(SHARD, throughput=0.5).throughput == 0.5
    with pytest.raises(UsageError, match="finite number from 0"):
        Lease(SHARD, throughput=throughput)
    with pytest.raises(UsageError, match="a handling time is a finite number from 0"):
        Lease(SHARD, handling=throughput)


ME = Incarnation("me", "this", 10.0)


def test_an_incarnation_counts_for_the_owner_that_it_names_alone():
    lease = Lease("s", owner="java-1", incarnation=ME)
    assert lease.incarnation_of("java-1") is None
    assert lease.incarnation_of(None) is None
    assert lease.incarnation_of("me") == ME
    assert Lease("s", owner="me").incarnation_of("me") is None


@pytest.mark.parametrize(
    ("incarnation", "foreign"),
    [
        (None, False),
        (ME, False),
        (ME._replace(lease_duration=60.0), False),
        (ME._replace(id="that"), True),
        (ME._replace(id="that", owner="you"), False),
    ],
)
def test_another_process_of_our_name_is_known_by_its_id(incarnation, foreign):
    assert Lease("s", owner="me", incarnation=incarnation).is_foreign_to(ME) is foreign


@pytest.mark.parametrize("duration", [0.0, -1.0, math.inf, math.nan])
def test_a_lease_duration_is_a_finite_number_above_0(duration):
    with pytest.raises(UsageError, match="lease duration"):
        Lease("s", incarnation=ME._replace(lease_duration=duration))
