"""What do httpcore2's exceptions mean? (What it does on a real connection is in tests/shell.)"""

import socket
import ssl

import anyio
import httpcore2
import pytest

from shardline.adapters.http.http_settings import HttpSettings
from shardline.adapters.http.httpcore_transport import HttpcoreTransport, _root


def wrapped(outer, *inner):
    """As httpcore2 raises it: the cause is an argument, and its pool has taken it off the exception."""
    cause = None
    for one in reversed(inner):
        one.__cause__ = cause
        cause = one
    return outer(cause)


CERTIFICATE = ssl.SSLCertVerificationError(1, "verify failed")
NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
REFUSED = ConnectionRefusedError(111, "Connection refused")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (
            wrapped(httpcore2.ConnectError, anyio.BrokenResourceError(), CERTIFICATE),
            "CertificateError",
            "verify failed",
        ),
        (wrapped(httpcore2.ConnectError, ssl.SSLError(1, "wrong version")), "TlsError", "wrong version"),
        (wrapped(httpcore2.ConnectError, NO_NAME), "DnsError", "cannot be resolved"),
        (wrapped(httpcore2.ConnectError, OSError("all failed"), REFUSED), "ConnectError", "Connection refused"),
        (
            wrapped(httpcore2.ConnectError, OSError("all failed"), ExceptionGroup("several", [REFUSED, NO_NAME])),
            "ConnectError",
            "Connection refused",
        ),
        (httpcore2.ConnectError("odd"), "ConnectError", "odd"),
        (httpcore2.ConnectTimeout(), "ConnectTimeout", "connect_timeout"),
        (httpcore2.ReadTimeout(), "ReadTimeout", "read_timeout"),
        (httpcore2.WriteTimeout(), "ReadTimeout", "read_timeout"),
        (httpcore2.ProxyError("407 Proxy Authentication Required"), "ProxyLoginError", "407"),
        (httpcore2.ProxyError("502 Bad Gateway"), "ProxyError", "502"),
        (httpcore2.ProxyError("odd"), "ProxyError", "odd"),
        (httpcore2.LocalProtocolError("bad header"), "HttpClientError", "bad header"),
        (httpcore2.UnsupportedProtocol("ftp"), "HttpClientError", "ftp"),
        (UnicodeError("label too long"), "DnsError", "cannot be resolved"),
        (
            httpcore2.RemoteProtocolError("Server disconnected without sending a response."),
            "ConnectionReset",
            "closed by",
        ),
        (
            httpcore2.RemoteProtocolError("peer closed connection without sending complete message body"),
            "ConnectionReset",
            "cut short",
        ),
        (httpcore2.RemoteProtocolError("illegal status line"), "BadAnswer", "illegal status line"),
        (
            wrapped(httpcore2.ReadError, anyio.BrokenResourceError(), ConnectionResetError(104, "reset")),
            "ConnectionReset",
            "reset",
        ),
        (httpcore2.ReadError(), "ConnectionReset", "ReadError"),
        (httpcore2.WriteError("x"), "ConnectionReset", "x"),
        (OSError(5, "I/O error"), "ConnectionReset", "I/O error"),
    ],
)
def test_an_exception_has_one_meaning(error, code, words):
    failure = HttpcoreTransport(HttpSettings(), None).failure(error, "host")
    assert failure.code == code
    assert words in failure.message


@pytest.mark.parametrize("error", [wrapped(httpcore2.ConnectError, NO_NAME), wrapped(httpcore2.ConnectError, REFUSED)])
def test_on_the_way_to_a_proxy_it_is_the_proxy_that_is_not_there(error):
    assert HttpcoreTransport(HttpSettings(), None).failure(error, "host", proxied=True).code == "ProxyError"


def test_an_exception_that_the_caller_deals_with_is_not_the_cause():
    error = httpcore2.ReadError("x")
    error.__context__ = CERTIFICATE
    assert _root(error) is error


@pytest.mark.anyio
async def test_after_the_close_everything_that_breaks_is_the_close():
    transport = HttpcoreTransport(HttpSettings(), None)
    await transport.close()
    await transport.close()
    assert "this Client was closed" in transport.failure(httpcore2.ReadError(), "host").message
    answer = await transport.post("http://host/", {}, b"")
    assert (answer.code, answer.maybe_received) == ("Closed", False)
