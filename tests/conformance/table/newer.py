"""Scenarios of the newest operations: resource policies, warm throughput, account settings, channels."""

import json

from tests.conformance.expectation import ANY_TEXT, TIME, TOKEN, Some, one_of
from tests.conformance.scenario import Call, Pause, Scenario, Stream, Wait, invalid, not_found, ok, refused
from tests.conformance.table.streams import LIMITS

POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"AWS": "$account"},
                "Action": ["kinesis:DescribeStreamSummary", "kinesis:ListShards"],
                "Resource": "$a_arn",
            }
        ],
    }
)
NO_CHANNEL = "arn:$partition:kinesis:$region:$account:channel/$nothing"
ROLE = "arn:aws:iam::$account:role/conformance"
CHANNEL = {
    "ChannelName": "conformance",
    "ServiceExecutionRoleARN": ROLE,
    "StreamConfigurationList": [{"StreamARN": "$a_arn", "RecordConfiguration": {"RecordFormatType": "JSON"}}],
    "S3DestinationConfiguration": {
        "StorageConfiguration": {
            "BucketARN": "arn:aws:s3:::conformance", "ExpectedBucketOwner": "$account", "CompressionType": "GZIP",
        }
    },
}  # fmt: skip


def commitment(status):
    return {"MinimumThroughputBillingCommitment": {"Status": status}}


SCENARIOS = (
    Scenario(
        "resource-policy",
        "A stream's policy is put, returned and deleted",
        streams={"a": Stream(1)},
        steps=(
            Call("GetResourcePolicy", {"ResourceARN": "$a_arn"}, ok({"Policy": "{}"})),
            Call("DeleteResourcePolicy", {"ResourceARN": "$a_arn"}, refused("ResourceNotFoundException")),
            Call("PutResourcePolicy", {"ResourceARN": "$a_arn", "Policy": "nonsense"}, invalid()),
            Call("PutResourcePolicy", {"ResourceARN": "$a_arn", "Policy": POLICY}, ok()),
            Call("GetResourcePolicy", {"ResourceARN": "$a_arn"}, ok({"Policy": ANY_TEXT})),
            Call("DeleteResourcePolicy", {"ResourceARN": "$a_arn"}, ok()),
            Call("GetResourcePolicy", {"ResourceARN": "$a_arn"}, ok({"Policy": "{}"})),
            Call("GetResourcePolicy", {"ResourceARN": "$nothing_arn"}, not_found()),
            Call("PutResourcePolicy", {"ResourceARN": "$nothing_arn", "Policy": POLICY}, not_found()),
        ),
    ),
    Scenario(
        "warm-throughput-refused",
        "A provisioned stream has no warm throughput",
        streams={"a": Stream(1, shared=True)},
        steps=(
            Call(
                "UpdateStreamWarmThroughput",
                {"StreamName": "$a", "WarmThroughputMiBps": 4},
                refused("ValidationException"),
            ),
            Call("UpdateStreamWarmThroughput", {"StreamName": "$a"}, refused("ValidationException")),
            Call("UpdateStreamWarmThroughput", {"StreamName": "$nothing", "WarmThroughputMiBps": 4}, not_found()),
        ),
    ),
    Scenario(
        "account-settings-refused",
        "Unknown account settings are refused, and nothing is changed",
        seconds=5,
        steps=(
            Call("UpdateAccountSettings", commitment("ODD"), refused("ValidationException")),
            Call("UpdateAccountSettings", {}, refused("ValidationException")),
        ),
    ),
    Scenario(
        "account-settings",
        "After an account commits to a minimum throughput, its on-demand streams can have a warm throughput",
        streams={"a": Stream(4, on_demand=True)},
        account_wide=True,
        seconds=90,
        steps=(
            Call(
                "UpdateAccountSettings",
                commitment("ENABLED"),
                ok(
                    {
                        "MinimumThroughputBillingCommitment": {
                            "Status": "ENABLED",
                            "StartedAt": TIME,
                            "EarliestAllowedEndAt": TIME,
                        }
                    }
                ),
            ),
            Call(
                "UpdateStreamWarmThroughput",
                {"StreamName": "$a", "WarmThroughputMiBps": 8},
                ok(Some({"StreamName": "$a", "StreamARN": "$a_arn"})),
            ),
            Wait("a"),
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a"},
                ok({"StreamDescriptionSummary": Some({"WarmThroughput": Some({"TargetMiBps": 8})})}),
            ),
            Call(
                "UpdateAccountSettings",
                commitment("DISABLED"),
                ok(
                    {
                        "MinimumThroughputBillingCommitment": Some(
                            {"Status": one_of("DISABLED", "ENABLED_UNTIL_EARLIEST_ALLOWED_END")}
                        )
                    }
                ),
            ),
        ),
    ),
    Scenario(
        "channel-missing",
        "Requests for a channel that does not exist, and requests that violate a constraint, are refused",
        streams={"a": Stream(1, shared=True)},
        steps=(
            Call("ListChannels", {"StreamFilter": [{"StreamARN": "$a_arn"}]}, ok({"ChannelSummaries": []})),
            Call("ListChannels", {"MaxResults": 0}, refused("ValidationException")),
            Call("DescribeChannel", {"ChannelARN": NO_CHANNEL}, refused("ResourceNotFoundException")),
            Call("DeleteChannel", {"ChannelARN": NO_CHANNEL}, refused("ResourceNotFoundException")),
            Call(
                "UpdateChannel",
                {"ChannelARN": NO_CHANNEL, "S3DestinationConfiguration": {"DataFreshnessInSeconds": 300}},
                refused("ResourceNotFoundException"),
            ),
            Call("DescribeChannel", {"ChannelARN": "no ARN"}, refused("ValidationException")),
            Call("CreateChannel", {**CHANNEL, "ChannelName": "a name"}, refused("ValidationException")),
            Call("DescribeLimits", {}, ok(LIMITS)),
        ),
    ),
    Scenario(
        "channel-life",
        "A channel is created, described, listed, changed and deleted",
        streams={"a": Stream(4, on_demand=True)},
        not_on_aws="it would need a role and a bucket in your account",
        steps=(
            Call(
                "CreateChannel",
                CHANNEL,
                ok(
                    {
                        "ChannelDescription": Some(
                            {
                                "ChannelName": "conformance",
                                "ChannelStatus": "CREATING",
                                "ChannelId": TOKEN,
                                "ChannelCreationTimestamp": TIME,
                            }
                        )
                    }
                ),
                keep={"channel": "ChannelDescription.ChannelARN"},
            ),
            Call("CreateChannel", CHANNEL, refused("ResourceInUseException")),
            Call(
                "DescribeChannel",
                {"ChannelARN": "$channel"},
                ok({"ChannelDescription": Some({"ChannelARN": "$channel"})}),
            ),
            Call(
                "ListChannels",
                {"StreamFilter": [{"StreamARN": "$a_arn"}]},
                ok({"ChannelSummaries": [Some({"ChannelName": "conformance", "ChannelDestinationType": "S3"})]}),
            ),
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$a"},
                ok({"StreamDescriptionSummary": Some({"ChannelCount": 1})}),
            ),
            Call("DeleteStream", {"StreamName": "$a"}, refused("ResourceInUseException")),
            Call("UpdateChannel", {"ChannelARN": "$channel"}, invalid()),
            Pause(20),
            Call(
                "UpdateChannel",
                {"ChannelARN": "$channel", "S3DestinationConfiguration": {"DataFreshnessInSeconds": 600}},
                ok({"ChannelDescription": Some({"ChannelStatus": "UPDATING"})}),
            ),
            Call("DeleteChannel", {"ChannelARN": "$channel"}, ok()),
        ),
    ),
)
