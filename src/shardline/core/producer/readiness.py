"""Decides whether a producer can reach its stream.

The answer is derived from the two requests that every producer sends when it starts: ListShards and
DescribeStreamSummary.

Invariants:

- A producer is ready when it has a shard map. It is also ready when it can never list the shards but the summary shows
  that the stream exists. The producer then sends without a map.
- A producer is hopeless when the stream does not exist, or when both requests fail and would fail again (access denied,
  wrong keys, an untrusted certificate). Any other failure may be temporary.
- Only the latest answers count: if the stream is created later, the producer becomes ready.
"""

from typing import final

from shardline.core.error_codes import Failure, FailureKind


@final
class Readiness:
    """Derives readiness from the answers to a producer's first requests."""

    def __init__(self) -> None:
        self._has_map = False
        self._has_summary = False
        self._summary: Failure | None = None
        self.failure: Failure | None = None
        """Why the last ListShards request failed, or ``None`` if the request succeeded."""

    def handle_listing(self, failure: Failure | None, *, has_map: bool) -> None:
        """Handle the answer to a ListShards request. ``failure`` is ``None`` if the request succeeded."""
        self.failure = failure
        self._has_map = has_map

    def handle_summary(self, failure: Failure | None) -> None:
        """Handle the answer to a DescribeStreamSummary request. ``failure`` is ``None`` if the request succeeded."""
        self._summary = failure
        self._has_summary = failure is None

    @property
    def is_ready(self) -> bool:
        # Without permission to list the shards, the producer sends without a map, so the summary is enough.
        return self._has_map or (self._can_never_list and self._has_summary)

    @property
    def is_hopeless(self) -> bool:
        """Whether the producer cannot become ready by waiting. ``failure`` gives the reason."""
        if self._has_map or self.failure is None:
            return False
        # If ListShards did not find the stream, DescribeStreamSummary would not find it either.
        if self.failure.kind is FailureKind.NOT_FOUND:
            return True
        return self._can_never_list and self._summary is not None and not self._summary.retryable

    @property
    def _can_never_list(self) -> bool:
        failure = self.failure
        return failure is not None and not failure.retryable and failure.kind is not FailureKind.NOT_FOUND
