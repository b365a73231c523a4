"""Sends raw requests to a Kinesis endpoint, with right or wrong signatures.

It is a plain HTTP client, so that invalid requests can be sent, too: http.client over TLS and proxies, bodies in JSON
and CBOR, signatures by botocore, independent of our own signer. Each thread has its own connection.
"""

import base64
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.utils import get_environ_proxies

from shardline.codec import cbor
from shardline.codec.eventstream import Message, MessageDecoder

JSON = "application/x-amz-json-1.1"
CBOR = "application/x-amz-cbor-1.1"
TARGET = "Kinesis_20131202."
# The ways to sign. "at +600" and similar sign with a clock that is wrong by this many seconds.
SIGNING = (
    "right",
    "none",
    "wrong secret",
    "unknown key",
    "wrong token",
    "wrong region",
    "wrong service",
    "altered body",
    "query",
)
READ_TIMEOUT = 70.0
_ATTEMPTS = 3
_BINARY = {"Data"}  # members that are bytes


class WireError(Exception):
    """There was no answer."""


@dataclass(frozen=True)
class Raw:
    """An answer as it arrived."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Request:
    operation: str
    body: bytes
    content_type: str = JSON
    headers: Mapping[str, str | None] = ()
    signing: str = "right"
    method: str = "POST"


class Wire:
    """A client of one endpoint. ``credentials`` is called for each request; ``now`` is the time to sign with."""

    def __init__(
        self,
        endpoint_url: str,
        region: str,
        credentials: Callable[[], ReadOnlyCredentials],
        *,
        ca_path: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.endpoint_url = endpoint_url.rstrip("/")
        self._where = urlsplit(self.endpoint_url)
        self._region = region
        self.credentials = credentials
        self._now = now
        self._proxy = get_environ_proxies(self.endpoint_url).get(self._where.scheme)
        self._context = ssl.create_default_context(cafile=ca_path) if self._where.scheme == "https" else None
        self._own = threading.local()
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()

    def send(self, request: Request) -> Raw:
        """Send a request, and read the whole answer.

        Raises:
            WireError: there was no answer, several times.
        """
        with _reading(self._exchange(request)) as response:
            return Raw(response.status, _lower(response), response.read())

    def events(self, request: Request) -> "tuple[Raw, Iterator[Message]]":
        """For SubscribeToShard: return an error as a whole, or the events as they arrive."""
        response = self._exchange(request)
        if response.status != http.HTTPStatus.OK:
            with _reading(response):
                return Raw(response.status, _lower(response), response.read()), iter(())
        return Raw(response.status, _lower(response), b""), self._messages(response)

    def _messages(self, response: http.client.HTTPResponse) -> Iterator[Message]:
        decoder = MessageDecoder()
        try:
            while chunk := response.read1(65_536):
                yield from decoder.feed(chunk)
            decoder.close()
        finally:  # a caller that stops reading leaves bytes behind, so the connection cannot be used again
            response.close()
            self._forget()

    def _exchange(self, request: Request) -> http.client.HTTPResponse:
        problem: Exception | None = None
        for attempt in range(_ATTEMPTS):
            method, path, headers = self._signed(request)
            try:
                connection = self._connection()
                connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
                for name, value in headers.items():
                    connection.putheader(name, value)
                connection.endheaders(request.body)
                return connection.getresponse()
            except (OSError, http.client.HTTPException) as error:  # a kept connection may have been closed
                self._forget()
                problem = error
                time.sleep(0.2 * attempt)
        raise WireError(f"no answer from {self.endpoint_url}: {problem!r}")

    def _connection(self) -> http.client.HTTPConnection:
        kept = getattr(self._own, "connection", None)
        if kept is None:
            where, via = self._where, urlsplit(self._proxy) if self._proxy else self._where
            port = via.port or (443 if via.scheme == "https" else 80)
            if self._context is None:
                kept = http.client.HTTPConnection(via.hostname or "", port, timeout=READ_TIMEOUT)
            else:
                kept = http.client.HTTPSConnection(
                    via.hostname or "", port, timeout=READ_TIMEOUT, context=self._context
                )
            if self._proxy and self._context is not None:
                kept.set_tunnel(where.hostname or "", where.port or 443)
            self._own.connection = kept
            with self._lock:
                self._open.add(kept)
        return kept

    def _forget(self) -> None:
        kept, self._own.connection = getattr(self._own, "connection", None), None
        if kept is not None:
            kept.close()
            with self._lock:
                self._open.discard(kept)

    def close(self) -> None:
        """Close the connections of all threads. None of them may still send."""
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()

    def _signed(self, request: Request) -> tuple[str, str, dict[str, str]]:
        """Return the method, the path and the headers of a request, signed in the given way."""
        given = {
            "Content-Type": request.content_type,
            "X-Amz-Target": TARGET + request.operation,
            **dict(request.headers),
        }
        headers = {name: value for name, value in given.items() if value is not None}
        target = AWSRequest(request.method, f"{self.endpoint_url}/", data=request.body, headers=headers)
        _sign(target, request.signing, self.credentials(), self._region, self._now())
        prepared = target.prepare()
        lower = {name.lower(): _text(value) for name, value in prepared.headers.items()}
        lower["host"] = self._where.netloc
        lower["content-length"] = str(len(request.body))
        lower.pop("transfer-encoding", None)
        parts = urlsplit(prepared.url)
        return request.method, f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}", lower


def _sign(target: AWSRequest, how: str, credentials: ReadOnlyCredentials, region: str, now: float) -> None:
    service = "kinesis"
    if how == "none":
        return
    if how == "wrong secret":
        credentials = credentials._replace(secret_key="x" * 40)
    elif how == "unknown key":
        credentials = ReadOnlyCredentials("AKIAIOSFODNN7EXAMPLE", "x" * 40, None)
    elif how == "wrong token":
        credentials = credentials._replace(token="x" * 40)
    elif how == "wrong region":
        region = "us-west-2" if region != "us-west-2" else "us-east-1"
    elif how == "wrong service":
        service = "firehose"
    elif how.startswith("at "):
        now += float(how[3:])
    if how == "query":
        _SignedInQuery(credentials, service, region, expires=60).add_auth(target)
        return
    _SignedAt(credentials, service, region, now).add_auth(target)
    if how == "altered body":
        target.headers["X-Amz-Target"] = TARGET + "ListStreams "


class _SignedInQuery(SigV4QueryAuth):
    """Signs in the query string without changing the body: botocore's own signer moves it into the query."""

    def _modify_request_before_signing(self, request: AWSRequest) -> None:
        request.data, data = b"", request.data
        super()._modify_request_before_signing(request)
        request.data = data


class _SignedAt(SigV4Auth):
    """Signs with a given time: botocore's own signer uses the machine's."""

    def __init__(self, credentials: ReadOnlyCredentials, service: str, region: str, now: float) -> None:
        super().__init__(credentials, service, region)
        self._now = now

    def add_auth(self, request: AWSRequest) -> None:
        request.context["timestamp"] = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._now))
        self._modify_request_before_signing(request)
        canonical = self.canonical_request(request)
        self._inject_signature_to_request(request, self.signature(self.string_to_sign(request, canonical), request))


class _reading:  # noqa: N801 - a context manager, used like a function
    """Close a response that could not be read, so that its connection is not used again."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def __enter__(self) -> http.client.HTTPResponse:
        return self._response

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self._response.close()


def _lower(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


# ---- bodies


def encode(members: Any, *, as_cbor: bool) -> bytes:
    """Encode the members of a request; ``bytes`` are blobs."""
    if as_cbor:
        return cbor.encode(members)
    return json.dumps(members, default=_as_base64).encode()


def _as_base64(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"a member of a request cannot be of type {type(value).__name__}")


def decode(content_type: str, body: bytes) -> Any:
    """Return a body as a tree, the same from JSON and CBOR: blobs in base64, times in seconds."""
    if not body:
        return None
    if content_type.startswith(CBOR):
        return _plain(cbor.decode(body))
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray, memoryview)) else value


def outcome_of(raw: Raw, show: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return an answer as a tree."""
    body = decode(raw.headers.get("content-type", ""), raw.body)
    outcome: dict[str, Any] = {"status": raw.status}
    if body is not None:
        outcome["body" if raw.status == 200 else "error"] = body
    if raw.status != 200 and isinstance(body, dict) and "__type" in body:
        body["__type"] = str(body["__type"]).rpartition("#")[2]
    if show:
        outcome["headers"] = {name: raw.headers[name] for name in show if name in raw.headers}
    return outcome


def error_of(outcome: Any) -> tuple[str, str]:
    """Return the type and the text of an error, received or expected."""
    error = outcome.get("error") if isinstance(outcome, dict) else None
    if not isinstance(error, dict):
        return "", ""
    return str(error.get("__type", "")), str(error.get("message", error.get("Message", "")))
