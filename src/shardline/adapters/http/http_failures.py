"""How is a connection that broke told?

One table for every HTTP adapter: each way of breaking has a code, a kind, whether the request may have arrived, and one
sentence that says what to do.
"""

import ssl
from typing import Final

from shardline.core.failures import COUNT_MISMATCH, Failure, FailureKind

_SENTENCES: Final = {
    "DnsError": "the host {host} cannot be resolved: check the region or endpoint_url, and DNS",
    "ConnectError": "no connection to {host} ({detail}): check endpoint_url, the network and its firewalls",
    "ConnectTimeout": "no connection to {host} within connect_timeout: check endpoint_url, the network and its "
    "firewalls",
    "CertificateError": "the certificate of {host} cannot be verified ({detail}): pass verify='path/to/ca.pem' if it "
    "has a CA of its own, or set AWS_CA_BUNDLE",
    "TlsError": "TLS with {host} failed ({detail}): does it speak https on that port?",
    "ProxyError": "the proxy on the way to {host} refused ({detail}): check proxies= and HTTPS_PROXY",
    "ProxyLoginError": "the proxy on the way to {host} wants a login or refused it ({detail}): give it in proxies= or "
    "HTTPS_PROXY as http://user:password@proxy:port",
    "ReadTimeout": "{host} did not answer within read_timeout: the request may have been carried out",
    "ConnectionReset": "the connection to {host} broke ({detail}): the request may have been carried out",
    "BadAnswer": "{host} sent what is no valid answer ({detail}): the request may have been carried out",
    COUNT_MISMATCH: "{host} answered with {detail}: the entries may have been stored",
    "HttpClientError": "no request could be made to {host} ({detail}): check endpoint_url and proxies=",
    "Closed": "no request could be made to {host}: this Client is closed, make a new one",
}
_KINDS: Final = {
    "CertificateError": FailureKind.UNTRUSTED,
    "HttpClientError": FailureKind.INVALID,
    "Closed": FailureKind.INVALID,
}
"""The others are transient."""
_MAYBE_RECEIVED: Final = frozenset({"ReadTimeout", "ConnectionReset", "BadAnswer", COUNT_MISMATCH})

_DETAIL_MAX: Final = 300
_LOGIN_WANTED: Final = 407


def broken(code: str, host: str, detail: object = "") -> Failure:
    """The failure for one of the ways above. ``detail`` is the cause, in its own words."""
    words = " ".join(str(detail).split())[:_DETAIL_MAX] or (
        type(detail).__name__ if detail != "" else "no reason given"
    )
    kind, message = _KINDS.get(code, FailureKind.TRANSIENT), _SENTENCES[code].format(host=host, detail=words)
    return Failure(kind, code, message, maybe_received=code in _MAYBE_RECEIVED)


def proxy_broken(host: str, status: int) -> Failure:
    """A proxy that answered CONNECT with an error."""
    return broken("ProxyLoginError" if status == _LOGIN_WANTED else "ProxyError", host, f"status {status}")


def tls_broken(host: str, error: ssl.SSLError) -> Failure:
    """A TLS handshake that failed: for want of trust, or for another reason."""
    reason = getattr(error, "reason", None)  # one that Python code raises has none
    if isinstance(error, ssl.SSLCertVerificationError):
        return broken("CertificateError", host, getattr(error, "verify_message", None) or reason or error)
    return broken("TlsError", host, reason or error)
