"""Does the table cover every operation and every error, and could it be played on AWS unchanged?"""

import re
from pathlib import Path

import botocore.session
import pytest
from tests.conformance.player import stream_name
from tests.conformance.scenario import Call, Flood, Program, Read, Scenario, Subscribe
from tests.conformance.table import SCENARIOS
from tests.conformance.wire import SIGNING

SERVER = Path(__file__).parents[2] / "src" / "shardline" / "server"
MODEL = botocore.session.get_session().get_service_model("kinesis")
# Errors of the server that no scenario can cause, with the reason.
NO_SCENARIO = {
    "AccessDeniedException": "for a Host or an Origin that AWS would never get",
    "MalformedHttpRequestException": "for bytes that are no HTTP",
    "InternalFailure": "a fault of the server",
    "RequestEntityTooLargeException": "AWS closes the connection, or answers: which is not known",
    "ExpiredTokenException": "needs a token that has expired: the tests of the run have it",
    "KMSDisabledException": "needs a key that is disabled: only ordered as a fault",
}


def steps():
    return [(scenario, step) for scenario in SCENARIOS.values() for step in scenario.steps]


def operations(step):
    if isinstance(step, Subscribe):
        return ["SubscribeToShard"]
    return ["GetRecords", "GetShardIterator"] if isinstance(step, Read) else [getattr(step, "operation", "")]


def is_granted(step):
    return not isinstance(step, Program) and isinstance(step.expect, dict) and "error" not in step.expect


def expected_errors():
    found = set()
    for _, step in steps():
        expect = step.expect if isinstance(step.expect, dict) else {}
        error = expect.get("error")
        members = getattr(error, "members", error)
        members = members if isinstance(members, dict) else {}
        found |= {members.get("__type"), (expect.get("entry") or {}).get("ErrorCode")}
    return found - {None}


def errors_of_the_server():
    """Return every error type that the server's code names."""
    text = "\n".join(path.read_text() for path in SERVER.rglob("*.py") if not path.name.startswith("fault"))
    return set(re.findall(r"\"([A-Z]\w+Exception|InternalFailure)\"", text))


@pytest.mark.parametrize("operation", MODEL.operation_names)
def test_every_operation_is_seen_to_work_and_to_refuse(operation):
    granted = [scenario.name for scenario, step in steps() if operation in operations(step) and is_granted(step)]
    refused = [scenario.name for scenario, step in steps() if operation in operations(step) and not is_granted(step)]
    assert granted
    assert refused or not MODEL.operation_model(operation).input_shape.members


def test_every_error_that_the_server_knows_is_called_for():
    missing = errors_of_the_server() - expected_errors() - set(NO_SCENARIO)
    assert missing == set()
    assert len(errors_of_the_server()) > 15


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_a_scenario_can_be_played_on_aws(scenario):
    assert isinstance(scenario, Scenario)
    assert re.fullmatch(r"[a-z0-9-]{3,40}", scenario.name)
    assert scenario.title
    assert scenario.steps
    for key in (*scenario.streams, *scenario.makes):
        assert len(stream_name("12345678", f"{scenario.name}-99", key)) < 128
    for step in scenario.steps:
        if isinstance(step, (Call, Flood)) and step.operation == "CreateStream" and is_granted(step):
            assert step.members["StreamName"] in {f"${key}" for key in scenario.makes}, (
                "only what is deleted may be made"
            )
        if isinstance(step, Call):
            assert step.signing in SIGNING or step.signing.startswith("at "), step


CHANGES = {
    *("AddTagsToStream", "DeleteStream", "MergeShards", "PutResourcePolicy", "RegisterStreamConsumer", "SplitShard"),
    *("StartStreamEncryption", "TagResource", "UpdateMaxRecordSize", "UpdateShardCount", "UpdateStreamMode"),
    *("EnableEnhancedMonitoring", "IncreaseStreamRetentionPeriod"),
}


def test_a_stream_that_scenarios_share_is_not_changed():
    for scenario, step in steps():
        if any(stream.shared for stream in scenario.streams.values()):
            assert not (CHANGES & set(operations(step)) and is_granted(step)), scenario.name
            assert not isinstance(step, Flood), scenario.name
            if isinstance(step, Call) and step.operation == "GetRecords" and is_granted(step):
                assert "Records" in step.expect["body"].ignored, "a recording would have the records of other scenarios"
            assert not isinstance(step, Read), scenario.name


def test_what_changes_the_account_is_marked():
    account_wide = {"UpdateAccountSettings"}
    for scenario, step in steps():
        if account_wide & set(operations(step)) and is_granted(step):
            assert scenario.account_wide, scenario.name


def test_pages_of_time_are_marked_as_slow():
    for scenario in SCENARIOS.values():
        assert bool(scenario.slow) == (scenario.seconds > 180), scenario.name
