"""What does a signed request look like, and how is its response interpreted?"""

import json
from contextlib import asynccontextmanager

import anyio.to_thread
import pytest

from shardline.adapters.aws.credential_provider import CredentialSource
from shardline.adapters.aws.endpoints import Endpoints, parse_endpoint
from shardline.adapters.aws.signed_http import SignedHttp
from shardline.adapters.http.http_failures import broken
from shardline.codec.sigv4 import Signer, payload_sha256
from shardline.core.error_codes import Failure, FailureKind
from shardline.errors import CredentialsError, UsageError
from shardline.model.credentials import Credentials
from shardline.ports import HttpResponse

pytestmark = pytest.mark.anyio

KEYS = Credentials("AKIDEXAMPLE", "the secret", "the token")
NOW = 1_700_000_000.0
JSON = "application/x-amz-json-1.1"


class Transport:
    """A fake ``HttpTransport``: answers from a list, and remembers the requests."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.sent = []
        self.closed = 0
        self.open_streams = 0

    async def post(self, url, headers, body):
        self.sent.append((url, dict(headers), bytes(body)))
        return self.answers.pop(0)

    @asynccontextmanager
    async def stream(self, url, headers, body):
        answer = await self.post(url, headers, body)
        self.open_streams += 1
        try:
            yield Arriving(answer) if isinstance(answer, HttpResponse) else answer
        finally:
            self.open_streams -= 1

    async def stream_protocol(self, url):
        self.sent.append((url, None, None))
        return self.answers.pop(0)

    async def close(self):
        self.closed += 1


class Arriving:
    def __init__(self, answer):
        self.status, self.headers, self._body = answer

    async def next_chunk(self, _timeout=None, _enough=1):
        body, self._body = self._body, None
        return body

    async def read(self):
        return self._body


class Chain:
    def __init__(self, *found):
        self.found = list(found)
        self.asked = []

    def credentials(self, *, reload):
        self.asked.append(reload)
        found = self.found.pop(0)
        if isinstance(found, Exception):
            raise found
        return found, False


class Rules:
    def __init__(self, url="https://kinesis.example"):
        self.url = url
        self.asked = []

    def endpoint(self, operation, params):
        self.asked.append((operation, dict(params)))
        if isinstance(self.url, Exception):
            raise self.url
        return self.url


def ok(body=b"{}"):
    return HttpResponse(200, {}, body)


def refusal(code, status=400, message="told so", **headers):
    body = json.dumps({"__type": code, "message": message}).encode()
    return HttpResponse(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def make(transport, *, credentials=None, endpoints=None, clock=None, endpoint="http://localhost:4567"):
    return SignedHttp(
        transport=transport,
        credentials=credentials or CredentialSource(None, KEYS),
        endpoints=endpoints or Endpoints(None, parse_endpoint(endpoint)),
        region="eu-west-1",
        service="kinesis",
        target_prefix="Kinesis_20131202",
        user_agent="shardline/test",
        wall_time=clock or (lambda: NOW),
    )


async def post(http, body=b"{}", operation="PutRecords", routing=None, arn=None):
    return await http.post(operation, JSON, body, routing or {}, arn)


@pytest.mark.parametrize("endpoint", ["http://localhost:4567", "https://host/a/path"])
@pytest.mark.parametrize("body", [b"", b"{}", bytearray(b"[]"), b"x" * 1_048_576, b"x" * 1_048_577])
async def test_what_is_sent(endpoint, body):
    transport = Transport(ok(b"answer"))
    assert await post(make(transport, endpoint=endpoint), body) == ok(b"answer")
    [(url, headers, sent)] = transport.sent
    goal = parse_endpoint(endpoint)
    assert (url, sent) == (goal.url, bytes(body))
    named = {"Content-Type": JSON, "X-Amz-Target": "Kinesis_20131202.PutRecords"}
    signed = Signer(KEYS, region="eu-west-1", service="kinesis").sign(
        host=goal.host, path=goal.path, headers=named, payload_sha256=payload_sha256(bytes(body)), timestamp=NOW
    )
    assert headers == named | signed | {"User-Agent": "shardline/test", "Accept-Encoding": "identity"}


@pytest.mark.parametrize(("size", "hops"), [(1_048_576, 0), (1_048_577, 1)])
async def test_large_bodies_are_hashed_off_the_loop(size, hops, monkeypatch):
    made = []
    run_sync = anyio.to_thread.run_sync

    async def counted(function, *args, **kwargs):
        made.append(function)
        return await run_sync(function, *args, **kwargs)

    monkeypatch.setattr(anyio.to_thread, "run_sync", counted)
    await post(make(Transport(ok())), b"x" * size)
    assert len(made) == hops


async def test_where_no_thread_can_begin_any_more_large_bodies_are_hashed_on_the_loop(monkeypatch):
    """This is the case during interpreter shutdown, since Python 3.12."""

    async def run_sync(*_, **__):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(anyio.to_thread, "run_sync", run_sync)
    assert await post(make(Transport(ok())), b"x" * 1_048_577) == ok()


async def test_a_broken_connection_is_handed_on_after_one_attempt():
    failure = broken("ConnectionReset", "host")
    transport = Transport(failure)
    assert await post(make(transport)) is failure
    assert len(transport.sent) == 1


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (
            refusal("ProvisionedThroughputExceededException"),
            FailureKind.THROTTLED,
            "ProvisionedThroughputExceededException",
        ),
        (refusal("com.amazonaws#ValidationException"), FailureKind.INVALID, "ValidationException"),
        (HttpResponse(500, {}, b""), FailureKind.TRANSIENT, "InternalServerError"),
        (HttpResponse(204, {}, b""), FailureKind.TRANSIENT, "Http204"),
        (HttpResponse(301, {}, b""), FailureKind.TRANSIENT, "Http301"),
        (HttpResponse(307, {"location": "https://login.example"}, b""), FailureKind.TRANSIENT, "Http307"),
        (HttpResponse(401, {}, b"Unauthorized"), FailureKind.TRANSIENT, "Unauthorized"),
        (HttpResponse(403, {}, b"<html>Forbidden</html>"), FailureKind.TRANSIENT, "Forbidden"),
        (HttpResponse(403, {"x-amzn-errortype": "ForbiddenException"}, b""), FailureKind.DENIED, "ForbiddenException"),
        (HttpResponse(404, {}, b'{"message": "no such route"}'), FailureKind.TRANSIENT, "NotFound"),
        (HttpResponse(400, {}, b'{"code": "ValidationError"}'), FailureKind.TRANSIENT, "ValidationError"),
        (HttpResponse(400, {}, b'{"code": "ExpiredToken"}'), FailureKind.TRANSIENT, "ExpiredToken"),
        (HttpResponse(405, {}, b""), FailureKind.TRANSIENT, "Http405"),
        (HttpResponse(407, {}, b""), FailureKind.TRANSIENT, "ProxyAuthenticationRequired"),
        (HttpResponse(413, {}, b"<html>Too large</html>"), FailureKind.TRANSIENT, "RequestEntityTooLarge"),
        (HttpResponse(421, {}, b"Misdirected"), FailureKind.TRANSIENT, "Http421"),
        (HttpResponse(429, {}, b"Slow down"), FailureKind.THROTTLED, "TooManyRequests"),
    ],
)
async def test_a_refusal_is_a_failure_after_one_attempt(answer, kind, code):
    transport = Transport(answer)
    failure = await post(make(transport))
    assert (failure.kind, failure.code, failure.status) == (kind, code, answer.status)
    assert failure.maybe_received
    assert len(transport.sent) == 1


async def test_a_refusal_that_was_expected_comes_back_whole():
    answer = refusal("ConditionalCheckFailedException", Item="x")
    expected = frozenset({"ConditionalCheckFailedException"})
    http = make(Transport(answer, answer, refusal("ThrottlingException"), ok()))
    assert await http.post("UpdateItem", JSON, b"{}", {}, None, expected=expected) is answer
    assert isinstance(await http.post("UpdateItem", JSON, b"{}", {}, None), Failure)
    assert isinstance(await http.post("UpdateItem", JSON, b"{}", {}, None, expected=expected), Failure)
    assert await http.post("UpdateItem", JSON, b"{}", {}, None, expected=expected) == ok()


async def test_a_refusal_carries_what_the_headers_say():
    answer = refusal("ThrottlingException", 400, "slower", x_amzn_requestid="id-1", retry_after="7")
    failure = await post(make(Transport(answer)))
    assert (failure.message, failure.request_id, failure.retry_after) == ("slower", "id-1", 7.0)


async def test_credentials_are_looked_up_before_the_endpoint_and_only_once():
    chain, rules = Chain(KEYS), Rules()
    http = make(Transport(ok(), ok()), credentials=CredentialSource(chain), endpoints=Endpoints(rules))
    await post(http, routing={"StreamARN": "arn:1"}, arn="arn:1")
    await post(http, routing={"StreamARN": "arn:1"}, arn="arn:1")
    assert chain.asked == [False]
    assert rules.asked == [("PutRecords", {"StreamARN": "arn:1"})]


async def test_without_credentials_or_endpoint_nothing_is_sent():
    transport = Transport()
    chain, rules = Chain(CredentialsError("none found")), Rules()
    failure = await post(make(transport, credentials=CredentialSource(chain), endpoints=Endpoints(rules)))
    assert (failure.kind, failure.message, failure.maybe_received) == (FailureKind.NO_CREDENTIALS, "none found", False)
    assert rules.asked == []
    failure = await post(make(transport, endpoints=Endpoints(Rules(UsageError("no endpoint")))))
    assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.INVALID, "NoEndpoint", False)
    assert transport.sent == []


@pytest.mark.parametrize("now", [-1.0, 1e12, float("nan")])
async def test_what_cannot_be_signed_is_a_failure(now):
    transport = Transport()
    failure = await post(make(transport, clock=lambda: now))
    assert (failure.kind, failure.code, failure.maybe_received) == (FailureKind.NO_CREDENTIALS, "NotSigned", False)
    assert "cannot be signed" in failure.message
    assert "secret" not in failure.message
    assert transport.sent == []


@pytest.mark.parametrize(
    "code",
    [
        "ExpiredToken",
        "ExpiredTokenException",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "InvalidAccessKeyId",
    ],
)
async def test_a_request_whose_keys_are_refused_is_sent_again_with_new_ones(code):
    chain, transport = Chain(KEYS, Credentials("AKIDOTHER", "s")), Transport(refusal(code), ok())
    http = make(transport, credentials=CredentialSource(chain))
    assert (await post(http)).status == 200
    assert chain.asked == [False, True]
    assert keys_of(transport) == ["AKIDEXAMPLE", "AKIDOTHER"]


def keys_of(transport):
    """Return the access key of each request's signature."""
    return [headers["Authorization"].partition("Credential=")[2].partition("/")[0] for _, headers, _ in transport.sent]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UnrecognizedClientException", FailureKind.DENIED),
        ("InvalidSignatureException", FailureKind.DENIED),
        ("ExpiredToken", FailureKind.EXPIRED_CREDENTIALS),
    ],
)
async def test_keys_that_have_not_changed_are_not_sent_again(code, kind):
    chain, transport = Chain(KEYS, KEYS), Transport(refusal(code), ok())
    failure = await post(make(transport, credentials=CredentialSource(chain)))
    assert (failure.kind, failure.code) == (kind, code)
    assert (len(transport.sent), chain.asked) == (1, [False, True])


async def test_a_second_refusal_is_the_answer_and_worth_a_retry_if_there_are_others_again():
    keys = [Credentials(f"AKID{number}", "s") for number in range(4)]
    chain, transport = Chain(*keys), Transport(*[refusal("UnrecognizedClientException")] * 2, ok())
    failure = await post(make(transport, credentials=CredentialSource(chain)))
    assert (failure.kind, failure.retryable) == (FailureKind.EXPIRED_CREDENTIALS, True)
    assert keys_of(transport) == ["AKID0", "AKID1"]


async def test_keys_that_cannot_be_looked_up_now_are_worth_a_retry():
    chain, transport = Chain(KEYS, CredentialsError("STS is away")), Transport(refusal("UnrecognizedClientException"))
    failure = await post(make(transport, credentials=CredentialSource(chain)))
    assert (failure.code, failure.retryable, len(transport.sent)) == ("UnrecognizedClientException", True, 1)


@pytest.mark.parametrize("code", ["AccessDeniedException", "ThrottlingException", "MissingAuthenticationToken"])
async def test_credentials_that_are_merely_not_allowed_to_are_kept(code):
    chain = Chain(KEYS)
    http = make(Transport(refusal(code), ok()), credentials=CredentialSource(chain))
    await post(http)
    await post(http)
    assert chain.asked == [False]


DATE = "Tue, 14 Nov 2023 22:13:20 GMT"  # NOW


@pytest.mark.parametrize("date", [DATE, "Tue, 14 Nov 2023 22:13:20", "Tue, 14 Nov 2023 23:13:20 +0100"])
@pytest.mark.parametrize("answer", ["RequestExpired", "RequestTimeTooSkewed", "RequestInTheFuture"])
async def test_the_clock_is_corrected_by_the_answer_that_complains(date, answer):
    wall = [NOW - 3_600.0]
    transport = Transport(refusal(answer, date=date), ok())
    http = make(transport, clock=lambda: wall[0])
    failure = await post(http)
    assert (failure.kind, failure.retryable) == (FailureKind.CLOCK_SKEW, True)
    assert "off by -3600 s" in failure.message
    wall[0] += 5
    await post(http)
    assert [headers["X-Amz-Date"] for _, headers, _ in transport.sent] == ["20231114T211320Z", "20231114T221325Z"]


async def test_a_signature_that_came_too_late_does_not_throw_credentials_away():
    chain = Chain(KEYS)
    told = refusal(
        "InvalidSignatureException", message="Signature not yet current: ... is now later than ...", date=DATE
    )
    http = make(Transport(told, ok()), credentials=CredentialSource(chain))
    assert (await post(http)).kind is FailureKind.CLOCK_SKEW
    await post(http)
    assert chain.asked == [False]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"date": ""},
        {"date": "soon"},
        {"date": "Mon, 01 Jan 1999 00:00:00 GMT"},
        {"date": "Mon, 01 Jan 0001 00:00:00 +1400"},
        {"date": "Wed, 01 Jan 2200 00:00:00 GMT"},
        {"date": "Fri, 31 Dec 9999 23:59:59 GMT"},
        {"date": "Fri, 31 Dec 9999 23:59:59 -1200"},
    ],
)
async def test_an_invalid_date_corrects_nothing(headers):
    transport = Transport(refusal("RequestExpired", **headers), ok())
    http = make(transport)
    assert "off by" not in (await post(http)).message
    await post(http)
    assert transport.sent[0][1]["X-Amz-Date"] == transport.sent[1][1]["X-Amz-Date"] == "20231114T221320Z"


async def test_the_services_time_is_that_of_its_last_answer():
    wall = [NOW - 3_600.0]
    http = make(Transport(HttpResponse(200, {"date": DATE}, b"{}"), ok()), clock=lambda: wall[0])
    assert http.service_time() == NOW - 3_600.0, "until it has said anything, ours"
    await post(http)
    wall[0] += 5
    assert http.service_time() == NOW + 5
    wall[0] -= 60
    assert http.service_time() == NOW, "our clock was set back"
    await post(http)
    assert http.service_time() == wall[0], "no Date in the answer"


# ---- streams


async def test_a_stream_is_handed_on_and_closed():
    transport = Transport(ok(b"chunk"))
    async with make(transport).stream("SubscribeToShard", JSON, b"{}", {}, None) as answer:
        assert transport.open_streams == 1
        assert await answer.next_chunk() == b"chunk"
        assert await answer.next_chunk() is None
    assert transport.open_streams == 0


async def test_a_refused_stream_is_a_failure():
    transport = Transport(refusal("ResourceInUseException"))
    async with make(transport).stream("SubscribeToShard", JSON, b"{}", {}, None) as answer:
        assert (answer.kind, answer.code, answer.status) == (FailureKind.IN_USE, "ResourceInUseException", 400)
    assert transport.open_streams == 0


async def test_a_stream_that_breaks_or_cannot_begin_is_a_failure():
    failure = broken("ConnectError", "host")
    async with make(Transport(failure)).stream("SubscribeToShard", JSON, b"{}", {}, None) as answer:
        assert answer is failure
    chain = CredentialSource(Chain(CredentialsError("none found")))
    async with make(Transport(), credentials=chain).stream("SubscribeToShard", JSON, b"{}", {}, None) as answer:
        assert answer.kind is FailureKind.NO_CREDENTIALS


@pytest.mark.parametrize("raised", [ZeroDivisionError, GeneratorExit])
async def test_a_stream_is_closed_whatever_happens_inside(raised):
    transport = Transport(ok())
    with pytest.raises(raised):
        async with make(transport).stream("SubscribeToShard", JSON, b"{}", {}, None):
            raise raised
    assert transport.open_streams == 0


async def test_close_closes_the_transport():
    transport = Transport()
    await make(transport).close()
    assert transport.closed == 1


async def test_where_an_answer_came_from():
    assert make(Transport()).host_of("PutRecords", None) == "localhost:4567"
    http = make(Transport(ok()), endpoints=Endpoints(Rules()))
    assert http.host_of("PutRecords", None) == "the service"
    await post(http)
    assert http.host_of("PutRecords", None) == "kinesis.example"


def test_nothing_of_it_shows_a_secret():
    http = make(Transport())
    for shown in (repr(http), repr(http._signer_for(KEYS)), repr(vars(http)["_credentials"])):
        assert "the secret" not in shown
        assert "the token" not in shown


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_service_that_repeats_the_request_is_not_quoted(streamed):
    keys = Credentials("AKIDEXAMPLE", "the secret key of 40", "the session token")
    told = []

    class Echo(Transport):
        async def post(self, url, headers, body):
            told.append(headers["Authorization"].partition("Signature=")[2])
            message = f"x-amz-security-token:{keys.session_token} {keys.secret_key} {told[0]} " * 20
            self.answers.append(refusal("InvalidSignatureException", message=message))
            return await super().post(url, headers, body)

    http = make(Echo(), credentials=CredentialSource(None, keys))
    if streamed:
        async with http.stream("SubscribeToShard", JSON, b"{}", {}, None) as answer:
            failure = answer
    else:
        failure = await post(http)
    assert len(told[0]) == 64
    assert failure.message == "x-amz-security-token:*** *** *** " * 20
