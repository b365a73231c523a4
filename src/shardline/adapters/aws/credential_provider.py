"""Provides the credentials that sign each request and looks them up again when necessary.

Invariants:

- Fixed credentials are looked up once. Refreshable credentials are looked up every ``RECHECK`` seconds, and botocore
  refreshes them 15 minutes before they expire.
- At most one lookup is in flight. Requests with usable credentials do not wait for the lookup. Requests that wait
  share the outcome, even if it is a failure.
- Credentials that the service refused are dropped, and the whole chain is asked again. ``replace`` returns the result
  of a lookup that began after the refusal. Lookups after refusals begin at least ``PAUSE`` seconds apart. If the chain
  returns the same credentials, they stay in use, and no other request waits when they are refused again.
- No request waits for a lookup longer than ``limit``, because a ``credential_process`` may hang. A timeout is a
  transient failure: the retry waits for the same lookup. Cancelling a request ends its wait.
"""

from math import inf
from typing import Final, Protocol, final

import anyio

from shardline.adapters.blocking_calls import BlockingCalls
from shardline.core.error_codes import Failure, FailureKind
from shardline.errors import CredentialsError
from shardline.model.credentials import Credentials

RECHECK: Final = 60.0
"""Seconds between lookups of refreshable credentials."""
RETRY: Final = 10.0
"""Seconds from a failed lookup until the next one, while the current credentials stay in use."""
PAUSE: Final = 1.0
"""Minimum number of seconds between lookups after refusals."""
_LIMIT: Final = 30.0


class CredentialChain(Protocol):
    """Looks up credentials. All methods block."""

    def credentials(self, *, reload: bool) -> tuple[Credentials, bool]:
        """Return the current credentials and whether they can change."""
        ...


@final
class CredentialSource:
    """Caches credentials and looks them up in a worker thread when needed."""

    def __init__(
        self, chain: CredentialChain | None, fixed: Credentials | None = None, *, limit: float = _LIMIT
    ) -> None:
        assert (chain is None) != (fixed is None), "either a chain or fixed credentials"
        self._chain = chain
        self._current = fixed
        self._recheck_at: float | None = None
        self._refused: Credentials | None = None
        self._replacements = 0  # how many lookups were made after refusals
        self._replaced_at = -inf  # when the last of these lookups began, by the event loop's clock
        self._failure: Failure | None = None
        self._look_ups = 0
        self._look_up_lock = anyio.Lock()
        self._limit = limit
        # This does not use anyio's threads: all of them may be occupied by callers that wait for these credentials.
        self._calls = BlockingCalls[tuple[Credentials, bool]]()

    def cached(self, now: float) -> Credentials | None:
        """Return the cached credentials, or ``None`` if a lookup is due: the caller then awaits ``get``."""
        if self._recheck_at is not None and now >= self._recheck_at and not self._look_up_lock.locked():
            return None
        return self._current  # even while another request looks up new ones

    async def replace(self, refused: Credentials, now: float) -> Credentials | Failure:
        """Return the credentials to use after the service has refused ``refused``. The credentials may be unchanged."""
        before = self._replacements
        current = self._current
        if self._chain is None or (current is not None and current != refused):
            return current if current is not None else refused  # fixed credentials, or replaced by another request
        if refused != self._refused:
            self._refused = refused
            self._current = None
        async with self._look_up_lock:
            if self._replacements != before or self._current not in {None, refused}:
                return self._current or self._failure or refused  # from a lookup that began after the refusal
            await anyio.sleep(max(0.0, self._replaced_at + PAUSE - anyio.current_time()))
            self._replacements += 1
            self._replaced_at = anyio.current_time()
            return await self._look_up(now)

    async def get(self, now: float) -> Credentials | Failure:
        """Return the credentials. If a lookup is due, wait for it first."""
        before = self._look_ups
        async with self._look_up_lock:
            if self._current is not None and (self._recheck_at is None or now < self._recheck_at):
                return self._current
            if self._look_ups != before and self._failure is not None:
                return self._failure  # from the lookup that we waited for
            return await self._look_up(now)

    async def _look_up(self, now: float) -> Credentials | Failure:
        chain = self._chain
        assert chain is not None, "fixed credentials are always cached"
        reload = self._refused is not None
        try:
            with anyio.fail_after(self._limit):
                found, can_change = await self._calls.run(reload, lambda: chain.credentials(reload=reload))
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
        # If credentials have been found before, the next lookup may find new ones, so the failure is retryable.
        kind = FailureKind.NO_CREDENTIALS if self._refused is None else FailureKind.EXPIRED_CREDENTIALS
        return self._keep_or_fail(Failure(kind, "NoCredentials", str(error), maybe_received=False), now)

    def _not_in_time(self, now: float) -> Credentials | Failure:
        message = (
            f"the AWS credentials could not be loaded within {self._limit:g} s; the look-up continues: check their "
            "source (credential_process, SSO, STS, instance metadata) and the connection to it"
        )
        return self._keep_or_fail(
            Failure(FailureKind.TRANSIENT, "CredentialsTimeout", message, maybe_received=False), now
        )

    def _keep_or_fail(self, failure: Failure, now: float) -> Credentials | Failure:
        """Handle a failed lookup. Return the current credentials if there are any, or else the failure."""
        if self._current is not None:  # the current credentials may still be valid: look them up again soon
            self._recheck_at = now + RETRY
            return self._current
        self._recheck_at = None
        self._failure = failure
        return failure
