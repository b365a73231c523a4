"""Does boto3 work with the operations of the server that our own client does not have?

boto3 checks each request against its model, and drops from an answer whatever the model does not know.
``tests/unit/server/model/test_service_model.py`` compares the answers with that model.
"""

import contextlib
import json
from datetime import timedelta

import boto3
import pytest
from botocore.config import Config

from shardline.testing import LocalKinesis

pytestmark = pytest.mark.interop

ONCE = Config(retries={"total_max_attempts": 1}, parameter_validation=False)
ARN = "arn:aws:kinesis:us-east-1:000000000000"
POLICY = json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "kinesis:*"}]})
BUCKET = {"BucketARN": "arn:aws:s3:::records", "ExpectedBucketOwner": "000000000000"}
STORAGE = BUCKET | {"CompressionType": "GZIP"}
CHANNEL = {
    "ServiceExecutionRoleARN": "arn:aws:iam::000000000000:role/delivery",
    "StreamConfigurationList": [
        {"StreamARN": f"{ARN}:stream/d", "RecordConfiguration": {"RecordFormatType": "STRING"}}
    ],
    "S3DestinationConfiguration": {"StorageConfiguration": STORAGE},
}


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=1, stream="s", limits=False) as server:
        yield server


@pytest.fixture
def client(kinesis):
    made = boto3.client("kinesis", **kinesis.boto3_arguments, config=ONCE)
    made.create_stream(StreamName="d", StreamModeDetails={"StreamMode": "ON_DEMAND"})
    yield made
    made.close()


def summary_of(client, name):
    return client.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]


def test_every_operation_of_boto3_is_known(kinesis, client):
    """Each is sent with no members except ARNs, which botocore needs to find the host. Few succeed, but all are known."""
    model = client.meta.service_model
    arns = {"ResourceARN": f"{ARN}:stream/no", "ConsumerARN": f"{ARN}:stream/no/consumer/no:1"}
    arns |= {"ChannelARN": f"{ARN}:channel/no", "StreamARN": f"{ARN}:stream/no"}
    for name, operation in client.meta.method_to_api_mapping.items():
        required = model.operation_model(operation).input_shape.required_members
        with contextlib.suppress(client.exceptions.ClientError):
            getattr(client, name)(**{member: arns[member] for member in required if member in arns})
    assert {one.operation for one in kinesis.requests} == set(model.operation_names)
    assert "UnknownOperationException" not in {one.error for one in kinesis.requests}


def test_resource_policies(client):
    consumer = client.register_stream_consumer(StreamARN=f"{ARN}:stream/s", ConsumerName="c")["Consumer"]["ConsumerARN"]
    for arn in (f"{ARN}:stream/s", consumer):
        assert client.get_resource_policy(ResourceARN=arn)["Policy"] == "{}"
        client.put_resource_policy(ResourceARN=arn, Policy=POLICY)
        assert client.get_resource_policy(ResourceARN=arn)["Policy"] == POLICY
        client.delete_resource_policy(ResourceARN=arn)
        with pytest.raises(client.exceptions.ResourceNotFoundException, match="No resource policy found"):
            client.delete_resource_policy(ResourceARN=arn)
    with pytest.raises(client.exceptions.InvalidArgumentException):
        client.put_resource_policy(ResourceARN=f"{ARN}:stream/s", Policy="{}")


def test_account_settings_and_warm_throughput(kinesis, client):
    with pytest.raises(client.exceptions.ValidationException):
        client.update_stream_warm_throughput(StreamName="d", WarmThroughputMiBps=8)
    enabled = client.update_account_settings(MinimumThroughputBillingCommitment={"Status": "ENABLED"})
    commitment = enabled["MinimumThroughputBillingCommitment"]
    assert commitment["EarliestAllowedEndAt"] - commitment["StartedAt"] == timedelta(days=1)
    assert client.describe_account_settings()["MinimumThroughputBillingCommitment"] == commitment
    warm = client.update_stream_warm_throughput(StreamName="d", WarmThroughputMiBps=8)
    assert (warm["StreamName"], warm["WarmThroughput"]) == ("d", {"CurrentMiBps": 4, "TargetMiBps": 8})
    assert summary_of(client, "d")["WarmThroughput"] == {"CurrentMiBps": 8, "TargetMiBps": 8}
    client.update_account_settings(MinimumThroughputBillingCommitment={"Status": "DISABLED"})
    kinesis.clock.advance(86_400)
    assert client.describe_account_settings()["MinimumThroughputBillingCommitment"]["Status"] == "DISABLED"
    assert "WarmThroughput" not in summary_of(client, "d")


def test_channels(client):
    made = client.create_channel(ChannelName="c", Tags={"a": "b"}, **CHANNEL)["ChannelDescription"]
    arn = made["ChannelARN"]
    described = client.describe_channel(ChannelARN=arn)["ChannelDescription"]
    assert (made["ChannelStatus"], described["ChannelStatus"]) == ("CREATING", "ACTIVE")
    assert described["S3DestinationConfiguration"]["DataFreshnessInSeconds"] == 300
    assert client.list_tags_for_resource(ResourceARN=arn)["Tags"] == [{"Key": "a", "Value": "b"}]
    update = {"ChannelARN": arn, "S3DestinationConfiguration": {"DataFreshnessInSeconds": 900}}
    assert client.update_channel(**update)["ChannelDescription"]["ChannelStatus"] == "UPDATING"
    (listed,) = client.list_channels(StreamFilter=[{"StreamARN": f"{ARN}:stream/d"}])["ChannelSummaries"]
    assert (listed["ChannelARN"], listed["ChannelDestinationType"]) == (arn, "S3")
    assert summary_of(client, "d")["ChannelCount"] == client.describe_limits()["ChannelCount"] == 1
    with pytest.raises(client.exceptions.ResourceInUseException):
        client.delete_stream(StreamName="d")
    client.delete_channel(ChannelARN=arn)
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.describe_channel(ChannelARN=arn)
    client.delete_stream(StreamName="d")
