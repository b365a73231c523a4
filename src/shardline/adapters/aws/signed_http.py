"""Sends signed requests to an AWS service and turns error responses into failures.

Invariants:

- One call is one attempt, with one exception: if the service refused the credentials (so the request was not carried
  out) and newer credentials are available by now, the request is sent a second time.
- If the service reports clock skew, the clock is corrected from the Date header of that response. Later requests are
  signed with the service's time.
- Bodies over 1 MiB are hashed in a thread.
- Secrets leave this module only in request headers. If an error response repeats a secret, the secret is not quoted.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final, Literal, final

import anyio
import anyio.to_thread

from shardline.adapters.aws.credential_provider import CredentialSource
from shardline.adapters.aws.endpoints import Endpoint, Endpoints
from shardline.codec.envelope import read_error
from shardline.codec.sigv4 import Signer, payload_sha256
from shardline.core.error_codes import Failure, FailureKind, classify
from shardline.errors import UsageError
from shardline.model.credentials import Credentials
from shardline.ports import Body, HttpResponse, HttpStream, HttpTransport

_HASH_IN_THREAD_BYTES: Final = 1024 * 1024
_OK: Final = 200
# A Date outside this range is wrong: signatures with such a time would be refused, or could not be computed at all.
_CLOCK_MIN: Final = datetime(2013, 12, 2, tzinfo=UTC).timestamp()  # the date in the name of the Kinesis API
_CLOCK_MAX: Final = datetime(2200, 1, 1, tzinfo=UTC).timestamp()


@final
class SignedHttp:
    """Sends POST requests to one AWS service in one region."""

    def __init__(
        self,
        *,
        transport: HttpTransport,
        credentials: CredentialSource,
        endpoints: Endpoints,
        region: str,
        service: str,
        target_prefix: str,
        user_agent: str,
        wall_time: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._credentials = credentials
        self._endpoints = endpoints
        self._region = region
        self._service = service
        self._target_prefix = target_prefix
        self._unsigned_headers = {"User-Agent": user_agent, "Accept-Encoding": "identity"}
        self._wall_time = wall_time
        self._clock_offset = 0.0
        self._last_date: tuple[str, float] = ("", 0.0)  # the Date header of the last response, and when it arrived
        # This is our own limiter: all of anyio's default threads may be occupied by callers that wait for this
        # request.
        self._hashing = anyio.CapacityLimiter(4)
        self._signer: Signer | None = None
        self._signer_credentials: Credentials | None = None

    async def post(
        self,
        operation: str,
        content_type: str,
        body: Body,
        routing: Mapping[str, object],
        arn: str | None,
        *,
        expected: frozenset[str] = frozenset(),
        content_encoding: str | None = None,
    ) -> HttpResponse | Failure:
        """Send one request.

        Args:
            operation: the AWS operation.
            content_type: the type of the body.
            body: the encoded request.
            routing: the members that determine the endpoint.
            arn: the ARN among these members, if there is one. The endpoint is cached under this ARN.
            expected: error codes that the caller handles. A response with one of these codes is returned, and is not a
            failure.
            content_encoding: the compression of the body, or ``None`` if the body is not compressed.
        """
        may_resend = True
        while True:
            prepared = await self._prepare(
                operation, content_type, body, routing, arn, content_encoding=content_encoding
            )
            if isinstance(prepared, Failure):
                return prepared
            url, headers, used = prepared
            answer = await self._transport.post(url, headers, body)
            if isinstance(answer, Failure):
                return answer
            self._last_date = (answer.headers.get("date", ""), self._wall_time())
            if answer.status == _OK:
                return answer
            if expected and read_error(answer.status, answer.headers, answer.body).code in expected:
                return answer
            failure = await self._failure_of(answer, used, headers)
            if not (may_resend and failure.refuses_credentials and self._has_newer_credentials(used)):
                return failure
            may_resend = False

    @asynccontextmanager
    async def stream(
        self, operation: str, content_type: str, body: Body, routing: Mapping[str, object], arn: str | None
    ) -> AsyncGenerator[HttpStream | Failure]:
        """Send one request whose response arrives as a stream."""
        may_resend = True
        while True:
            prepared = await self._prepare(operation, content_type, body, routing, arn)
            if isinstance(prepared, Failure):
                yield prepared
                return
            url, headers, used = prepared
            async with self._transport.stream(url, headers, body) as answer:
                if isinstance(answer, Failure) or answer.status == _OK:
                    yield answer
                    return
                rest = await answer.read()
            if isinstance(rest, Failure):
                yield rest
                return
            failure = await self._failure_of(HttpResponse(answer.status, answer.headers, rest), used, headers)
            if not (may_resend and failure.refuses_credentials and self._has_newer_credentials(used)):
                yield failure
                return
            may_resend = False

    async def stream_protocol(
        self, operation: str, routing: Mapping[str, object], arn: str | None
    ) -> Literal["h2", "http/1.1"] | Failure:
        """Return the protocol that ``stream`` uses for an operation."""
        endpoint = await self._endpoints.find(operation, routing, arn)
        return endpoint if isinstance(endpoint, Failure) else await self._transport.stream_protocol(endpoint.url)

    def host_of(self, operation: str, arn: str | None) -> str:
        """Return the name of the host that an operation is sent to. Messages quote it."""
        endpoint = self._endpoints.cached(operation, arn)
        return "the service" if endpoint is None else endpoint.host

    def service_time(self) -> float:
        """Return the service's current time, estimated to within a second from the Date of its last response.

        Before the first response, return the local time.
        """
        date, received_at = self._last_date
        service_date = _parse_date(date)
        now = self._wall_time()
        return now if service_date is None else service_date + max(0.0, now - received_at)

    async def close(self) -> None:
        await self._transport.close()

    async def _prepare(
        self,
        operation: str,
        content_type: str,
        body: Body,
        routing: Mapping[str, object],
        arn: str | None,
        *,
        content_encoding: str | None = None,
    ) -> tuple[str, dict[str, str], Credentials] | Failure:
        """Return the URL, the signed headers and the credentials used.

        This waits only if the credentials or the endpoint must be looked up, or if the body is large.
        """
        now = self._wall_time()
        credentials: Credentials | Failure | None = self._credentials.cached(now)
        if credentials is None:
            credentials = await self._credentials.get(now)
        if isinstance(credentials, Failure):
            return credentials
        endpoint: Endpoint | Failure | None = self._endpoints.cached(operation, arn)
        if endpoint is None:
            endpoint = await self._endpoints.find(operation, routing, arn)
        if isinstance(endpoint, Failure):
            return endpoint
        digest = await self._digest(body) if len(body) > _HASH_IN_THREAD_BYTES else payload_sha256(body)
        headers = {"Content-Type": content_type, "X-Amz-Target": f"{self._target_prefix}.{operation}"}
        if content_encoding is not None:
            headers["Content-Encoding"] = content_encoding
        try:
            signature = self._signer_for(credentials).sign(
                host=endpoint.host,
                path=endpoint.path,
                headers=headers,
                payload_sha256=digest,
                timestamp=self._wall_time() + self._clock_offset,
            )
        except UsageError as error:  # for example, a key that was read from a file with its line end
            message = f"the request cannot be signed: {error}"
            return Failure(FailureKind.NO_CREDENTIALS, "NotSigned", message, maybe_received=False)
        return endpoint.url, {**headers, **signature, **self._unsigned_headers}, credentials

    async def _digest(self, body: Body) -> str:
        try:
            return await anyio.to_thread.run_sync(payload_sha256, body, abandon_on_cancel=True, limiter=self._hashing)
        except RuntimeError:  # no thread can start: there are too many, or the interpreter shuts down
            return payload_sha256(body)

    def _signer_for(self, credentials: Credentials) -> Signer:
        if self._signer is None or credentials is not self._signer_credentials:
            self._signer = Signer(credentials, region=self._region, service=self._service)
            self._signer_credentials = credentials
        return self._signer

    def _has_newer_credentials(self, used: Credentials) -> bool:
        return self._credentials.cached(self._wall_time()) not in {None, used}

    async def _failure_of(self, answer: HttpResponse, used: Credentials, sent: Mapping[str, str]) -> Failure:
        """Turn an error response into a failure. If the service refused the credentials, look up new ones."""
        signature = sent["Authorization"].rpartition("=")[2]
        secrets = (used.secret_key, used.session_token or "", signature)
        error = read_error(answer.status, answer.headers, answer.body, secrets)
        kind = classify(error.code, answer.status, error.message, is_typed=error.is_typed)
        message = error.message
        if kind is FailureKind.CLOCK_SKEW:
            message = self._correct_clock(answer.headers, message)
        failure = Failure(kind, error.code, message, answer.status, error.request_id, error.retry_after)
        if not failure.refuses_credentials:
            return failure
        return failure.after_look_up(changed=await self._credentials.replace(used, self._wall_time()) != used)

    def _correct_clock(self, headers: Mapping[str, str], message: str) -> str:
        """Set the clock offset from a response's Date header, and add a remark to the message."""
        service_date = _parse_date(headers.get("date", ""))
        if service_date is None:
            return message
        self._clock_offset = service_date - self._wall_time()
        off_by = f"{-self._clock_offset:+.0f} s"
        return f"{message} (this machine's clock is off by {off_by}; corrected from the next request on)"


@lru_cache(maxsize=8)  # a consumer asks for the time with each record, and the header changes with each response
def _parse_date(text: str) -> float | None:
    try:
        parsed = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    instant = parsed.timestamp()
    return instant if _CLOCK_MIN <= instant < _CLOCK_MAX else None
