"""Runs the checks of ``shardline doctor STREAM`` in order.

If a check fails, the checks that depend on it are skipped.

Invariants:

- The diagnosis goes as far as it can, and every skipped check is reported as not checked.
- Nothing in the stream, its consumers or the store is changed.
"""

import difflib
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, TypeAlias, final

import anyio
import anyio.to_thread

from shardline.adapters.kinesis import KinesisHttp
from shardline.aio.consumer.fan_out import FanOut
from shardline.cli.doctor import connectivity_checks, fan_out_checks, permission_checks, stream_checks
from shardline.cli.doctor.check_run import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    CheckRun,
    identity_failure_of,
    is_unanswered,
    why_unanswered,
)
from shardline.cli.doctor.diagnoses import Finding, failed, not_checked, of_failure, ok, warning
from shardline.cli.groups.group_store import NO_SUCH_STORE, StorePlace, ask_groups, list_rows, opened
from shardline.cli.groups.kcl_members import members_text, read_members
from shardline.cli.quantities import counted
from shardline.codec.shapes import ListStreamConsumersResponse, ListStreamsResponse, StreamSummary
from shardline.core.consumer.hash_coverage import find_uncovered, percentage_of
from shardline.core.consumer.shard_graph import ShardGraph
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.page_tokens import PageTokens
from shardline.core.requests import DescribeStreamSummary, ListShards
from shardline.model.shard import Shard
from shardline.model.stream import StreamRef

Role: TypeAlias = Literal["all", "producer", "consumer"]
_STREAM_CHECKS: Final = ("stream", "retention", "encryption", "hash ranges", "load", "consumers")
_READS: Final = ("may GetShardIterator", "may GetRecords")
_PUTS: Final = ("may PutRecords", "may PutRecord")
_FAN_OUT: Final = ("may ListStreamConsumers", "may SubscribeToShard")


@final
@dataclass
class Diagnosis(CheckRun):
    """Checks one stream once and collects the findings."""

    ref: StreamRef
    role: Role
    reads_records: bool
    fan_out: FanOut | None = None
    """The registered consumer to check, if there is one."""
    _url: str = ""

    async def run(self) -> list[Finding]:
        """Run all checks and return the findings."""
        settings = await anyio.to_thread.run_sync(connectivity_checks.check_settings, self.invocation, self.ref)
        self.findings += settings.findings
        if settings.region is None or settings.endpoint_url is None:
            why = "the settings give no region or no endpoint"
            self.skip(why, "endpoint", "clock", *_STREAM_CHECKS, *self._permissions())
            return self.findings
        timeouts = {"connect_timeout": CONNECT_TIMEOUT, "read_timeout": READ_TIMEOUT}
        async with self.invocation.client(**timeouts) as client:
            self._url = settings.endpoint_url
            await self._check_connection(client.api)
        return self.findings

    async def _check_connection(self, api: KinesisHttp) -> None:
        began_at = anyio.current_time()
        summary = await self.ask(lambda: api.describe_stream_summary(DescribeStreamSummary(self.ref)))
        first = anyio.current_time() - began_at
        began_at = anyio.current_time()
        shards = None if is_unanswered(summary) else await self._list_shards(api)
        second = None if shards is None else anyio.current_time() - began_at
        self.findings.append(connectivity_checks.check_endpoint(self._url, summary, first, second))
        answered = not is_unanswered(summary)
        clock = connectivity_checks.check_clock(api.service_time(), answered=answered, refused=self.is_clock_refused)
        self.findings.append(clock)
        if shards is None:
            self.skip(why_unanswered(summary), *_STREAM_CHECKS, *self._permissions())
        elif (identity_failure := identity_failure_of(summary, shards)) is not None:
            self.findings.append(of_failure("identity", identity_failure, "DescribeStreamSummary", str(self.ref)))
            self.skip("the service does not accept the credentials", *_STREAM_CHECKS, *self._permissions())
        elif (missing := _missing(summary, shards)) is not None:
            self.findings.append(await self._no_such_stream(api, missing))
            self.skip("there is no such stream", *_STREAM_CHECKS, *self._permissions())
        else:
            await self._check_stream(api, summary, shards)

    async def _check_stream(
        self, api: KinesisHttp, summary: StreamSummary | Failure, shards: list[Shard] | Failure
    ) -> None:
        consumers = await self._list_consumers(api, summary)
        if isinstance(summary, Failure):
            self.skip("DescribeStreamSummary failed", *_STREAM_CHECKS[:3])
        else:
            self.findings += stream_checks.check_stream(summary)
        opened = [] if isinstance(shards, Failure) else [shard for shard in shards if shard.is_open]
        if isinstance(shards, Failure):
            self.skip("ListShards failed", "hash ranges", "load")
        else:
            self.findings += [stream_checks.check_ranges(shards), await self._check_load(api, shards, len(opened))]
        if isinstance(consumers, str):
            self.skip(consumers, "consumers")
        else:
            self.findings.append(stream_checks.check_consumers(consumers))
        self.findings.append(permission_checks.permission_finding("DescribeStreamSummary", summary, str(self.ref)))
        self.findings.append(permission_checks.permission_finding("ListShards", shards, str(self.ref)))
        if opened:
            arn = self.ref.arn if isinstance(summary, Failure) else summary.arn
            await self._check_permissions(api, opened[0].shard_id, consumers, arn)
        else:
            self.skip("no open shard is known to test them with", *self._permissions()[2:])

    async def _check_permissions(
        self, api: KinesisHttp, shard_id: str, consumers: list[str] | Failure | str, stream_arn: str | None
    ) -> None:
        reads, dry_runs = await permission_checks.check_reads(api, self.ref, shard_id)
        if self.role != "producer":
            self.findings += reads
        if self.role != "consumer":
            self.findings += await permission_checks.check_puts(api, self.ref, self._url, dry_runs)
        if self.role == "producer":
            return
        stream = str(self.ref)
        if isinstance(consumers, str):
            self.skip(consumers, _FAN_OUT[0])
        else:
            self.findings.append(permission_checks.permission_finding("ListStreamConsumers", consumers, stream))
        if self.fan_out is not None:
            self.findings += await fan_out_checks.check_fan_out(
                api, self.fan_out, stream_arn=stream_arn, url=self._url, shard_id=shard_id, dry_runs=dry_runs
            )
        elif isinstance(consumers, str):
            self.skip(consumers, _FAN_OUT[1])
        else:
            self.findings.append(await permission_checks.check_subscribing(api, stream, consumers, shard_id, dry_runs))

    async def _check_load(self, api: KinesisHttp, shards: list[Shard], open_count: int) -> Finding:
        if not self.reads_records or self.role == "producer":
            return not_checked("load", "no records were sampled")
        return stream_checks.check_load(await stream_checks.sample(api, self.ref, shards), open_count)

    # ---- requests

    async def _list_shards(self, api: KinesisHttp) -> list[Shard] | Failure:
        found: list[Shard] = []
        tokens = PageTokens()
        token: str | Failure | None = None
        while not isinstance(token, Failure):
            request = ListShards(self.ref, None, token)
            page = await self.ask(partial(api.list_shards, request))
            if isinstance(page, Failure):
                return page
            found += [shape.to_shard() for shape in page.shards or ()]
            token = tokens.follow(page.next_token)
            if token is None:
                return found
        return token

    async def _list_consumers(self, api: KinesisHttp, summary: StreamSummary | Failure) -> list[str] | Failure | str:
        """Return the ARNs of the registered consumers, or the failure of the request. If the request was not sent,
        return a sentence that says why.
        """
        arn = self.ref.arn if isinstance(summary, Failure) else summary.arn
        if arn is None:
            return "listing consumers needs the stream's ARN, which is unknown"
        members = {"StreamARN": arn}
        page = await self.ask(lambda: api.typed_call("ListStreamConsumers", members, ListStreamConsumersResponse))
        return page if isinstance(page, Failure) else [consumer.arn for consumer in page.consumers]

    async def _no_such_stream(self, api: KinesisHttp, missing: Failure) -> Finding:
        advice = "check the name and the region; `shardline streams list` shows the existing streams"
        listed = await self.ask(lambda: api.typed_call("ListStreams", {}, ListStreamsResponse))
        if not isinstance(listed, Failure):
            close = difflib.get_close_matches(self.ref.name, listed.stream_names, n=3)
            if close:
                advice = f"is it {' or '.join(close)}? otherwise check the region"
        return failed("stream", missing.message.strip(), advice)

    # ---- findings

    def _permissions(self) -> list[str]:
        reads = [] if self.role == "producer" else [*_READS]
        puts = [] if self.role == "consumer" else [*_PUTS]
        fan_out = [] if self.role == "producer" else [*_FAN_OUT]
        if self.fan_out is not None:
            fan_out = [_FAN_OUT[0], *fan_out_checks.CHECKS]
        return ["may DescribeStreamSummary", "may ListShards", *reads, *puts, *fan_out]


def _missing(*answers: object) -> Failure | None:
    failures = (answer for answer in answers if isinstance(answer, Failure))
    return next((failure for failure in failures if failure.kind is FailureKind.NOT_FOUND), None)


async def check_store(place: StorePlace) -> Finding:
    """Check whether the lease store is reachable and which groups it contains."""
    found = await ask_groups(place)
    if isinstance(found, Failure) and found.code == NO_SUCH_STORE:
        return warning("store", found.message, "do nothing if no consumer has run yet: the first consumer creates it")
    if isinstance(found, Failure):
        return failed("store", found.message, "consumers that keep their leases there cannot start")
    names = ", ".join(sorted({f"{name.group or '?'} on {name.stream or '?'}" for name in found})[:5])
    return ok("store", f"reachable, {counted(len(found), 'group')}{': ' if names else ''}{names}")


async def check_coverage(place: StorePlace, stream: str) -> list[Finding]:
    """Check, for each group on the stream, whether its leases cover all hash keys."""
    found = await ask_groups(place)
    groups = [] if isinstance(found, Failure) else [name for name in found if name.stream in {None, stream}]
    findings: list[Finding] = []
    async with opened(place, *groups) as stores:
        for name, store in zip(groups, stores, strict=True):
            rows = await list_rows(store)
            holes, check = find_uncovered(rows, ShardGraph()), f"coverage of {name.group or 'the group'}"
            if holes is None:
                findings.append(not_checked(check, "there are no leases, or their hash ranges are unknown"))
            elif holes:
                what = f"no lease covers {percentage_of(holes)} of the hash keys: no worker reads the records there"
                advice = "keep a consumer of the group running for two list intervals, then check again"
                findings.append(failed(check, what, advice))
            else:
                findings.append(ok(check, "the leases cover all hash keys"))
    return findings


async def check_kcl(place: StorePlace) -> list[Finding]:
    """Check, for each group, whether KCL workers share its leases, who leads them, and what each worker runs."""
    found = await ask_groups(place)
    groups = [] if isinstance(found, Failure) else found
    findings: list[Finding] = []
    async with opened(place, *groups) as stores:
        for name, store in zip(groups, stores, strict=True):
            leases = [row for row in (await list_rows(store)).values() if not row.checkpoint.is_finished]
            members, check = await read_members(store, leases), f"KCL workers of {name.group or 'the group'}"
            if isinstance(members, Failure):
                findings.append(not_checked(check, members.message))
            elif members:
                findings.append(ok(check, members_text(members)))
    return findings
