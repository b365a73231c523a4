"""How are the resource policies of streams and consumers stored and checked?"""

import json

import pytest

from shardline.server.model.settings import Delays

POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "kinesis:*"}]}'


def test_a_policy_is_stored_returned_and_deleted(server):
    """AWS's answers in LocalStack's test_resource_policy_crud (recorded on 2025-08-01)."""
    server.create().create("t")
    for arn in (server.arn(), server.register()):
        assert server.call("GetResourcePolicy", ResourceARN=arn) == {"Policy": "{}"}
        assert server.call("PutResourcePolicy", ResourceARN=arn, Policy=POLICY) is None
        assert server.call("GetResourcePolicy", ResourceARN=arn) == {"Policy": POLICY}
        other = POLICY.replace("Allow", "Deny")
        server.call("PutResourcePolicy", ResourceARN=arn, Policy=other)
        assert server.call("GetResourcePolicy", ResourceARN=arn) == {"Policy": other}
        assert server.call("GetResourcePolicy", ResourceARN=server.arn("t")) == {"Policy": "{}"}
        assert server.call("DeleteResourcePolicy", ResourceARN=arn) is None
        assert server.call("GetResourcePolicy", ResourceARN=arn) == {"Policy": "{}"}
        assert server.refused("DeleteResourcePolicy", ResourceARN=arn) == "ResourceNotFoundException"
        assert (
            server.why("DeleteResourcePolicy", ResourceARN=arn) == f"No resource policy found for resource ARN {arn}."
        )


@pytest.mark.parametrize("rest", ["stream/no", "stream/s/consumer/no:1", "channel/no"])
def test_what_is_not_there_has_no_policy(server, rest):
    server.create()
    arn = f"arn:aws:kinesis:us-east-1:000000000000:{rest}"
    for operation, members in (("Get", {}), ("Delete", {}), ("Put", {"Policy": POLICY})):
        assert server.refused(f"{operation}ResourcePolicy", ResourceARN=arn, **members) == "ResourceNotFoundException"


def test_a_channel_has_none(server):
    server.create_on_demand()
    arn = server.create_channel()["ChannelARN"]
    for operation, members in (("Get", {}), ("Delete", {}), ("Put", {"Policy": POLICY})):
        assert server.refused(f"{operation}ResourcePolicy", ResourceARN=arn, **members) == "InvalidArgumentException"


def test_a_policy_goes_with_its_stream(server):
    server.create()
    server.call("PutResourcePolicy", ResourceARN=server.arn(), Policy=POLICY)
    server.call("DeleteStream", StreamName="s")
    server.create()
    assert server.call("GetResourcePolicy", ResourceARN=server.arn()) == {"Policy": "{}"}


def test_what_is_not_active_gets_none(make_server):
    server = make_server(delays=Delays(create=5, register=5)).create()
    members = {"ResourceARN": server.arn(), "Policy": POLICY}
    assert server.refused("PutResourcePolicy", **members) == "ResourceInUseException"
    server.pass_time(5)
    server.call("PutResourcePolicy", **members)
    members["ResourceARN"] = server.register()
    assert server.refused("PutResourcePolicy", **members) == "ResourceInUseException"
    assert server.why("PutResourcePolicy", **members) == (
        f"Consumer c with creation timestamp {int(server.now)} under stream s and account 000000000000 is not in "
        "ACTIVE status."
    )
    server.pass_time(5)
    server.call("PutResourcePolicy", **members)


STATEMENT = {"Effect": "Allow", "Principal": {"AWS": "123456789012"}, "Action": ["kinesis:GetRecords"]}


@pytest.mark.parametrize(
    "policy",
    [
        "",
        "no JSON",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps({"Statement": []}),
        json.dumps({"Statement": [5]}),
        json.dumps({"Statement": STATEMENT | {"Effect": "Perhaps"}}),
        json.dumps({"Statement": [STATEMENT, {"Effect": "Allow", "Action": "kinesis:*"}]}),
        json.dumps({"Statement": [STATEMENT, {"Effect": "Allow", "Principal": "*"}]}),
        json.dumps({"Statement": STATEMENT | {"Action": []}}),
    ],
)
def test_a_policy_must_say_who_may_do_what(server, policy):
    server.create()
    members = {"ResourceARN": server.arn(), "Policy": policy}
    assert server.refused("PutResourcePolicy", **members) == "InvalidArgumentException"
    assert server.call("GetResourcePolicy", ResourceARN=server.arn()) == {"Policy": "{}"}


@pytest.mark.parametrize(
    "statement",
    [STATEMENT, [STATEMENT, STATEMENT], {"Effect": "Deny", "Principal": "*", "NotAction": "kinesis:GetRecords"}],
)
def test_a_policy_comes_back_unchanged(server, statement):
    server.create()
    policy = json.dumps({"Version": "2012-10-17", "Statement": statement}, indent=1)
    server.call("PutResourcePolicy", ResourceARN=server.arn(), Policy=policy)
    assert server.call("GetResourcePolicy", ResourceARN=server.arn()) == {"Policy": policy}
