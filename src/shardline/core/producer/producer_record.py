"""A record between ``put`` and its delivery or failure, and the receipt or failure that its owner gets.

Invariants:

- P1: ``ending`` is set exactly once: to a ``Landing`` (delivered) or to an ``Undelivered``.
- P11: a record is one slotted object that the garbage collector does not track. It refers to plain values only. The one
  possible reference cycle, a waiter that refers to the record, is broken when the ending is set. Records of a batch
  share the objects that would be equal for all of them.
- The attempt history is bounded. It always contains the first and the last attempts.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, final

import msgspec

from shardline._speedups import twin
from shardline.core.clock import Instant
from shardline.core.producer.verdicts import WRONG_SHARD

INVALID: Final = "InvalidRecord"
"""The code of records that ``put_many`` refused because they are invalid."""
_KEPT_ATTEMPTS: Final = 16  # the number of attempts that are kept: half of them the first, and half the last


@final
class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt to store a record. The last attempt of an expired record has the code ``Expired``."""

    started_at: float
    """When the request was sent, or the record expired, in seconds since 1970."""
    duration: float
    """Seconds until the request was answered or failed."""
    shard_id: str | None
    """The shard that stored the record, or for which the record was meant."""
    sequence_number: str | None
    code: str | None
    """Why the record was not stored or had to be sent again. It is ``None`` if the record was stored in the right
    shard.
    """
    message: str | None
    maybe_stored: bool
    """Whether this attempt stored, or may have stored, a copy in the stream."""


@final
class Sent(msgspec.Struct, frozen=True, gc=False):
    """When a successful request was sent, and how long it took. All entries of the request share this object."""

    started_at: float
    duration: float


@final
class Receipt(msgspec.Struct, frozen=True, gc=False, eq=False):
    """The position of a delivered record in the stream."""

    shard_id: str
    sequence_number: str
    sub_sequence: int
    """The index inside the aggregate, from 0. It is 0 for a record that was sent alone."""
    _tries: tuple[Attempt, ...] | Sent
    """The attempts. In the usual case of a single attempt, only the times of that attempt are stored."""
    attempt_count: int = 1

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts, the last of which succeeded. If there were many, only the first and the last ones are kept."""
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
    def delivered(self) -> Literal[True]:
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
    """The service's error code, or one of Shardline's own codes: ``Expired``, ``Closed``, ``WrongShard``, ..."""
    message: str
    attempts: tuple[Attempt, ...] = ()
    """The attempts. If there were many, only the first and the last ones are kept.

    The last attempt of an expired record has the code ``Expired``.
    """
    attempt_count: int = 0
    """How many times the record was sent. An ``Expired`` attempt does not count."""
    maybe_stored: bool = False
    """Whether some attempt stored, or may have stored, a copy in the stream. If so, sending the record again may
    duplicate it.
    """

    @property
    def delivered(self) -> Literal[False]:
        return False


@final
class Landing(msgspec.Struct, frozen=True, gc=False):
    """Where an aggregate or a bundle of records was stored. All these records share this object."""

    shard_id: str
    sequence_number: str
    """The sequence number of the aggregate. It is empty for a bundle, whose records have their own sequence numbers."""
    sent: Sent
    """The times of the attempt that succeeded."""


@final
class History(msgspec.Struct, frozen=True, gc=False):
    """The failed attempts of a record."""

    count: int
    kept: tuple[Attempt, ...]
    maybe_stored: bool = False
    """Whether any attempt may have stored the record, including attempts that are not kept."""
    wrong_landings: int = 0
    """How many attempts stored the record in a wrong shard (P4), including attempts that are not kept."""

    def then(self, attempt: Attempt) -> "History":
        """Return this history with one more attempt."""
        kept = self.kept
        if len(kept) == _KEPT_ATTEMPTS:
            kept = kept[: _KEPT_ATTEMPTS // 2] + kept[_KEPT_ATTEMPTS // 2 + 1 :]
        wrong_landings = self.wrong_landings + (attempt.code == WRONG_SHARD)
        return History(self.count + 1, (*kept, attempt), self.maybe_stored or attempt.maybe_stored, wrong_landings)


_NO_ATTEMPTS: Final = History(0, ())


@final
class OptionalTags(bytes):
    """The encoded headers of a trace. No caller passed these headers, so if they cannot be sent, the record is sent
    without them.
    """


NO_TAGS: Final = OptionalTags()


class BufferedRecord(msgspec.Struct, gc=False, eq=False):
    """A record that was put, until it is delivered or has failed (P11)."""

    data: bytes | None
    """The data of the record. It is dropped on delivery and kept on failure."""
    key: str | None
    """The partition key, or ``None`` if the record is keyless, so that the producer chooses the shard."""
    explicit_hash_key: str | None
    expires_at: Instant
    """The time of the put plus ``record_ttl``. It determines the order of records (P9) and when a record is due."""
    ending: Landing | Undelivered | None = None
    place: int | str = 0
    """The index of a delivered record in its aggregate, or the sequence number of a record that was sent alone."""
    history: History | None = None
    waiters: list[Any] | None = None
    """The waiters that the shell wakes when the record has been delivered or has failed. ``core`` only checks whether
    any exist.
    """
    extra_ttl: float = 0.0
    """How much longer than ``record_ttl`` the record lives, in seconds. The value is negative if the record's own TTL
    is shorter.
    """
    tags: bytes = b""
    """The headers, encoded by ``codec.aggregation.encode_tags``. This is empty if the record has no headers."""

    @property
    def deadline(self) -> Instant:
        """When the record expires, unless it is delivered earlier."""
        return self.expires_at + self.extra_ttl

    @property
    def attempt_count(self) -> int:
        """The number of failed attempts."""
        return 0 if self.history is None else self.history.count

    @property
    def conclusion(self) -> Receipt | Undelivered | None:
        """The receipt or failure for the record's owner, or ``None`` while the record is outstanding."""
        landing = self.ending
        if not isinstance(landing, Landing):
            return landing
        place = self.place
        number, index = (landing.sequence_number, place) if isinstance(place, int) else (place, 0)
        receipt = Receipt(landing.shard_id, number, index, landing.sent)
        if self.history is None:
            return receipt
        whole = self.history.then(receipt.attempts[0])
        return Receipt(landing.shard_id, number, index, whole.kept, whole.count)


@twin
def bind_record(record_type: type[BufferedRecord], /) -> None:
    """Pass the positions of a record's fields to the compiled form. The pure form does not need them."""


@twin
def bind_receipt(receipt_type: type[Receipt], landing_type: type[Landing], /) -> None:
    """Pass the positions of the fields of receipts and landings to the compiled form."""


bind_record(BufferedRecord)
bind_receipt(Receipt, Landing)


def note_attempt(records: list[BufferedRecord], attempt: Attempt) -> None:
    """Add a failed attempt to the history of each record. Consecutive records that share a history keep sharing it."""
    old: History | None = None
    new = _NO_ATTEMPTS.then(attempt)
    for record in records:
        if record.history is not old:
            old = record.history
            new = (old or _NO_ATTEMPTS).then(attempt)
        record.history = new


def payload_bytes(record: BufferedRecord) -> int:
    """Return the room that a record takes in the buffer: the total length of its data, key and headers."""
    data = record.data
    assert data is not None, "a delivered record takes no room"
    return len(data) + (len(record.key) if record.key is not None else 0) + len(record.tags)


@twin
def date_records(records: Sequence[BufferedRecord], expires_at: Instant, /) -> int:
    """Set the expiry time of each record in a list, and return the room that the records take in the buffer."""
    size = 0
    for record in records:
        record.expires_at = expires_at
        size += payload_bytes(record)
    return size


def undelivered(record: BufferedRecord, code: str, message: str, last: Attempt | None = None) -> Undelivered:
    """Return the failure of a record, with its attempts.

    Args:
        record: the record.
        code: the error code.
        message: why the record failed, in words.
        last: an attempt to append. It is not counted, because it was not a request.
    """
    history = record.history or _NO_ATTEMPTS
    kept = history.kept if last is None else history.then(last).kept
    return Undelivered(code, message, kept, history.count, history.maybe_stored)
