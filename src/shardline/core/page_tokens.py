"""Follows a paginated listing to its end, and detects a listing that never ends.

Invariants:

- An empty token means that there is no further page.
- A listing that returns the same token twice, or more than ``PAGES_MAX`` tokens, has failed. Otherwise the client would
  request pages forever, as fast as the service answers.
"""

from typing import Final, final

from shardline.core.error_codes import Failure, FailureKind

BAD_SHARD_LIST: Final = "BadShardList"
# A page contains up to 1,000 shards. No account has this many pages of shards, streams, consumers or tags.
PAGES_MAX: Final = 1_000


@final
class PageTokens:
    """Follows the page tokens of one listing. By default, this is the listing of shards.

    Args:
        code: the error code for a listing that does not end.
        listing: the name of the listing in the error message.
    """

    __slots__ = ("_code", "_listing", "_seen")

    def __init__(self, code: str = BAD_SHARD_LIST, listing: str = "the shard list") -> None:
        self._code = code
        self._listing = listing
        self._seen: set[str] = set()

    def follow(self, token: str | None) -> str | Failure | None:
        """Return the token for the next page, ``None`` after the last page, or a failure if the listing never ends."""
        if not token:
            return None
        # A faulty server or proxy may repeat a token, or invent new ones without end.
        if token in self._seen or len(self._seen) >= PAGES_MAX:
            return Failure(FailureKind.TRANSIENT, self._code, f"the pages of {self._listing} do not end")
        self._seen.add(token)
        return token
