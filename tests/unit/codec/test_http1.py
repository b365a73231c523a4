"""HTTP/1.1 requests and answers."""

import pytest

from shardline.codec import http1
from shardline.codec.http1 import (
    BODY_MAX_BYTES,
    HEAD_MAX_BYTES,
    CutShortError,
    HttpError,
    ResponseReader,
    encode_request,
)


def read(*pieces, end=False, **settings):
    reader = ResponseReader(**settings)
    for piece in pieces:
        reader.feed(piece)
    if end:
        reader.feed_end()
    return reader


def ok(*lines, body=b""):
    return b"\r\n".join([b"HTTP/1.1 200 OK", *lines, b"", b""]) + body


class TestRequests:
    def test_a_request_has_a_host_and_a_length(self):
        head = encode_request("/", "kinesis", {"X-Amz-Target": "K.PutRecords"}, 7)
        assert head == b"POST / HTTP/1.1\r\nHost: kinesis\r\nX-Amz-Target: K.PutRecords\r\nContent-Length: 7\r\n\r\n"

    def test_a_connect_has_no_length(self):
        assert encode_request("h:443", "h:443", {}, None, "CONNECT") == b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n"

    @pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\r\nEvil: 1", "a\x00b", "snow \u2603"])
    def test_a_header_cannot_break_out_of_its_line(self, value):
        with pytest.raises(HttpError, match="a header contains"):
            encode_request("/", "kinesis", {"X": value}, 0)


class TestByLength:
    def test_a_body_of_known_length(self):
        reader = read(ok(b"Content-Length: 3", b"X-A:  b ", body=b"abc"))
        assert (reader.status, reader.complete, reader.keep_alive, reader.take()) == (200, True, True, b"abc")
        assert reader.headers == {"content-length": "3", "x-a": "b"}
        assert reader.take() == b""

    def test_an_empty_body(self):
        reader = read(ok(b"Content-Length: 0"))
        assert (reader.complete, reader.keep_alive, reader.take()) == (True, True, b"")

    def test_in_single_bytes(self):
        data = ok(b"Content-Length: 5", body=b"hello")
        reader = read(*(data[at : at + 1] for at in range(len(data))))
        assert (reader.complete, reader.keep_alive, reader.take()) == (True, True, b"hello")

    @pytest.mark.parametrize("status", [204, 304])
    def test_answers_without_a_body(self, status):
        reader = read(b"HTTP/1.1 %d\r\nContent-Length: 9\r\n\r\n" % status)
        assert (reader.status, reader.complete) == (status, True)

    def test_the_answer_to_a_connect_has_no_body(self):
        assert read(b"HTTP/1.1 200 OK\r\n\r\n", of_connect=True).complete
        assert not read(b"HTTP/1.1 407 No\r\nContent-Length: 2\r\n\r\n", of_connect=True).complete

    def test_interim_answers_are_passed_over(self):
        reader = read(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 x\r\n\r\n" + ok(b"Content-Length: 1", body=b"x"))
        assert (reader.status, reader.take()) == (200, b"x")

    def test_a_length_may_be_repeated_if_it_is_the_same(self):
        assert read(ok(b"Content-Length: 1", b"Content-Length: 1", body=b"x")).take() == b"x"

    @pytest.mark.parametrize("length", [b"x", b"-1", b"", b"1, 2", b"+1", b"1" * 19, b"\xb2"])
    def test_an_invalid_length(self, length):
        with pytest.raises(HttpError, match="content length"):
            read(ok(b"Content-Length: " + length))


class TestChunks:
    def test_chunks_are_joined(self):
        body = b"3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
        reader = read(ok(b"Transfer-Encoding: Chunked", body=body))
        assert (reader.complete, reader.keep_alive, reader.take()) == (True, True, b"abcde")

    def test_in_single_bytes(self):
        data = ok(b"Transfer-Encoding: chunked", body=b"A\r\n0123456789\r\n0\r\n\r\n")
        reader = read(*(data[at : at + 1] for at in range(len(data))))
        assert (reader.complete, reader.keep_alive, reader.take()) == (True, True, b"0123456789")

    def test_chunks_can_be_taken_as_they_come(self):
        reader = read(ok(b"Transfer-Encoding: chunked"))
        reader.feed(b"3\r\nab")
        assert reader.take() == b"ab"
        reader.feed(b"c\r\n0\r\n\r\n")
        assert (reader.take(), reader.complete) == (b"c", True)

    def test_chunks_win_over_a_length(self):
        assert (
            read(ok(b"Content-Length: 1", b"Transfer-Encoding: chunked", body=b"2\r\nab\r\n0\r\n\r\n")).take() == b"ab"
        )

    @pytest.mark.parametrize("body", [b"x\r\n", b"\r\n", b"-1\r\n", b"1" * 17 + b"\r\n", b"1\r\nab\r\n", b"f" * 5000])
    def test_chunks_that_break_the_rules(self, body):
        with pytest.raises(HttpError):
            read(ok(b"Transfer-Encoding: chunked", body=body))

    def test_another_transfer_encoding(self):
        with pytest.raises(HttpError, match="transfer encoding"):
            read(ok(b"Transfer-Encoding: gzip, chunked"))


class TestTheEnd:
    def test_without_a_length_the_end_of_the_connection_ends_it(self):
        reader = read(ok(body=b"ab"), b"c", end=True)
        assert (reader.complete, reader.keep_alive, reader.take()) == (True, False, b"abc")

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"HTTP/1.1 200 OK\r\n",
            ok(b"Content-Length: 5", body=b"1234"),
            ok(b"Transfer-Encoding: chunked"),
            ok(b"Transfer-Encoding: chunked", body=b"5\r\n12345\r\n"),
        ],
    )
    def test_an_end_in_the_middle_is_reported(self, data):
        with pytest.raises(CutShortError):
            read(data, end=True)

    def test_an_end_after_a_whole_response_is_ignored(self):
        reader = read(ok(b"Content-Length: 1", body=b"x"), end=True)
        assert (reader.complete, reader.keep_alive) == (True, False)


class TestKeepAlive:
    @pytest.mark.parametrize(
        ("head", "kept"),
        [
            (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", False),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: foo, close\r\n\r\n", False),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", False),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n", True),
        ],
    )
    def test_what_the_server_says(self, head, kept):
        assert read(head).keep_alive is kept

    @pytest.mark.parametrize(
        "data",
        [
            ok(b"Content-Length: 1", body=b"xy"),
            ok(b"Content-Length: 0", body=b"y"),
            ok(b"Transfer-Encoding: chunked", body=b"0\r\n\r\ny"),
        ],
    )
    def test_what_follows_the_answer_ends_it(self, data):
        assert not read(data).keep_alive

    def test_what_follows_later_ends_it(self):
        reader = read(ok(b"Content-Length: 0"))
        reader.feed(b"HTTP/1.1 408 Timeout\r\n\r\n")
        assert (reader.complete, reader.keep_alive, reader.status) == (True, False, 200)


class TestBounds:
    def test_a_head_without_end(self):
        with pytest.raises(HttpError, match="head of the answer is too long"):
            read(b"HTTP/1.1 200 OK\r\n", *[b"X: " + b"y" * 1000 + b"\r\n"] * (HEAD_MAX_BYTES // 1000 + 2))

    def test_a_head_that_ends_too_late(self):
        with pytest.raises(HttpError, match="head of the answer is too long"):
            read(ok(b"X: " + b"y" * HEAD_MAX_BYTES))

    def test_a_length_beyond_the_limit_is_refused_before_it_comes(self):
        with pytest.raises(HttpError, match="body of the answer is too long"):
            read(ok(b"Content-Length: %d" % (BODY_MAX_BYTES + 1)))

    def test_a_body_without_end(self, monkeypatch):
        monkeypatch.setattr(http1, "BODY_MAX_BYTES", 100)
        with pytest.raises(HttpError, match="body of the answer is too long"):
            read(ok(), *[b"x" * 10] * 11)

    def test_a_body_that_is_taken_as_it_comes_may_be_endless(self, monkeypatch):
        monkeypatch.setattr(http1, "BODY_MAX_BYTES", 100)
        reader = read(ok(b"Transfer-Encoding: chunked"))
        for _ in range(50):
            reader.feed(b"a\r\n0123456789\r\n")
            assert reader.take() == b"0123456789"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 2000\r\n\r\n",
        b"HTTP/1.1 020\r\n\r\n",  # no status begins with 0: it was accepted, and became an error that is never retried
        b"HTTP/1.1 000\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: no name\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : space\r\n\r\n",
    ],
)
def test_what_is_no_answer(data):
    with pytest.raises(HttpError):
        read(data)


def test_repeated_headers_are_joined():
    assert read(ok(b"A: 1", b"a: 2", b"Content-Length: 0")).headers["a"] == "1, 2"
