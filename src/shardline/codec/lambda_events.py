"""Reads the events that AWS Lambda passes to a function with a Kinesis event source.

Invariants:

- An event of another kind raises a ``UsageError`` that describes the event and says which events are allowed.
- Every record has a sequence number: without one, its failure could not be reported.
- Records are read as ``deaggregate`` reads them: aggregates are unpacked, and any other data is a plain record.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias, cast, final

from msgspec.structs import replace

from shardline.codec.raw_records import deaggregate
from shardline.errors import UsageError
from shardline.model.record import Origin, Record

State: TypeAlias = Mapping[str, Any]
"""The state of a tumbling window."""

_EXPECTED: Final = "expected a Kinesis event of Lambda, whose 'Records' have 'kinesis' and a sequence number"


@final
class Window(NamedTuple):
    """The tumbling window that the records of an event belong to."""

    state: State
    """The state that the window's previous invocation returned, as a read-only mapping. It is empty at first."""
    starts_at: float
    """When the window starts, in seconds since 1970."""
    ends_at: float
    """When the window ends, in seconds since 1970."""
    shard_id: str | None
    is_final: bool
    """Whether this is the last invocation of the window."""
    is_terminated_early: bool
    """Whether Lambda ends the window early, because the state became larger than 1 MB."""


def read_event(event: object, origin: Origin) -> tuple[list[Record], Window | None]:
    """Return the records of an event, and its window if it has one.

    Raises:
        UsageError: the event is not a Kinesis event.
    """
    if not isinstance(event, Mapping):
        raise UsageError(f"{_EXPECTED}, not {type(event).__name__}")
    fields = cast("Mapping[str, Any]", event)
    window = _read_window(fields)
    raws: object = fields.get("Records", None if window is None else [])  # the last event of a window may lack them
    if not isinstance(raws, Sequence) or isinstance(raws, (str, bytes)):
        keys = ", ".join(sorted(map(repr, fields))) or "no keys"
        raise UsageError(f"{_EXPECTED}, not a mapping with {keys}, whose 'Records' are no list")
    checked = [_check_record(index, raw) for index, raw in enumerate(cast("Sequence[object]", raws))]
    return [replace(record, origin=origin) for record in deaggregate(checked)], window


def replace_state(window: Window, state: State | None) -> Window:
    """Return a copy of the window with a new state, as a read-only mapping."""
    return window._replace(state=MappingProxyType(dict(state or {})))


def _check_record(index: int, raw: object) -> Mapping[str, object]:
    kind = type(raw).__name__
    record = cast("Mapping[str, object]", raw if isinstance(raw, Mapping) else {})
    kinesis = record.get("kinesis")
    if not isinstance(kinesis, Mapping):
        source = record.get("eventSource") or record.get("EventSource")
        given = kind if source is None else f"a record of {source!r}"
        raise UsageError(f"{_EXPECTED}; record {index} is {given}")
    number = cast("Mapping[str, object]", kinesis).get("sequenceNumber")
    if not isinstance(number, str) or not number:
        raise UsageError(f"{_EXPECTED}; the sequence number of record {index} is {number!r}")
    return record


def _read_window(event: Mapping[str, Any]) -> Window | None:
    bounds: Any = event.get("window")
    if bounds is None:
        return None
    try:
        starts_at, ends_at = (datetime.fromisoformat(bounds[name]).timestamp() for name in ("start", "end"))
        state: dict[str, Any] = dict(event.get("state") or {})
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            "the window of an event must have a 'start' and an 'end' in ISO 8601, and its state must be a mapping: "
            f"{type(error).__name__}: {error}"
        ) from None
    return Window(
        MappingProxyType(state),
        starts_at,
        ends_at,
        event.get("shardId"),
        bool(event.get("isFinalInvokeForWindow")),
        bool(event.get("isWindowTerminatedEarly")),
    )
