"""Is each failure of a connection reported with one code, one kind and one useful sentence?"""

import ssl

import pytest

from shardline.adapters.http import http_failures
from shardline.adapters.http.http_failures import broken, proxy_broken, tls_broken
from shardline.core.error_codes import Failure, FailureKind

UNSENT = {
    "DnsError", "ConnectError", "ConnectTimeout", "CertificateError", "TlsError", "ProxyError", "ProxyLoginError",
    "HttpClientError", "Closed", "RequestRefused", "NoFreeConnection",
}  # fmt: skip
FINAL = {
    "CertificateError": FailureKind.UNTRUSTED,
    "HttpClientError": FailureKind.INVALID,
    "Closed": FailureKind.INVALID,
}


@pytest.mark.parametrize("code", http_failures._MESSAGES)
def test_each_way_says_where_and_what_to_do(code):
    failure = broken(code, "kinesis.example", "the cause")
    assert failure.code == code
    assert failure.kind is FINAL.get(code, FailureKind.TRANSIENT)
    assert failure.retryable == (code not in FINAL)
    assert failure.maybe_received == (code not in UNSENT)  # a request that may have been sent may have arrived
    assert (failure.status, failure.request_id, failure.retry_after) == (None, None, None)
    assert "kinesis.example" in failure.message
    assert ": " in failure.message  # the event, and the resulting failure
    assert "{" not in failure.message


def test_an_unknown_way_is_a_bug():
    with pytest.raises(KeyError):
        broken("NoSuchWay", "host")


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ("", "(no reason given)"),
        ("refused", "(refused)"),
        ("two\n  lines", "(two lines)"),
        (OSError(), "(OSError)"),
        (OSError("told"), "(told)"),
        ("{host} {detail} {}", "({host} {detail} {})"),
    ],
)
def test_the_cause_is_reported_in_its_own_words(detail, words):
    assert words in broken("ConnectError", "host", detail).message


def test_a_long_cause_is_cut():
    assert len(broken("BadAnswer", "host", "x" * 10_000).message) < 500


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (407, "ProxyLoginError", FailureKind.TRANSIENT),
        (403, "ProxyError", FailureKind.TRANSIENT),
        (502, "ProxyError", FailureKind.TRANSIENT),
    ],
)
def test_a_proxy_that_refuses(status, code, kind):
    failure = proxy_broken("host", status)
    assert (failure.code, failure.kind) == (code, kind)
    assert str(status) in failure.message


def certificate_error(message):
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = message
    error.reason = "CERTIFICATE_VERIFY_FAILED"
    return error


def test_a_certificate_that_cannot_be_verified():
    failure = tls_broken("host", certificate_error("self-signed certificate"))
    assert (failure.code, failure.kind) == ("CertificateError", FailureKind.UNTRUSTED)
    assert "self-signed certificate" in failure.message
    assert "CERTIFICATE_VERIFY_FAILED" in tls_broken("host", certificate_error("")).message


def test_another_tls_failure():
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    error.reason = "WRONG_VERSION_NUMBER"
    failure = tls_broken("host", error)
    assert (failure.code, failure.kind) == ("TlsError", FailureKind.TRANSIENT)
    assert "WRONG_VERSION_NUMBER" in failure.message
    assert isinstance(tls_broken("host", ssl.SSLError()), Failure)
