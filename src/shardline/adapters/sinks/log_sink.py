"""Writes a log line for each event, as JSON or as key=value pairs.

Invariants:

- An event is one line, whatever its values contain.
- Numbers that JSON cannot represent, such as ``NEVER``, are written as ``null``.
- No line contains data or keys of records, because no event contains them.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, Literal, TypeAlias, cast, final, get_args

import msgspec

from shardline import events
from shardline.adapters.sinks.log_context import log_context, shard_and_code
from shardline.errors import UsageError
from shardline.events import Event, EventSource, LaneStats
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint

Level: TypeAlias = int | str | None
"""A level of ``logging``, as a number or a name. ``None`` means that nothing is logged."""

_Formatter: TypeAlias = Callable[[dict[str, Any]], str]

_WORD: Final = re.compile(r"[!#-<>-\[\]-~]+")  # printable ASCII without space, quote, = and backslash
_KINDS: Final = frozenset(get_args(Event))
_SIMPLE: Final = frozenset({str, int, float, bool, type(None)})
_WARNINGS: Final[tuple[type[Event], ...]] = (
    events.AggregationStopped,
    events.ChannelsFound,
    events.DeadLetterFailed,
    events.DistributionChanged,
    events.HandOverOverdue,
    events.HandlerRecovered,
    events.HandlerRetried,
    events.HandlerStuck,
    events.LeaseLost,
    events.ListingFailed,
    events.ReadFailed,
    events.RecordsRetried,
    events.ShardMapFailed,
    events.Stalled,
    events.StoreFailed,
    events.StoreRecovered,
    events.StreamUnknown,
    events.TooManyUnacknowledged,
)
# Events without an error code.
_ROUTINE: Final[frozenset[type[Event]]] = frozenset(
    {
        events.RecordsDelivered,
        events.PageRead,
        events.RecordsHandedOut,
        events.RecordsHandled,
        events.Committed,
    }
)
_FLAT: Final = frozenset({events.ShardDelivery, events.ShardLag})  # tuples of values that JSON can represent
_ERRORS: Final[tuple[type[Event], ...]] = (
    events.ConsumerFailed,
    events.HandlingStopped,
    events.HashRangesUncovered,
    events.PositionLost,
    events.ProgressLost,
    events.RecordsDeadLettered,
    events.RecordsFailed,
    events.RecordsTrimmed,
    events.ShardTrimmed,
    events.StreamMissing,
    events.StreamReplaced,
    events.WorkerIdShared,
)


@final
class LogSink:
    """A sink that logs every event in one line::

        Producer("orders", sinks=[LogSink()])

    The log records have ``event``, ``stream``, ``group``, ``worker``, ``shard_id`` and ``code`` as ``extra``.

    Args:
        logger: a logger, or its name.
        format: ``"json"`` or ``"key=value"``.
        level: the level of events that report no problem. Problems are logged as WARNING or ERROR. ``None`` logs
            only problems.
        levels: a mapping from types of events to their levels, such as ``{RecordsDelivered: "DEBUG"}``. ``None`` does
            not log events of that type.

    Raises:
        UsageError: an argument is invalid.
    """

    def __init__(
        self,
        logger: logging.Logger | str = "shardline.events",
        *,
        format: Literal["json", "key=value"] = "json",  # noqa: A002 - the natural name
        level: Level = logging.INFO,
        levels: Mapping[type[Event], Level] | None = None,
    ) -> None:
        if not isinstance(cast("object", logger), logging.Logger | str):
            raise UsageError(f"logger must be a logging.Logger or its name, not {type(logger).__name__}")
        if format not in _FORMATTERS:
            raise UsageError(f"format must be 'json' or 'key=value', not {format!r}")
        self._logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self._formatter = _FORMATTERS[format]
        self._levels: dict[type[Event], int | None] = dict.fromkeys(_KINDS, _check_level("level", level))
        self._levels |= dict.fromkeys(_WARNINGS, logging.WARNING) | dict.fromkeys(_ERRORS, logging.ERROR)
        for kind, kind_level in (levels or {}).items():
            if kind not in _KINDS:
                raise UsageError(f"levels: the keys must be types of events, such as RecordsDelivered, not {kind!r}")
            self._levels[kind] = _check_level(f"levels[{kind.__name__}]", kind_level)

    def open(self, source: EventSource, /) -> Callable[[Event], None]:
        """Return the callable that logs the events of this producer or consumer."""
        logger, levels, formatter, show_time = self._logger, self._levels, self._formatter, _Clock()
        own = log_context(source)
        context = {name: value for name, value in own.items() if value is not None}

        def log(event: Event) -> None:
            kind = type(event)
            level = levels[kind]
            if level is None or not logger.isEnabledFor(level):
                return
            name = kind.__name__
            shard_id, code = (getattr(event, "shard_id", None), None) if kind in _ROUTINE else shard_and_code(event)
            extra = own | {"shard_id": shard_id, "code": code, "event": name}
            # Do not use logger.log: it looks up which line of code calls it, and here this is always the same line.
            record = logger.makeRecord(logger.name, level, __file__, 0, "", (), None, "LogSink", extra)
            line: dict[str, Any] = {"time": show_time(record.created), "level": record.levelname, "event": name}
            line |= context
            if code is not None:
                line["code"] = code
            for field, value in zip(event._fields, event, strict=True):
                line[field] = value if type(value) in _SIMPLE else _plain(value)
            record.msg = formatter(line)
            logger.handle(record)

        return log


@final
class _Clock:
    """Writes times in the format of ISO 8601, with milliseconds. The text of the current second is cached."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self, at: float) -> str:
        second, milliseconds = divmod(int(at * 1000), 1000)
        if second != self._second:
            self._second, self._text = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._text}.{milliseconds:03}+00:00"


def _check_level(name: str, level: object) -> int | None:
    names = logging.getLevelNamesMapping()
    if isinstance(level, str) and level.upper() in names:
        return names[level.upper()]
    if level is None or (isinstance(level, int) and not isinstance(level, bool)):
        return level
    raise UsageError(f"{name} must be a level of logging, such as logging.INFO or 'INFO', or None, not {level!r}")


def _plain(value: Any) -> Any:
    """Return a value of an event in a form that JSON can represent. Hash keys are too large for most JSON readers."""
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Checkpoint):
        return str(value.position)
    if isinstance(value, HashRange):
        return f"{value.start}-{value.end}"
    if isinstance(value, LaneStats):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    items: Any = value
    if type(value) in _FLAT:
        return dict(zip(items._fields, items, strict=True))
    if hasattr(items, "_fields"):
        return {name: _plain(item) for name, item in zip(items._fields, items, strict=True)}
    if isinstance(value, tuple):
        return [_plain(item) for item in items]
    return {"token": value.token} if hasattr(value, "token") else str(value)  # a Grant; a Position


# ---- formats


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _pairs(line: dict[str, Any], prefix: str = "") -> str:
    """Return ``key=value`` pairs. The keys of nested values have the form ``outer.inner``."""
    parts: list[str] = []
    for name, value in line.items():
        if isinstance(value, dict):
            parts.append(_pairs(cast("dict[str, Any]", value), f"{prefix}{name}."))
        else:
            is_word = isinstance(value, str) and _WORD.fullmatch(value) is not None
            parts.append(f"{prefix}{name}={value if is_word else _json(value)}")
    return " ".join(parts)


_FORMATTERS: Final[dict[str, _Formatter]] = {"json": _json, "key=value": _pairs}
