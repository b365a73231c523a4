"""Checks the network connection to Kinesis, one layer after another: DNS, TCP and TLS.

Invariants:

- Each layer has its own finding: the first layer that fails is the cause, and the layers above it are skipped.
- If a proxy is used, the connection to the proxy is checked. The proxy connects to Kinesis, and no other layer can be
  checked from here.
- Nothing is sent: the connection is closed after the TLS handshake.
"""

import ipaddress
import os
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

import anyio
import anyio.abc
from anyio.streams.tls import TLSAttribute, TLSStream

from shardline.adapters.http.http_failures import tls_broken
from shardline.adapters.http.http_settings import proxy_for
from shardline.cli.doctor.check_run import CONNECT_TIMEOUT
from shardline.cli.doctor.diagnoses import Finding, Verdict, advice_of, failed, not_checked, ok, warning
from shardline.cli.error_messages import sole_error
from shardline.errors import UsageError

CHECKS: Final = ("DNS", "TCP", "TLS")
_PORTS: Final = {"http": 80, "https": 443}
_ADDRESSES_SHOWN: Final = 2
_DAY: Final = 86_400
_EXPIRES_SOON: Final = 14 * _DAY


async def check_network(url: str, context: ssl.SSLContext | None, now: float) -> list[Finding]:
    """Check each layer of the connection to a URL, up to the first that fails.

    Args:
        url: the endpoint.
        context: the TLS settings, for an https endpoint.
        now: the time in seconds since 1970, to judge the server's certificate.
    """
    try:
        proxy = proxy_for(url, None)
    except UsageError as error:
        return [failed("proxy", str(error), advice_of("ProxyError"))]
    parts = urlsplit(url if proxy is None else proxy.url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    name = host if proxy is None else f"the proxy {host}"
    findings = [await _check_dns(host, port, name)]
    if findings[-1].verdict is Verdict.FAILED:
        return findings
    began_at = anyio.current_time()
    try:
        with anyio.fail_after(CONNECT_TIMEOUT):
            stream = await anyio.connect_tcp(host, port)
    except TimeoutError:
        seen = f"no connection to {name}, port {port}, within {CONNECT_TIMEOUT:.0f} s"
        return [*findings, failed("TCP", seen, advice_of("ConnectError"))]
    except OSError as error:
        seen = f"no connection to {name}, port {port}: {_reason_of(error)}"
        return [*findings, failed("TCP", seen, advice_of("ConnectError"))]
    async with stream:
        milliseconds = (anyio.current_time() - began_at) * 1000
        findings.append(ok("TCP", f"connected to {name}, port {port}, in {milliseconds:.0f} ms"))
        if proxy is not None:
            return [*findings, not_checked("TLS", "a proxy connects to the endpoint")]
        if context is None:
            return [*findings, not_checked("TLS", "the endpoint is not https")]
        return [*findings, await _check_tls(stream, host, context, now)]


async def _check_dns(host: str, port: int, name: str) -> Finding:
    if _is_address(host):
        return ok("DNS", f"not needed: {name} is an address")
    try:
        with anyio.fail_after(CONNECT_TIMEOUT):
            found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        return failed("DNS", f"{name} is not resolved within {CONNECT_TIMEOUT:.0f} s", advice_of("DnsError"))
    except (OSError, UnicodeError) as error:
        return failed("DNS", f"{name} cannot be resolved: {_reason_of(error)}", advice_of("DnsError"))
    addresses = list(dict.fromkeys(str(address[4][0]) for address in found))
    more = len(addresses) - _ADDRESSES_SHOWN
    shown = ", ".join(addresses[:_ADDRESSES_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return ok("DNS", f"{name} is {shown}")


async def _check_tls(stream: anyio.abc.ByteStream, host: str, context: ssl.SSLContext, now: float) -> Finding:
    try:
        with anyio.fail_after(CONNECT_TIMEOUT):
            wrapped = await TLSStream.wrap(stream, hostname=host, ssl_context=context, standard_compatible=False)
    except TimeoutError:
        seen = f"{host} did not complete the TLS handshake within {CONNECT_TIMEOUT:.0f} s"
        return failed("TLS", seen, advice_of("TlsError"))
    except ssl.SSLCertVerificationError as error:
        seen = f"the certificate of {host} cannot be verified: {error.verify_message or error.reason}"
        return failed("TLS", seen, advice_of("CertificateError"))
    except ssl.SSLError as error:
        return failed("TLS", tls_broken(host, error).message.partition(": does ")[0], advice_of("TlsError"))
    except (OSError, anyio.BrokenResourceError, anyio.EndOfStream):
        return failed("TLS", f"{host} closed the connection during the TLS handshake", advice_of("TlsError"))
    return _certificate_finding(wrapped, host, now)


def _certificate_finding(stream: TLSStream, host: str, now: float) -> Finding:
    connection = stream.extra(TLSAttribute.ssl_object)  # noqa: S610 - not Django's extra
    expiry = (connection.getpeercert() or {}).get("notAfter")
    seen = f"{connection.version()}, the certificate of {host} is verified"
    if not isinstance(expiry, str):
        return ok("TLS", seen)
    seconds_left = ssl.cert_time_to_seconds(expiry) - now
    seen += f", expires in {seconds_left / _DAY:.0f} d"
    if seconds_left < _EXPIRES_SOON:
        return warning("TLS", seen, "renew the server's certificate")
    return ok("TLS", seen)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _reason_of(error: Exception) -> str:
    """Return the operating system's reason for an error. anyio raises a general error, with the system's error as its
    cause.
    """
    cause = error.__cause__
    found = sole_error(cause) if isinstance(cause, Exception) else error
    if isinstance(found, OSError) and found.errno is not None and not isinstance(found, socket.gaierror):
        return os.strerror(found.errno)  # each event loop words the reason differently
    return (found.strerror if isinstance(found, OSError) else None) or str(found)
