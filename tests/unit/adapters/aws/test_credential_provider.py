"""Which credentials does the next request get, and when are they looked up?"""

import threading

import anyio
import pytest

from shardline.adapters.aws.credential_provider import PAUSE, RECHECK, RETRY, CredentialSource
from shardline.core.error_codes import Failure, FailureKind
from shardline.errors import CredentialsError
from shardline.model.credentials import Credentials

pytestmark = pytest.mark.anyio

ONE, TWO = Credentials("AKID1", "secret-1"), Credentials("AKID2", "secret-2", "token-2")


class Chain:
    """Gives one answer after the other, and repeats the last one."""

    def __init__(self, *answers, can_change=False):
        self.answers = list(answers)
        self.can_change = can_change
        self.asked = []
        self.gate = threading.Event()
        self.gate.set()

    def credentials(self, *, reload):
        self.asked.append(reload)
        self.gate.wait(5)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer, self.can_change


async def test_fixed_credentials_never_expire():
    source = CredentialSource(None, ONE)
    assert source.cached(0.0) is ONE
    assert await source.replace(ONE, 0.0) is ONE
    assert source.cached(1e12) is ONE
    assert await source.get(1e12) is ONE


@pytest.mark.internal_error
@pytest.mark.parametrize("arguments", [(None, None), (Chain(ONE), ONE)])
async def test_either_a_chain_or_fixed_ones(arguments):
    with pytest.raises(AssertionError):
        CredentialSource(*arguments)


async def test_a_chain_is_asked_once_if_its_credentials_cannot_change():
    chain = Chain(ONE)
    source = CredentialSource(chain)
    assert source.cached(0.0) is None
    assert await source.get(0.0) is ONE
    assert source.cached(1e9) is ONE
    assert await source.get(1e9) is ONE
    assert chain.asked == [False]


async def test_what_can_change_is_looked_at_again():
    chain = Chain(ONE, TWO, can_change=True)
    source = CredentialSource(chain)
    await source.get(100.0)
    assert source.cached(100.0 + RECHECK - 0.1) is ONE
    assert source.cached(100.0 + RECHECK) is None
    assert await source.get(100.0 + RECHECK) is TWO
    assert source.cached(100.0 + RECHECK) is TWO
    assert chain.asked == [False, False]


async def test_a_failed_look_again_keeps_what_there_is_and_asks_again_soon():
    chain = Chain(ONE, CredentialsError("STS is away"), TWO, can_change=True)
    source = CredentialSource(chain)
    await source.get(0.0)
    assert await source.get(RECHECK) is ONE
    assert source.cached(RECHECK + RETRY - 0.1) is ONE
    assert await source.get(RECHECK + RETRY) is TWO


async def test_none_found_is_a_failure_and_the_next_request_asks_again():
    chain = Chain(CredentialsError("none found"), ONE)
    source = CredentialSource(chain)
    failure = await source.get(0.0)
    assert failure == Failure(FailureKind.NO_CREDENTIALS, "NoCredentials", "none found", maybe_received=False)
    assert not failure.retryable
    assert source.cached(0.0) is None
    assert await source.get(0.0) is ONE


async def test_another_exception_is_a_bug_and_is_not_hidden():
    source = CredentialSource(Chain(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        await source.get(0.0)


async def test_refused_ones_are_forgotten_and_looked_up_afresh():
    chain = Chain(ONE, TWO)
    source = CredentialSource(chain)
    await source.get(0.0)
    assert await source.replace(TWO, 0.0) is ONE  # a response to an older request
    assert await source.replace(Credentials("AKID1", "secret-1"), 0.0) is TWO  # equal credentials are enough
    assert await source.replace(ONE, 0.0) is TWO  # a late response does not discard the new credentials
    assert source.cached(1e9) is TWO
    assert chain.asked == [False, True]


async def test_the_same_again_are_used_and_each_refusal_is_answered_by_a_later_look_up_a_pause_apart():
    chain = Chain(ONE)
    source = CredentialSource(chain)
    await source.get(0.0)
    assert await source.replace(ONE, 0.0) is ONE
    assert source.cached(1e9) is ONE
    began, found = anyio.current_time(), []

    async def replace():
        found.append(await source.replace(ONE, 0.0))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(replace)
        await anyio.sleep(0.01)
        assert source.cached(0.0) is ONE  # no other request waits
        chain.answers = [TWO]  # after the refusal, so the look-up sees it
    assert found == [TWO] * 20
    assert PAUSE * 0.9 < anyio.current_time() - began < PAUSE * 5
    assert chain.asked == [False, True, True]


async def test_a_failed_look_up_is_shared_by_those_that_were_refused():
    chain = Chain(ONE, CredentialsError("STS is away"), TWO)
    source = CredentialSource(chain)
    await source.get(0.0)
    found = []

    async def replace():
        found.append(await source.replace(ONE, 0.0))

    chain.gate.clear()
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(replace)
        await anyio.sleep(0.01)
        chain.gate.set()
    assert [failure.message for failure in found] == ["STS is away"] * 5
    assert chain.asked == [False, True]


async def test_a_refresh_that_fails_may_be_tried_again():
    source = CredentialSource(Chain(ONE, CredentialsError("STS is away"), TWO))
    await source.get(0.0)
    failure = await source.replace(ONE, 0.0)
    assert (failure.kind, failure.retryable) == (FailureKind.EXPIRED_CREDENTIALS, True)
    assert (failure.message, failure.maybe_received) == ("STS is away", False)
    assert await source.get(0.0) is TWO


async def together(source, number, chain, now=0.0):
    found = []

    async def get():
        found.append(source.cached(now) or await source.get(now))

    chain.gate.clear()
    async with anyio.create_task_group() as tasks:
        for _ in range(number):
            tasks.start_soon(get)
        await anyio.sleep(0.01)
        chain.gate.set()
    return found


async def test_many_share_one_look_up():
    chain = Chain(ONE)
    source = CredentialSource(chain)
    assert await together(source, 30, chain) == [ONE] * 30
    assert len(chain.asked) == 1


async def test_many_share_one_failure():
    chain = Chain(CredentialsError("none found"))
    source = CredentialSource(chain)
    found = await together(source, 30, chain)
    assert [failure.message for failure in found] == ["none found"] * 30
    assert len(chain.asked) == 1


async def test_an_old_failure_is_not_shared_with_later_waiters():
    chain = Chain(CredentialsError("none found"), ONE)
    source = CredentialSource(chain)
    await source.get(0.0)
    assert await together(source, 10, chain) == [ONE] * 10
    assert len(chain.asked) == 2


async def test_who_has_usable_ones_does_not_wait():
    chain = Chain(ONE, TWO, can_change=True)
    source = CredentialSource(chain)
    await source.get(0.0)
    chain.gate.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.get, RECHECK)
        await anyio.sleep(0.01)
        assert source.cached(RECHECK) is ONE
        chain.gate.set()
    assert source.cached(RECHECK) is TWO


async def test_requests_that_begin_during_the_look_up_wait_for_it():
    chain = Chain(ONE, TWO)
    source = CredentialSource(chain)
    await source.get(0.0)
    chain.gate.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.replace, ONE, 0.0)
        await anyio.sleep(0.01)
        assert source.cached(0.0) is None
        assert await together(source, 10, chain) == [TWO] * 10
    assert chain.asked == [False, True]


async def test_a_cancelled_look_up_leaves_the_source_usable():
    chain = Chain(ONE)
    source = CredentialSource(chain)
    chain.gate.clear()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.get, 0.0)
        await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
        chain.gate.set()
    assert await source.get(0.0) is ONE


async def test_a_look_up_that_hangs_is_a_failure_worth_a_retry_which_waits_for_the_same_look_up():
    chain = Chain(ONE)
    chain.gate.clear()
    source = CredentialSource(chain, limit=0.02)
    for _ in range(3):
        failure = await source.get(0.0)
        assert (failure.kind, failure.code, failure.maybe_received) == (
            FailureKind.TRANSIENT,
            "CredentialsTimeout",
            False,
        )
        assert "could not be loaded within 0.02 s" in failure.message
    source._limit = 5
    threading.Timer(0.05, chain.gate.set).start()
    assert await source.get(0.0) is ONE
    assert len(chain.asked) == 1


async def test_those_that_wait_share_the_failure():
    """No caller waits for twice the limit."""
    chain = Chain(ONE)
    chain.gate.clear()
    source, found = CredentialSource(chain, limit=0.1), []

    async def get():
        found.append(await source.get(0.0))

    with anyio.fail_after(2.9):  # 30 times the limit would be 3 s
        async with anyio.create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(get)
    assert [failure.code for failure in found] == ["CredentialsTimeout"] * 30
    chain.gate.set()


async def test_a_look_again_that_hangs_keeps_what_there_is_and_asks_again_soon():
    chain = Chain(ONE, TWO, can_change=True)
    source = CredentialSource(chain)
    await source.get(0.0)
    chain.gate.clear()
    source._limit = 0.02
    assert await source.get(RECHECK) is ONE
    assert source.cached(RECHECK + 0.02 + RETRY - 0.01) is ONE  # counted from the time when it gave up
    assert source.cached(RECHECK + 0.02 + RETRY) is None
    source._limit = 5
    threading.Timer(0.05, chain.gate.set).start()
    assert await source.get(RECHECK + 0.02 + RETRY) is TWO
    assert len(chain.asked) == 2


async def test_a_request_that_is_cancelled_does_not_wait():
    chain = Chain(ONE)
    chain.gate.clear()
    source = CredentialSource(chain)
    with anyio.fail_after(3), anyio.move_on_after(0.02) as scope:
        await source.get(0.0)
    assert scope.cancelled_caught
    assert not chain.gate.is_set()
    chain.gate.set()
