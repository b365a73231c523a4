"""Decides what an HTTP/2 connection sends, and interprets the server's frames. This module does no I/O and reads no
clock.

The library ``h2`` compresses headers, builds frames and checks the server's frames. Two kinds of frames bypass ``h2``.
DATA is read and written here, because ``h2`` takes about nine times as long to read DATA (ADR 8). GOAWAY is read here,
because ``h2`` ends a connection at a GOAWAY, although RFC 9113 (6.8) lets the open streams continue.

Invariants:

- No input from the server raises. Invalid input ends an exchange or the connection with a ``Failure``.
- Each exchange ends exactly once: complete, failed or cancelled. The connection then forgets it.
- A failure has ``maybe_received`` set unless the server refused the stream, or sent a GOAWAY that excludes the stream.
- The server cannot make us buffer an unbounded amount. A response that is read as a whole has at most
  ``BODY_MAX_BYTES``. Of a response that is read in chunks, at most ``STREAM_WINDOW`` bytes are buffered, or up to
  ``STREAM_WINDOW_MAX`` once its caller has shown that it keeps up: the server may send more bytes only when the caller
  has taken the bytes that arrived. An exchange that is not read does not delay the others,
  because the window of the connection is reopened as soon as bytes arrive. If the server does not read the frames that
  it makes us send, we stop reading from it (``is_congested``).
- A body is sent as far as the windows of the server allow, in frames of a size that the server accepts, and bodies take
  turns.
- The number of open exchanges exceeds neither the server's limit nor ``STREAMS_MAX``.
- No header reaches a log. ``hpack``, which compresses headers for ``h2``, would log all headers at DEBUG, including the
  session token.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final, cast, final

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import NeverIndexedHeaderTuple

from shardline.adapters.http.http_failures import broken
from shardline.codec.byte_chunks import ByteChunks
from shardline.codec.http1 import BODY_MAX_BYTES, HEAD_MAX_BYTES, HttpError, parse_length
from shardline.ports import Body

if TYPE_CHECKING:
    from shardline.core.error_codes import Failure

STREAMS_MAX: Final = 100
"""Maximum number of open exchanges per connection. The number is limited because all of them fail if the connection
breaks.
"""
STREAM_WINDOW: Final = 256 * 1024
"""The window of a new response. This is large enough for 2 MB/s, the most that a shard sends to a consumer, at a round
trip of 100 ms.
"""
STREAM_WINDOW_MAX: Final = 1024 * 1024
"""The window of a response whose bytes are taken as fast as they arrive. A larger window needs fewer WINDOW_UPDATE
frames.
"""
CONNECTION_WINDOW: Final = 16 * 1024 * 1024
FRAME_MAX: Final = 256 * 1024
"""The largest frame that the server may send. Large frames cost less per byte, but while one arrives, the frames of
other streams wait.
"""
OUTPUT_MAX: Final = 256 * 1024
"""Number of bytes to send at a time: encrypting a large body in one step would block the loop for milliseconds."""
_CONGESTED: Final = 1024 * 1024
_DEFAULT_WINDOW: Final = 65_535  # the initial window of an HTTP/2 connection
_LAST_STREAM: Final = 2**31 - 1

_VIEW_SHARE: Final = 8
_HEAD: Final = 9
_FRAME_HEAD: Final = Struct(">BHBBI")  # the length in three bytes, type, flags, number of the stream
_DATA, _RST_STREAM, _SETTINGS, _GOAWAY, _WINDOW_UPDATE = 0, 3, 4, 7, 8
_END_STREAM, _ACK, _PADDED = 0x1, 0x1, 0x8
_GOAWAY_MIN: Final = 8
_FORBIDDEN: Final = frozenset("\r\n\x00")
_UNINDEXED: Final = frozenset({"authorization", "content-length", "x-amz-date"})
"""The signature, and headers that differ from request to request. In the compression table, they would only displace
other headers.
"""
_STATUS_DIGITS: Final = 3
_TELLTALE: Final = ("hpack.hpack", "hpack.table")
_METHOD: Final = (b":method", b"POST")


@final
class Exchange:
    """A request and its response."""

    __slots__ = (
        "body", "complete", "consumed", "credit", "enough", "expected", "failure", "headers", "heard_at", "is_whole",
        "moved_at", "number", "received", "sent_at", "status", "unsent", "window",
    )  # fmt: skip

    def __init__(self, number: int, body: Body, now: float, *, is_whole: bool) -> None:
        self.number = number
        self.is_whole = is_whole
        """Whether the response is read as a whole. If so, its bytes count as taken when they arrive."""
        self.unsent = memoryview(body)
        self.moved_at = now
        """When bytes of the request's body were last sent."""
        self.sent_at: float | None = None if body else now
        """When the last byte of the request was sent, or ``None`` if it has not been sent yet."""
        self.heard_at = now
        """When bytes of the response last arrived."""
        self.status = 0
        """The HTTP status; 0 until the head of the response has arrived."""
        self.headers: dict[str, str] = {}
        self.body = ByteChunks()
        self.received = 0
        self.expected: int | None = None
        self.window = STREAM_WINDOW
        """The number of bytes that the server may send before the caller takes any of them."""
        self.credit = STREAM_WINDOW
        self.consumed = 0
        self.enough = 1
        """How many bytes the caller is waiting for. The caller writes this."""
        self.complete = False
        self.failure: Failure | None = None

    @property
    def is_over(self) -> bool:
        return self.complete or self.failure is not None


@final
class Http2Connection:
    """One HTTP/2 connection, from our preface to its end."""

    def __init__(self, host: str, now: float, *, scheme: str = "https") -> None:
        for name in _TELLTALE:  # for each connection, because a new logging configuration may have removed the filter
            logging.getLogger(name).addFilter(_is_no_header)
        self._host = host
        self._scheme = scheme.encode()
        self._frames = H2Connection(
            H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding=None)
        )
        self._exchanges: dict[int, Exchange] = {}
        self._sending: deque[Exchange] = deque()
        self._can_send = False  # whether the window of any stream may be open
        self._output: list[bytes | memoryview] = []
        self._output_bytes = 0
        self._held = ByteChunks()  # the received part of a frame that is not complete: less than ``_needed``
        self._needed = _HEAD
        self._rest_of_data = 0  # the number of bytes of an incomplete DATA frame that have not arrived, ...
        self._data_head = (0, 0)  # ... and the frame's stream and flags
        self._credit = CONNECTION_WINDOW
        self._consumed = 0
        self._changed: list[Exchange] = []
        self._is_pinged = False
        self._is_leaving = False  # whether the server has sent GOAWAY
        self.is_ready = False
        """Whether the server's settings have arrived, which proves that it speaks HTTP/2."""
        self.speaks_http1 = False
        """Whether the server answered our preface as an HTTP/1.x server does."""
        self.is_over = False
        self.failure: Failure | None = None
        """Why the connection ended. ``None`` if it was idle, or if the server closed it properly."""
        self.heard_at = now
        self.idle_since = now
        self._begin()

    def _begin(self) -> None:
        self._frames.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                SettingCodes.MAX_FRAME_SIZE: FRAME_MAX,
                SettingCodes.MAX_HEADER_LIST_SIZE: HEAD_MAX_BYTES,
            },
        )
        self._frames.max_inbound_frame_size = FRAME_MAX
        self._frames.initiate_connection()
        self._collect()
        self._open_window(0, CONNECTION_WINDOW - _DEFAULT_WINDOW)

    # ---- commands

    @property
    def capacity(self) -> int:
        """The number of exchanges that may still be opened."""
        if self.is_over or self._is_leaving or not self.is_ready:
            return 0
        if self._frames.highest_outbound_stream_id >= _LAST_STREAM:
            return 0
        return min(STREAMS_MAX, self._frames.remote_settings.max_concurrent_streams) - len(self._exchanges)

    @property
    def is_idle(self) -> bool:
        return not self._exchanges

    def open(self, target: str, headers: Mapping[str, str], body: Body, now: float, *, is_whole: bool) -> Exchange:
        """Send a request. There must be ``capacity``.

        Raises:
            HttpError: HTTP cannot carry one of the headers.
        """
        block = [_METHOD, (b":scheme", self._scheme), _header(":authority", self._host), _header(":path", target)]
        block += [_header(name.lower(), value) for name, value in headers.items()]
        block.append(_header("content-length", str(len(body))))
        exchange = Exchange(self._frames.get_next_available_stream_id(), body, now, is_whole=is_whole)
        self._frames.send_headers(exchange.number, block, end_stream=not body)
        self._collect()
        self._exchanges[exchange.number] = exchange
        if body:
            self._sending.append(exchange)
            self._can_send = True
        return exchange

    def take(self, exchange: Exchange) -> bytes | memoryview:
        """Return the next bytes of a response's body that have arrived, or the whole body if it is read as a whole."""
        if exchange.is_whole:
            return exchange.body.take()
        chunk = exchange.body.take_some()
        exchange.consumed += len(chunk)
        self._reopen_window(exchange)
        return chunk

    def want_whole(self, exchange: Exchange) -> None:
        """Buffer the rest of the response as a whole, instead of letting the caller take it in chunks."""
        if not exchange.is_whole:
            exchange.is_whole = True
            exchange.consumed += len(exchange.body)
            self._reopen_window(exchange)

    def cancel(self, exchange: Exchange, now: float) -> None:
        """Cancel an exchange whose response is no longer needed. This does nothing if the exchange is over."""
        if exchange.number in self._exchanges:
            self._reset(exchange, ErrorCodes.CANCEL)
            self._leave(exchange, now)

    # ---- inputs

    def handle_data(self, data: bytes, now: float) -> None:
        """Handle bytes that have arrived."""
        if self.is_over:
            return
        self.heard_at = now
        self._is_pinged = False
        try:
            if self._rest_of_data:
                at = self._continue_data(data, now)
            else:
                at = self._complete_frame(data, now) if self._held else 0
            if at < len(data):
                at = self._read_frames(data, at, now)
                if at < len(data):
                    self._held.append(data[at:])
        except (ProtocolError, HttpError) as error:
            self._collect()  # h2 has queued a GOAWAY with the reason
            self._break("BadAnswer", _words(error), now)

    def handle_end(self, code: str, detail: object, now: float) -> None:
        """Handle the end of the connection, or an error that ends it. ``code`` is a code of ``http_failures``."""
        if not self.is_over:
            self._break(code, detail, now)

    def handle_silence(self, now: float, idle_timeout: float) -> None:
        """Handle a silent server: end the connection if it is idle, and send a ping if it is in use."""
        if self.is_over:
            return
        if self.is_idle:
            self.is_over = now - self.idle_since >= idle_timeout
        elif self._is_pinged:
            self._break("ConnectionReset", "it does not answer a ping", now)
        else:
            self._is_pinged = True
            self._frames.ping(b"shardlin")
            self._collect()

    # ---- outputs

    @property
    def has_output(self) -> bool:
        return bool(self._output) or (self._can_send and bool(self._sending))

    @property
    def is_congested(self) -> bool:
        """Whether so much is waiting to be sent that reading should pause."""
        return self._output_bytes > _CONGESTED

    def take_output(self, now: float) -> bytes:
        """Return the bytes to send next. The result is empty if there is nothing to send."""
        if self._can_send and not self.is_over:
            self._send_bodies(now)
        output, self._output = self._output, []
        self._output_bytes = 0
        return b"".join(output)

    def take_changed(self) -> list[Exchange]:
        """Return the exchanges that have changed since the last call. The transport then wakes the callers of these
        exchanges.
        """
        changed, self._changed = self._changed, []
        return changed

    # ---- frames that arrive

    def _complete_frame(self, data: bytes, now: float) -> int:
        """Read the frame whose first part arrived earlier. Return the position of the next frame in ``data``.

        Only this frame is copied. Joining everything that arrived would copy every byte once more.
        """
        at, held = 0, self._held
        while held and at < len(data) and not self.is_over:
            missing = self._needed - len(held)
            held.append(data[at : at + missing])
            at += missing
            if len(held) == self._needed:
                frame = held.take()
                if not self._read_frames(frame, 0, now):  # only the head is complete, and ``_needed`` is now known
                    held.append(frame)
        return min(at, len(data))

    def _continue_data(self, data: bytes, now: float) -> int:
        """Pass on the next part of an incomplete DATA frame. Return the position of the next frame in ``data``."""
        size = min(self._rest_of_data, len(data))
        self._rest_of_data -= size
        number, flags = self._data_head
        # Without its END_STREAM, a part of a frame is a shorter DATA frame. The last part has all flags.
        self._read_body(number, 0 if self._rest_of_data else flags, memoryview(data)[:size], now)
        return size

    def _read_frames(self, buffer: bytes, at: int, now: float) -> int:
        """Read all complete frames from ``at`` on. Return the position of the first incomplete frame."""
        while len(buffer) - at >= _HEAD and not self.is_over:
            length_high, length_low, kind, flags, number = _FRAME_HEAD.unpack_from(buffer, at)
            length, number = length_high << 16 | length_low, number & _LAST_STREAM
            if not self.is_ready and (kind != _SETTINGS or number or flags & _ACK):
                self.speaks_http1 = buffer.startswith(b"HTTP/1.")
                raise HttpError("it does not speak HTTP/2")
            if length > FRAME_MAX:
                raise HttpError(f"a frame of {length} bytes")
            start, end = at + _HEAD, at + _HEAD + length
            if end > len(buffer):
                if kind == _DATA and not flags & _PADDED and len(buffer) > start:
                    # Pass on the part that has arrived. Keeping it until the frame is complete would copy it twice.
                    self._rest_of_data, self._data_head = end - len(buffer), (number, flags)
                    self._read_body(number, 0, memoryview(buffer)[start:], now)
                    self._needed = _HEAD
                    return len(buffer)
                self._needed = end - at
                return at
            if kind == _DATA:
                self._read_body(number, flags, memoryview(buffer)[start:end], now)
            elif kind == _GOAWAY and not number:
                self._read_goaway(buffer[start:end], now)
            else:
                for event in self._frames.receive_data(buffer[at:end]):
                    self._handle(event, now)
                self._collect()
            at = end
        self._needed = _HEAD
        return at

    def _handle(self, event: events.Event, now: float) -> None:
        match event:
            case events.ResponseReceived():
                self._read_head(event.stream_id, event.headers or (), now)
            case events.StreamEnded():
                exchange = self._exchanges.get(event.stream_id)
                if exchange is not None:
                    self._finish(exchange, now)
            case events.StreamReset():
                self._read_reset(event.stream_id, event.error_code, now)
            case events.RemoteSettingsChanged():
                self.is_ready = True
                self._can_send = True
            case events.WindowUpdated():
                self._can_send = True
            case _:  # handled by h2, or without effect: pings, trailers, 100 Continue, unknown frames
                pass

    def _read_head(self, number: int, block: Iterable[tuple[bytes, bytes]], now: float) -> None:
        exchange = self._exchanges.get(number)
        if exchange is None:
            return
        headers: dict[str, str] = {}
        for raw_name, raw_value in block:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        status = headers.pop(":status", "")
        try:
            exchange.status = _parse_status(status)
            length = headers.get("content-length")
            exchange.expected = None if length is None else parse_length(length)
        except HttpError as error:
            exchange.status = 0
            self._reject(exchange, str(error), now)
            return
        exchange.headers = headers
        exchange.heard_at = now
        if not exchange.is_whole:
            self._changed.append(exchange)

    def _read_body(self, number: int, flags: int, payload: memoryview, now: float) -> None:
        size = len(payload)
        self._spend_window(size)
        exchange = self._exchanges.get(number)
        if exchange is None:
            if not number % 2 or number > self._frames.highest_outbound_stream_id:
                raise HttpError("data of a request that was never sent")
            return  # the exchange was cancelled, or has failed
        exchange.credit -= size
        if exchange.credit < 0:
            raise HttpError("more than the window of the stream")
        if flags & _PADDED:
            payload = _without_padding(payload)
            exchange.consumed += size - len(payload)
        exchange.received += len(payload)
        exchange.heard_at = now
        fault = _body_fault(exchange)
        if fault:
            self._reject(exchange, fault, now)
            return
        # A view keeps its whole buffer in memory. So keep a view only if it is a large part of the buffer.
        is_large_part = len(payload) * _VIEW_SHARE >= len(cast("bytes", payload.obj))
        exchange.body.append(payload if is_large_part else bytes(payload))
        if flags & _END_STREAM:
            self._finish(exchange, now)
            # h2 would compare the declared length with the data that h2 has seen. It has seen no data, so make it
            # regard the stream as reset.
            self._frames.receive_data(_frame(_RST_STREAM, 0, number, bytes(4)))
            return
        if exchange.is_whole:
            exchange.consumed += len(payload)
            self._reopen_window(exchange)
        elif not exchange.body:  # the frame was empty, or all padding
            self._reopen_window(exchange)
        elif len(exchange.body) >= exchange.enough or exchange.credit * 2 <= exchange.window:
            # The second condition makes the caller take the bytes, which reopens the window.
            self._changed.append(exchange)

    def _spend_window(self, size: int) -> None:
        """Reopen the window of the connection immediately, whether or not callers take the data that arrives."""
        self._credit -= size
        if self._credit < 0:
            raise HttpError("more than the window of the connection")
        self._consumed += size
        if self._consumed >= CONNECTION_WINDOW // 2:
            self._open_window(0, self._consumed)
            self._credit += self._consumed
            self._consumed = 0

    def _finish(self, exchange: Exchange, now: float) -> None:
        """Complete an exchange whose response has arrived."""
        if not exchange.status:
            self._reject(exchange, "it ends before it begins", now)
        elif exchange.expected not in {None, exchange.received}:
            self._fail(exchange, "ConnectionReset", "the answer was cut short", now)
        else:
            exchange.complete = True
            if exchange.sent_at is None:  # the server does not need the rest of the request
                self._reset(exchange, ErrorCodes.NO_ERROR)
            self._leave(exchange, now)

    def _read_reset(self, number: int, code: int, now: float) -> None:
        exchange = self._exchanges.get(number)
        if exchange is None:
            return
        name = _name_of(code)
        if code == ErrorCodes.REFUSED_STREAM:
            self._fail(exchange, "RequestRefused", name, now)
        else:
            self._fail(exchange, "ConnectionReset", f"the server reset the stream: {name}", now)

    def _read_goaway(self, payload: bytes, now: float) -> None:
        if len(payload) < _GOAWAY_MIN:
            raise HttpError("a GOAWAY that is too short")
        self._is_leaving = True
        last = int.from_bytes(payload[:4], "big") & _LAST_STREAM
        name = _name_of(int.from_bytes(payload[4:8], "big"))
        for exchange in [one for number, one in self._exchanges.items() if number > last]:
            self._frames.receive_data(_frame(_RST_STREAM, 0, exchange.number, bytes(4)))
            self._fail(exchange, "RequestRefused", f"the server closes the connection: {name}", now)
        self.is_over = self.is_over or not self._exchanges

    # ---- ends

    def _reject(self, exchange: Exchange, fault: str, now: float) -> None:
        """Fail an exchange whose response is invalid. The other exchanges continue."""
        self._reset(exchange, ErrorCodes.PROTOCOL_ERROR)
        self._fail(exchange, "BadAnswer", fault, now)

    def _reset(self, exchange: Exchange, code: ErrorCodes) -> None:
        self._frames.reset_stream(exchange.number, code)
        self._collect()

    def _fail(self, exchange: Exchange, code: str, detail: object, now: float) -> None:
        exchange.failure = broken(code, self._host, detail)
        self._leave(exchange, now)

    def _break(self, code: str, detail: object, now: float) -> None:
        """End the connection because of an error."""
        self.is_over = True
        self.failure = broken(code, self._host, detail)
        self._held = ByteChunks()
        for exchange in list(self._exchanges.values()):
            is_cut = code == "ConnectionReset" and detail == "" and exchange.status
            words = "the answer was cut short" if is_cut else detail or "closed by the server"
            self._fail(exchange, code, words, now)

    def _leave(self, exchange: Exchange, now: float) -> None:
        self._exchanges.pop(exchange.number, None)
        self._changed.append(exchange)
        if exchange.sent_at is None and exchange in self._sending:
            self._sending.remove(exchange)
        if not self._exchanges:
            self.idle_since = now
            self.is_over = self.is_over or self._is_leaving

    # ---- frames that are sent

    def _collect(self) -> None:
        """Move the frames that h2 has queued to the output."""
        data = self._frames.data_to_send()
        if data:
            self._output.append(data)
            self._output_bytes += len(data)

    def _open_window(self, number: int, size: int) -> None:
        self._output.append(_frame(_WINDOW_UPDATE, 0, number, size.to_bytes(4, "big")))

    def _reopen_window(self, exchange: Exchange) -> None:
        """Let the server send as many bytes as were taken, or more if the caller has taken everything."""
        is_taken = exchange.is_whole or not exchange.body
        if exchange.is_over or not is_taken or exchange.consumed < exchange.window // 2:
            return
        more = min(exchange.window, STREAM_WINDOW_MAX - exchange.window)
        self._open_window(exchange.number, exchange.consumed + more)
        exchange.window += more
        exchange.credit += exchange.consumed + more
        exchange.consumed = 0

    def _send_bodies(self, now: float) -> None:
        """Send a frame of each body in turn, until ``OUTPUT_MAX`` bytes are sent or no window is open."""
        blocked = 0
        budget = OUTPUT_MAX
        while self._sending and blocked < len(self._sending):
            if budget <= 0:
                return
            exchange = self._sending.popleft()
            number, unsent = exchange.number, exchange.unsent
            size = min(self._frames.local_flow_control_window(number), self._frames.max_outbound_frame_size)
            if size >= len(unsent):
                self._frames.send_data(number, unsent, end_stream=True)
                self._collect()
                exchange.sent_at = exchange.moved_at = now
                exchange.unsent = memoryview(b"")
            elif size > 0:
                self._output += (_head(size, _DATA, 0, number), unsent[:size])
                exchange.unsent = unsent[size:]
                exchange.moved_at = now
                self._frames.outbound_flow_control_window -= size
                self._frames.streams[number].outbound_flow_control_window -= size
                self._sending.append(exchange)
            else:
                blocked += 1
                self._sending.append(exchange)
                continue
            blocked = 0
            budget -= min(size, len(unsent))
        self._can_send = False


def _is_no_header(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def _header(name: str, value: str) -> tuple[bytes, bytes]:
    if not _FORBIDDEN.isdisjoint(name) or not _FORBIDDEN.isdisjoint(value):
        raise HttpError("a header holds a line end")
    try:
        header = (name.encode("latin-1"), value.encode("latin-1"))
    except UnicodeEncodeError:
        raise HttpError("a header holds a character that HTTP cannot carry") from None
    return NeverIndexedHeaderTuple(*header) if name in _UNINDEXED else header


def _head(length: int, kind: int, flags: int, number: int) -> bytes:
    return length.to_bytes(3, "big") + bytes((kind, flags)) + number.to_bytes(4, "big")


def _frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    return _head(len(payload), kind, flags, number) + payload


def _parse_status(text: str) -> int:
    if len(text) != _STATUS_DIGITS or not text.isascii() or not text.isdigit() or text[0] == "0":
        raise HttpError(f"status {text[:40]!r}")
    return int(text)


def _without_padding(payload: memoryview) -> memoryview:
    if not payload or payload[0] >= len(payload):
        raise HttpError("more padding than data")
    return payload[1 : len(payload) - payload[0]]


def _body_fault(exchange: Exchange) -> str:
    """Return why a response whose body is still arriving is invalid, or an empty text if it is valid."""
    if not exchange.status:
        return "its body comes before its head"
    if exchange.expected is not None and exchange.received > exchange.expected:
        return "its body is longer than declared"
    if exchange.is_whole and exchange.received > BODY_MAX_BYTES:
        return "the body of the answer is too long"
    return ""


def _name_of(code: int) -> str:
    try:
        return ErrorCodes(code).name
    except ValueError:
        return f"error {code}"


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
