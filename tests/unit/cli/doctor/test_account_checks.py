"""The findings about an account, from the answers of the service."""

import pytest

from shardline.cli.doctor.account_checks import check_limits, check_streams
from shardline.cli.doctor.diagnoses import Verdict
from shardline.codec.shapes import ListStreamsResponse
from shardline.core.error_codes import Failure, FailureKind

FAILURE = Failure(FailureKind.DENIED, "AccessDeniedException", "no", 400)


def listed(*names, has_more=False):
    return ListStreamsResponse(stream_names=[*names], has_more_streams=has_more)


def test_streams_are_named_up_to_five():
    assert check_streams(listed("a"), "here").seen == "1 stream: a"
    assert check_streams(listed(*"abcde"), "here").seen == "5 streams: a, b, c, d, e"
    assert check_streams(listed(*"abcdef", has_more=True), "here").seen == "at least 6 streams: a, b, c, d, e, .."


def test_no_streams_may_mean_another_region():
    found = check_streams(listed(), "eu-west-1")
    assert (found.verdict, found.seen) == (Verdict.WARNING, "there are no streams in eu-west-1")
    assert "--region" in found.advice


def test_failed_requests_check_nothing():
    assert check_streams(FAILURE, "here").verdict is Verdict.NOT_CHECKED
    assert check_limits(FAILURE).verdict is Verdict.NOT_CHECKED


@pytest.mark.parametrize(
    ("used", "on_demand", "verdict"),
    [(899, 0, Verdict.OK), (900, 0, Verdict.WARNING), (0, 44, Verdict.OK), (0, 45, Verdict.WARNING)],
)
def test_limits_are_a_warning_when_they_are_nearly_used_up(used, on_demand, verdict):
    members = {"OpenShardCount": used, "ShardLimit": 1_000}
    found = check_limits(members | {"OnDemandStreamCount": on_demand, "OnDemandStreamCountLimit": 50})
    assert found.verdict is verdict
    assert found.seen.endswith(f"{used:,} of 1,000 open shards, {on_demand} of 50 on-demand streams")


def test_limits_that_the_service_does_not_name():
    assert check_limits({}).seen == "the service names none"
    assert check_limits({"OpenShardCount": 1, "ShardLimit": "many"}).seen == "the service names none"
