"""Predicts which shard a hash key belongs to.

::

    INVALID --poll_request--> UPDATING --all pages--> READY --invalidate--> UPDATING (the old snapshot stays in use)
                              | failure: again, after a backoff of 1 s to 30 s

Invariants:

- P3: a snapshot stays in use until the next one is complete (copy on write), so prediction never pauses.
- Predicting a shard among N shards takes O(log N). Both ends of a hash range belong to the range.
- There is one refresh at a time, with one request in flight. Every request is answered by exactly one ``handle_page``.
- ``invalidate`` starts a refresh only if all of these conditions hold: the request with the entry was sent after the
  snapshot was requested, the predicted shard is still open in the map (or there was no prediction), and no refresh is
  in progress.
- The range of a closed shard is remembered for ``closed_shard_ttl``, because entries for this shard may still be in
  flight.
- A listing whose shards do not cover all hash keys exactly once, or that does not end, counts as a failed refresh. A
  shard with an ending sequence number counts as closed even if only open shards were requested, because some servers
  ignore the filter.
- Sequence numbers show when a shard was created, and so whether the stream was re-created. A sequence number outside
  the shard's range is called *foreign*. If the listing after a foreign number still contains the same shard, and this
  happens twice, the service structures its sequence numbers differently. Sequence numbers are then ignored.
- A map that is newer than a landing and does not explain the landing is stale. The map is read again after a backoff of
  1 s to 30 s. The same backoff applies while listings bring nothing new.
"""

from bisect import bisect_left
from enum import Enum
from typing import Final, NamedTuple, final

from shardline.codec.shapes import ListShardsResponse
from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.page_tokens import BAD_SHARD_LIST, PageTokens
from shardline.core.requests import ListShards, ShardFilter
from shardline.errors import UsageError
from shardline.model.hashing import HASH_KEY_COUNT, HashRange
from shardline.model.limits import LIST_SHARDS_MAX_RESULTS
from shardline.model.sequence import ANY_NUMBER, NumberRange, numbers_of_shard
from shardline.model.stream import StreamRef

_BACKOFF_FIRST: Final = 1.0  # the KPL uses this value and the next one, too
_BACKOFF_LONGEST: Final = 30.0


@final
class MapState(Enum):
    INVALID = "invalid"  # there is no snapshot, and no snapshot is being fetched
    UPDATING = "updating"  # a snapshot is being fetched; the previous one, if any, stays in use
    READY = "ready"


@final
class Snapshot(NamedTuple):
    """All open shards, sorted by hash range. The ranges cover all hash keys without gaps or overlaps."""

    endings: tuple[bytes, ...]
    """The last hash key of each shard, as 16 bytes. These bytes compare like the numbers that they encode."""
    shard_ids: tuple[str, ...]
    ranges: tuple[HashRange, ...]
    numbers: tuple[NumberRange, ...]
    """The range of each shard's sequence numbers."""

    def predict(self, digest: bytes) -> str:
        """Return the shard that a hash key belongs to."""
        return self.shard_ids[bisect_left(self.endings, digest)]


@final
class ShardMap:
    """Keeps a snapshot of the open shards, and decides when to fetch a newer one."""

    def __init__(self, stream: StreamRef, rng: Chance, *, closed_shard_ttl: float = 60.0) -> None:
        self._stream = stream
        self._closed_shard_ttl = closed_shard_ttl
        self._backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LONGEST, rng)
        self._stale_backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LONGEST, rng)
        self._is_unchanged = False  # whether the last listing brought nothing new
        self._pages: list[_Listed] = []
        self._foreign_numbers: list[tuple[str, NumberRange]] = []  # passed to ``note_foreign_number``
        self._tokens = PageTokens()
        self._next_token: str | None = None
        self._wanted_at: Instant = 0.0  # when the next request may be sent; NEVER while READY
        self._in_flight = False
        self._is_outdated = False  # whether the request in flight was sent before ``reset``
        self._asked_at: Instant = -NEVER  # when the first request of the current refresh was sent
        self._ranges: dict[str, tuple[HashRange, NumberRange]] = {}  # contains open and recently closed shards
        self._closed_at: dict[str, Instant] = {}
        self.snapshot: Snapshot | None = None
        self.updated_at: Instant = -NEVER
        """When the snapshot was requested. The snapshot may lack later changes."""
        self.failure: Failure | None = None
        """Why the last refresh failed, or ``None`` if the refresh succeeded."""
        self.answered = False
        """Whether any refresh has succeeded or failed since the start or the last ``reset``."""

    @property
    def state(self) -> MapState:
        if self._wanted_at != NEVER or self._in_flight:
            return MapState.INVALID if self.snapshot is None and not self._in_flight else MapState.UPDATING
        return MapState.READY

    def hash_range(self, shard_id: str, sequence_number: str) -> HashRange | None:
        """Return the range of the shard that assigned a sequence number, if the shard is open or was closed recently.

        The result is also ``None`` if the id is known but the sequence number is outside the shard's range, because a
        re-created stream has another shard of the same id.
        """
        known = self._ranges.get(shard_id)
        if known is None:
            return None
        hash_range, numbers = known
        return hash_range if numbers.first <= sequence_number < numbers.limit else None

    def invalidate(self, seen_at: Instant, predicted: str | None, now: Instant) -> bool:
        """Request a refresh, because an entry did not land as predicted.

        Args:
            seen_at: when the request with the entry was sent.
            predicted: the predicted shard.
            now: the current time.

        Returns:
            Whether a refresh has been started because the map did not contain the change yet.
        """
        if self.state is not MapState.READY or seen_at <= self.updated_at:
            return False
        # If the map already shows that the predicted shard is closed, the entry was routed by an older map.
        if predicted is not None and (predicted not in self._ranges or predicted in self._closed_at):
            return False
        # If the last listing brought nothing new, the next may bring nothing new either. So back off.
        self._wanted_at = now + self._stale_backoff.next_delay() if self._is_unchanged else now
        return True

    def refresh_later(self, now: Instant) -> None:
        """Request a refresh after a backoff, because even the newest map does not explain a landing."""
        if self.state is MapState.READY:
            self._wanted_at = now + self._stale_backoff.next_delay()

    def is_expected_by(self, until: Instant) -> bool:
        """Return whether a newer map may arrive by ``until``: a refresh is in progress or planned, and the last refresh
        succeeded.
        """
        return self.failure is None and (self._in_flight or self._wanted_at <= until)

    def note_foreign_number(self, shard_id: str, numbers: NumberRange) -> None:
        """Called when an entry in this shard got a sequence number outside ``numbers``, the shard's range."""
        self._foreign_numbers.append((shard_id, numbers))

    def reset(self, now: Instant) -> None:
        """Drop the map. The stream may have been re-created, and the same shard ids may have other ranges."""
        self.answered = False
        self._next_token = None
        self._wanted_at = now
        self._is_outdated = self._in_flight
        self._ranges, self._closed_at = {}, {}
        self.snapshot = None
        self.updated_at = -NEVER

    def poll_request(self, now: Instant) -> ListShards | None:
        """Return the request for the next page, if it should be sent now."""
        if self._in_flight or now < self._wanted_at:
            return None
        self._in_flight = True
        if self._next_token is not None:
            return ListShards(self._stream, next_token=self._next_token, max_results=LIST_SHARDS_MAX_RESULTS)
        self._pages, self._tokens = [], PageTokens()
        self._asked_at = now
        return ListShards(self._stream, ShardFilter("AT_LATEST"), max_results=LIST_SHARDS_MAX_RESULTS)

    def handle_page(self, answer: ListShardsResponse | Failure, now: Instant) -> bool:
        """Apply the answer to a request. Return whether there is a new snapshot."""
        assert self._in_flight
        self._in_flight = False
        if self._is_outdated:  # the answer may describe the stream before it was deleted
            self._is_outdated = False
            return False
        if isinstance(answer, Failure):
            if self._next_token is not None and answer.kind in {FailureKind.INVALID, FailureKind.EXPIRED_TOKEN}:
                answer = answer._replace(kind=FailureKind.TRANSIENT)  # the token is too old: a new listing may succeed
            return self._fail(answer, now)
        try:
            self._pages += [
                _Listed(
                    shard.shard_id,
                    shard.hash_key_range.to_range(),
                    numbers_of_shard(shard.sequence_number_range.starting_sequence_number),
                )
                for shard in answer.shards or ()
                if shard.sequence_number_range.ending_sequence_number is None
            ]
        except UsageError as error:
            return self._fail(_bad_listing(str(error)), now)
        token = self._tokens.follow(answer.next_token)
        if isinstance(token, Failure):
            return self._fail(token, now)
        self._next_token = token
        if token is not None:
            self._wanted_at = now
            return False
        self.answered = True
        snapshot = _make_snapshot(self._pages)
        if snapshot is None:
            return self._fail(_bad_listing("the open shards do not cover all hash keys exactly once"), now)
        self._install(snapshot, now)
        return True

    def next_deadline(self) -> Instant:
        return NEVER if self._in_flight else self._wanted_at

    def _fail(self, failure: Failure, now: Instant) -> bool:
        self._next_token = None
        self.failure = failure
        self.answered = True
        self._wanted_at = now + self._backoff.next_delay(failure.retry_after)
        return False

    def _install(self, snapshot: Snapshot, now: Instant) -> None:
        # A foreign sequence number should mean that the stream was re-created. If listings still contain the same shard
        # after two foreign numbers, sequence numbers prove nothing for this service.
        same = [
            shard for shard in zip(snapshot.shard_ids, snapshot.numbers, strict=True) if shard in self._foreign_numbers
        ]
        if any(self._foreign_numbers.count(shard) > 1 for shard in same):
            snapshot = snapshot._replace(numbers=(ANY_NUMBER,) * len(snapshot.numbers))
        self.failure = None
        self._backoff.reset()
        self._wanted_at = NEVER
        self._is_unchanged = snapshot == self.snapshot
        if not self._is_unchanged:
            self._stale_backoff.reset()
        self.snapshot = snapshot
        self.updated_at = self._asked_at
        shards = zip(snapshot.shard_ids, snapshot.ranges, snapshot.numbers, strict=True)
        opened = {shard_id: (hash_range, numbers) for shard_id, hash_range, numbers in shards}
        for shard_id in list(self._ranges):
            if shard_id in opened:
                self._closed_at.pop(shard_id, None)
            elif now - self._closed_at.setdefault(shard_id, now) >= self._closed_shard_ttl:
                del self._ranges[shard_id], self._closed_at[shard_id]
        self._ranges |= opened


@final
class _Listed(NamedTuple):
    shard_id: str
    hash_range: HashRange
    numbers: NumberRange


def _make_snapshot(shards: list[_Listed]) -> Snapshot | None:
    """Return the shards as a snapshot, or ``None`` if they do not cover all hash keys exactly once."""
    ordered = sorted(set(shards), key=lambda shard: shard.hash_range)
    covered = 0
    for shard in ordered:
        if shard.hash_range.start != covered:
            return None
        covered = shard.hash_range.end + 1
    if covered != HASH_KEY_COUNT:
        return None
    return Snapshot(
        tuple(shard.hash_range.end.to_bytes(16, "big") for shard in ordered),
        tuple(shard.shard_id for shard in ordered),
        tuple(shard.hash_range for shard in ordered),
        tuple(shard.numbers for shard in ordered),
    )


def _bad_listing(message: str) -> Failure:
    return Failure(FailureKind.TRANSIENT, BAD_SHARD_LIST, f"ListShards: {message}")
