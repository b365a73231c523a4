"""What is kept of a record from ``put`` to its end, and what does its owner learn?

Invariants:

- P1: ``ending`` is set exactly once: to a ``Landing`` (delivered) or to an ``Undelivered``.
- P11: one slotted object per record, invisible to the garbage collector: it refers to values only, and its one possible
  cycle (a waiter that refers to it) is broken when the ending is set. What a whole batch shares exists once.
- The attempt history is bounded, and never hides the first attempts nor the last.
"""

from typing import Any, Final, final

import msgspec

from shardline.core.clock import Instant

_KEPT_ATTEMPTS: Final = 16  # attempts remembered in full: the first half and the last half


@final
class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One try to store a record, or its end: an expired record's last attempt has the code ``Expired``."""

    started_at: float
    """When the request was sent, or the record expired: seconds since 1970."""
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
class Sent(msgspec.Struct, frozen=True, gc=False):
    """When a request that succeeded was sent, and how long it took: shared by all its entries."""

    started_at: float
    duration: float


@final
class Receipt(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Where a record lies in the stream."""

    shard_id: str
    sequence_number: str
    sub_sequence: int
    """The place inside its aggregate, from 0; 0 for a record that went alone."""
    _tries: tuple[Attempt, ...] | Sent
    """What ``attempts`` is made of: them, or for the most, when the only one was sent."""
    attempt_count: int = 1

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """What it took, the last of them the one that succeeded. Of very many only the first and the last are kept."""
        tries = self._tries
        if not isinstance(tries, Sent):
            return tries
        stored = Attempt(
            started_at=tries.started_at,
            duration=tries.duration,
            shard_id=self.shard_id,
            sequence_number=self.sequence_number,
            code=None,
            message=None,
            maybe_stored=True,
        )
        return (stored,)

    @property
    def delivered(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Receipt) and self._as_tuple() == other._as_tuple()

    def __hash__(self) -> int:
        return hash((self.shard_id, self.sequence_number, self.sub_sequence))

    def __repr__(self) -> str:
        shard_id, sequence_number, sub_sequence, attempts, attempt_count = self._as_tuple()
        return f"Receipt({shard_id=}, {sequence_number=}, {sub_sequence=}, {attempts=}, {attempt_count=})"

    def _as_tuple(self) -> tuple[str, str, int, tuple[Attempt, ...], int]:
        return self.shard_id, self.sequence_number, self.sub_sequence, self.attempts, self.attempt_count


@final
class Undelivered(msgspec.Struct, frozen=True, gc=False):
    """Why a record was not delivered."""

    code: str
    """The service's error code, or ours: ``Expired``, ``Closed``, ``WrongShard``, ..."""
    message: str
    attempts: tuple[Attempt, ...] = ()
    """What was tried. Of very many only the first and the last are kept. An expired record's end with ``Expired``."""
    attempt_count: int = 0
    """How often it was sent: an ``Expired`` attempt does not count."""
    maybe_stored: bool = False
    """Whether some attempt left a copy in the stream, or may have: sending it again can make a duplicate."""

    @property
    def delivered(self) -> bool:
        return False


@final
class Landing(msgspec.Struct, frozen=True, gc=False):
    """Where an aggregate was stored, or a bundle of records: shared by all of them."""

    shard_id: str
    sequence_number: str
    """Of an aggregate; each record of a bundle has its own."""
    sent: Sent
    """The attempt that succeeded."""


@final
class History(msgspec.Struct, frozen=True, gc=False):
    """The attempts of a record that did not succeed."""

    count: int
    kept: tuple[Attempt, ...]
    maybe_stored: bool = False
    """Whether any was, also among those that are not kept."""

    def then(self, attempt: Attempt) -> "History":
        kept = self.kept
        if len(kept) == _KEPT_ATTEMPTS:
            kept = kept[: _KEPT_ATTEMPTS // 2] + kept[_KEPT_ATTEMPTS // 2 + 1 :]
        return History(self.count + 1, (*kept, attempt), self.maybe_stored or attempt.maybe_stored)


_NO_ATTEMPTS: Final = History(0, ())


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
    sequence_number: str = ""
    """If it was stored as an entry of its own."""
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
        if not isinstance(landing, Landing):
            return landing
        number = self.sequence_number or landing.sequence_number
        receipt = Receipt(landing.shard_id, number, self.sub_sequence, landing.sent)
        if self.history is None:
            return receipt
        whole = self.history.then(receipt.attempts[0])
        return Receipt(landing.shard_id, number, self.sub_sequence, whole.kept, whole.count)


def note_attempt(records: list[BufferedRecord], attempt: Attempt) -> None:
    """Add one attempt in vain to the history of each. Records that share a history go on sharing it."""
    old: History | None = None
    new = _NO_ATTEMPTS.then(attempt)
    for record in records:
        if record.history is not old:
            old = record.history
            new = (old or _NO_ATTEMPTS).then(attempt)
        record.history = new


def payload_bytes(record: BufferedRecord) -> int:
    """What a record counts against the buffer: its data and key."""
    data = record.data
    assert data is not None, "delivered: it counts no more"
    return len(data) + (len(record.key) if record.key is not None else 0)


def undelivered(record: BufferedRecord, code: str, message: str, last: Attempt | None = None) -> Undelivered:
    """Why ``record`` was given up, with all that was tried; and ``last``, which was no request and does not count."""
    history = record.history or _NO_ATTEMPTS
    kept = history.kept if last is None else history.then(last).kept
    return Undelivered(code, message, kept, history.count, history.maybe_stored)
