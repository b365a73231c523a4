"""Can a producer reach its stream?

Judged by what the producer asks anyway when it starts: ListShards, and DescribeStreamSummary.

Invariants:

- It is ready when it has a shard map, or when it can never list the shards but the summary shows that the stream
  is there: then it sends without a map.
- It is hopeless when the stream is not there, or when both questions fail and would fail again (access denied,
  wrong keys, an untrusted certificate). Any other failure is waited out.
- The latest answers count: a stream that is created later makes the producer ready.
"""

from typing import final

from shardline.core.failures import Failure, FailureKind


@final
class Readiness:
    """Follows the answers to a producer's questions."""

    def __init__(self) -> None:
        self._has_map = False
        self._has_summary = False
        self._summary: Failure | None = None
        self.failure: Failure | None = None
        """Why the last listing of the shards failed; ``None`` after one that worked."""

    def handle_listing(self, failure: Failure | None, *, has_map: bool) -> None:
        """A ListShards was answered. ``failure``: why the listing failed, if it did."""
        self.failure = failure
        self._has_map = has_map

    def handle_summary(self, failure: Failure | None) -> None:
        """A DescribeStreamSummary was answered."""
        self._summary = failure
        self._has_summary = failure is None

    @property
    def is_ready(self) -> bool:
        return self._has_map or (self._can_never_list and self._has_summary)

    @property
    def is_hopeless(self) -> bool:
        """``failure`` has the reason."""
        if self._has_map or self.failure is None:
            return False
        if self.failure.kind is FailureKind.NOT_FOUND:
            return True
        return self._can_never_list and self._summary is not None and not self._summary.retryable

    @property
    def _can_never_list(self) -> bool:
        failure = self.failure
        return failure is not None and not failure.retryable and failure.kind is not FailureKind.NOT_FOUND
