"""Does a listing go on, and does it ever end?

Invariants:

- An empty token is none.
- A listing that hands out a token twice, or more of them than any has pages, has failed. Followed, it would never
  end, at as many requests a second as the service answers.
"""

from typing import Final, final

from shardline.core.failures import Failure, FailureKind

BAD_SHARD_LIST: Final = "BadShardList"
PAGES_MAX: Final = 1_000  # of up to 1,000 shards each, or as many streams, consumers or tags as no account has


@final
class PageTokens:
    """The tokens of one listing, of shards unless said.

    Args:
        code: what a listing without end is called.
        listing: what it lists, for the message.
    """

    __slots__ = ("_code", "_listing", "_seen")

    def __init__(self, code: str = BAD_SHARD_LIST, listing: str = "the shard list") -> None:
        self._code = code
        self._listing = listing
        self._seen: set[str] = set()

    def follow(self, token: str | None) -> str | Failure | None:
        """The token for the next page, ``None`` after the last one, or that the listing does not end."""
        if not token:
            return None
        if token in self._seen or len(self._seen) >= PAGES_MAX:
            return Failure(FailureKind.TRANSIENT, self._code, f"the pages of {self._listing} do not end")
        self._seen.add(token)
        return token
