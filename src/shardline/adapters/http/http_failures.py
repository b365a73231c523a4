"""The failures of HTTP connections.

Every HTTP adapter makes its failures with this module. Each failure has a code, a kind, a flag that says whether the
service may have received the request, and a message that says what to do.
"""

import ssl
from typing import Final

from shardline.core.error_codes import COUNT_MISMATCH, Failure, FailureKind

_MESSAGES: Final = {
    "DnsError": "the host {host} cannot be resolved: check the region or endpoint_url, and DNS",
    "ConnectError": "no connection to {host} ({detail}): check endpoint_url, the network and its firewalls",
    "ConnectTimeout": "no connection to {host} within connect_timeout: check endpoint_url, the network and its "
    "firewalls",
    "CertificateError": "the certificate of {host} cannot be verified ({detail}): pass verify='path/to/ca.pem' if it "
    "has a CA of its own, or set AWS_CA_BUNDLE",
    "TlsError": "TLS with {host} failed ({detail}): does it speak https on that port?",
    "ProxyError": "the proxy for {host} refused the connection ({detail}): check proxies= and HTTPS_PROXY",
    "ProxyLoginError": "the proxy for {host} wants a login or refused it ({detail}): set it in proxies= or "
    "HTTPS_PROXY as http://user:password@proxy:port",
    "ReadTimeout": "{host} did not answer within read_timeout: the request may have been carried out",
    "ConnectionReset": "the connection to {host} broke ({detail}): the request may have been carried out",
    "NoFreeConnection": "no connection to {host} became free within read_timeout ({detail}): raise max_connections",
    "RequestRefused": "{host} did not accept the request ({detail}): it was not carried out",
    "BadAnswer": "{host} sent an invalid response ({detail}): the request may have been carried out",
    COUNT_MISMATCH: "{host} returned {detail}: the entries may have been stored",
    "HttpClientError": "no request could be made to {host} ({detail}): check endpoint_url and proxies=",
    "Closed": "no request could be made to {host}: this Client is closed, make a new one",
}
_KINDS: Final = {
    "CertificateError": FailureKind.UNTRUSTED,
    "HttpClientError": FailureKind.INVALID,
    "Closed": FailureKind.INVALID,
}
"""The kinds of the failures that are not transient."""
_MAYBE_RECEIVED: Final = frozenset({"ReadTimeout", "ConnectionReset", "BadAnswer", COUNT_MISMATCH})

_DETAIL_MAX: Final = 300
_LOGIN_WANTED: Final = 407


def broken(code: str, host: str, detail: object = "") -> Failure:
    """Return the failure with this code. ``detail`` is the cause, or its message."""
    words = " ".join(str(detail).split())[:_DETAIL_MAX] or (
        type(detail).__name__ if detail != "" else "no reason given"
    )
    kind, message = _KINDS.get(code, FailureKind.TRANSIENT), _MESSAGES[code].format(host=host, detail=words)
    return Failure(kind, code, message, maybe_received=code in _MAYBE_RECEIVED)


def proxy_broken(host: str, status: int) -> Failure:
    """Return the failure for a proxy that answered CONNECT with an error status."""
    return broken("ProxyLoginError" if status == _LOGIN_WANTED else "ProxyError", host, f"status {status}")


def tls_broken(host: str, error: ssl.SSLError) -> Failure:
    """Return the failure for a failed TLS handshake: an untrusted certificate, or another error."""
    reason = getattr(error, "reason", None)  # the attribute is missing if Python code raised the error
    if isinstance(error, ssl.SSLCertVerificationError):
        return broken("CertificateError", host, getattr(error, "verify_message", None) or reason or error)
    return broken("TlsError", host, reason or error)
