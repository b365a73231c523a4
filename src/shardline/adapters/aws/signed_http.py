"""How does one signed request reach an AWS service, and what does its answer mean?

Invariants:

- One call is one attempt. Only if the service refused the keys, and others are there by now, it is sent a second
  time: it was not carried out.
- A clock that is off is corrected from the Date header of the answer that complained: the next request is signed
  with the service's time.
- Bodies over 1 MiB are hashed off the loop.
- No secret leaves this module but in the headers of a request; a service that repeats it is not quoted.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, final

import anyio
import anyio.to_thread

from shardline.adapters.aws.credential_provider import CredentialSource
from shardline.adapters.aws.endpoints import Endpoint, Endpoints
from shardline.codec.envelope import read_error
from shardline.codec.sigv4 import Signer, payload_sha256
from shardline.core.failures import Failure, FailureKind, classify
from shardline.errors import UsageError
from shardline.model.credentials import Credentials
from shardline.ports import Body, HttpAnswer, HttpStream, HttpTransport

_HASH_OFF_LOOP: Final = 1024 * 1024
_OK: Final = 200
# Outside of these it is no service's clock: signatures of such a time would all be refused, or could not be made.
_KINESIS_BEGAN: Final = datetime(2013, 12, 2, tzinfo=UTC).timestamp()
_FAR_FUTURE: Final = datetime(2200, 1, 1, tzinfo=UTC).timestamp()


@final
class SignedHttp:
    """POSTs to one AWS service in one region."""

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
        self._date_told: tuple[str, float] = ("", 0.0)  # the Date of the last answer, and when it came
        # Threads of our own: anyio's may all be taken by callers that wait for us.
        self._hashing = anyio.CapacityLimiter(4)
        self._signer: Signer | None = None
        self._signer_of: Credentials | None = None

    async def post(
        self,
        operation: str,
        content_type: str,
        body: Body,
        routing: Mapping[str, object],
        arn: str | None,
        *,
        expected: frozenset[str] = frozenset(),
    ) -> HttpAnswer | Failure:
        """Send one request. ``routing`` holds the members that decide its address, ``arn`` the one that is set.

        Error answers with an ``expected`` code come back as they are: their body says more than a failure can.
        """
        again = True
        while True:
            prepared = await self._prepare(operation, content_type, body, routing, arn)
            if isinstance(prepared, Failure):
                return prepared
            url, headers, used = prepared
            answer = await self._transport.post(url, headers, body)
            if isinstance(answer, Failure):
                return answer
            self._date_told = (answer.headers.get("date", ""), self._wall_time())
            if answer.status == _OK:
                return answer
            if expected and read_error(answer.status, answer.headers, answer.body).code in expected:
                return answer
            failure = await self._refused(answer, used, headers)
            if not (again and failure.refuses_credentials and self._has_other_keys(used)):
                return failure
            again = False

    @asynccontextmanager
    async def stream(
        self, operation: str, content_type: str, body: Body, routing: Mapping[str, object], arn: str | None
    ) -> AsyncGenerator[HttpStream | Failure]:
        """Send one request whose answer keeps arriving."""
        again = True
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
            failure = await self._refused(HttpAnswer(answer.status, answer.headers, rest), used, headers)
            if not (again and failure.refuses_credentials and self._has_other_keys(used)):
                yield failure
                return
            again = False

    def host_of(self, operation: str, arn: str | None) -> str:
        """Where an answer came from, for messages."""
        endpoint = self._endpoints.at_hand(operation, arn)
        return "the service" if endpoint is None else endpoint.host

    def service_time(self) -> float:
        """What time it is for the service, by the Date of its last answer, to a second; until there is one, for us."""
        date, told_at = self._date_told
        told = _parse_date(date)
        now = self._wall_time()
        return now if told is None else told + max(0.0, now - told_at)

    async def close(self) -> None:
        await self._transport.close()

    async def _prepare(
        self, operation: str, content_type: str, body: Body, routing: Mapping[str, object], arn: str | None
    ) -> tuple[str, dict[str, str], Credentials] | Failure:
        """The address, the signed headers and whose signature it is. Without a look-up, nothing here waits."""
        now = self._wall_time()
        credentials: Credentials | Failure | None = self._credentials.at_hand(now)
        if credentials is None:
            credentials = await self._credentials.get(now)
        if isinstance(credentials, Failure):
            return credentials
        endpoint: Endpoint | Failure | None = self._endpoints.at_hand(operation, arn)
        if endpoint is None:
            endpoint = await self._endpoints.find(operation, routing, arn)
        if isinstance(endpoint, Failure):
            return endpoint
        digest = await self._digest(body) if len(body) > _HASH_OFF_LOOP else payload_sha256(body)
        headers = {"Content-Type": content_type, "X-Amz-Target": f"{self._target_prefix}.{operation}"}
        try:
            signature = self._signer_for(credentials).sign(
                host=endpoint.host,
                path=endpoint.path,
                headers=headers,
                payload_sha256=digest,
                timestamp=self._wall_time() + self._clock_offset,
            )
        except UsageError as error:  # a key with a line end from the file it was read from, say
            told = f"the request cannot be signed: {error}"
            return Failure(FailureKind.NO_CREDENTIALS, "NotSigned", told, maybe_received=False)
        return endpoint.url, {**headers, **signature, **self._unsigned_headers}, credentials

    async def _digest(self, body: Body) -> str:
        try:
            return await anyio.to_thread.run_sync(payload_sha256, body, abandon_on_cancel=True, limiter=self._hashing)
        except RuntimeError:  # no thread can begin: they have run out, or the interpreter ends
            return payload_sha256(body)

    def _signer_for(self, credentials: Credentials) -> Signer:
        if self._signer is None or credentials is not self._signer_of:
            self._signer = Signer(credentials, region=self._region, service=self._service)
            self._signer_of = credentials
        return self._signer

    def _has_other_keys(self, used: Credentials) -> bool:
        return self._credentials.at_hand(self._wall_time()) not in {None, used}

    async def _refused(self, answer: HttpAnswer, used: Credentials, sent: Mapping[str, str]) -> Failure:
        signature = sent["Authorization"].rpartition("=")[2]
        secrets = (used.secret_key, used.session_token or "", signature)
        told = read_error(answer.status, answer.headers, answer.body, secrets)
        kind = classify(told.code, answer.status, told.message, is_typed=told.is_typed)
        message = told.message
        if kind is FailureKind.CLOCK_SKEW:
            message = self._correct_clock(answer.headers, message)
        failure = Failure(kind, told.code, message, answer.status, told.request_id, told.retry_after)
        if not failure.refuses_credentials:
            return failure
        return failure.after_look_up(changed=await self._credentials.replace(used, self._wall_time()) != used)

    def _correct_clock(self, headers: Mapping[str, str], message: str) -> str:
        """The answer's Date is the service's time, to a second."""
        told = _parse_date(headers.get("date", ""))
        if told is None:
            return message
        self._clock_offset = told - self._wall_time()
        off_by = f"{-self._clock_offset:+.0f} s"
        return f"{message} (this machine's clock is off by {off_by}; corrected from the next request on)"


def _parse_date(text: str) -> float | None:
    try:
        told = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if told.tzinfo is None:
        told = told.replace(tzinfo=UTC)
    instant = told.timestamp()
    return instant if _KINESIS_BEGAN <= instant < _FAR_FUTURE else None
