"""Is a request accepted only if its signature is right? botocore, which shares no code with the server, signs the
requests.
"""

import hashlib
from datetime import UTC, datetime
from random import Random

import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from shardline.codec.sigv4 import Signer, payload_sha256
from shardline.errors import UsageError
from shardline.model.credentials import Credentials as OurCredentials
from shardline.server.endpoint import Endpoint
from shardline.server.model.service import Service
from shardline.server.model.settings import ServiceSettings
from shardline.server.server_clock import ServerClock
from shardline.server.signatures import Signatures, access_key_of

NOW = 1_700_000_000.0
BODY = b'{"StreamName":"s"}'
HEADERS = {
    "Host": "127.0.0.1:4567",
    "Content-Type": "application/x-amz-json-1.1",
    "X-Amz-Target": "Kinesis_20131202.ListShards",
    "User-Agent": "test",
}
ALL = "content-type;host;x-amz-date;x-amz-target"
UNKNOWN = ("UnrecognizedClientException", "The security token included in the request is invalid.", 400)


@pytest.fixture
def checks():
    return Signatures({"AKID": ("secret", None), "ASIA": ("other", "token")}, "eu-west-1")


def signed(
    monkeypatch, *, key="AKID", secret="secret", token=None, at=NOW, region="eu-west-1", service="kinesis", path="/"
):
    """Return the headers of a request that botocore signed."""
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


def test_session_tokens_must_be_right(checks, monkeypatch):
    good = signed(monkeypatch, key="ASIA", secret="other", token="token")
    assert refusal(checks, good) is None
    assert refusal(checks, signed(monkeypatch, key="ASIA", secret="other", token="wrong")) == UNKNOWN
    assert refusal(checks, signed(monkeypatch, key="ASIA", secret="other")) == UNKNOWN
    assert refusal(checks, signed(monkeypatch, token="token")) == UNKNOWN


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
    wanted = "'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization."
    assert refusal(checks, bare) == ("InvalidSignatureException", wanted, 400)
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
        ({"Authorization": "Basic abc"}, "IncompleteSignatureException", "requires 'SignedHeaders' parameter."),
        (
            {"Authorization": f"AWS4-HMAC-SHA25 Credential=a/b, SignedHeaders={ALL}, Signature=0"},
            "IncompleteSignatureException",
            "Unsupported AWS 'algorithm': 'AWS4-HMAC-SHA25' (only AWS4-HMAC-SHA256 for now). ",
        ),
        (
            {"Authorization": f"AWS4-HMAC-SHA256 Credential=a/b/c/d, SignedHeaders={ALL}, Signature=0"},
            "IncompleteSignatureException",
            "exactly 5 slash-delimited elements, e.g. keyid/date/region/service/term, got 'a/b/c/d'",
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


# ---- the texts that AWS was seen to send (dynalite, index.js); those of kinesalite are in interop/http_recordings.py


def auth(text, **headers):
    return {"host": "x", **headers, "authorization": text}


@pytest.mark.parametrize(
    ("path", "headers", "code", "message"),
    [
        (
            "/",
            auth("AWS4 Credential=a Signature=b SignedHeaders=c", date="201"),
            "Incomplete",
            "Date must be in ISO-8601 'basic format'. Got '201'. See http://en.wikipedia.org/wiki/ISO_8601",
        ),
        (
            "/?X-Amz-Algorithm=a&X-Amz-Credential=b&X-Amz-Signature=c&X-Amz-Date=d&X-Amz-SignedHeaders=e",
            {},
            "Incomplete",
            "Date must be in ISO-8601 'basic format'. Got 'd'. See http://en.wikipedia.org/wiki/ISO_8601",
        ),
        (
            "/",
            auth("AWS4 Credential=a Signature=b SignedHeaders=c", date="20231114T221320Z"),
            "Invalid",
            "'Host' or ':authority' must be a 'SignedHeader' in the AWS Authorization.",
        ),
        (
            "/",
            auth("AWS4-HMAC-SHA256 Credential=a/b/c/d/e Signature=b SignedHeaders=date;Host", date="20231114T221320Z"),
            "Invalid",
            (
                "Credential should be scoped to a valid region, not 'c'. Credential should be scoped to correct service: 'kinesis'. "
                "Credential should be scoped with a valid terminator: 'aws4_request', not 'e'. "
                "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: 'b' != '20231114', "
                "from '20231114T221320Z'."
            ),
        ),
    ],
)
def test_the_texts_are_those_of_aws(checks, path, headers, code, message):
    assert refusal(checks, headers, path=path) == (f"{code}SignatureException", message, 400)


# ---- presigned requests


class Presigner(SigV4QueryAuth):
    """botocore's presigner would move a body into the query: here it only uses the body's hash."""

    def payload(self, request):
        return hashlib.sha256(request.context["payload"]).hexdigest()


def presigned(monkeypatch, *, key="AKID", secret="secret", token=None, at=NOW, expires=900, payload=BODY, query=""):
    """Return the path and headers of a request that botocore presigned."""
    headers = {name: value for name, value in HEADERS.items() if name != "User-Agent"}
    request = AWSRequest("POST", f"http://127.0.0.1:4567/{query}", headers)
    request.context["payload"] = payload
    when = datetime.fromtimestamp(at, UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda: when.replace(tzinfo=None))
    Presigner(Credentials(key, secret, token), "kinesis", "eu-west-1", expires=expires).add_auth(request)
    assert "authorization" not in request.headers
    return request.url.removeprefix("http://127.0.0.1:4567"), dict(request.headers.items())


@pytest.mark.parametrize("query", ["", "?a=b%20c&d", "?b=%2F~-._&a=2&a=1"])
def test_what_botocore_presigns_passes(checks, monkeypatch, query):
    path, headers = presigned(monkeypatch, query=query)
    assert "X-Amz-Signature=" in path
    assert refusal(checks, headers, path=path) is None
    assert access_key_of({}, path) == "AKID"


def test_a_presigned_request_passes_until_it_expires(checks, monkeypatch):
    path, headers = presigned(monkeypatch, expires=3600)
    assert refusal(checks, headers, path=path, now=NOW + 3600) is None
    assert refusal(checks, headers, path=path, now=NOW - 300) is None
    code, message, _ = refusal(checks, headers, path=path, now=NOW + 3601)
    assert (code, message.partition(":")[0]) == ("InvalidSignatureException", "Signature expired")
    assert message.endswith("- 60 min.)")
    assert "not yet current" in refusal(checks, headers, path=path, now=NOW - 301)[1]


def test_a_presigned_request_that_was_changed_does_not_match(checks, monkeypatch):
    path, headers = presigned(monkeypatch)
    changed = [
        refusal(checks, headers, path=path + "&a=b"),
        refusal(checks, headers, path=path.replace("Expires=900", "Expires=901")),
        refusal(checks, headers, path=path, body=BODY + b" "),
        refusal(checks, headers, path=path, method="GET"),
        refusal(checks, headers | {"X-Amz-Target": "Kinesis_20131202.DeleteStream"}, path=path),
        refusal(checks, headers, path=path[:-1] + ("0" if path[-1] != "0" else "1")),
    ]
    assert {one[0] for one in changed} == {"InvalidSignatureException"}
    assert all("does not match" in one[1] for one in changed)
    added = refusal(checks, headers | {"X-Amz-Added": "x"}, path=path)
    assert added[1] == "'x-amz-added' must be a 'SignedHeader' in the AWS Authorization."


def test_the_session_token_of_a_presigned_request_is_in_its_query(checks, monkeypatch):
    path, headers = presigned(monkeypatch, key="ASIA", secret="other", token="token")
    assert refusal(checks, headers, path=path) is None
    wrong, headers = presigned(monkeypatch, key="ASIA", secret="other", token="wrong")
    assert refusal(checks, headers, path=wrong) == UNKNOWN
    none, headers = presigned(monkeypatch, key="ASIA", secret="other")
    assert refusal(checks, headers, path=none) == UNKNOWN


@pytest.mark.parametrize("expires", ["0", "-1", "604801", "1e3", "x", "", "9" * 5000, "+1", "1.0", "%D9%A3", "NaN"])
def test_the_expiry_of_a_presigned_request_is_bounded(checks, monkeypatch, expires):
    path, headers = presigned(monkeypatch)
    code, message, _ = refusal(checks, headers, path=path.replace("Expires=900", f"Expires={expires}"))
    assert code == "IncompleteSignatureException"
    assert "'X-Amz-Expires' must be a number of seconds from 1 to 604800" in message


@pytest.mark.parametrize("text", ["%FF", "\udcff", "%ED%A0%80"])
def test_a_refusal_can_always_be_sent(checks, text):
    rest = "&X-Amz-Signature=c&X-Amz-Date=20231114T221320Z&X-Amz-SignedHeaders=host"
    path = f"/?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={text}{rest}"
    for found in (refusal(checks, {"host": "x"}, path=path), refusal(checks, auth(f"AWS4 {text}"))):
        assert found[0] == "IncompleteSignatureException"
        found[1].encode()


def test_a_clock_that_was_moved_does_not_make_signatures_old(checks, monkeypatch):
    headers = signed(monkeypatch)
    moved = NOW + 86_400
    assert checks.check("POST", "/", headers, BODY, moved).message.startswith("Signature expired")
    assert checks.check("POST", "/", headers, BODY, moved, machine_now=NOW) is None
    later = signed(monkeypatch, at=moved)  # a client that uses the server's Date header
    assert checks.check("POST", "/", later, BODY, moved, machine_now=NOW) is None


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


# ---- the order of the service's checks


@pytest.fixture
def endpoint(checks):
    service = Service(ServiceSettings(region="eu-west-1"), Random(1), NOW)
    return Endpoint(service, ServerClock(lambda: NOW), signatures=checks)


@pytest.mark.parametrize(
    ("target", "body", "code"),
    [
        ("ListStreams", b"", "SerializationException"),
        ("ListStreams", b"hello", "SerializationException"),
        ("ListStreams", b"true", "SerializationException"),
        ("ListStreams", b"[" * 100_000, "SerializationException"),
        ("Nothing", b"{}", "UnknownOperationException"),
        ("ListStreams", b"{}", "MissingAuthenticationTokenException"),
        ("ListStreams", b'{"Limit": "x"}', "MissingAuthenticationTokenException"),
        ("ListStreams", b'{"Limit": -1}', "MissingAuthenticationTokenException"),
        ("DescribeStream", b'{"StreamName": "nothing"}', "MissingAuthenticationTokenException"),
    ],
)
def test_a_body_is_read_before_the_caller_is_known_and_judged_after_that(endpoint, target, body, code):
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"Kinesis_20131202.{target}"}
    reply = endpoint.reply(headers, body)
    assert (reply.status, reply.headers["x-amzn-ErrorType"]) == (400, code)


def test_a_presigned_request_is_carried_out(endpoint, monkeypatch):
    body = b'{"StreamName":"s"}'
    path, headers = presigned(monkeypatch, payload=body)
    lower = {name.lower(): value for name, value in headers.items()}
    reply = endpoint.reply(lower, body, path=path)
    assert reply.headers["x-amzn-ErrorType"] == "ResourceNotFoundException", "ListShards of a stream that is not there"
    assert endpoint.reply(lower, body + b" ", path=path).headers["x-amzn-ErrorType"] == "InvalidSignatureException"
