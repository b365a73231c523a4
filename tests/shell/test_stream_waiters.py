"""When does a wait for a stream or consumer end?"""

import math
from itertools import pairwise

import anyio
import pytest
import trio.testing

from shardline import ServiceError, UsageError, WaitTimeout
from shardline.aio import stream_waiters
from shardline.aio.stream_waiters import wait_limit, wait_until
from shardline.core.error_codes import Failure, FailureKind

THROTTLED = Failure(FailureKind.LIMIT_EXCEEDED, "LimitExceededException", "slow down", 400)
BROKEN = Failure(FailureKind.TRANSIENT, "ConnectionReset", "broke")
NOT_FOUND = Failure(FailureKind.NOT_FOUND, "ResourceNotFoundException", "no such stream", 400)
DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "no", 400)


def on_virtual_time(wanted, limit, *statuses, takes=0.0):
    """Wait on trio's autojump clock. Return the result, the seconds and the number of requests."""
    seen = []

    async def status():
        seen.append(trio.current_time())
        await anyio.sleep(takes)
        return statuses[min(len(seen), len(statuses)) - 1]

    async def main():
        began = trio.current_time()
        try:
            outcome = await wait_until(wanted, limit, "stream orders", status)
        except (WaitTimeout, ServiceError) as error:
            outcome = error
        return outcome, trio.current_time() - began, [at - began for at in seen]

    return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("wait", "limit"), [(False, None), (True, 300.0), (5, 5.0), (0.5, 0.5)])
def test_the_limit(wait, limit):
    assert wait_limit(wait) == limit


@pytest.mark.parametrize("wrong", [0, -1, "yes", None, math.inf, math.nan])
def test_a_wrong_limit(wrong):
    with pytest.raises(UsageError, match="wait"):
        wait_limit(wrong)


def test_without_a_limit_nothing_is_asked():
    assert on_virtual_time("ACTIVE", None, DENIED) == (None, 0.0, [])


def test_it_ends_when_the_state_is_reached():
    outcome, took, asked = on_virtual_time("ACTIVE", 300.0, "CREATING", "CREATING", "UPDATING", "ACTIVE")
    assert (outcome, len(asked)) == (None, 4)
    assert took < 0.5


def test_pauses_grow_to_a_second_and_stay_there():
    _, _, asked = on_virtual_time("ACTIVE", 20.0, "CREATING")
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[0] == pytest.approx(stream_waiters._FIRST_PAUSE)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(stream_waiters._LONGEST_PAUSE)


def test_what_may_pass_does_not_end_it():
    outcome, _, asked = on_virtual_time("ACTIVE", 300.0, NOT_FOUND, THROTTLED, BROKEN, "CREATING", "ACTIVE")
    assert (outcome, len(asked)) == (None, 5)


@pytest.mark.parametrize("wanted", ["ACTIVE", None])
def test_what_stays_ends_it(wanted):
    outcome, _, asked = on_virtual_time(wanted, 300.0, "CREATING", DENIED)
    assert isinstance(outcome, ServiceError)
    assert (outcome.code, len(asked)) == ("AccessDeniedException", 2)
    assert "stream orders" in str(outcome)


def test_a_thing_that_is_to_vanish_has_vanished_when_it_is_not_found():
    outcome, _, asked = on_virtual_time(None, 300.0, "DELETING", BROKEN, NOT_FOUND)
    assert (outcome, len(asked)) == (None, 3)


@pytest.mark.parametrize("limit", [0.01, 1.0, 7.5, 300.0])
def test_it_takes_its_whole_limit_and_no_longer(limit):
    outcome, took, _ = on_virtual_time("ACTIVE", limit, "CREATING")
    assert isinstance(outcome, WaitTimeout)
    assert isinstance(outcome, TimeoutError)
    assert took == pytest.approx(limit)
    assert str(outcome) == f"stream orders is not ACTIVE after {limit:g} s: it is CREATING"


def test_the_last_failure_is_reported():
    outcome, _, _ = on_virtual_time(None, 2.0, "DELETING", THROTTLED)
    assert str(outcome) == "stream orders is not gone after 2 s: it is LimitExceededException"


def test_a_question_that_hangs_does_not_lengthen_it():
    outcome, took, asked = on_virtual_time("ACTIVE", 2.0, "CREATING", takes=30.0)
    assert isinstance(outcome, WaitTimeout)
    assert (took, len(asked)) == (pytest.approx(2.0), 1)
    assert "not known" in str(outcome)


@pytest.mark.anyio
async def test_it_can_be_cancelled():
    async def status():
        return "CREATING"

    with anyio.move_on_after(0.02) as scope:
        await wait_until("ACTIVE", 60.0, "stream orders", status)
    assert scope.cancelled_caught


@pytest.mark.anyio
async def test_a_real_wait(monkeypatch):
    monkeypatch.setattr(stream_waiters, "_FIRST_PAUSE", 0.001)
    statuses = iter(["CREATING", BROKEN, "ACTIVE"])

    async def status():
        return next(statuses)

    await wait_until("ACTIVE", 60.0, "stream orders", status)
    assert list(statuses) == []
