"""What is kept of a record from ``put`` to its end, and what does its owner learn?

Invariants:

- P1: ``ending`` is set exactly once: to a ``Landing`` (delivered) or to an ``Undelivered``.
- P11: one slotted object per record, invisible to the garbage collector: it refers to values only, and its one possible
  cycle (a waiter that refers to it) is broken when the ending is set. What a whole batch shares exists once.
- N1: the attempt history is bounded, and never hides the first attempts nor the last.
"""

from typing import Any, Final, final

import msgspec

from shardline.core.clock import Instant

_KEPT: Final = 16  # attempts remembered in full: the first half and the last half (N1)


@final
class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One try to store a record."""

    started_at: float
    """When the request was sent: seconds since 1970."""
    duration: float
    """Seconds until it was answered, or given up."""
    shard_id: str | None
    """Where it was stored, or was meant to be."""
    sequence_number: str | None
    code: str | None
    """``None``: stored where it belongs. Else why it was not, or has to be sent again."""
    message: str | None
    maybe_stored: bool
    """Whether this attempt left a copy in the stream, or may have."""


@final
class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a record lies in the stream."""

    shard_id: str
    sequence_number: str
    sub_sequence: int
    """The place inside its aggregate, from 0; 0 for a record that went alone."""
    attempts: tuple[Attempt, ...]
    """What it took, the last of them the one that succeeded. Of very many only the first and the last are kept."""
    attempt_count: int = 1

    @property
    def delivered(self) -> bool:
        return True


@final
class Undelivered(msgspec.Struct, frozen=True, gc=False):
    """Why a record was not delivered."""

    code: str
    """The service's error code, or ours: ``Expired``, ``Closed``, ``WrongShard``, ..."""
    message: str
    attempts: tuple[Attempt, ...] = ()
    """What was tried. Of very many only the first and the last are kept."""
    attempt_count: int = 0
    maybe_stored: bool = False
    """Whether some attempt left a copy in the stream, or may have: sending it again can make a duplicate."""

    @property
    def delivered(self) -> bool:
        return False


@final
class Landing(msgspec.Struct, frozen=True, gc=False):
    """Where one entry of a request was stored: shared by all records of the entry."""

    shard_id: str
    sequence_number: str
    attempts: tuple[Attempt, ...] = ()
    """The one attempt that succeeded, if it is at hand: else it is made of the following when someone asks."""
    started_at: float = 0.0
    duration: float = 0.0

    def made_attempts(self) -> tuple[Attempt, ...]:
        """The attempt of a landing that was kept short: a record alone in its entry shares it with nobody."""
        return (
            Attempt(self.started_at, self.duration, self.shard_id, self.sequence_number, None, None, True),  # noqa: FBT003 - by place: a third of the time
        )


@final
class History(msgspec.Struct, frozen=True, gc=False):
    """The attempts of a record that did not succeed (N1)."""

    count: int
    kept: tuple[Attempt, ...]
    maybe_stored: bool = False
    """Whether any was, also among those that are not kept."""

    def then(self, attempt: Attempt) -> "History":
        kept = self.kept
        if len(kept) == _KEPT:
            kept = kept[: _KEPT // 2] + kept[_KEPT // 2 + 1 :]
        return History(self.count + 1, (*kept, attempt), self.maybe_stored or attempt.maybe_stored)


_NONE_YET: Final = History(0, ())


class BufferedRecord(msgspec.Struct, gc=False, eq=False):
    """One record of the user, until it is delivered or given up (P11)."""

    data: bytes | None
    """Dropped on delivery, kept on failure."""
    key: str | None
    """``None``: keyless, the producer chooses where it goes."""
    explicit_hash_key: str | None
    expires_at: Instant
    ending: Landing | Undelivered | None = None
    sub_sequence: int = 0
    history: History | None = None
    waiters: list[Any] | None = None
    """What the shell wakes when the ending is there; the core only looks whether there is any."""

    @property
    def attempt_count(self) -> int:
        """How often it was sent in vain."""
        return 0 if self.history is None else self.history.count

    @property
    def conclusion(self) -> Receipt | Undelivered | None:
        """The ending, as its owner is told of it."""
        landing = self.ending
        if landing is None or type(landing) is Undelivered:
            return landing
        assert type(landing) is Landing
        attempts = landing.attempts or landing.made_attempts()
        if self.history is None:
            return Receipt(landing.shard_id, landing.sequence_number, self.sub_sequence, attempts)
        whole = self.history.then(attempts[0])
        return Receipt(landing.shard_id, landing.sequence_number, self.sub_sequence, whole.kept, whole.count)


def note_attempt(records: list[BufferedRecord], attempt: Attempt) -> None:
    """Add one attempt in vain to the history of each. Records that share a history go on sharing it."""
    old: History | None = None
    new = _NONE_YET.then(attempt)
    for record in records:
        if record.history is not old:
            old = record.history
            new = (old or _NONE_YET).then(attempt)
        record.history = new


def payload_bytes(record: BufferedRecord) -> int:
    """What a record counts against the buffer: its data and key."""
    data = record.data
    assert data is not None, "delivered: it counts no more"
    return len(data) + (len(record.key) if record.key is not None else 0)


def undelivered(record: BufferedRecord, code: str, message: str) -> Undelivered:
    """Why ``record`` was given up, with all that was tried."""
    history = record.history or _NONE_YET
    return Undelivered(code, message, history.kept, history.count, history.maybe_stored)
