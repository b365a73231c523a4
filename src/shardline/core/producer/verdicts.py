"""Decides from the answer to a request whether an entry is delivered, is sent again or has failed.

This module contains the retry table as data. The ``judge_`` functions find the rule that applies. The rule contains
everything else: the action, the consequences for the lane, and the words in the documentation.

Invariants:

- P4: an aggregate that did not land in the predicted shard is delivered only if all its records belong to the shard
  where it landed. A record that was sent alone is delivered wherever it landed.
- P5: after a fatal failure (see ``core/error_codes.py``), the records fail immediately. After any other failure, they
  are sent again later.
- Exactly one rule applies to each answer.
"""

from enum import Enum
from typing import Final, NamedTuple, final

from shardline.codec.shapes import PutRecordsResult
from shardline.core.error_codes import COUNT_MISMATCH, Failure, FailureKind, classify
from shardline.model.hashing import HashRange

WRONG_SHARD: Final = "WrongShard"


@final
class Action(Enum):
    """The possible ways to treat the records of an entry."""

    DELIVER = "delivered"
    RESEND = "sent again unchanged, after a pause"
    REROUTE = "sent again, each record to its shard in the new map"
    PARK = "judged again when the new map arrives"
    FAIL = "failed"
    BISECT = "sent again in smaller requests; a record that is rejected alone fails"


@final
class Rule(NamedTuple):
    """One row of the retry table: a case, and what follows from it."""

    when: str
    action: Action
    throttled: bool = False
    """Whether the shard or the stream was overloaded. If so, the lane lowers its rates."""
    stale_map: bool = False
    """Whether the map contradicts the service. If so, the map is read again."""


@final
class Rules:
    """The retry table. ``ALL`` lists the rules in the order that the documentation uses."""

    STORED = Rule("stored in the predicted shard, or without a prediction", Action.DELIVER)
    STORED_ALONE = Rule("stored in another shard, as a single record", Action.DELIVER, stale_map=True)
    STORED_IN_RANGE = Rule(
        "stored in another shard whose range contains every record of the aggregate", Action.DELIVER, stale_map=True
    )
    STORED_OUT_OF_RANGE = Rule(
        "stored in another shard whose range does not contain every record of the aggregate: readers may drop it",
        Action.REROUTE,
        stale_map=True,
    )
    STORED_UNKNOWN = Rule(
        "stored as an aggregate in a shard that the map does not contain", Action.PARK, stale_map=True
    )
    ENTRY_THROTTLED = Rule("entry rejected: throughput exceeded", Action.RESEND, throttled=True)
    ENTRY_THROTTLED_FATAL = Rule(
        "entry rejected: throughput exceeded, with fail_if_throttled", Action.FAIL, throttled=True
    )
    ENTRY_REFUSED = Rule("entry rejected: any other code (InternalFailure, ...)", Action.RESEND)
    ENTRY_FATAL = Rule("entry rejected: a fatal code (KMS, access, validation)", Action.FAIL)
    REQUEST_THROTTLED = Rule("request rejected: throttled", Action.RESEND, throttled=True)
    REQUEST_THROTTLED_FATAL = Rule("request rejected: throttled, with fail_if_throttled", Action.FAIL, throttled=True)
    REQUEST_LOST = Rule(
        "request failed on the way or within the service, credentials expired, or clock skewed", Action.RESEND
    )
    REQUEST_KEYLESS = Rule(
        "request rejected as invalid, with an entry without a key (AUTO): the stream may need keys again",
        Action.REROUTE,
    )
    REQUEST_INVALID = Rule("request rejected as invalid, with several records", Action.BISECT)
    REQUEST_INVALID_ALONE = Rule("request rejected as invalid, with a single record", Action.FAIL)
    REQUEST_FATAL = Rule("request rejected: no such stream, access denied, KMS, no credentials, TLS", Action.FAIL)
    COUNT_MISMATCH = Rule("the response has a different number of entries than the request", Action.RESEND)
    EXPIRED = Rule("record_ttl ended", Action.FAIL)
    TOO_MANY_ATTEMPTS = Rule("max_attempts is reached", Action.FAIL)

    ALL: Final = (
        STORED,
        STORED_ALONE,
        STORED_IN_RANGE,
        STORED_OUT_OF_RANGE,
        STORED_UNKNOWN,
        ENTRY_THROTTLED,
        ENTRY_THROTTLED_FATAL,
        ENTRY_REFUSED,
        ENTRY_FATAL,
        REQUEST_THROTTLED,
        REQUEST_THROTTLED_FATAL,
        REQUEST_LOST,
        REQUEST_KEYLESS,
        REQUEST_INVALID,
        REQUEST_INVALID_ALONE,
        REQUEST_FATAL,
        COUNT_MISMATCH,
        EXPIRED,
        TOO_MANY_ATTEMPTS,
    )


def judge_landing(predicted: str | None, shard_id: str, *, alone: bool) -> Rule | None:
    """Return the rule for a stored entry, or ``None`` if ``judge_range`` must decide by the records' hash keys."""
    if predicted is None or predicted == shard_id:
        return Rules.STORED
    return Rules.STORED_ALONE if alone else None


def judge_range(digests: list[bytes], landed_in: HashRange | None) -> Rule:
    """Return the rule for an aggregate that did not land in the predicted shard (P4)."""
    if landed_in is None:
        return Rules.STORED_UNKNOWN
    start, end = landed_in.start.to_bytes(16, "big"), landed_in.end.to_bytes(16, "big")
    inside = start <= min(digests) and max(digests) <= end
    return Rules.STORED_IN_RANGE if inside else Rules.STORED_OUT_OF_RANGE


def judge_refused(result: PutRecordsResult, *, fail_if_throttled: bool) -> Rule:
    """Return the rule for a refused entry of a request that was not refused as a whole."""
    kind = classify(result.error_code or "", 500, result.error_message or "")
    if kind is FailureKind.THROTTLED:
        return Rules.ENTRY_THROTTLED_FATAL if fail_if_throttled else Rules.ENTRY_THROTTLED
    return Rules.ENTRY_REFUSED if Failure(kind, "", "").retryable else Rules.ENTRY_FATAL


def judge_request(failure: Failure, record_count: int, *, keyless: bool, fail_if_throttled: bool) -> Rule:
    """Return the rule for a request that failed as a whole. ``keyless`` says whether some entries had no key."""
    if failure.code == COUNT_MISMATCH:
        return Rules.COUNT_MISMATCH
    if failure.kind is FailureKind.THROTTLED:
        return Rules.REQUEST_THROTTLED_FATAL if fail_if_throttled else Rules.REQUEST_THROTTLED
    if failure.retryable:
        return Rules.REQUEST_LOST
    if failure.kind is FailureKind.INVALID and keyless:
        return Rules.REQUEST_KEYLESS
    if failure.kind is FailureKind.INVALID:
        return Rules.REQUEST_INVALID if record_count > 1 else Rules.REQUEST_INVALID_ALONE
    return Rules.REQUEST_FATAL
