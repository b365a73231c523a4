"""Serves the service over HTTP/2, with the sans-I/O library ``h2``.

The shell of one connection moves bytes to and from ``h2``, passes complete requests to ``Front``, and sends replies as
fast as the client's flow-control windows and the socket accept them.

Invariants:

- A client gets the same status, headers, body, delays and pushes as over HTTP/1.1.
- A reset or a close by a fault ends the whole connection, as a proxy would: the other requests of the connection end
  with it.
- The memory that a client can occupy is bounded. A body is at most 64 MiB (a larger one is discarded and refused), and
  the bodies of a connection together are at most four times that. If a client does not read its answers, the server
  sends no more of them and stops reading from the client. A client that floods the server with stream resets loses its
  connection.
- After the client's GOAWAY, established streams continue until they end (RFC 9113, 6.8).
- Nothing that a client sends raises or is logged: an error ends the client's own stream or connection.
- A stream that the client reset sends nothing more, and its subscription ends immediately. If its request was complete,
  the request is still carried out, as over HTTP/1.1 (late if a fault delays it), unless it was deferred because the
  client did not read its answers.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Final, cast, final

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from shardline.server.endpoint import Pushes, Reply, Trouble
from shardline.server.front import BODY_MAX, Front
from shardline.server.http2_frames import GoawayFilter
from shardline.server.model.refusals import too_large
from shardline.server.sockets import Timeouts, reset

_STREAMS_MAX: Final = 1000
_STREAM_WINDOW: Final = 1024 * 1024
_CONNECTION_WINDOW: Final = 16 * 1024 * 1024
_PIECE: Final = 256 * 1024
_BODIES_MAX: Final = 4 * BODY_MAX
_UNREAD_MAX: Final = 4 * 1024 * 1024
_UNSENT_MAX: Final = BODY_MAX
_RESETS_AT_ONCE: Final = 1000.0
_RESETS_PER_SECOND: Final = 100.0

_log: Final = logging.getLogger(__name__)


@final
class _Stream:
    """One HTTP/2 stream: a request and its answer."""

    def __init__(self, number: int, headers: dict[str, str], method: str, target: str, now: float) -> None:
        self.number = number
        self.headers = headers
        self.method = method
        self.target = target
        self.heard_at = now
        self.parts: list[bytes] = []
        self.size = 0
        self.is_complete = False
        self.is_dropped = False
        """Whether nothing more is sent, because the client has reset the stream or the connection is lost."""
        self.pushes: Pushes | None = None
        self.waiter: asyncio.Future[None] | None = None
        """The future that is resolved when the socket or a window has room again."""


@final
class Http2Connection(asyncio.Protocol):
    """One HTTP/2 connection of a client."""

    def __init__(self, front: Front, timeouts: Timeouts, connections: "set[Http2Connection]") -> None:
        self._front = front
        self._timeouts = timeouts
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._frames = H2Connection(H2Configuration(client_side=False, validate_outbound_headers=False))
        self._incoming = GoawayFilter()
        self._streams: dict[int, _Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # including the tasks of streams that were dropped
        self._held = 0  # bytes of requests that have not been carried out yet
        self._unsent = 0  # bytes of answers that the client does not accept yet
        self._unflushed = 0  # bytes of answers that h2 holds
        self._deferred: deque[_Stream] = deque()  # complete requests that wait until the client reads its answers
        self._heard_at = self._loop.time()
        self._resets_left, self._reset_at = _RESETS_AT_ONCE, self._heard_at
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._is_full = False  # whether the socket accepts no more data for now
        self._socket_waiters: list[asyncio.Future[None]] = []  # the waiters of streams that wait for the socket
        self._blocked: dict[_Stream, None] = {}  # streams that wait for a window, the longest blocked first

    # ---- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        self._frames.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: _STREAMS_MAX,
                SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
                SettingCodes.MAX_HEADER_LIST_SIZE: H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE,
            },
        )
        self._frames.initiate_connection()
        self._frames.increment_flow_control_window(_CONNECTION_WINDOW)
        self._flush()
        self._schedule_idle_check(self._timeouts.idle)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._heard_at = self._loop.time()
        try:
            for event in self._frames.receive_data(self._incoming.feed(data)):
                if not self._is_closing:
                    with suppress(ProtocolError):  # a later event of this batch resets the stream
                        self._handle(event)
        except ProtocolError:  # h2 has already queued a GOAWAY with the reason
            self._close()
        except Exception:  # noqa: BLE001 - a bug in the server
            _log.exception("an HTTP/2 connection failed")
            self.abort()
        else:
            self._flush()
            self._close_if_done()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        waiting, self._socket_waiters = self._socket_waiters, []
        for waiter in waiting:
            _wake(waiter)
        if not self._is_closing:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._is_closing = True
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self._streams.values()):
            self._drop(stream)
        self.resume_writing()  # wakes the tasks that wait for the socket: they find their streams dropped

    def abort(self) -> None:
        """End the connection immediately and cancel its requests."""
        if not self._is_closing:
            self._send_goaway(ErrorCodes.NO_ERROR)
            self._flush()
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        self._transport.abort()

    # ---- incoming events

    def _handle(self, event: events.Event) -> None:
        match event:
            case events.RequestReceived():
                self._open(event)
            case events.DataReceived():
                self._take(event)
            case events.StreamEnded() if event.stream_id in self._streams:
                self._serve(self._streams[event.stream_id])
            case events.StreamReset():
                self._count_reset()
                if event.stream_id in self._streams:
                    self._drop(self._streams[event.stream_id])
            case events.WindowUpdated() | events.RemoteSettingsChanged():
                self._wake_blocked(getattr(event, "stream_id", None))
            case _:  # h2 has answered the event, or it needs no action: trailers, priorities, unknown frames
                pass

    def _open(self, event: events.RequestReceived) -> None:
        headers: dict[str, str] = {}
        for name, value in event.headers:
            headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
        method, target = headers.pop(":method", ""), headers.pop(":path", "/")
        headers["host"] = headers.pop(":authority", "") or headers.get("host", "")
        stream = _Stream(event.stream_id, headers, method, target, self._heard_at)
        self._streams[event.stream_id] = stream
        if headers.get("expect", "").lower() == "100-continue" and event.stream_ended is None:
            self._frames.send_headers(event.stream_id, [(":status", "100")])

    def _take(self, event: events.DataReceived) -> None:
        self._frames.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        stream.heard_at = self._heard_at
        stream.size += len(event.data)
        if stream.size <= BODY_MAX:
            self._held += len(event.data)
            stream.parts.append(event.data)
        elif stream.parts:
            self._forget_body(stream)
        # A body over BODY_MAX gets a proper refusal when it ends. A stream is reset if its body exceeds twice that.
        if self._held > _BODIES_MAX or stream.size > 2 * BODY_MAX:
            self._refuse_stream(stream, ErrorCodes.ENHANCE_YOUR_CALM)

    def _forget_body(self, stream: _Stream) -> None:
        self._held -= sum(map(len, stream.parts))
        stream.parts.clear()

    def _refuse_stream(self, stream: _Stream, reason: ErrorCodes) -> None:
        self._frames.reset_stream(stream.number, reason)
        self._drop(stream)

    def _drop(self, stream: _Stream) -> None:
        """Send nothing more on a stream and end its subscription."""
        stream.is_dropped = True
        self._forget_body(stream)
        self._streams.pop(stream.number, None)
        if stream in self._deferred:
            self._deferred.remove(stream)
        if stream.pushes is not None:
            stream.pushes.end()
        _wake(stream.waiter)

    def _count_reset(self) -> None:
        """Count a reset and close the connection if the client resets unreasonably many streams."""
        elapsed, self._reset_at = self._heard_at - self._reset_at, self._heard_at
        self._resets_left = min(_RESETS_AT_ONCE, self._resets_left + elapsed * _RESETS_PER_SECOND) - 1
        if self._resets_left < 0:
            self._send_goaway(ErrorCodes.ENHANCE_YOUR_CALM)
            self._close()

    # ---- outgoing answers

    def _serve(self, stream: _Stream) -> None:
        """Answer a complete request, or defer it if the client does not read the answers that it already has."""
        stream.is_complete = True
        if self._unsent > _UNSENT_MAX:
            self._deferred.append(stream)
            return
        body = b"".join(stream.parts)
        self._forget_body(stream)
        if stream.size > BODY_MAX:
            reply = self._front.refuse(stream.target, stream.headers, too_large(BODY_MAX))
        else:
            reply = self._front.reply(stream.method, stream.target, stream.headers, body)
        if stream.method == "HEAD":
            reply = reply._replace(headers=reply.headers | {"content-length": str(len(reply.body))}, body=b"")
        is_plain = reply.trouble is None and reply.subscription is None
        if is_plain and not self._is_full and self._send_at_once(stream, reply):
            self._finish(stream)
            return
        self._unsent += len(reply.body)
        task = self._loop.create_task(self._answer(stream, reply))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send_at_once(self, stream: _Stream, reply: Reply) -> bool:
        """Send a small answer as a whole, if the windows have room for it. Return whether it was sent (or dropped)."""
        try:
            if len(reply.body) > min(self._window(stream), _PIECE):
                return False
            self._send_head(stream, reply)
            self._send_frames(stream, memoryview(reply.body), is_last=True)
        except ProtocolError:  # the client has reset the stream
            self._drop(stream)
        self._unflushed += len(reply.body)
        if self._unflushed > _PIECE:
            self._flush()
        return True

    async def _answer(self, stream: _Stream, reply: Reply) -> None:
        unsent = len(reply.body)
        try:
            while reply.trouble is not None:
                await asyncio.sleep(reply.trouble.delay)
                if reply.trouble.resume is None:
                    break
                reply = reply.trouble.resume()
            stream.pushes = reply.subscription
            if stream.is_dropped:
                return
            if reply.trouble is not None and reply.trouble.ending != "keep":
                await self._break_off(stream, reply, reply.trouble)
            elif reply.subscription is not None:
                await self._push(stream, reply, reply.subscription)
            else:
                self._send_head(stream, reply)
                await self._send(stream, reply.body, is_last=True)
        except (ConnectionError, ProtocolError):
            self._drop(stream)  # the client has disconnected, or has reset the stream
        except Exception:  # noqa: BLE001 - a bug in the server
            _log.exception("a request failed")
            self.abort()
        finally:
            if reply.subscription is not None:
                reply.subscription.end()
            self._unsent -= unsent
            self._finish(stream)
            self._serve_deferred()

    def _serve_deferred(self) -> None:
        while self._deferred and self._unsent <= _UNSENT_MAX and not self._is_closing:
            self._serve(self._deferred.popleft())
        if not self._is_closing:
            self._flush()

    async def _push(self, stream: _Stream, reply: Reply, pushes: Pushes) -> None:
        self._send_head(stream, reply)
        await self._send(stream, pushes.first())
        while not pushes.ended:
            frame = pushes.due()
            if frame is None:
                await pushes.wait()
            else:
                await self._send(stream, frame)
        if pushes.is_reset:
            reset(self._transport)
        else:
            await self._send(stream, b"", is_last=True)

    async def _break_off(self, stream: _Stream, reply: Reply, trouble: Trouble) -> None:
        """Send part of the reply, then end the connection."""
        if not trouble.is_silent:
            self._send_head(stream, reply)
            await self._send(stream, reply.body[: trouble.cut])
        self._is_closing = True
        if trouble.ending == "reset":
            reset(self._transport)
        else:
            self._transport.close()

    def _send_head(self, stream: _Stream, reply: Reply) -> None:
        headers = [(":status", str(reply.status))]
        headers += [(name.lower(), value) for name, value in reply.headers.items()]
        if reply.subscription is None and stream.method != "HEAD":
            headers.append(("content-length", str(len(reply.body))))
        self._frames.send_headers(stream.number, headers)

    async def _send(self, stream: _Stream, data: bytes, *, is_last: bool = False) -> None:
        """Send the data in pieces, and wait whenever a window or the socket is full."""
        rest = memoryview(data)
        while True:
            if stream.is_dropped or self._is_closing:
                raise ConnectionResetError("the stream is over")
            room = min(self._window(stream), _PIECE)
            if self._is_full or (rest and room <= 0):
                await self._wait(stream)
                continue
            piece, rest = rest[:room], rest[room:]
            self._send_frames(stream, piece, is_last=is_last and not rest)
            self._flush()
            if self._blocked:
                # This stream may have used less of the connection's window than it was woken for.
                self._wake_blocked(None)
            if not rest:
                return

    def _send_frames(self, stream: _Stream, data: memoryview, *, is_last: bool) -> None:
        size = self._frames.max_outbound_frame_size
        for at in range(0, len(data) or 1, size):
            is_end = is_last and at + size >= len(data)
            if data or is_end:
                self._frames.send_data(stream.number, data[at : at + size], end_stream=is_end)

    async def _wait(self, stream: _Stream) -> None:
        """Wait until the socket accepts more data if it is full, otherwise until the flow-control windows allow more.

        Data that ``h2`` already holds, such as the head of the answer, is sent first.
        """
        self._flush()
        waiter = self._loop.create_future()
        if self._is_full:
            self._socket_waiters.append(waiter)
        else:
            self._blocked[stream] = None
        stream.waiter = waiter
        try:
            await waiter
        finally:
            stream.waiter = None
            self._blocked.pop(stream, None)

    def _wake_blocked(self, number: int | None) -> None:
        """Wake blocked streams after a window has grown: one stream by its number, or all of them.

        No more streams are woken than the connection's window has room for, the longest blocked first. With a thousand
        blocked streams, waking all of them for each update would cost more than sending the data.
        """
        room = self._frames.outbound_flow_control_window
        for stream in [self._streams[number]] if number in self._streams else list(self._blocked):
            window = self._window(stream) if stream in self._blocked else 0
            if window > 0 and room > 0:
                _wake(stream.waiter)
                room -= window

    def _window(self, stream: _Stream) -> int:
        return self._frames.local_flow_control_window(stream.number)

    def _flush(self) -> None:
        data = self._frames.data_to_send()
        self._unflushed = 0
        if data:
            self._transport.write(data)
            if self._is_full and self._transport.get_write_buffer_size() > _UNREAD_MAX:
                self._transport.pause_reading()  # the client sends requests and does not read the answers

    # ---- end of the connection

    def _finish(self, stream: _Stream) -> None:
        self._streams.pop(stream.number, None)
        self._close_if_done()

    def _close_if_done(self) -> None:
        """Close the connection if the client opens no more streams and has received all its answers."""
        if self._incoming.saw_goaway and not self._streams and not self._is_closing:
            self._close()

    def _close(self) -> None:
        """Send the data that ``h2`` holds, then end the connection."""
        self._flush()
        self._is_closing = True
        self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
        # A client that does not read would keep the connection open. It gets the same timeout as a vanished peer.
        self._timer = self._loop.call_later(self._timeouts.peer, self._transport.abort)
        for stream in list(self._streams.values()):
            self._drop(stream)

    def _schedule_idle_check(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._check_idle)

    def _check_idle(self) -> None:
        """Cancel requests that do not arrive completely in time, and close the connection if it is idle."""
        now = self._loop.time()
        for stream in list(self._streams.values()):
            if not stream.is_complete and now - stream.heard_at >= self._timeouts.request:
                self._refuse_stream(stream, ErrorCodes.CANCEL)
        if self._streams or now - self._heard_at < self._timeouts.idle:
            self._flush()
            self._schedule_idle_check(min(self._timeouts.request, self._timeouts.idle) / 2)
            return
        self._send_goaway(ErrorCodes.NO_ERROR)
        self._close()

    def _send_goaway(self, reason: ErrorCodes) -> None:
        with suppress(ProtocolError):  # a GOAWAY has already been sent
            self._frames.close_connection(reason)


def _wake(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
