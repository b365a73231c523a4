"""CL1 and CL2 are invariants of ``server.clock``."""

import time

import pytest

from shardline.errors import UsageError
from shardline.server.clock import ServerClock


class Machine:
    """The machine's clock."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def clock(machine):
    return ServerClock(machine)


def test_it_tells_the_machines_time(clock, machine):
    assert clock.now() == 1000.0
    machine.now = 1001.5
    assert clock.now() == 1001.5
    assert not clock.is_frozen
    assert abs(ServerClock().now() - time.time()) < 5


def test_cl1_it_never_goes_back(clock, machine):
    assert clock.now() == 1000.0
    machine.now = 900.0
    assert clock.now() == 1000.0
    machine.now = 1000.5
    assert clock.now() == 1000.5


def test_cl2_frozen_it_moves_by_advance_alone(clock, machine):
    clock.freeze()
    machine.now += 100
    assert clock.now() == 1000.0
    assert clock.is_frozen
    clock.advance(2.5)
    assert clock.now() == 1002.5
    clock.advance(0)
    assert clock.now() == 1002.5


def test_cl2_it_runs_on_from_where_it_is(clock, machine):
    clock.freeze()
    machine.now += 100
    clock.resume()
    assert clock.now() == 1000.0
    machine.now += 1
    assert clock.now() == 1001.0
    clock.resume()
    assert clock.now() == 1001.0
    clock.freeze()
    clock.freeze()
    assert clock.now() == 1001.0


def test_cl2_a_running_clock_is_moved_ahead_too(clock, machine):
    clock.advance(50)
    assert clock.now() == 1050.0
    machine.now += 1
    assert clock.now() == 1051.0


def test_cl2_it_is_moved_ahead_also_where_the_machine_was_set_back(clock, machine):
    clock.now()
    machine.now -= 500
    clock.advance(5)
    assert clock.now() == 1005.0
    machine.now += 1
    assert clock.now() == 1006.0


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf"), "1", None])
def test_time_does_not_go_back_or_to_the_end(clock, seconds):
    with pytest.raises(UsageError, match="advances by"):
        clock.advance(seconds)
    assert clock.now() == 1000.0


def test_who_watches_is_told_after_each_move(clock):
    seen = []
    clock.watch(lambda: seen.append(clock.now()))
    clock.advance(1)
    clock.freeze()
    clock.advance(2)
    assert seen == [1001.0, 1003.0]
