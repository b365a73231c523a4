"""Which credentials sign the next request?

Invariants:

- Fixed credentials are never asked for again; refreshable ones are looked at every ``RECHECK`` seconds, and
  botocore refreshes them 15 minutes before they expire.
- At most one look-up is in flight; requests that have usable credentials do not wait for it, and those that wait
  share its outcome, also if it failed.
- Credentials that the service refused are forgotten, and the whole chain is asked again. ``replace`` answers with a
  look-up that began after the refusal; these look-ups begin at least ``PAUSE`` seconds apart. If the chain gives the
  same credentials they stay in use, and further refusals of them make no other request wait.
- No request waits for a look-up for longer than ``limit`` (a ``credential_process`` may hang): that is a failure
  which may be tried again, and then waits for the same look-up. A request that is cancelled does not wait at all.
"""

from math import inf
from typing import Final, Protocol, final

import anyio

from shardline.adapters.blocking_calls import BlockingCalls
from shardline.core.failures import Failure, FailureKind
from shardline.errors import CredentialsError
from shardline.model.credentials import Credentials

RECHECK: Final = 60.0
RETRY: Final = 10.0
PAUSE: Final = 1.0
_LIMIT: Final = 30.0


class CredentialChain(Protocol):
    """Where credentials come from. Blocking."""

    def credentials(self, *, afresh: bool) -> tuple[Credentials, bool]:
        """The current ones, and whether they can change."""
        ...


@final
class CredentialSource:
    """Credentials at hand, looked up in a worker thread when needed."""

    def __init__(
        self, chain: CredentialChain | None, fixed: Credentials | None = None, *, limit: float = _LIMIT
    ) -> None:
        assert (chain is None) != (fixed is None), "either a chain or fixed credentials"
        self._chain = chain
        self._current = fixed
        self._recheck_at: float | None = None
        self._refused: Credentials | None = None
        self._replacements = 0  # look-ups after refusals
        self._replaced_at = -inf  # when the last of them began, by the event loop's clock
        self._failure: Failure | None = None
        self._look_ups = 0
        self._looking = anyio.Lock()
        self._limit = limit
        # Not in anyio's threads: they may all be taken by callers that wait for us.
        self._asking = BlockingCalls[tuple[Credentials, bool]]()

    def at_hand(self, now: float) -> Credentials | None:
        """Credentials that need no look-up; ``None`` where ``get`` must be awaited."""
        if self._recheck_at is not None and now >= self._recheck_at and not self._looking.locked():
            return None
        return self._current  # also while someone else is looking

    async def replace(self, refused: Credentials, now: float) -> Credentials | Failure:
        """The credentials to use now that the service has refused some: new ones, or the same again."""
        before = self._replacements
        current = self._current
        if self._chain is None or (current is not None and current != refused):
            return current if current is not None else refused  # fixed, or another request has replaced them
        if refused != self._refused:
            self._refused = refused
            self._current = None
        async with self._looking:
            if self._replacements != before or self._current not in {None, refused}:
                return self._current or self._failure or refused  # Of a look-up that began after the refusal
            await anyio.sleep(max(0.0, self._replaced_at + PAUSE - anyio.current_time()))
            self._replacements += 1
            self._replaced_at = anyio.current_time()
            return await self._look_up(now)

    async def get(self, now: float) -> Credentials | Failure:
        """Credentials, after a look-up if one is due."""
        before = self._look_ups
        async with self._looking:
            if self._current is not None and (self._recheck_at is None or now < self._recheck_at):
                return self._current
            if self._look_ups != before and self._failure is not None:
                return self._failure  # Of the look-up that we waited for
            return await self._look_up(now)

    async def _look_up(self, now: float) -> Credentials | Failure:
        chain = self._chain
        assert chain is not None, "fixed credentials are always at hand"
        afresh = self._refused is not None
        try:
            with anyio.fail_after(self._limit):
                found, can_change = await self._asking.ask(afresh, lambda: chain.credentials(afresh=afresh))
        except CredentialsError as error:
            return self._not_found(error, now)
        except TimeoutError:
            return self._not_in_time(now + self._limit)
        finally:
            self._look_ups += 1
        self._current = found
        self._failure = None
        self._recheck_at = now + RECHECK if can_change else None
        if found != self._refused:
            self._refused = None
        return found

    def _not_found(self, error: CredentialsError, now: float) -> Credentials | Failure:
        # Where there were some before, the next look-up may well find new ones: worth a retry.
        kind = FailureKind.NO_CREDENTIALS if self._refused is None else FailureKind.EXPIRED_CREDENTIALS
        return self._none_new(Failure(kind, "NoCredentials", str(error), maybe_received=False), now)

    def _not_in_time(self, now: float) -> Credentials | Failure:
        told = (
            f"the AWS credentials could not be had within {self._limit:g} s, and are still looked up: check what gives "
            "them (credential_process, SSO, STS, instance metadata) and the way to it"
        )
        return self._none_new(Failure(FailureKind.TRANSIENT, "CredentialsTimeout", told, maybe_received=False), now)

    def _none_new(self, failure: Failure, now: float) -> Credentials | Failure:
        if self._current is not None:  # the recheck failed, but what we have may still be good: ask again soon
            self._recheck_at = now + RETRY
            return self._current
        self._recheck_at = None
        self._failure = failure
        return failure
