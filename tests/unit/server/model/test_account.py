"""Tests of ``server.model.account``."""

import pytest

from shardline.server.model.settings import Delays, Limits

DAY = 86_400.0
ON_DEMAND = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
PROVISIONED = {"StreamModeDetails": {"StreamMode": "PROVISIONED"}}


def warm(server, mibps, name="s"):
    return server.call("UpdateStreamWarmThroughput", StreamName=name, WarmThroughputMiBps=mibps)


# ---- the account's settings


def test_the_commitment_is_described_and_changed(server):
    described = {"MinimumThroughputBillingCommitment": {"Status": "DISABLED"}}
    assert server.call("DescribeAccountSettings") == described
    assert server.set_commitment("DISABLED") == {"Status": "DISABLED"}
    enabled = server.set_commitment()
    assert enabled == {"Status": "ENABLED", "StartedAt": server.now, "EarliestAllowedEndAt": server.now + DAY}
    assert server.call("DescribeAccountSettings") == {"MinimumThroughputBillingCommitment": enabled}
    ending = server.pass_time(60).set_commitment("DISABLED")
    assert ending == enabled | {"Status": "ENABLED_UNTIL_EARLIEST_ALLOWED_END"}
    server.pass_time(DAY)
    ended = server.call("DescribeAccountSettings")["MinimumThroughputBillingCommitment"]
    assert ended == {
        "Status": "DISABLED",
        "StartedAt": enabled["StartedAt"],
        "EndedAt": enabled["EarliestAllowedEndAt"],
    }


@pytest.mark.parametrize("wrong", [{}, {"Status": "ENABLED_UNTIL_EARLIEST_ALLOWED_END"}, {"Status": ""}])
def test_a_status_that_cannot_be_asked_for(server, wrong):
    members = {"MinimumThroughputBillingCommitment": wrong}
    assert server.refused("UpdateAccountSettings", **members) == "ValidationException"
    assert server.refused("UpdateAccountSettings") == "ValidationException"


@pytest.mark.parametrize(
    ("operation", "members"),
    [
        ("DescribeAccountSettings", {}),
        ("UpdateAccountSettings", {"MinimumThroughputBillingCommitment": {"Status": "ENABLED"}}),
        ("ListChannels", {}),
    ],
)
def test_five_calls_a_second(make_server, operation, members):
    server = make_server(limits=Limits())
    for _ in range(5):
        server.call(operation, **members)
    assert server.refused(operation, **members) == "LimitExceededException"
    server.pass_time(0.2).call(operation, **members)


# ---- warm throughput


def test_a_warm_throughput_is_reached_over_time(make_server):
    server = make_server(delays=Delays(update=5)).create_on_demand()
    server.set_commitment()
    assert server.summary()["WarmThroughput"] == {"CurrentMiBps": 4}
    assert warm(server, 100) == {
        "StreamName": "s",
        "StreamARN": server.arn(),
        "WarmThroughput": {"CurrentMiBps": 4, "TargetMiBps": 100},
    }
    assert (server.status(), server.summary()["WarmThroughput"]["CurrentMiBps"]) == ("UPDATING", 4)
    members = {"StreamName": "s", "WarmThroughputMiBps": 1}
    assert server.refused("UpdateStreamWarmThroughput", **members) == "ResourceInUseException"
    server.pass_time(5)
    assert (server.status(), server.summary()["WarmThroughput"]) == (
        "ACTIVE",
        {"CurrentMiBps": 100, "TargetMiBps": 100},
    )
    assert server.summary()["OpenShardCount"] == 4


def test_a_warm_throughput_may_be_zero_and_10_gib_and_no_more(server):
    server.create_on_demand().set_commitment()
    for mibps in (0, 10_240):
        warm(server, mibps)
        assert server.summary()["WarmThroughput"] == {"CurrentMiBps": mibps, "TargetMiBps": mibps}
    for members in ({"StreamName": "s"}, {"StreamARN": server.arn()}):
        members |= {"WarmThroughputMiBps": 10_241}
        assert server.refused("UpdateStreamWarmThroughput", **members) == "LimitExceededException"
    too_warm = {"StreamName": "t", "WarmThroughputMiBps": 10_241} | ON_DEMAND
    assert server.refused("CreateStream", **too_warm) == "LimitExceededException"


def test_only_on_demand_streams_of_accounts_with_a_commitment_are_warm(server):
    server.create("p").create_on_demand("d")
    for name in ("p", "d"):
        members = {"StreamName": name, "WarmThroughputMiBps": 8}
        assert server.refused("UpdateStreamWarmThroughput", **members) == "ValidationException"
    assert server.refused("CreateStream", StreamName="x", WarmThroughputMiBps=8, **ON_DEMAND) == "ValidationException"
    server.set_commitment()
    warm(server, 8, "d")
    refusals = {"UpdateStreamWarmThroughput": {"StreamName": "p"}, "CreateStream": {"StreamName": "x", "ShardCount": 1}}
    for operation, members in refusals.items():
        assert server.refused(operation, WarmThroughputMiBps=8, **members) == "ValidationException"
    to_provisioned = {"StreamARN": server.arn("d"), "WarmThroughputMiBps": 8} | PROVISIONED
    assert server.refused("UpdateStreamMode", **to_provisioned) == "ValidationException"
    assert "WarmThroughput" not in server.summary("p")
    server.set_commitment("DISABLED")
    assert server.summary("d")["WarmThroughput"]["CurrentMiBps"] == 8
    server.pass_time(DAY)
    assert "WarmThroughput" not in server.summary("d")


def test_a_stream_may_begin_warm_and_cools_when_it_is_provisioned(server):
    server.create("p").set_commitment()
    server.call("CreateStream", StreamName="s", WarmThroughputMiBps=50, **ON_DEMAND)
    server.call("UpdateStreamMode", StreamARN=server.arn("p"), WarmThroughputMiBps=60, **ON_DEMAND)
    assert [server.summary(name)["WarmThroughput"]["CurrentMiBps"] for name in "sp"] == [50, 60]
    server.call("UpdateStreamMode", StreamARN=server.arn(), **PROVISIONED)
    server.call("UpdateStreamMode", StreamARN=server.arn(), **ON_DEMAND)
    assert server.summary()["WarmThroughput"] == {"CurrentMiBps": 4}


# ---- how many consumers a stream may have


def test_the_consumer_limit_follows_the_accounts_mode(server):
    server.create_on_demand("s").create("p")
    for number in range(20):
        server.register(f"c{number}")
        server.register(f"c{number}", "p")
    one_more = {"StreamARN": server.arn(), "ConsumerName": "one-more"}
    assert server.refused("RegisterStreamConsumer", **one_more) == "LimitExceededException"
    server.set_commitment()
    for number in range(20, 50):
        server.register(f"c{number}")
    assert server.refused("RegisterStreamConsumer", **one_more) == "LimitExceededException"
    assert server.refused("RegisterStreamConsumer", **one_more | {"StreamARN": server.arn("p")}) == (
        "LimitExceededException"
    )
    assert server.summary()["ConsumerCount"] == 50
