"""Which shard does a hash key belong to, as far as we know?

::

    INVALID --poll_request--> UPDATING --all pages--> READY --invalidate--> UPDATING (the snapshot serves on)
                              | failure: again, after a backoff of 1 s to 30 s

Invariants:

- P3: a snapshot serves until the next one is complete (copy on write): prediction never pauses.
- Prediction takes O(log N) over closed ranges, both edges exact.
- One refresh at a time, one request of it in flight; every request is answered by exactly one ``handle_page``.
- ``invalidate`` refreshes only if what it reports is news: seen after the snapshot was asked for, with a predicted
  shard that is still among the open ones (``None``: there was no prediction), and no refresh on the way.
- A shard that disappeared stays answerable through ``hash_range`` for ``closed_shard_ttl``: entries may still be in
  flight to it.
- A listing that does not cover the ring exactly once, or does not end, is no map: it counts as a failed
  refresh. A shard that has an ending sequence number is closed, whatever the listing was asked for: some servers ignore
  the filter.
- A shard's numbers tell in which life of the stream it was created. If a listing that was asked for because of a
  number says twice that the shard is still the same, numbers are laid out in another way here, and tell nothing.
- A map that is newer than a landing and does not explain it is stale. It is read again after pauses that grow from
  1 s to 30 s, and so it is whenever the last listing was the same as the one before.
"""

from bisect import bisect_left
from enum import Enum
from typing import Final, NamedTuple, final

from shardline.codec.shapes import ListShardsResponse
from shardline.core.backoff import Backoff, Chance
from shardline.core.clock import NEVER, Instant
from shardline.core.failures import Failure, FailureKind
from shardline.core.page_tokens import BAD_SHARD_LIST, PageTokens
from shardline.core.requests import ListShards, ShardFilter
from shardline.errors import UsageError
from shardline.model.hashing import HASH_KEY_COUNT, HashRange
from shardline.model.limits import LIST_SHARDS_MAX_RESULTS
from shardline.model.sequence import ANY_NUMBER, NumberRange, numbers_of_shard
from shardline.model.stream import StreamRef

_BACKOFF_FIRST: Final = 1.0  # as the KPL's
_BACKOFF_LONGEST: Final = 30.0


@final
class MapState(Enum):
    INVALID = "invalid"  # there never was a snapshot
    UPDATING = "updating"  # one is being fetched; the one before, if any, serves on
    READY = "ready"


@final
class Snapshot(NamedTuple):
    """All open shards, sorted by hash range. The ranges cover the ring without gap or overlap."""

    endings: tuple[bytes, ...]
    """The last hash key of each, as 16 bytes: they compare as the numbers do."""
    shard_ids: tuple[str, ...]
    ranges: tuple[HashRange, ...]
    numbers: tuple[NumberRange, ...]
    """The sequence numbers of each."""

    def predict(self, digest: bytes) -> str:
        """The shard that a hash key belongs to."""
        return self.shard_ids[bisect_left(self.endings, digest)]


@final
class ShardMap:
    """The producer's picture of its stream."""

    def __init__(self, stream: StreamRef, chance: Chance, *, closed_shard_ttl: float = 60.0) -> None:
        self._stream = stream
        self._closed_shard_ttl = closed_shard_ttl
        self._backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LONGEST, chance)
        self._stale_backoff = Backoff(_BACKOFF_FIRST, _BACKOFF_LONGEST, chance)
        self._is_unchanged = False  # whether the last listing brought nothing new
        self._pages: list[_Listed] = []
        self._foreign_numbers: list[tuple[str, NumberRange]] = []  # shards whose numbers made us ask
        self._tokens = PageTokens()
        self._next_token: str | None = None
        self._wanted_at: Instant = 0.0  # when the next request may go; NEVER while READY
        self._in_flight = False
        self._is_outdated = False  # whether what is in flight is about a stream that is gone
        self._asked_at: Instant = -NEVER  # when the first request of the refresh under way was sent
        self._ranges: dict[str, HashRange] = {}  # open ones and those closed lately
        self._closed_at: dict[str, Instant] = {}
        self.snapshot: Snapshot | None = None
        self.updated_at: Instant = -NEVER
        """When the snapshot was asked for: it may lack what happened later."""
        self.failure: Failure | None = None
        """Why the last refresh failed; ``None`` after one that worked."""
        self.answered = False
        """Whether any refresh was ever answered, well or badly."""

    @property
    def state(self) -> MapState:
        if self._wanted_at != NEVER or self._in_flight:
            return MapState.INVALID if self.snapshot is None and not self._in_flight else MapState.UPDATING
        return MapState.READY

    def hash_range(self, shard_id: str) -> HashRange | None:
        """The range of a shard that is open, or was lately."""
        return self._ranges.get(shard_id)

    def invalidate(self, seen_at: Instant, predicted: str | None, now: Instant) -> bool:
        """An entry landed elsewhere than predicted, in a request sent at ``seen_at``. Says whether it was news."""
        if self.state is not MapState.READY or seen_at <= self.updated_at:
            return False
        if predicted is not None and (predicted not in self._ranges or predicted in self._closed_at):
            return False
        self._wanted_at = now + self._stale_backoff.next_delay() if self._is_unchanged else now
        return True

    def refresh_later(self, now: Instant) -> None:
        """The map proved to be stale, however new it is: read it again, not at once."""
        if self.state is MapState.READY:
            self._wanted_at = now + self._stale_backoff.next_delay()

    def is_expected_by(self, until: Instant) -> bool:
        """Whether a newer map may come by then: a listing is under way or is about to be, and the last one worked."""
        return self.failure is None and (self._in_flight or self._wanted_at <= until)

    def note_foreign_number(self, shard_id: str, numbers: NumberRange) -> None:
        """A landing in this shard had another number than it may give out."""
        self._foreign_numbers.append((shard_id, numbers))

    def reset(self, now: Instant) -> None:
        """The stream may be another one: its shards may have the ids of the old ones, and other ranges."""
        self.answered = False
        self._next_token = None
        self._wanted_at = now
        self._is_outdated = self._in_flight
        self._ranges, self._closed_at = {}, {}
        self.snapshot = None
        self.updated_at = -NEVER

    def poll_request(self, now: Instant) -> ListShards | None:
        """The next page to ask for, if it is time."""
        if self._in_flight or now < self._wanted_at:
            return None
        self._in_flight = True
        if self._next_token is not None:
            return ListShards(self._stream, next_token=self._next_token, max_results=LIST_SHARDS_MAX_RESULTS)
        self._pages, self._tokens = [], PageTokens()
        self._asked_at = now
        return ListShards(self._stream, ShardFilter("AT_LATEST"), max_results=LIST_SHARDS_MAX_RESULTS)

    def handle_page(self, answer: ListShardsResponse | Failure, now: Instant) -> bool:
        """What came of the request. Says whether there is a new snapshot."""
        assert self._in_flight
        self._in_flight = False
        if self._is_outdated:
            self._is_outdated = False
            return False
        if isinstance(answer, Failure):
            if self._next_token is not None and answer.kind in {FailureKind.INVALID, FailureKind.EXPIRED_TOKEN}:
                answer = answer._replace(kind=FailureKind.TRANSIENT)  # the token is too old, not the request wrong
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
        opened = dict(zip(snapshot.shard_ids, snapshot.ranges, strict=True))
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
    """The shards as a map, or ``None`` if they do not cover the ring exactly once."""
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
