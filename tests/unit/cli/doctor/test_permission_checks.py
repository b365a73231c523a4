"""Which requests are sent to find out the permissions?"""

import pytest

from shardline.cli.doctor.diagnoses import Verdict
from shardline.cli.doctor.permission_checks import DryRuns, check_puts, check_reads, check_subscribing
from shardline.core.error_codes import Failure, FailureKind
from shardline.model.stream import parse_stream

pytestmark = pytest.mark.anyio

STREAM = parse_stream("orders")
AWS = "https://kinesis.eu-west-1.amazonaws.com/"
DRY = Failure(FailureKind.DRY_RUN, "DryRunOperationException", "it would be done", 400)
DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "not authorized", 400)
INVALID = Failure(FailureKind.INVALID, "InvalidArgumentException", "no such hash key", 400)
CONSUMER = "arn:aws:kinesis:eu-west-1:000000000000:stream/orders/consumer/c:1"


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Api:
    """Answers by operation, and by whether it is a dry run. It remembers the requests."""

    def __init__(self, **answers):
        self.answers = answers
        self.sent = []

    async def call(self, operation, members):
        self.sent.append((operation, members))
        answer = self.answers[operation]
        return answer(members.get("DryRun", False)) if callable(answer) else answer

    def sent_of(self, operation):
        return [members for name, members in self.sent if name == operation]


def heeds(answer):
    return lambda is_dry: DRY if is_dry else answer


ITERATOR = {"ShardIterator": "it"}


def verdicts(findings):
    return {finding.check: finding.verdict for finding in findings}


async def test_a_service_that_heeds_dry_runs_is_known_by_its_answers():
    api = Api(GetShardIterator=heeds(ITERATOR), GetRecords=heeds({}))
    findings, dry_runs = await check_reads(api, STREAM, "s0")
    assert dry_runs is DryRuns.SUPPORTED
    assert set(verdicts(findings).values()) == {Verdict.OK}
    assert all(members["DryRun"] for members in api.sent_of("GetRecords"))  # no read was needed


@pytest.mark.parametrize(
    ("iterator", "records", "expected"),
    [
        (ITERATOR, {}, DryRuns.IGNORED),
        (heeds(ITERATOR), {}, DryRuns.IGNORED),  # a server that supports dry runs for only one operation
        (ITERATOR, heeds({}), DryRuns.IGNORED),
        (DENIED, {}, DryRuns.UNKNOWN),
        (heeds(ITERATOR), DENIED, DryRuns.SUPPORTED),
    ],
)
async def test_what_is_passed_over_once_is_trusted_no_more(iterator, records, expected):
    _, dry_runs = await check_reads(Api(GetShardIterator=iterator, GetRecords=records), STREAM, "s0")
    assert dry_runs is expected


async def test_an_arn_goes_along_with_the_iterator():
    arn = parse_stream("arn:aws:kinesis:eu-west-1:000000000000:stream/orders")
    api = Api(GetShardIterator=heeds(ITERATOR), GetRecords=heeds({}))
    await check_reads(api, arn, "s0")
    assert api.sent_of("GetRecords")[0]["StreamARN"] == arn.arn


async def test_every_put_is_a_dry_run():
    api = Api(PutRecords=heeds(None), PutRecord=heeds(None))
    findings = await check_puts(api, STREAM, "http://127.0.0.1:1/", DryRuns.SUPPORTED)
    assert verdicts(findings) == {"may PutRecords": Verdict.OK, "may PutRecord": Verdict.OK}
    assert len(api.sent) == 2
    assert all(members["DryRun"] is True for _, members in api.sent)


@pytest.mark.parametrize(
    ("url", "dry_runs"),
    [
        (AWS, DryRuns.IGNORED),
        ("http://127.0.0.1:4567/", DryRuns.IGNORED),
        ("http://127.0.0.1:4567/", DryRuns.UNKNOWN),
        ("https://kinesis.example.com/", DryRuns.UNKNOWN),
        ("https://amazonaws.com.example.com/", DryRuns.UNKNOWN),
        ("http://kinesis.eu-west-1.amazonaws.com/", DryRuns.UNKNOWN),
    ],
)
async def test_no_put_is_sent_where_it_might_be_stored(url, dry_runs):
    api = Api()
    findings = await check_puts(api, STREAM, url, dry_runs)
    assert set(verdicts(findings).values()) == {Verdict.NOT_CHECKED}
    assert api.sent == []


@pytest.mark.parametrize("url", [AWS, "https://123-vpce.eu-west-1.vpce.amazonaws.com/", "https://x.api.aws/"])
async def test_at_aws_who_may_not_read_asks_with_what_cannot_be_stored(url):
    api = Api(PutRecords=INVALID, PutRecord=DENIED)
    findings = await check_puts(api, STREAM, url, DryRuns.UNKNOWN)
    assert verdicts(findings) == {"may PutRecords": Verdict.OK, "may PutRecord": Verdict.WARNING}
    ((entry,), (single,)) = (api.sent_of("PutRecords")[0]["Records"], api.sent_of("PutRecord"))
    assert int(entry["ExplicitHashKey"]) > 2**128
    assert int(single["ExplicitHashKey"]) > 2**128
    assert all(members["DryRun"] is True for _, members in api.sent)


async def test_what_is_needed_fails_and_what_is_not_warns():
    api = Api(PutRecords=DENIED, PutRecord=DENIED)
    findings = await check_puts(api, STREAM, AWS, DryRuns.SUPPORTED)
    assert verdicts(findings) == {"may PutRecords": Verdict.FAILED, "may PutRecord": Verdict.WARNING}
    assert "kinesis:PutRecords on orders" in findings[0].advice


@pytest.mark.parametrize("dry_runs", [DryRuns.IGNORED, DryRuns.UNKNOWN])
async def test_no_subscription_is_taken(dry_runs):
    api = Api()
    finding = await check_subscribing(api, "orders", [CONSUMER], "s0", dry_runs)
    assert (finding.check, finding.verdict) == ("may SubscribeToShard", Verdict.NOT_CHECKED)
    assert api.sent == []


async def test_subscribing_is_asked_for_by_a_dry_run():
    api = Api(SubscribeToShard=heeds(None))
    finding = await check_subscribing(api, "orders", [CONSUMER], "s0", DryRuns.SUPPORTED)
    assert (finding.check, finding.verdict) == ("may SubscribeToShard", Verdict.OK)
    assert [members["DryRun"] for members in api.sent_of("SubscribeToShard")] == [True]


@pytest.mark.parametrize(("is_needed", "verdict"), [(False, Verdict.WARNING), (True, Verdict.FAILED)])
async def test_a_denied_subscription_is_a_failure_if_the_user_reads_by_fan_out(is_needed, verdict):
    api = Api(SubscribeToShard=DENIED)
    finding = await check_subscribing(api, "orders", [CONSUMER], "s0", DryRuns.SUPPORTED, is_needed=is_needed)
    assert finding.verdict is verdict
    assert "kinesis:SubscribeToShard" in finding.advice
