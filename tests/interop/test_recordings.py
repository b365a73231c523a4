"""Does the server answer as AWS did when others recorded it?

``localstack_recordings.py`` has the calls and AWS's answers. Every answer is a separate test, which also makes the
earlier calls. The comparison is field by field: an extra member fails, and so does a missing one.
"""

import http.client
import json
import re
from contextlib import closing
from datetime import UTC, datetime
from urllib.parse import urlsplit

import boto3
import cbor2
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from tests.interop import localstack_recordings as table

from shardline.testing import LocalKinesis

Call, Read, Wait, Answer, Refusal = (getattr(table, name) for name in ("Call", "Read", "Wait", "Answer", "Refusal"))
EXPECTED = [
    pytest.param(scenario, at, id=step.name)
    for scenario in table.SCENARIOS
    for at, step in enumerate(scenario.steps)
    if isinstance(step, Answer | Refusal)
]
ACCOUNT = "111111111111"
PLACEHOLDER = re.compile(r"<(\w+)(?::(\d+))?>")
SHAPES = {
    "sequence_number": r"49\d{54}",
    "continuation": r"49\d{54}",
    "shard_id": r"shardId-\d{12}",
    "hash_key": r"\d{1,39}",
    "shard_iterator": r"[A-Za-z0-9+/=]{1,512}",
    "consumer_arn": rf"arn:aws:kinesis:us-east-1:{ACCOUNT}:stream/recorded/consumer/consumer:\d{{10}}",
}


class Aws:
    """The server, as LocalStack's tests see AWS: by boto3, or by CBOR over plain HTTP."""

    def __init__(self, kinesis):
        self.kinesis = kinesis
        self.client = boto3.client("kinesis", **kinesis.boto3_arguments, config=Config(parameter_validation=False))
        self.kept = {}
        self.subscription = None

    def carry_out(self, step):
        match step:
            case Wait():
                self.kinesis.clock.advance(step.seconds)
                return None
            case Read():
                return self.read(step.records)
        parameters = self.filled(step.parameters)
        status, answer = (self.by_cbor if step.cbor else self.by_boto3)(step.operation, parameters)
        if status == 200:
            self.kept |= {name: part(answer, path) for name, path in step.keep.items()}
        return status, answer

    def by_boto3(self, operation, parameters):
        if isinstance(parameters.get("Policy"), dict):
            parameters["Policy"] = json.dumps(parameters["Policy"])
        method = re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()
        try:
            answer = getattr(self.client, method)(**parameters)
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            return status, (error.response["Error"]["Code"], error.response["Error"]["Message"])
        if operation == "SubscribeToShard":
            self.subscription = answer["EventStream"]
        if "Policy" in answer:
            answer["Policy"] = json.loads(answer["Policy"])
        answer["ResponseMetadata"] = {"HTTPStatusCode": answer["ResponseMetadata"]["HTTPStatusCode"]}
        return 200, answer

    def by_cbor(self, operation, parameters):
        with closing(http.client.HTTPConnection(urlsplit(self.kinesis.endpoint_url).netloc, timeout=30)) as connection:
            headers = {"Content-Type": "application/x-amz-cbor-1.1", "X-Amz-Target": f"Kinesis_20131202.{operation}"}
            connection.request("POST", "/", cbor2.dumps(parameters, encoders={datetime: milliseconds}), headers)
            response = connection.getresponse()
            assert response.headers["Content-Type"] == "application/x-amz-cbor-1.1"
            answer = cbor2.loads(response.read(), semantic_decoders={1: from_milliseconds})
        if response.status == 200:
            return 200, answer
        assert answer.keys() == {"__type", "message"}
        return response.status, (answer["__type"], answer["message"])

    def read(self, count):
        events = []
        with closing(self.subscription):
            for entry in self.subscription:
                if entry["SubscribeToShardEvent"]["Records"]:
                    events.append(entry["SubscribeToShardEvent"])
                if sum(len(event["Records"]) for event in events) >= count:
                    break
        return 200, events

    def filled(self, value):
        if isinstance(value, dict):
            return {name: self.filled(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.filled(inner) for inner in value]
        if value == "<now>":
            return datetime.fromtimestamp(int(self.kinesis.clock.now()), UTC)
        if isinstance(value, str) and (found := PLACEHOLDER.search(value)):
            return value.replace(found[0], str(self.kept[found[1]]))
        return value


def milliseconds(encoder, moment):
    """AWS's times in CBOR are whole milliseconds, against the standard: https://github.com/aws/aws-sdk-java-v2/issues/4661"""
    encoder.encode(cbor2.CBORTag(1, int(moment.timestamp() * 1000)))


def from_milliseconds(number, _immutable):
    assert type(number) is int
    return datetime.fromtimestamp(number / 1000, UTC)


def part(answer, path):
    for name in path.split(".") if path else ():
        if name == "*":
            return [inner for event in answer for inner in part(event, path.removeprefix("*."))]
        answer = answer[int(name)] if name.isdigit() else answer[name]
    return answer


def fit(path, recorded, ours, bound, kept):
    """Check the answer against the recorded one. The values of its placeholders are noted in ``bound``."""
    if isinstance(recorded, dict):
        assert isinstance(ours, dict), (path, ours)
        assert ours.keys() == recorded.keys(), path
        for name in recorded:
            fit(f"{path}.{name}", recorded[name], ours[name], bound, kept)
    elif isinstance(recorded, list):
        assert isinstance(ours, list), (path, ours)
        assert len(ours) == len(recorded), path
        for at, inner in enumerate(recorded):
            fit(f"{path}[{at}]", inner, ours[at], bound, kept)
    elif isinstance(recorded, str) and (found := PLACEHOLDER.fullmatch(recorded)):
        kind, number = found.groups()
        if kind in kept:
            assert ours == kept[kind], path
        elif kind.endswith("timestamp"):
            assert isinstance(ours, datetime), (path, ours)
            assert kind != "whole_timestamp" or ours.microsecond == 0, (path, ours)
        else:
            assert re.fullmatch(SHAPES[kind], ours), (path, ours)
            if number is not None:
                assert bound.setdefault((kind, number), ours) == ours, path
                assert [*bound.values()].count(ours) == 1, (path, ours)
    else:
        assert ours == recorded, path


@pytest.mark.parametrize(("scenario", "at"), EXPECTED)
def test_the_server_answers_as_aws_answered(scenario, at):
    with LocalKinesis(account_id=ACCOUNT) as kinesis:
        aws, bound, answered = Aws(kinesis), {}, None
        for step in scenario.steps[: at + 1]:
            match step:
                case Answer():
                    status, answer = answered
                    assert status == 200, answer
                    fit(step.name, step.recorded, part(answer, step.path), bound, aws.kept)
                case Refusal():
                    status, (code, message) = answered
                    assert status == step.status
                    assert code == (step.code or code) != "UnknownOperationException"
                    assert message == (step.message or message)
                case _:
                    answered = aws.carry_out(step)


def test_every_answer_has_a_name_of_its_own():
    names = [param.id for param in EXPECTED]
    assert len(set(names)) == len(names) >= 31
