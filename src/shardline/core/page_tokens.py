"""Does a listing go on, and does it ever end?

Invariants:

- PT1: an empty token is none.
- PT2: a listing that hands out a token twice, or more of them than any stream has pages, has failed: it is begun again
  after a pause. Followed, it would never end, at as many requests a second as the service answers.
"""

from typing import Final, final

from shardline.core.failures import Failure, FailureKind

BAD_SHARD_LIST: Final = "BadShardList"
PAGES_MAX: Final = 1_000  # of up to 1,000 shards each


@final
class PageTokens:
    """The tokens of one listing of shards."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def follow(self, token: str | None) -> str | Failure | None:
        """The token for the next page, ``None`` after the last one, or that the listing does not end (PT2)."""
        if not token:
            return None
        if token in self._seen or len(self._seen) >= PAGES_MAX:
            return Failure(FailureKind.TRANSIENT, BAD_SHARD_LIST, "the pages of the shard list do not end")
        self._seen.add(token)
        return token
