"""What do the checks report about the connection to Kinesis?"""

import json
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from shardline.adapters.aws.aws_service import AwsSettings
from shardline.adapters.aws.botocore_session import BotocoreSession
from shardline.cli.doctor.connectivity_checks import check_clock, check_endpoint, check_settings
from shardline.cli.doctor.diagnoses import Verdict, advice_for, of_failure
from shardline.cli.invocation import Invocation
from shardline.core.error_codes import Failure, FailureKind
from shardline.model.stream import parse_stream

STREAM = parse_stream("orders")


@pytest.fixture
def profiles(tmp_path, monkeypatch):
    """Profiles whose credentials come from a program, and expire after this many seconds."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_KINESIS", raising=False)
    written = []

    def make(name, seconds):
        keys = {"Version": 1, "AccessKeyId": "ASIAEXAMPLE1234", "SecretAccessKey": "s3cret", "SessionToken": "t0ken"}
        keys["Expiration"] = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
        script = tmp_path / f"{name}.py"
        script.write_text(f"print({json.dumps(json.dumps(keys))})")
        written.append(f"[profile {name}]\nregion = eu-west-1\ncredential_process = {sys.executable} {script}\n")
        (tmp_path / "config").write_text("".join(written))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        return Invocation(profile=name)

    return make


def test_credentials_are_described_without_their_secrets(profiles):
    way = check_settings(profiles("work", 7_230), STREAM)
    found = {finding.check: finding for finding in way.findings}
    assert found["credentials"].verdict is Verdict.OK
    assert found["credentials"].seen == "temporary keys ..1234 from a credential_process, expire in 2 h 0 min"
    assert found["region"].seen == "eu-west-1 (from the profile)"
    assert (way.region, way.endpoint_url) == ("eu-west-1", "https://kinesis.eu-west-1.amazonaws.com/")
    assert not any(secret in str(way) for secret in ("s3cret", "t0ken"))


def test_credentials_that_end_soon(profiles):
    """botocore renews them 15 minutes before they expire, but the program returns the same ones again."""
    way = check_settings(profiles("late", 700), STREAM)
    found = {finding.check: finding for finding in way.findings}
    assert found["credentials"].verdict is Verdict.WARNING
    assert "expire in 0 h 11 min" in found["credentials"].seen


def test_the_time_left_is_found_to_the_second(profiles):
    facts = BotocoreSession(AwsSettings(profile=profiles("some", 5_000).profile)).credential_facts()
    assert 4_980 <= facts.seconds_left <= 5_000
    assert facts.is_temporary


@pytest.mark.parametrize(
    ("off_by", "refused", "verdict"),
    [
        (0.0, False, Verdict.OK),
        (2.0, False, Verdict.OK),
        (-60.0, False, Verdict.WARNING),
        (400.0, False, Verdict.FAILED),
        (60.0, True, Verdict.FAILED),
    ],
)
def test_a_clock_is_judged_by_how_far_it_is_off(off_by, refused, verdict):
    found = check_clock(time.time() - off_by, answered=True, refused=refused)
    assert found.verdict is verdict
    if off_by < 0:
        assert "60 s behind Kinesis's" in found.seen
    assert check_clock(time.time(), answered=False, refused=False).verdict is Verdict.NOT_CHECKED


@pytest.mark.parametrize(
    ("url", "second", "verdict"),
    [
        ("https://kinesis.eu-west-1.amazonaws.com/", 0.01, Verdict.OK),
        ("https://kinesis.eu-west-1.amazonaws.com/", 2.0, Verdict.WARNING),
        ("http://127.0.0.1:4567/", 2.0, Verdict.OK),
        ("http://kinesis.example.com/", 0.01, Verdict.WARNING),
    ],
)
def test_an_endpoint_is_judged_by_its_answers(url, second, verdict):
    assert check_endpoint(url, {}, 0.1, second).verdict is verdict


@pytest.mark.parametrize("kind", FailureKind)
def test_there_is_advice_for_every_failure(kind):
    failure = Failure(kind, "Some", "words", 400)
    assert advice_for(failure, "GetRecords", "orders")
    found = of_failure("check", failure, "GetRecords", "orders")
    assert (found.verdict is Verdict.NOT_CHECKED) == (kind in {FailureKind.THROTTLED, FailureKind.LIMIT_EXCEEDED})
