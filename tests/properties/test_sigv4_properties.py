"""Signatures equal botocore's, for any request."""

import math
from datetime import datetime, timedelta
from unittest.mock import patch

import botocore.auth
import botocore.credentials
from botocore.awsrequest import AWSRequest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardline.codec import sigv4
from shardline.codec.sigv4 import Signer, payload_sha256
from shardline.model.credentials import Credentials

OURS = {"authorization", "date", "x-amz-date", "x-amz-security-token"}
# with this one botocore signs its value in place of the body's hash: given equal, it is a header as any other
HASH = "x-amz-content-sha256"

printable = st.characters(exclude_categories=["Cs", "Cc"])
keys = st.text(printable, min_size=1, max_size=40)
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
spaced = st.lists(st.sampled_from(["a", "B", ";", ",", " ", "  ", "\t", "\u00a0", "é"]), max_size=12).map("".join)
names = st.sampled_from(
    [
        "Content-Type",
        "X-Amz-Target",
        "content-type",
        "Host",
        "User-Agent",
        "Content-Length",
        "Accept",
        "X-Amzn-Trace-Id",
    ]
) | st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,12}", fullmatch=True)
blacklisted = st.sampled_from(botocore.auth.SIGNED_HEADERS_BLACKLIST).map(str.title)
headers = st.dictionaries(
    (names | blacklisted).filter(lambda name: name.lower() not in OURS | {HASH}), spaced | anything, max_size=6
)
hosts = st.builds(
    str.__add__,
    st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,30}[A-Za-z0-9])?", fullmatch=True)
    | st.ip_addresses(v=6).map(lambda address: f"[{address}]")
    | st.ip_addresses(v=4).map(str),
    st.just("") | st.just(":443") | st.just(":80") | st.integers(1, 65_535).map(lambda port: f":{port}"),
)
segments = st.sampled_from(["", ".", "..", "...", "a", "%20", "a b", "~", "+", "ü", ":", "@"]) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="?#"), max_size=6
)
paths = st.just("/") | st.just("") | st.lists(segments, max_size=6).map(lambda parts: "/" + "/".join(parts))
timestamps = st.floats(0, 253_402_300_799.0) | st.integers(0, 253_402_300_799) | st.floats(1.7e9, 1.8e9)
requests = st.tuples(hosts, paths, headers, st.binary(max_size=50), timestamps)


def theirs(credentials, region, service, request):
    """Return the headers that botocore adds to such a request."""
    host, path, given_headers, body, timestamp = request
    sent = AWSRequest("POST", f"https://{host}{path}", headers=dict(given_headers), data=body)
    now = datetime(1970, 1, 1) + timedelta(seconds=math.floor(timestamp))  # noqa: DTZ001 - botocore's clock has no zone
    with patch.object(botocore.auth, "get_current_datetime", lambda: now):
        botocore.auth.SigV4Auth(botocore.credentials.Credentials(*credentials), service, region).add_auth(sent)
    return {name: value for name, value in sent.headers.items() if name.lower() in OURS}


def check(signer, credentials, region, service, request):
    host, path, given_headers, body, timestamp = request
    added = signer.sign(
        host=host, path=path, headers=given_headers, payload_sha256=payload_sha256(body), timestamp=timestamp
    )
    assert added == theirs(credentials, region, service, request)


@settings(max_examples=150, deadline=None)
@given(st.tuples(keys, keys, st.none() | st.just("") | keys), keys, keys, requests)
@example(("AKID", "secret", "to  ken "), "eu-west-1", "kinesis", ("[::1]:443", "/a//../b%20c/", {}, b"", 0.0))
@example(("AKID", "secret", None), "eu-west-1", "kinesis", ("HOST:443", "//", {"A": " 1", "a": "2 "}, b"x", 1.9999999))
def test_every_request_is_signed_as_botocore_signs_it(credentials, region, service, request):
    signer = Signer(Credentials(*credentials), region=region, service=service)
    check(signer, credentials, region, service, request)


@settings(max_examples=30, deadline=None)
@given(st.lists(requests, min_size=2, max_size=4), st.permutations(range(4)))
def test_what_a_signer_remembers_does_not_show(several, order):
    credentials = ("AKID", "secret", "token")
    signer = Signer(Credentials(*credentials), region="eu-west-1", service="kinesis")
    moments = [request[4] for request in several]
    for number in [*range(len(several)), *order]:
        request = several[number % len(several)]
        moment = moments[(number + 1) % len(moments)]
        check(signer, credentials, "eu-west-1", "kinesis", request)
        check(signer, credentials, "eu-west-1", "kinesis", (*request[:4], moment))


@settings(max_examples=60, deadline=None)
@given(headers, st.binary(max_size=20))
def test_a_content_hash_among_the_headers_is_signed_as_any_other(given_headers, body):
    credentials = ("AKID", "secret", None)
    signer = Signer(Credentials(*credentials), region="eu-west-1", service="kinesis")
    with_hash = given_headers | {"X-Amz-Content-SHA256": payload_sha256(body)}
    check(signer, credentials, "eu-west-1", "kinesis", ("localhost:4567", "/", with_hash, body, 1.7e9))


def test_the_unsigned_headers_are_those_of_the_installed_botocore():
    assert set(botocore.auth.SIGNED_HEADERS_BLACKLIST) == sigv4._UNSIGNED


secrets = st.text(printable, min_size=8, max_size=40)


places = st.tuples(hosts | anything, paths | anything)
endings = st.sampled_from(["", "\n", "\ud800", "\x00"])


@settings(max_examples=60, deadline=None)
@given(st.tuples(secrets, secrets, endings), headers | st.just({"a": "\ud800"}), places, st.floats())
def test_nothing_tells_the_secret_or_the_token(parts, given_headers, place, timestamp):
    secret, token = f"<<{parts[0]}>>", f"[[{parts[1]}]]{parts[2]}"
    host, path = place
    texts = []
    try:
        credentials = Credentials("AKID", secret, token)
        texts += [repr(credentials), str(credentials)]
        signer = Signer(credentials, region="eu-west-1", service="kinesis")
        texts += [repr(signer), str(signer)]
        signer.sign(host=host, path=path, headers=given_headers, payload_sha256="00", timestamp=timestamp)
        texts += [repr(signer), str(signer)]
    except Exception as error:  # noqa: BLE001 - whatever comes, it must not tell
        seen = error
        while seen is not None:
            texts += [repr(seen), str(seen)]
            seen = seen.__context__
    for text in texts:
        assert secret not in text
        assert token not in text
        assert repr(secret)[1:-1] not in text
        assert repr(token)[1:-1] not in text
