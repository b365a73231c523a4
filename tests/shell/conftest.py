"""Fixtures of the shell tests: event loops, transports, and a hostile server.

The server uses threads and plain sockets on loopback, so that it shares no code with the clients. It follows its
script, request by request, and remembers every connection and request.

It speaks HTTP/1.1, and HTTP/2 with a client that starts with HTTP/2. Scripts are written as HTTP/1.1 answers; over
HTTP/2, each becomes the equivalent frames. Bytes that have no equivalent, such as garbage, are sent unchanged.
"""

import contextlib
import gc
import logging
import os
import socket
import ssl
import struct
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio
import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
import pytest
import trustme

from shardline import Client, Credentials

SECRETS = ("wJalrXUtnFEMI-SECRET", "session-token-SECRET")
_HEADER_MAX = 70_000
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PUT_ONE = b'{"FailedRecordCount":0,"Records":[{"SequenceNumber":"1","ShardId":"shardId-000000000000"}]}'


class Wire(NamedTuple):
    """An event loop and the transport that the client uses on it."""

    event_loop_kind: str
    http2: bool

    @property
    def is_trio(self):
        return self.event_loop_kind == "trio"


LOOPS = ("asyncio", "uvloop", "trio")


@pytest.fixture(
    params=[(loop, http2) for loop in LOOPS for http2 in (False, True)],
    ids=[f"{loop}{transport}" for loop in LOOPS for transport in ("", "-http2")],
)
def wire(request):
    return Wire(*request.param)


@pytest.fixture
def event_loop_kind(wire):
    return wire.event_loop_kind


@pytest.fixture(scope="session", autouse=True)
def quick_collections():
    """Exclude the objects that exist before these tests, such as all modules, from their many garbage collections."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def no_ambient_aws(monkeypatch, tmp_path):
    """Keep the developer's AWS profile, endpoints and proxies away."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.upper() in {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}:
            monkeypatch.delenv(name)
    for name in ("REQUESTS_CA_BUNDLE", "BOTO_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@dataclass
class Received:
    """One request as it arrived. Header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def operation(self):
        return self.headers.get("x-amz-target", "").rpartition(".")[2]


@dataclass
class Peer:
    """The client's end of a connection, for a behaviour."""

    socket: socket.socket
    number: int
    server: "Server"
    unread: bytearray = field(default_factory=bytearray)

    def send(self, *parts):
        for part in parts:
            self.socket.sendall(part)

    def read_request(self):
        """Return the next request; ``None`` when the client has closed."""
        while b"\r\n\r\n" not in self.unread:
            if not self._more():
                return None
        head, _, rest = bytes(self.unread).partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        length = int(headers.get("content-length", "0"))
        self.unread = bytearray(rest)
        while len(self.unread) < length:
            if not self._more():
                return None
        body, self.unread = bytes(self.unread[:length]), self.unread[length:]
        return Received(method, target, headers, body, self.number)

    def wait_for_the_end(self):
        while self._more():
            pass

    def _more(self):
        chunk = self.socket.recv(262_144)
        self.unread += chunk
        return bool(chunk)


class Http2Peer:
    """The client's end of an HTTP/2 stream, for a behaviour."""

    def __init__(self, link, number):
        self.socket = link.socket
        self.gone = threading.Event()
        self._link = link
        self._number = number
        self._unread = b""
        self._has_head = False
        self._left = None  # bytes left of the body, or of a chunk
        self._chunked = False

    def send(self, *parts):
        """Send an HTTP/1.1 answer as frames."""
        for part in parts:
            if self.gone.is_set():
                raise ConnectionResetError
            self._unread += part
            while self._step():
                pass

    def wait_for_the_end(self):
        self.gone.wait(60)

    def _step(self):
        if not self._has_head:
            if self._unread and not b"HTTP/1.1 ".startswith(self._unread[:9]):
                return self._send_as_it_is()
            head, end, rest = self._unread.partition(b"\r\n\r\n")
            if not end:
                return False
            self._unread = rest
            self._send_head(*head.decode("latin-1").split("\r\n"))
            return True
        if self._chunked and not self._left:
            line, end, rest = self._unread.removeprefix(b"\r\n").partition(b"\r\n")
            if not end:
                return False
            try:
                self._left = int(line, 16)
            except ValueError:
                return self._send_as_it_is()
            self._unread = rest
            if not self._left:
                self._link.send_data(self._number, b"", is_last=True)
                return False
            return True
        if not self._unread or not self._left:
            return False
        piece, self._unread = self._unread[: self._left], self._unread[self._left :]
        self._left -= len(piece)
        self._link.send_data(self._number, piece, is_last=not self._left and not self._chunked)
        return True

    def _send_head(self, first, *lines):
        status = first.split(" ")[1]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._has_head = not status.startswith("1")
        self._chunked = headers.pop("transfer-encoding", None) is not None
        self._left = 0 if self._chunked else int(headers.get("content-length", 0))
        headers.pop("connection", None)
        # A longer value would be just as invalid, but take the compression very long.
        kept = [(name, value[:_HEADER_MAX]) for name, value in headers.items()]
        self._link.send_head(self._number, [(":status", status), *kept])
        if self._has_head and not self._left and not self._chunked:
            self._link.send_data(self._number, b"", is_last=True)

    def _send_as_it_is(self):
        self._link.send_raw(self._unread)
        self._unread = b""
        return False


class Http2Link:
    """An HTTP/2 connection: its thread reads, and each request has a thread for its behaviour."""

    def __init__(self, server, socket, number):
        self.socket = socket
        self._server = server
        self._number = number
        self._frames = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._streams = {}
        self._changed = threading.Condition()
        self._is_over = False

    def serve(self, unread):
        with self._changed:
            limit = {h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: self._server.streams_max}
            self._frames.local_settings = h2.settings.Settings(client=False, initial_values=limit)
            self._frames.initiate_connection()
            self._frames.increment_flow_control_window(2**24)
            self._flush()
        try:
            data = bytes(unread)
            while data:
                with self._changed:
                    for event in self._frames.receive_data(data):
                        self._handle(event)
                    self._flush()
                    self._changed.notify_all()
                data = self.socket.recv(262_144)
        except (OSError, h2.exceptions.ProtocolError):
            pass  # the client disconnected, or the server stopped
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            for peer, _, _ in self._streams.values():
                peer.gone.set()

    def _handle(self, event):
        match event:
            case h2.events.RequestReceived():
                headers = {name.decode(): value.decode() for name, value in event.headers}
                self._streams[event.stream_id] = (Http2Peer(self, event.stream_id), headers, bytearray())
            case h2.events.DataReceived():
                self._streams[event.stream_id][2].extend(event.data)
                self._frames.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.StreamEnded():
                peer, headers, body = self._streams[event.stream_id]
                method, target = headers.pop(":method"), headers.pop(":path")
                headers["host"] = headers.pop(":authority")
                request = Received(method, target, headers, bytes(body), self._number)
                behaviour = self._server.note(request)
                self._server.start_thread(self._answer, peer, behaviour, request)
            case h2.events.StreamReset() if event.stream_id in self._streams:
                self._streams[event.stream_id][0].gone.set()

    def _answer(self, peer, behaviour, request):
        try:
            keep = behaviour(peer, request)
        except (OSError, h2.exceptions.ProtocolError):
            return  # the client disconnected
        except Exception as error:  # noqa: BLE001 - it fails the test when the server stops
            self._server.bugs.append(error)
            return
        if not keep and not peer.gone.is_set():
            with self._changed, contextlib.suppress(OSError):
                self._is_over = True
                if struct.unpack("ii", self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))[0]:
                    self._server.forget(self.socket)
                else:
                    self.socket.shutdown(socket.SHUT_RDWR)

    def send_head(self, number, headers):
        with self._changed:
            self._frames.send_headers(number, headers)
            self._flush()

    def send_data(self, number, data, *, is_last):
        with self._changed:
            while True:
                room = min(self._frames.local_flow_control_window(number), self._frames.max_outbound_frame_size)
                piece, data = data[:room], data[room:]
                if piece or not data:
                    self._frames.send_data(number, piece, end_stream=is_last and not data)
                    self._flush()
                if not data:
                    return
                if not room and not self._changed.wait(30):
                    raise TimeoutError
                if self._is_over:
                    raise ConnectionResetError

    def send_raw(self, data):
        with self._changed:
            self.socket.sendall(data)

    def _flush(self):
        self.socket.sendall(self._frames.data_to_send())


class Server:
    """Answers according to its script. A request that is not in the script gets a good PutRecords answer."""

    def __init__(self, tls=None, *, mute=False, banner=None, http1_only=False):
        self.requests = []
        self.connections = 0
        self.busy = 0
        """The requests that are being answered. An endless answer ends when the client disconnects."""
        self.streams_max = 100
        """With 1, an HTTP/2 connection also carries one request at a time."""
        self.bugs = []
        self._tls = tls
        self._mute = mute
        self._banner = banner
        self._http1_only = http1_only
        self._script = deque()
        self._lock = threading.Lock()
        self._sockets = set()
        self._threads = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self._listener.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"{'http' if tls is None else 'https'}://{self.host}"
        self.start_thread(self._accept)

    @property
    def open_connections(self):
        with self._lock:
            return len(self._sockets)

    # ---- the script

    def does(self, behaviour):
        """Let ``behaviour(peer, request)`` handle the next request. If it returns true, the connection is kept."""
        self._script.append(behaviour)
        return self

    def reply(self, body=PUT_ONE, *, status=200, headers=(), keep=True):
        return self.does(lambda peer, _: peer.send(answer(body, status, headers)) or keep)

    def raw(self, *parts):
        """Send these bytes, then close the connection."""
        return self.does(lambda peer, _: peer.send(*parts))

    def then_stay(self, *parts):
        """Send these bytes, then nothing until the client closes."""
        return self.does(lambda peer, _: peer.send(*parts) or peer.wait_for_the_end())

    def chunked(self, chunks, *, headers=(), end=True):
        """Send a chunked answer, with one write per chunk. Without ``end`` it breaks off."""
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + lines_of(headers) + b"\r\n"
        parts = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
        return self.does(lambda peer, _: peer.send(head, *parts, *([b"0\r\n\r\n"] if end else [])) or end)

    def reset(self):
        """Send RST instead of an answer."""
        return self.does(lambda peer, _: reset(peer))

    def tunnel(self, to):
        """Act as an HTTP proxy does for CONNECT."""
        return self.does(lambda peer, _: self._tunnel(peer, to))

    # ---- the machinery

    def stop(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                if self._mute or self._banner is not None:
                    one.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive(), "a thread of the test server did not end"
        assert self.bugs == []

    def start_thread(self, target, *args):
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._sockets.add(one)
            if self._banner is not None:  # sends first, and reads nothing
                one.sendall(self._banner)
            elif self._mute:
                self.start_thread(self._greet, one)
            else:
                self.start_thread(self._serve, one, self.connections)

    def _greet(self, one):
        """Read nothing, except that a client that speaks HTTP/2 without TLS needs our settings before it sends a
        request.
        """
        with contextlib.suppress(OSError):
            if one.recv(len(PREFACE), socket.MSG_PEEK | socket.MSG_WAITALL).startswith(PREFACE[:3]):
                one.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))

    def _serve(self, plain, number):
        one = plain
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                one = self._tls.wrap_socket(plain, server_side=True)
                self._remember(one)
            peer = Peer(one, number, self)
            peer.unread += one.recv(262_144)
            if peer.unread.startswith(PREFACE[:3]) and not self._http1_only:
                Http2Link(self, one, number).serve(peer.unread)
                return
            while (request := peer.read_request()) is not None:
                if not self.note(request)(peer, request):
                    break
        except (OSError, ssl.SSLError):
            pass  # the client disconnected, or does not speak TLS: the test checks that
        except Exception as error:  # noqa: BLE001 - it fails the test when the server stops
            self.bugs.append(error)
        finally:
            self.forget(one)
            self.forget(plain)

    def note(self, request):
        """Remember a request, and return its behaviour."""
        if request.method == "PRI":  # this request only checks whether the server speaks HTTP/2
            return lambda peer, _: peer.send(answer(b"", 505))
        with self._lock:
            self.requests.append(request)
            behaviour = self._script.popleft() if self._script else good
            self.busy += 1

        def behave(peer, request):
            try:
                return behaviour(peer, request)
            finally:
                with self._lock:
                    self.busy -= 1

        return behave

    def _remember(self, one):
        with self._lock:
            self._sockets.add(one)

    def forget(self, one):
        with self._lock:
            self._sockets.discard(one)
        one.close()

    def _tunnel(self, peer, to):
        with socket.create_connection(to) as upstream:
            self._remember(upstream)
            peer.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            self.start_thread(copy, upstream, peer.socket)
            copy(peer.socket, upstream)
            self.forget(upstream)


def copy(source, sink):
    with contextlib.suppress(OSError):
        while chunk := source.recv(65_536):
            sink.sendall(chunk)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def reset(peer):
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def lines_of(headers):
    return b"".join(f"{name}: {value}\r\n".encode() for name, value in dict(headers).items())


def answer(body, status=200, headers=()):
    return b"HTTP/1.1 %d Some\r\nContent-Length: %d\r\n%b\r\n%b" % (status, len(body), lines_of(headers), body)


def good(peer, request):
    peer.send(answer(PUT_ONE))
    return True


@pytest.fixture
def eventually():
    """Wait until another thread or the kernel has done something."""

    async def wait(true, limit=20.0):
        with anyio.move_on_after(limit):
            while not true():  # noqa: ASYNC110 - no event tells what the kernel does
                await anyio.sleep(0.002)
        assert true()

    return wait


@pytest.fixture
def cancelled_when(eventually):
    """Start a call, and cancel it when the condition is true. The call must not have ended by then."""

    async def run(true, call, *args):
        ended = []

        async def attempt():
            ended.append(await call(*args))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attempt)
            await eventually(true)
            tasks.cancel_scope.cancel()
        assert ended == []

    return run


@pytest.fixture
def start_server():
    with contextlib.ExitStack() as stack:

        def start(*args, **kwargs):
            one = Server(*args, **kwargs)
            stack.callback(one.stop)
            return one

        yield start


@pytest.fixture
def server(start_server):
    return start_server()


@pytest.fixture(scope="session")
def authority():
    return trustme.CA()


@pytest.fixture(scope="session")
def server_tls(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2", "http/1.1"])
    authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
    return context


@pytest.fixture(scope="session")
def ca_path(authority, tmp_path_factory):
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return str(path)


@pytest.fixture
def tls_server(start_server, server_tls):
    return start_server(server_tls)


@pytest.fixture
def make_client(wire):
    """Make a ``Client`` for a server or a URL, with fixed credentials by default."""

    def make(server, **changes):
        settings = {
            "endpoint_url": server if isinstance(server, str) else server.url,
            "region": "eu-west-1",
            "credentials": Credentials("AKIDEXAMPLE", *SECRETS),
            "http2": wire.http2,
        }
        return Client(**(settings | changes))

    return make


@pytest.fixture
def complaints(caplog):
    """Return the log records at WARNING or above, as (level, text)."""
    caplog.set_level(logging.WARNING, logger="shardline")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]
