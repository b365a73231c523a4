"""Which findings does ``shardline doctor --fan-out`` make of the service's answers?"""

import pytest

from shardline import FanOut
from shardline.cli.doctor.diagnoses import Verdict
from shardline.cli.doctor.fan_out_checks import CHECKS, check_consumer, check_fan_out, check_http2
from shardline.cli.doctor.permission_checks import DryRuns
from shardline.codec.shapes import DescribeStreamConsumerResponse, StreamConsumer
from shardline.core.error_codes import Failure, FailureKind

pytestmark = pytest.mark.anyio

AWS = "https://kinesis.eu-west-1.amazonaws.com/"
STREAM = "arn:aws:kinesis:eu-west-1:000000000000:stream/orders"
ARN = f"{STREAM}/consumer/billing:1"
MISSING = Failure(FailureKind.NOT_FOUND, "ResourceNotFoundException", "not found", 400)
DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "not authorized", 400)
DRY = Failure(FailureKind.DRY_RUN, "DryRunOperationException", "it would be done", 400)
UNREACHABLE = Failure(FailureKind.TRANSIENT, "ConnectError", "no connection to host: check endpoint_url")


def billing(status):
    return StreamConsumer(name="billing", arn=ARN, status=status)


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Api:
    """Answers with what it was given, and remembers the calls."""

    def __init__(self, described, protocol="h2"):
        self.described, self.protocol = described, protocol
        self.sent = []

    async def typed_call(self, operation, members, _):
        self.sent.append((operation, members))
        if isinstance(self.described, Failure):
            return self.described
        return DescribeStreamConsumerResponse(consumer_description=billing(self.described))

    async def subscription_protocol(self, arn):
        self.sent.append(("protocol", arn))
        return self.protocol

    async def call(self, operation, members):
        self.sent.append((operation, members))
        return DRY


async def check(api, name, stream_arn=STREAM):
    return await check_fan_out(
        api, FanOut(name), stream_arn=stream_arn, url=AWS, shard_id="s0", dry_runs=DryRuns.SUPPORTED
    )


def verdicts(findings):
    return {finding.check: finding.verdict for finding in findings}


async def test_a_consumer_that_works():
    api = Api("ACTIVE")
    findings = await check(api, "billing")
    assert verdicts(findings) == dict.fromkeys(CHECKS, Verdict.OK)
    describing, protocol, subscribing = api.sent
    assert describing == ("DescribeStreamConsumer", {"StreamARN": STREAM, "ConsumerName": "billing"})
    assert protocol == ("protocol", ARN)
    assert (subscribing[1]["ConsumerARN"], subscribing[1]["DryRun"]) == (ARN, True)


@pytest.mark.parametrize("arn", [STREAM, None])
async def test_a_consumer_arn_needs_no_other_name_and_no_permission_to_describe(arn):
    api = Api(DENIED)
    findings = await check(api, ARN, arn)
    assert verdicts(findings) == dict(
        zip(CHECKS, [Verdict.NOT_CHECKED, Verdict.WARNING, Verdict.OK, Verdict.OK], strict=True)
    )
    assert api.sent[0] == ("DescribeStreamConsumer", {"ConsumerARN": ARN})


async def test_a_name_needs_the_permission_to_describe():
    findings = await check(Api(DENIED), "billing")
    assert verdicts(findings)["may DescribeStreamConsumer"] is Verdict.FAILED


async def test_without_the_arn_of_the_stream_a_name_is_not_checked():
    api = Api("ACTIVE")
    findings = await check(api, "billing", None)
    assert verdicts(findings) == dict.fromkeys(CHECKS, Verdict.NOT_CHECKED)
    assert api.sent == []


@pytest.mark.parametrize(
    ("name", "seen", "verdict", "words"),
    [
        ("billing", billing("CREATING"), Verdict.WARNING, "wait until it is ACTIVE"),
        ("billing", billing("DELETING"), Verdict.FAILED, "register it again"),
        ("billing", MISSING, Verdict.WARNING, "streams consumers register"),
        (ARN, MISSING, Verdict.FAILED, "check the ARN"),
    ],
)
def test_a_consumer_that_cannot_be_used_now(name, seen, verdict, words):
    finding = check_consumer(FanOut(name), seen)
    assert finding.verdict is verdict
    assert words in finding.advice


@pytest.mark.parametrize(
    ("protocol", "url", "verdict"),
    [
        ("h2", AWS, Verdict.OK),
        ("http/1.1", AWS, Verdict.FAILED),
        ("http/1.1", "http://127.0.0.1:4567", Verdict.WARNING),
        (UNREACHABLE, AWS, Verdict.FAILED),
    ],
)
def test_subscriptions_need_http2_on_aws(protocol, url, verdict):
    assert check_http2(protocol, url).verdict is verdict
