"""Is a request believed only if its signature is right? (SC1 to SC3). Signed by botocore, which shares no code."""

from datetime import UTC, datetime

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from shardline.codec.sigv4 import Signer, payload_sha256
from shardline.errors import UsageError
from shardline.model.credentials import Credentials as OurCredentials
from shardline.server.signatures import Signatures, access_key_of

NOW = 1_700_000_000.0
BODY = b'{"StreamName":"s"}'
HEADERS = {
    "Host": "127.0.0.1:4567",
    "Content-Type": "application/x-amz-json-1.1",
    "X-Amz-Target": "Kinesis_20131202.ListShards",
    "User-Agent": "test",
}
UNKNOWN = ("UnrecognizedClientException", "The security token included in the request is invalid.", 400)


@pytest.fixture
def checks():
    return Signatures({"AKID": ("secret", None), "ASIA": ("other", "token")}, "eu-west-1")


def signed(
    monkeypatch, *, key="AKID", secret="secret", token=None, at=NOW, region="eu-west-1", service="kinesis", path="/"
):
    """The headers of a request that botocore signed."""
    request = AWSRequest("POST", f"http://127.0.0.1:4567{path}", dict(HEADERS), BODY)
    when = datetime.fromtimestamp(at, UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: when.replace(tzinfo=None))
    SigV4Auth(Credentials(key, secret, token), service, region).add_auth(request)
    assert request.headers["X-Amz-Date"] == when.strftime("%Y%m%dT%H%M%SZ")
    return dict(request.headers.items())


def refusal(checks, headers, *, method="POST", path="/", body=BODY, now=NOW):
    found = checks.check(method, path, headers, body, now)
    return None if found is None else (found.code, found.message, found.status)


@pytest.mark.parametrize("path", ["/", "/a/../b//c", "/some%20where/", "/q?b=1&a=2"])
def test_what_botocore_signs_passes(checks, monkeypatch, path):
    assert refusal(checks, signed(monkeypatch, path=path), path=path) is None


def test_what_our_own_signer_signs_passes(checks):
    signer = Signer(OurCredentials("ASIA", "other", "token"), region="eu-west-1", service="kinesis")
    headers = {name: value for name, value in HEADERS.items() if name != "Host"}
    made = signer.sign(host="127.0.0.1:4567", headers=headers, payload_sha256=payload_sha256(BODY), timestamp=NOW)
    assert refusal(checks, HEADERS | made) is None
    assert refusal(checks, {name.lower(): value for name, value in (HEADERS | made).items()}) is None


def test_a_wrong_secret_does_not_match(checks, monkeypatch):
    code, message, status = refusal(checks, signed(monkeypatch, secret="wrong"))
    assert (code, status) == ("InvalidSignatureException", 400)
    assert message.startswith("The request signature we calculated does not match the signature you provided.")


def test_an_unknown_key_is_unrecognized(checks, monkeypatch):
    assert refusal(checks, signed(monkeypatch, key="NOBODY")) == UNKNOWN


def test_session_tokens_must_be_right_and_not_expired(checks, monkeypatch):
    good = signed(monkeypatch, key="ASIA", secret="other", token="token")
    assert refusal(checks, good) is None
    assert refusal(checks, signed(monkeypatch, key="ASIA", secret="other", token="wrong")) == UNKNOWN
    assert refusal(checks, signed(monkeypatch, key="ASIA", secret="other")) == UNKNOWN
    assert refusal(checks, signed(monkeypatch, token="token")) == UNKNOWN
    checks.expire("token")
    assert refusal(checks, good) == (
        "ExpiredTokenException",
        "The security token included in the request is expired",
        400,
    )


def test_the_date_is_right_within_the_tolerance(checks, monkeypatch):
    headers = signed(monkeypatch)
    assert refusal(checks, headers, now=NOW + 300) is None
    assert refusal(checks, headers, now=NOW - 300) is None
    assert refusal(checks, headers, now=NOW + 301) == (
        "InvalidSignatureException",
        "Signature expired: 20231114T221320Z is now earlier than 20231114T221321Z (20231114T221821Z - 5 min.)",
        400,
    )
    assert refusal(checks, headers, now=NOW - 301) == (
        "InvalidSignatureException",
        "Signature not yet current: 20231114T221320Z is still later than 20231114T221319Z (20231114T220819Z + 5 min.)",
        400,
    )


def test_what_was_changed_on_the_way_does_not_match(checks, monkeypatch):
    good = signed(monkeypatch)
    mismatches = [
        refusal(checks, good, body=BODY + b" "),
        refusal(checks, good, method="PUT"),
        refusal(checks, good, path="/elsewhere"),
        refusal(checks, good, path="/?a=b"),
        refusal(checks, good | {"X-Amz-Target": "Kinesis_20131202.DeleteStream"}),
        refusal(checks, good | {"Host": "evil"}),
        refusal(checks, good | {"X-Amz-Date": "20231114T221321Z"}),
    ]
    for one in mismatches:
        assert one[0] == "InvalidSignatureException"
        assert "does not match" in one[1]
    assert refusal(checks, good | {"User-Agent": "changed"}) is None, "not signed"


def test_amazons_headers_must_be_signed(checks, monkeypatch):
    found = refusal(checks, signed(monkeypatch) | {"X-Amz-Added": "x"})
    assert found == (
        "InvalidSignatureException",
        "'x-amz-added' must be a 'SignedHeader' in the AWS Authorization.",
        400,
    )
    bare = signed(monkeypatch)
    bare["Authorization"] = bare["Authorization"].replace("host;", "")
    assert "'host' must be a 'SignedHeader'" in refusal(checks, bare)[1]
    mixed = signed(monkeypatch)
    mixed["Authorization"] = mixed["Authorization"].replace("content-type;host", "host;content-type")
    assert "sorted" in refusal(checks, mixed)[1]


def test_region_service_and_day_must_be_right(checks, monkeypatch):
    assert refusal(checks, signed(monkeypatch, region="us-east-1"))[:2] == (
        "InvalidSignatureException",
        "Credential should be scoped to a valid region, not 'us-east-1'. ",
    )
    assert refusal(checks, signed(monkeypatch, service="sqs"))[:2] == (
        "InvalidSignatureException",
        "Credential should be scoped to correct service: 'kinesis'. ",
    )
    headers = signed(monkeypatch)
    headers["Authorization"] = headers["Authorization"].replace("/20231114/", "/20231113/")
    assert "Date in Credential scope does not match" in refusal(checks, headers)[1]


def test_a_date_header_serves_too(checks, monkeypatch):
    headers = signed(monkeypatch)
    del headers["X-Amz-Date"]
    headers["Date"] = "Tue, 14 Nov 2023 22:13:20 GMT"
    assert "'date' must be a 'SignedHeader'" in refusal(checks, headers)[1]
    headers["Date"] = "nonsense"
    assert refusal(checks, headers)[0] == "IncompleteSignatureException"


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"Authorization": None}, "MissingAuthenticationTokenException", "Missing Authentication Token"),
        ({"Authorization": ""}, "MissingAuthenticationTokenException", "Missing Authentication Token"),
        ({"Authorization": "AWS4-HMAC-SHA256 x"}, "IncompleteSignatureException", "requires 'Credential' parameter."),
        ({"Authorization": "Basic abc"}, "IncompleteSignatureException", "algorithm"),
        (
            {"Authorization": "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=0"},
            "IncompleteSignatureException",
            "exactly 5 slash-delimited elements",
        ),
        ({"X-Amz-Date": None}, "IncompleteSignatureException", "either a 'X-Amz-Date' or a 'Date' header"),
        ({"X-Amz-Date": "now"}, "IncompleteSignatureException", "ISO-8601"),
    ],
)
def test_what_is_missing_or_broken_is_said(checks, monkeypatch, changes, code, words):
    headers = {name: value for name, value in (signed(monkeypatch) | changes).items() if value is not None}
    found = refusal(checks, headers)
    assert (found[0], found[2]) == (code, 400)
    assert words in found[1]


def test_no_secret_is_shown(checks, monkeypatch):
    assert "secret" not in repr(checks)
    assert "secret" not in str(refusal(checks, signed(monkeypatch, secret="wrong")))


@pytest.mark.parametrize("signature", ["\udcc3\udcff", "0" * 64, "é", ""])
def test_any_other_signature_is_refused(checks, monkeypatch, signature):
    headers = signed(monkeypatch)
    start = headers["Authorization"].index("Signature=") + len("Signature=")
    headers["Authorization"] = headers["Authorization"][:start] + signature
    assert refusal(checks, headers)[0] in {"InvalidSignatureException", "IncompleteSignatureException"}


def test_the_access_key_is_read_off_a_request(monkeypatch):
    assert access_key_of({"authorization": signed(monkeypatch)["Authorization"]}) == "AKID"
    assert access_key_of({}) is None


def test_settings_that_cannot_be():
    with pytest.raises(UsageError, match="credentials is empty"):
        Signatures({}, "eu-west-1")
    with pytest.raises(UsageError, match="tolerance"):
        Signatures({"a": ("b", None)}, "eu-west-1", tolerance=-1)
