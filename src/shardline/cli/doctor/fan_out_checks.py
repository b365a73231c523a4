"""Checks whether a consumer can read the stream by enhanced fan-out.

Invariants:

- No consumer loses its subscription: SubscribeToShard is only sent as a dry run.
- Nothing is registered. A missing consumer is a warning, because the first worker registers it if it is allowed to.
"""

from typing import Final

from shardline.adapters.kinesis import KinesisHttp
from shardline.aio.consumer.fan_out import FanOut
from shardline.cli.doctor.diagnoses import Finding, failed, not_checked, of_failure, ok, warning
from shardline.cli.doctor.permission_checks import AWS_ENDPOINT, DryRuns, check_subscribing, permission_finding
from shardline.codec.shapes import DescribeStreamConsumerResponse, StreamConsumer
from shardline.core.error_codes import Failure, FailureKind

CHECKS: Final = ("registered consumer", "may DescribeStreamConsumer", "HTTP/2", "may SubscribeToShard")
_CONSUMER, _MAY_DESCRIBE, _HTTP2, _MAY_SUBSCRIBE = CHECKS


async def check_fan_out(
    api: KinesisHttp, fan_out: FanOut, *, stream_arn: str | None, url: str, shard_id: str, dry_runs: DryRuns
) -> list[Finding]:
    """Check the registered consumer, HTTP/2, and the permission to subscribe.

    Args:
        api: the connection to Kinesis.
        fan_out: the name or the ARN of the registered consumer.
        stream_arn: the ARN of the stream, if it is known.
        url: the endpoint.
        shard_id: an open shard, to test the permission with.
        dry_runs: whether the service supports dry runs.
    """
    members = {"ConsumerARN": fan_out.name}
    if not fan_out.is_arn:
        if stream_arn is None:
            why = "finding a consumer by its name needs the stream's ARN, which is unknown"
            return [not_checked(check, why) for check in CHECKS]
        members = {"StreamARN": stream_arn, "ConsumerName": fan_out.name}
    described = await api.typed_call("DescribeStreamConsumer", members, DescribeStreamConsumerResponse)
    consumer = described if isinstance(described, Failure) else described.consumer_description
    findings = [check_consumer(fan_out, consumer), _may_describe(fan_out, consumer)]
    arn = consumer.arn if isinstance(consumer, StreamConsumer) else fan_out.name if fan_out.is_arn else None
    if arn is None:
        findings += [not_checked(check, "there is no registered consumer to test it with") for check in CHECKS[2:]]
        return findings
    findings.append(check_http2(await api.subscription_protocol(arn), url))
    findings.append(await check_subscribing(api, fan_out.name, [arn], shard_id, dry_runs, is_needed=True))
    return findings


def check_consumer(fan_out: FanOut, consumer: StreamConsumer | Failure) -> Finding:
    """Check whether the consumer is registered and ACTIVE."""
    name = fan_out.name
    if not isinstance(consumer, Failure):
        seen = f"{consumer.name} is {consumer.status}"
        if consumer.status == "ACTIVE":
            return ok(_CONSUMER, seen)
        if consumer.status == "CREATING":
            return warning(_CONSUMER, seen, "wait until it is ACTIVE")
        return failed(_CONSUMER, seen, "wait until it is gone, then register it again")
    if consumer.kind is not FailureKind.NOT_FOUND:
        return not_checked(_CONSUMER, "DescribeStreamConsumer failed")
    if fan_out.is_arn:
        return failed(
            _CONSUMER, f"{name} does not exist", "check the ARN: a consumer that is registered again has another"
        )
    advice = "do nothing if the workers may register it; otherwise `shardline streams consumers register` does"
    return warning(_CONSUMER, f"{name} is not registered", advice)


def check_http2(protocol: str | Failure, url: str) -> Finding:
    """Check whether subscriptions use HTTP/2, which AWS requires."""
    if isinstance(protocol, Failure):
        return of_failure(_HTTP2, protocol, "SubscribeToShard", "*")
    if protocol == "h2":
        return ok(_HTTP2, "subscriptions share connections")
    seen = "the connection to the endpoint speaks only HTTP/1.1"
    if AWS_ENDPOINT.fullmatch(url):
        return failed(_HTTP2, seen, "AWS needs HTTP/2 for subscriptions: let the proxy pass HTTP/2, or go around it")
    return warning(_HTTP2, seen, "this server accepts it, with one connection per subscription; AWS needs HTTP/2")


def _may_describe(fan_out: FanOut, consumer: StreamConsumer | Failure) -> Finding:
    if isinstance(consumer, Failure) and consumer.kind is FailureKind.NOT_FOUND:
        return ok(_MAY_DESCRIBE, "allowed")
    return permission_finding("DescribeStreamConsumer", consumer, fan_out.name, is_needed=not fan_out.is_arn)
