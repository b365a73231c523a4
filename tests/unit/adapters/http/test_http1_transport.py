"""What is sent over a connection for one request, and when is that connection reused?"""

import contextlib

import anyio
import pytest

from shardline.adapters.http.http1_transport import Http1Transport
from shardline.adapters.http.http_settings import HttpSettings
from shardline.ports import HttpResponse

pytestmark = pytest.mark.anyio

URL = "http://kinesis.example/"
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Some: Header\r\n\r\nok"


class Stream:
    """A fake ``WireStream``: returns the prepared pieces, and raises an exception among them."""

    def __init__(self, pieces):
        self.pieces = list(pieces)
        self.limits = []
        self.sent = []
        self.aborted = False

    async def send(self, data, _):
        await anyio.lowlevel.checkpoint()
        self.sent.append(data)

    async def receive(self, limit):
        self.limits.append(limit)
        await anyio.lowlevel.checkpoint()
        if not self.pieces:
            return b""
        piece = self.pieces.pop(0)
        if isinstance(piece, BaseException):
            raise piece
        if piece is None:
            await anyio.sleep_forever()
        return piece

    def is_silent(self):
        return not self.aborted

    async def abort(self):
        self.aborted = True


@contextlib.asynccontextmanager
async def transport(*scripts, **settings):
    """Return a transport whose connections follow one script each, and the connections."""
    left, made = list(scripts), []

    async def dial(name, port, context):
        made.append(Stream(left.pop(0)))
        return made[-1]

    one = Http1Transport(HttpSettings(**({"proxies": {}} | settings)), None, dial)
    yield one, made
    await one.close()
    assert all(stream.aborted for stream in made)


async def test_a_request_and_its_answer():
    async with transport([GOOD[:5], GOOD[5:40], GOOD[40:]]) as (http, made):
        answer = await http.post(URL + "path", {"X-Amz-Date": "now", "Content-Type": "x"}, b"body")
        assert isinstance(answer, HttpResponse)
        assert (answer.status, answer.headers["x-some"], answer.body) == (200, "Header", b"ok")
        assert b"".join(made[0].sent) == (
            b"POST /path HTTP/1.1\r\nHost: kinesis.example\r\nX-Amz-Date: now\r\nContent-Type: x\r\n"
            b"Content-Length: 4\r\n\r\nbody"
        )


@pytest.mark.parametrize("size", [0, 262_144, 262_145, 1_000_000])
@pytest.mark.parametrize("kind", [bytes, bytearray])
async def test_a_large_body_goes_in_slices(size, kind):
    body = kind(b"\xa5" * size)
    async with transport([GOOD]) as (http, made):
        await http.post(URL, {}, body)
        assert b"".join(made[0].sent).endswith(b"\r\n\r\n" + bytes(body))
        assert max(len(part) for part in made[0].sent) < 300_000


REUSED = {
    "by length": [GOOD],
    "in chunks": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"],
    "an error": [b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"],
    "an old server that keeps it": [b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok"],
}
CLOSED = {
    "told to": [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"],
    "an old server": [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"],
    "until the end": [b"HTTP/1.1 200 OK\r\n\r\nok", b""],
    "more than asked for": [GOOD + b"HTTP/1.1 200 OK\r\n\r\n"],
    "cut short": [GOOD[:-1], b""],
    "garbage": [b"garbage\r\n\r\n"],
    "broken": [ConnectionResetError(104, "reset")],
    "late": [TimeoutError()],
}


@pytest.mark.parametrize("name", REUSED)
async def test_a_connection_is_used_again_if_its_answer_came_whole(name):
    async with transport([*REUSED[name], GOOD]) as (http, made):
        await http.post(URL, {}, b"")
        await http.post(URL, {}, b"")
        assert len(made) == 1


@pytest.mark.parametrize("name", CLOSED)
async def test_any_other_is_closed_at_once(name):
    async with transport(CLOSED[name], [GOOD]) as (http, made):
        await http.post(URL, {}, b"")
        assert made[0].aborted
        assert isinstance(await http.post(URL, {}, b""), HttpResponse)
        assert len(made) == 2


async def test_a_cancelled_request_closes_its_connection_and_frees_its_place():
    async with transport([None], [GOOD], max_connections=1) as (http, made):
        with anyio.move_on_after(0.01) as scope:
            await http.post(URL, {}, b"")
        assert scope.cancelled_caught
        assert made[0].aborted
        assert isinstance(await http.post(URL, {}, b""), HttpResponse)


async def test_no_more_connections_than_allowed():
    async with transport(*[[GOOD] * 10] * 3, max_connections=3) as (http, made), anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(http.post, URL, {}, b"")
    assert len(made) == 3
    assert sum(len(stream.sent) for stream in made) == 30


@pytest.mark.parametrize("headers", [{"X": "a\r\nEvil: b"}, {"X\n": "a"}, {"X": "\u20ac"}])
async def test_a_header_that_cannot_be_sent_sends_nothing(headers):
    async with transport([GOOD]) as (http, made):
        failure = await http.post(URL, headers, b"")
        assert (failure.code, failure.maybe_received) == ("HttpClientError", False)
        assert made[0].sent == []


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_stream_is_read_piece_by_piece_and_its_connection_used_again():
    async with transport([CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n", GOOD]) as (http, made):
        async with http.stream(URL, {}, b"") as answer:
            assert answer.status == 200
            assert [await answer.next_chunk() for _ in range(3)] == [b"abc", b"de", None]
        await http.post(URL, {}, b"")
        assert len(made) == 1


async def test_a_stream_that_is_left_early_closes_its_connection():
    async with transport([CHUNKED, b"3\r\nabc\r\n", None], [GOOD]) as (http, made):
        async with http.stream(URL, {}, b"") as answer:
            assert await answer.next_chunk() == b"abc"
        assert made[0].aborted
        await http.post(URL, {}, b"")
        assert len(made) == 2


async def test_a_stream_can_be_read_whole_or_break():
    async with (
        transport([CHUNKED, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n"]) as (http, _),
        http.stream(URL, {}, b"") as answer,
    ):
        assert await answer.read() == b"abcde"
    async with transport([CHUNKED, b"3\r\nab"]) as (http, _), http.stream(URL, {}, b"") as answer:
        assert await answer.next_chunk() == b"ab"
        failure = await answer.next_chunk()
        assert (failure.code, failure.maybe_received) == ("ConnectionReset", True)


async def test_a_stream_may_be_longer_than_a_whole_answer_may_be(monkeypatch):
    """A subscription sends up to 2 MB/s for five minutes: only the bytes held at a time can be limited."""
    monkeypatch.setattr("shardline.codec.http1.BODY_MAX_BYTES", 1_000)
    piece = b"1f4\r\n" + bytes(500) + b"\r\n"
    async with transport([CHUNKED, *[piece] * 10, b"0\r\n\r\n"]) as (http, _), http.stream(URL, {}, b"") as answer:
        sizes = [len(chunk) if isinstance(chunk := await answer.next_chunk(), bytes) else chunk for _ in range(11)]
    assert sizes == [500] * 10 + [None]


async def test_a_caller_of_a_stream_may_wait_for_a_shorter_or_longer_time_than_a_call():
    async with transport([CHUNKED, *[b"1\r\na\r\n"] * 3], read_timeout=4.0) as (http, made):
        async with http.stream(URL, {}, b"") as answer:
            for limit in ((), (9.0,), (1.0,)):
                await answer.next_chunk(*limit)
        assert made[0].limits[1:] == [4.0, 9.0, 1.0]


async def test_streams_leave_the_connections_of_calls_alone():
    async with (
        transport([CHUNKED, None], [GOOD], max_connections=1) as (http, made),
        http.stream(URL, {}, b"") as _,
    ):
        with anyio.fail_after(5):
            assert (await http.post(URL, {}, b"")).status == 200
        assert len(made) == 2


async def test_a_stream_that_finds_no_free_connection_fails_instead_of_waiting_for_ever():
    async with transport([CHUNKED, None], [CHUNKED], max_connections=1, read_timeout=0.05) as (http, made):
        async with http.stream(URL, {}, b"") as _:
            with anyio.fail_after(5):
                async with http.stream(URL, {}, b"") as refused:
                    assert (refused.code, refused.maybe_received) == ("NoFreeConnection", False)
                    assert "raise max_connections" in refused.message
            assert len(made) == 1
        async with http.stream(URL, {}, b"") as later:
            assert later.status == 200
