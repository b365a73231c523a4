"""Adds the headers of a trace to the records of a producer.

Invariants:

- No record is lost because of a trace: a record is put without the headers of its trace if they are invalid, if they do
  not fit, or if the producer or the stream cannot send headers. The last case is logged once.
- Headers that the caller passes override those of the trace.
- The headers of a trace are validated and encoded once, as long as the tracing returns the same mapping.
- Outside a trace, a put reads one context variable, if the tracing has one (``put_context``).
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, final

from shardline._speedups import twin
from shardline.aio.tracing import Tracings
from shardline.codec.aggregation import encode_tags
from shardline.core.producer.intake import Intake
from shardline.core.producer.producer_record import NO_TAGS, OptionalTags
from shardline.errors import UsageError
from shardline.model.headers import check_headers
from shardline.model.limits import RECORD_DEFAULT_MAX_BYTES

TRACED_MAX_BYTES: Final = RECORD_DEFAULT_MAX_BYTES // 2
"""A record whose data is smaller than this has room for the headers of a trace, whatever the stream's limit is."""
_NEVER_SET: Final = ContextVar[Any]("shardline_never_set")


@twin
class TraceGate:
    """The fields that say whether a put is in a trace. The compiled form of ``put`` reads them."""

    __slots__ = ("untraced", "variable")

    variable: ContextVar[Any] | None
    untraced: object  # while ``variable`` has this value, a put is not in a trace: the putting threads write it


@final
class TraceHeaders(TraceGate):
    """The headers that the tracings of a producer add to a put.

    Args:
        tracings: the tracings.
        intake: says whether headers can be sent.
        log: a function that logs why headers cannot be sent. It is called once.
    """

    __slots__ = (
        "_intake",
        "_is_refusal_logged",
        "_last",
        "_log",
        "_tracings",
        "get_context",
    )

    def __init__(self, tracings: Tracings, intake: Intake, log: Callable[[str], object]) -> None:
        self._tracings = tracings
        self._intake = intake
        self._log = log
        self._is_refusal_logged = False
        self._last: tuple[Mapping[str, str] | None, OptionalTags] = None, NO_TAGS
        self.variable = tracings.put_context
        self.untraced = object() if self.variable is None else None
        # The bound method: looking it up for each put would take a quarter of the time of the check.
        self.get_context: Callable[[None], object] = (self.variable or _NEVER_SET).get

    def tags(self) -> OptionalTags:
        """Return the encoded headers for a put by the running code. The result is empty if there are no headers."""
        headers = self._headers()
        if headers is None:
            return NO_TAGS
        last = self._last
        if headers is not last[0]:
            try:
                last = headers, OptionalTags(encode_tags(check_headers(headers)))
            except UsageError as error:
                self._tracings.report(error)
                last = headers, NO_TAGS
            self._last = last
        return last[1]

    def merge(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers of the caller, and the headers of the trace if there is room for both."""
        of_trace = self._headers()
        if of_trace is None:
            return headers
        try:
            return check_headers({**of_trace, **headers})
        except UsageError:
            return headers

    def _headers(self) -> Mapping[str, str] | None:
        current = self.get_context(None)
        if current is self.untraced:
            return None
        if self._intake.headers_refusal is not None:
            if not self._is_refusal_logged:
                self._is_refusal_logged = True
                self._log(self._intake.headers_refusal)
            return None
        headers = self._tracings.put_headers()
        if headers is None and self.variable is not None:
            self.untraced = current
        return headers
