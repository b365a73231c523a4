"""Tests of ``server.server_clock``."""

import time

import pytest

from shardline.errors import UsageError
from shardline.server.server_clock import ServerClock


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


def test_it_never_goes_back(clock, machine):
    assert clock.now() == 1000.0
    machine.now = 900.0
    assert clock.now() == 1000.0
    machine.now = 1000.5
    assert clock.now() == 1000.5


def test_frozen_it_moves_by_advance_alone(clock, machine):
    clock.freeze()
    machine.now += 100
    assert clock.now() == 1000.0
    assert clock.is_frozen
    clock.advance(2.5)
    assert clock.now() == 1002.5
    clock.advance(0)
    assert clock.now() == 1002.5


def test_it_runs_on_from_where_it_is(clock, machine):
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


def test_a_running_clock_is_moved_ahead_too(clock, machine):
    clock.advance(50)
    assert clock.now() == 1050.0
    machine.now += 1
    assert clock.now() == 1051.0


def test_it_is_moved_ahead_also_where_the_machine_was_set_back(clock, machine):
    clock.now()
    machine.now -= 500
    clock.advance(5)
    assert clock.now() == 1005.0
    machine.now += 1
    assert clock.now() == 1006.0


def test_watchers_are_called_after_each_move(clock):
    seen = []
    clock.on_move = lambda: seen.append(clock.now())
    clock.advance(1)
    clock.freeze()
    clock.advance(2)
    assert seen == [1001.0, 1003.0]


END = 7_258_118_400.0  # 2200-01-01


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize(
    "seconds",
    [
        1e12,
        END,
        END - 999.0,
        1e308,
        float("inf"),
        10**400,
        10**5000,
        -(10**5000),
        -1,
        -1e-300,
        float("nan"),
        True,
        "1",
        None,
        1j,
    ],
    ids=lambda seconds: str(seconds)[:9] if not isinstance(seconds, int) else f"about 1e{len(hex(seconds))}",
)
def test_what_is_no_number_or_too_large_moves_nothing(clock, frozen, seconds):
    if frozen:
        clock.freeze()
    with pytest.raises(UsageError) as raised:
        clock.advance(seconds)
    assert (clock.now(), clock.is_frozen) == (1000.0, frozen)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("seconds", [0, -0.0, 5e-324, 1, 1e9, END - 1000.0])
def test_any_number_up_to_the_end_moves_it(clock, seconds):
    clock.advance(seconds)
    assert clock.now() == 1000.0 + seconds


def test_many_small_steps_do_not_lead_beyond_the_end(clock, machine):
    clock.freeze()
    for _ in range(6):
        clock.advance(1_209_686_166.0)
    with pytest.raises(UsageError, match="the clock can advance by a number of seconds from 0 to 404 "):
        clock.advance(1_209_686_166.0)
    clock.advance(403.0)
    assert clock.now() == END - 1.0
    clock.resume()
    machine.now += 10
    assert clock.now() == END + 9
    clock.advance(0)
    with pytest.raises(UsageError, match="from 0 to 0"):
        clock.advance(1)
