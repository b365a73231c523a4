"""The endpoints on which the table can be played: the embedded server, kinesis-local, any endpoint, and AWS.

A ``Site`` knows how to reach its endpoint, its account and region, how fast it may be called, and whether its clock can
be moved.
"""

import contextlib
import os
import re
import runpy
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.session
from botocore.credentials import ReadOnlyCredentials
from tests.conformance.wire import Request, Wire, encode, error_of, outcome_of

from shardline import Client, Credentials
from shardline.testing import Delays, LocalKinesis

# Approximately AWS's times. They pass on the server's own clock.
DELAYS = Delays(create=15.0, delete=20.0, update=15.0, register=5.0, deregister=5.0)
INTEROP = Path(__file__).parents[1] / "interop" / "conftest.py"
_ACCOUNT = re.compile(r"\b(\d{12})\b")
# Calls per second for the whole account: the developer guide's limits, with room for others.
_CONTROL_RATES = {
    "DescribeLimits": 0.5,
    "DescribeStreamSummary": 10.0,
    "DescribeStreamConsumer": 10.0,
    "ListShards": 20.0,
}
_CONTROL_RATE = 4.0
_DATA = {"PutRecord", "PutRecords", "GetRecords", "GetShardIterator", "SubscribeToShard"}


class SiteError(Exception):
    """The endpoint cannot be used. The message has the reason and the remedy."""


class Pacer:
    """Spaces out requests to the control plane, over all threads."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic) -> None:
        self._sleep = sleep
        self._now = now
        self._lock = threading.Lock()
        self._free_at: dict[str, float] = {}

    def wait_for_turn(self, operation: str) -> None:
        if operation in _DATA:
            return
        with self._lock:
            now = self._now()
            turn_at = max(now, self._free_at.get(operation, now))
            self._free_at[operation] = turn_at + 1.0 / _CONTROL_RATES.get(operation, _CONTROL_RATE)
        self._sleep(turn_at - now)


@dataclass
class Site:
    name: str
    wire: Wire
    region: str
    account: str
    partition: str = "aws"
    client: Callable[..., Client] = field(default=Client, repr=False)
    """Makes our own client for this endpoint, with further arguments of ``Client``."""
    advance: Callable[[float], None] | None = None
    """Moves the server's own clock."""
    pace: Callable[[str], None] = lambda _operation: None
    refresh: Callable[[ReadOnlyCredentials], bool] = lambda _used: False
    """Look up the credentials again. Return whether they differ from those that were used."""
    patience: float = 30.0
    """How long a change of state may take."""
    poll_pause: float = 0.05
    is_eventual: bool = False
    """Whether a change is visible everywhere only after a while, as on AWS."""
    making: threading.Lock = field(default_factory=threading.Lock, repr=False)
    shared_streams: set[str] = field(default_factory=set, repr=False)
    """The shared streams that exist. ``making`` guards them."""
    throw_away: bool = False
    """Whether the server ends with the run, so that its streams need not be deleted."""

    def arn_of(self, stream: str) -> str:
        return f"arn:{self.partition}:kinesis:{self.region}:{self.account}:stream/{stream}"


@contextlib.contextmanager
def embedded() -> Iterator[Site]:
    """A separate embedded server, with AWS's limits and signature checks, over TLS, so that HTTP/2 is negotiated."""
    with LocalKinesis(tls=True, delays=DELAYS, verify_signatures=True) as kinesis, contextlib.ExitStack() as stack:
        keys = ReadOnlyCredentials(kinesis.credentials.access_key, kinesis.credentials.secret_key, None)
        wire = Wire(kinesis.endpoint_url, kinesis.region, lambda: keys, ca_path=kinesis.ca_path, now=kinesis.clock.now)
        stack.callback(wire.close)
        yield Site(
            "embedded",
            wire,
            kinesis.region,
            "000000000000",
            client=_client_of(kinesis.endpoint_url, kinesis.region, keys, verify=kinesis.ca_path),
            advance=kinesis.clock.advance,
            poll_pause=1.0,
            throw_away=True,
        )


def _client_of(url: str, region: str, keys: ReadOnlyCredentials, **settings: Any) -> Callable[..., Client]:
    credentials = Credentials(keys.access_key, keys.secret_key)

    def client(**more: Any) -> Client:
        return Client(endpoint_url=url, region=region, credentials=credentials, **settings, **more)

    return client


@contextlib.contextmanager
def kinesis_local() -> Iterator[Site]:
    """The third-party server that ``make setup`` installs."""
    starting = runpy.run_path(str(INTEROP))
    try:
        starting["require_installed"]("kinesis-local", "package.json", starting["NODE"])
        with starting["running"](2, starting["kinesis_local_launch"]) as server, at_url(server.http_url) as site:
            site.name, site.throw_away = "kinesis-local", True
            yield site
    except BaseException as failure:
        if type(failure).__name__ != "Failed":  # pytest's word for a server that is not there
            raise
        raise SiteError(str(failure)) from None


@contextlib.contextmanager
def at_url(url: str, region: str = "us-east-1") -> Iterator[Site]:
    """Any endpoint that is no AWS: the environment's credentials, or invented ones, which are not checked."""
    keys = ReadOnlyCredentials(
        os.environ.get("AWS_ACCESS_KEY_ID", "AKIACONFORMANCE00000"),
        os.environ.get("AWS_SECRET_ACCESS_KEY", "none"),
        None,
    )
    region = os.environ.get("AWS_REGION", region)
    site = Site(url, Wire(url, region, lambda: keys), region, "", client=_client_of(url, region, keys))
    try:
        site.account = _account_behind(site) or "000000000000"
        yield site
    finally:
        site.wire.close()


class AwsCredentials:
    """The credentials of the ordinary chain."""

    def __init__(self, profile: str | None) -> None:
        self._profile = profile
        self._lock = threading.Lock()
        self._found = self._look_up()

    def _look_up(self) -> Any:
        return self.session().get_credentials()

    def session(self) -> Any:
        return botocore.session.Session(profile=self._profile)

    def current(self) -> ReadOnlyCredentials:
        if self._found is None:
            raise SiteError("no AWS credentials were found: set AWS_PROFILE, or see https://docs.aws.amazon.com/cli")
        return self._found.get_frozen_credentials()

    def refresh(self, used: ReadOnlyCredentials) -> bool:
        """Look again, from the beginning: a profile may have new keys by now. Another thread may have done so already."""
        with self._lock:
            if self.current() == used:
                self._found = self._look_up()
            return self.current() != used


@contextlib.contextmanager
def aws(probe_name: str) -> Iterator[Site]:
    """AWS itself, with the settings and the credentials of the ordinary chain.

    Nothing is made here. One DeleteStream is sent for ``probe_name``, a stream that does not exist: the answer tells whether
    streams may be deleted, before any is made, and the account.

    Raises:
        SiteError: there is no region or no credentials, or they may not delete streams.
    """
    credentials = AwsCredentials(os.environ.get("AWS_PROFILE"))
    session = credentials.session()
    region = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    if not region:
        raise SiteError("no AWS region: set AWS_REGION")
    credentials.current()
    url = session.create_client("kinesis", region_name=region).meta.endpoint_url
    ca_path = session.get_config_variable("ca_bundle")
    pacer = Pacer()
    site = Site(
        "aws",
        Wire(url, region, credentials.current, ca_path=ca_path),
        region,
        "",
        partition=session.get_partition_for_region(region),
        client=lambda **more: Client(region=region, **more),
        pace=pacer.wait_for_turn,
        refresh=credentials.refresh,
        patience=300.0,
        poll_pause=1.0,
        is_eventual=True,
    )
    try:
        site.account = _check_deletion(site, probe_name)
        yield site
    finally:
        site.wire.close()


def _check_deletion(site: Site, probe_name: str) -> str:
    raw = site.wire.send(Request("DeleteStream", encode({"StreamName": probe_name}, as_cbor=False)))
    code, message = error_of(outcome_of(raw))
    if code != "ResourceNotFoundException":
        raise SiteError(
            f"streams could not be deleted afterwards, so none is made. DeleteStream said: {code}: {message}"
        )
    found = _ACCOUNT.search(message)
    if found is None:
        raise SiteError(f"the account is not known: DeleteStream said: {message}")
    return found[1]


def _account_behind(site: Site) -> str | None:
    """The account that an emulator plays, as its messages say."""
    raw = site.wire.send(Request("DescribeStreamSummary", encode({"StreamName": "no-such-stream"}, as_cbor=False)))
    found = _ACCOUNT.search(raw.body.decode(errors="replace"))
    return None if found is None else found[1]
