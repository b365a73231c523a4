"""What is wrong with a stream, and with the way to it?

The checks in their order: what one of them shows to be broken, those that stand on it are not asked.

Invariants:

- The examination goes on as far as it can, and every check that it did not come to is told as not checked.
- A request that was throttled is sent again a few times; one that was refused for the time of its signature is
  sent again with the time that the answer told, and the clock is found wrong.
- Nothing in the stream, its consumers or the store is changed.
"""

import difflib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar, final

import anyio
import anyio.to_thread

from shardline.adapters.kinesis import KinesisHttp
from shardline.cli.doctor import connectivity_checks, permission_checks, stream_checks
from shardline.cli.doctor.diagnoses import Finding, failed, not_checked, of_failure, ok, warning
from shardline.cli.groups.group_store import NO_SUCH_STORE, StorePlace, ask_groups
from shardline.cli.invocation import Invocation
from shardline.cli.quantities import counted
from shardline.cli.retrying import retry_while
from shardline.codec.shapes import ListStreamConsumersResponse, ListStreamsResponse, StreamSummary
from shardline.core.failures import Failure, FailureKind
from shardline.core.page_tokens import PageTokens
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.model.shard import Shard
from shardline.model.stream import StreamRef

T = TypeVar("T")

Role: TypeAlias = Literal["all", "producer", "consumer"]
_PAUSE: Final = 0.3
_CONNECT_TIMEOUT: Final = 5.0
_READ_TIMEOUT: Final = 10.0
_AGAIN: Final = frozenset({FailureKind.THROTTLED, FailureKind.LIMIT_EXCEEDED, FailureKind.CLOCK_SKEW})
# The request was refused because of who sent it, not because of what it asks for.
_IDENTITY: Final = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
    }
)
_STREAM: Final = ("stream", "retention", "encryption", "hash ranges", "load", "consumers")
_READS: Final = ("may GetShardIterator", "may GetRecords")
_PUTS: Final = ("may PutRecords", "may PutRecord")
_FAN_OUT: Final = ("may ListStreamConsumers", "may SubscribeToShard")


@final
@dataclass
class Examination:
    """One stream, looked at once."""

    invocation: Invocation
    ref: StreamRef
    role: Role
    reads_records: bool
    findings: list[Finding] = field(default_factory=list[Finding])
    _url: str = ""
    _clock_refused: bool = False

    async def examine(self) -> list[Finding]:
        """Everything."""
        way = await anyio.to_thread.run_sync(connectivity_checks.check_settings, self.invocation, self.ref)
        self.findings += way.findings
        if way.region is None or way.endpoint_url is None:
            self._skip("the settings lead nowhere", "endpoint", "clock", *_STREAM, *self._permissions())
            return self.findings
        limits = {"connect_timeout": _CONNECT_TIMEOUT, "read_timeout": _READ_TIMEOUT}
        async with self.invocation.client(**limits) as client:
            self._url = way.endpoint_url
            await self._examine_way(client.api)
        return self.findings

    async def _examine_way(self, api: KinesisHttp) -> None:
        began_at = anyio.current_time()
        summary = await self._asked(lambda: api.describe_stream_summary(DescribeStreamSummary(self.ref)))
        first = anyio.current_time() - began_at
        began_at = anyio.current_time()
        shards = None if _is_unanswered(summary) else await self._list_shards(api)
        second = None if shards is None else anyio.current_time() - began_at
        self.findings.append(connectivity_checks.check_endpoint(self._url, summary, first, second))
        answered = not _is_unanswered(summary)
        clock = connectivity_checks.check_clock(api.service_time(), answered=answered, refused=self._clock_refused)
        self.findings.append(clock)
        if shards is None:
            anonymous = isinstance(summary, Failure) and summary.kind is FailureKind.NO_CREDENTIALS
            why = "nothing is sent without credentials" if anonymous else "Kinesis was not reached"
            self._skip(why, *_STREAM, *self._permissions())
        elif (stranger := _identity_failure(summary, shards)) is not None:
            self.findings.append(of_failure("identity", stranger, "DescribeStreamSummary", str(self.ref)))
            self._skip("the service does not know who asks", *_STREAM, *self._permissions())
        elif (missing := _missing(summary, shards)) is not None:
            self.findings.append(await self._no_such_stream(api, missing))
            self._skip("there is no such stream", *_STREAM, *self._permissions())
        else:
            await self._examine_stream(api, summary, shards)

    async def _examine_stream(
        self, api: KinesisHttp, summary: StreamSummary | Failure, shards: list[Shard] | Failure
    ) -> None:
        consumers = await self._list_consumers(api, summary)
        if isinstance(summary, Failure):
            self._skip("DescribeStreamSummary was not answered", *_STREAM[:3])
        else:
            self.findings += stream_checks.check_stream(summary)
        opened = [] if isinstance(shards, Failure) else [shard for shard in shards if shard.is_open]
        if isinstance(shards, Failure):
            self._skip("ListShards was not answered", "hash ranges", "load")
        else:
            self.findings += [stream_checks.check_ranges(shards), await self._check_load(api, shards, len(opened))]
        if isinstance(consumers, str):
            self._skip(consumers, "consumers")
        else:
            self.findings.append(stream_checks.check_consumers(consumers))
        self.findings.append(permission_checks.judged("DescribeStreamSummary", summary, str(self.ref)))
        self.findings.append(permission_checks.judged("ListShards", shards, str(self.ref)))
        if opened:
            await self._examine_permissions(api, opened[0].shard_id, consumers)
        else:
            self._skip("no open shard is known to ask with", *self._permissions()[2:])

    async def _examine_permissions(self, api: KinesisHttp, shard_id: str, consumers: list[str] | Failure | str) -> None:
        reads, dry_runs = await permission_checks.check_reads(api, self.ref, shard_id)
        if self.role != "producer":
            self.findings += reads
        if self.role != "consumer":
            self.findings += await permission_checks.check_puts(api, self.ref, self._url, dry_runs)
        if self.role == "producer":
            return
        if isinstance(consumers, str):
            self._skip(consumers, *_FAN_OUT)
            return
        self.findings += await permission_checks.check_subscribing(api, str(self.ref), consumers, shard_id, dry_runs)

    async def _check_load(self, api: KinesisHttp, shards: list[Shard], open_count: int) -> Finding:
        if not self.reads_records or self.role == "producer":
            return not_checked("load", "no record was read")
        return stream_checks.check_load(await stream_checks.sample(api, self.ref, shards), open_count)

    # ---- asking

    async def _asked(self, call: Callable[[], Awaitable[T | Failure]]) -> T | Failure:
        return await retry_while(call, self._may_help, _PAUSE)

    def _may_help(self, failure: Failure) -> bool:
        self._clock_refused = self._clock_refused or failure.kind is FailureKind.CLOCK_SKEW
        return failure.kind in _AGAIN

    async def _list_shards(self, api: KinesisHttp) -> list[Shard] | Failure:
        found: list[Shard] = []
        tokens = PageTokens()
        token: str | Failure | None = None
        while not isinstance(token, Failure):
            request = ListShards(self.ref, None, token)
            page = await self._asked(partial(api.list_shards, request))
            if isinstance(page, Failure):
                return page
            found += [shape.to_shard() for shape in page.shards or ()]
            token = tokens.follow(page.next_token)
            if token is None:
                return found
        return token

    async def _list_consumers(self, api: KinesisHttp, summary: StreamSummary | Failure) -> list[str] | Failure | str:
        """The ARNs of registered consumers, or why they could not be asked for."""
        arn = self.ref.arn if isinstance(summary, Failure) else summary.arn
        if arn is None:
            return "only the stream's ARN can be asked with, and it is not known"
        members = {"StreamARN": arn}
        page = await self._asked(lambda: api.typed_call("ListStreamConsumers", members, ListStreamConsumersResponse))
        return page if isinstance(page, Failure) else [consumer.arn for consumer in page.consumers]

    async def _no_such_stream(self, api: KinesisHttp, missing: Failure) -> Finding:
        advice = "check the name and the region; `shardline streams list` shows what is there"
        listed = await self._asked(lambda: api.typed_call("ListStreams", {}, ListStreamsResponse))
        if not isinstance(listed, Failure):
            close = difflib.get_close_matches(self.ref.name, listed.stream_names, n=3)
            if close:
                advice = f"is it {' or '.join(close)}? otherwise check the region"
        return failed("stream", missing.message.strip(), advice)

    # ---- telling

    def _permissions(self) -> list[str]:
        reads = [] if self.role == "producer" else [*_READS]
        puts = [] if self.role == "consumer" else [*_PUTS]
        fan_out = [] if self.role == "producer" else [*_FAN_OUT]
        return ["may DescribeStreamSummary", "may ListShards", *reads, *puts, *fan_out]

    def _skip(self, why: str, *checks: str) -> None:
        told = {finding.check for finding in self.findings}
        self.findings += [not_checked(check, why) for check in checks if check not in told]


def _is_unanswered(answer: object) -> bool:
    return isinstance(answer, Failure) and answer.status is None


def _identity_failure(*answers: object) -> Failure | None:
    """The failure that says that the service does not know, or no longer knows, who asks."""
    for answer in answers:
        if isinstance(answer, Failure) and (
            answer.code in _IDENTITY or answer.kind in {FailureKind.EXPIRED_CREDENTIALS, FailureKind.CLOCK_SKEW}
        ):
            return answer
    return None


def _missing(*answers: object) -> Failure | None:
    return next((one for one in answers if isinstance(one, Failure) and one.kind is FailureKind.NOT_FOUND), None)


async def check_store(place: StorePlace) -> Finding:
    """Whether the lease store can be used, and has what it should."""
    found = await ask_groups(place)
    if isinstance(found, Failure) and found.code == NO_SUCH_STORE:
        return warning("store", found.message, "nothing, if no consumer has run yet: the first one makes it")
    if isinstance(found, Failure):
        return failed("store", found.message, "consumers that keep their leases there cannot start")
    names = ", ".join(sorted({f"{one.group or '?'} on {one.stream or '?'}" for one in found})[:5])
    return ok("store", f"reachable, {counted(len(found), 'group')}{': ' if names else ''}{names}")
