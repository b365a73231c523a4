"""Tests of ``shardline.core.consumer.grant``."""

from shardline.core.consumer.grant import Grant


def test_a_grant_is_in_force_until_its_end():
    grant = Grant("s", 7, 10.0)
    assert grant.in_force(9.9)
    assert not grant.in_force(10.0)
    assert (grant.shard_id, grant.token, grant.held_until) == ("s", 7, 10.0)


def test_renewals_move_the_end_and_never_back():
    grant = Grant("s", 7, 10.0)
    grant.extend(13.0)
    grant.extend(12.0)
    assert grant.in_force(12.5)
    assert not grant.in_force(13.0)


def test_once_revoked_it_is_over():
    grant = Grant("s", 7, 10.0)
    assert grant.held
    grant.revoke()
    grant.extend(20.0)
    assert not grant.held
    assert not grant.in_force(5.0)


def test_a_thread_sees_the_end_before_any_machine_runs():
    now = [5.0]
    grant = Grant("s", 7, 10.0, lambda: now[0])
    assert grant.held
    now[0] = 10.0
    assert not grant.held
