"""Tests of ``server.model.channels``."""

import pytest
from tests.unit.server.conftest import BUCKET, JSON, ROLE, SCHEMA, TABLE, TO_S3, TO_TABLES

from shardline.server.model.settings import Delays, Limits

ARN = "arn:aws:kinesis:us-east-1:000000000000:channel/c"
WITH_SCHEMA = JSON | {"GSRSchemaARN": SCHEMA}


def described(server, **changes):
    """Return the description of a channel that was created with only the required members."""
    return {
        "ChannelName": "c",
        "ChannelARN": ARN,
        "ChannelId": server.channel()["ChannelId"],
        "ChannelStatus": "ACTIVE",
        "ChannelCreationTimestamp": server.now,
        "ServiceExecutionRoleARN": ROLE,
        "StreamConfigurationList": [
            {"StreamARN": server.arn(), "StreamCreationTimestamp": server.now, "RecordConfiguration": JSON}
        ],
        "LoggingConfiguration": {"CloudWatchLogs": {"Enabled": False}},
        "S3DestinationConfiguration": {
            "StorageConfiguration": BUCKET | {"CompressionType": "GZIP", "StorageClass": "STANDARD"},
            "DeadLetterQueueS3Configuration": BUCKET | {"ErrorOutputPrefix": "error/"},
            "DataFreshnessInSeconds": 300,
        },
    } | changes


# ---- states over time


def test_a_channel_is_created_updated_and_deleted_over_time(make_server):
    server = make_server(delays=Delays(create=5, update=3, delete=2)).create_on_demand()
    server.pass_time(5)
    assert server.create_channel()["ChannelStatus"] == "CREATING"
    update = {"ChannelARN": ARN, "S3DestinationConfiguration": {"DataFreshnessInSeconds": 900}}
    assert server.refused("UpdateChannel", **update) == "ResourceInUseException"
    server.pass_time(4.999)
    assert server.channel()["ChannelStatus"] == "CREATING"
    server.pass_time(0.001)
    assert server.channel()["ChannelStatus"] == "ACTIVE"
    updated = server.call("UpdateChannel", **update)["ChannelDescription"]
    assert (updated["ChannelStatus"], updated["S3DestinationConfiguration"]["DataFreshnessInSeconds"]) == (
        "UPDATING",
        900,
    )
    assert server.pass_time(3).channel()["ChannelStatus"] == "ACTIVE"
    assert server.call("DeleteChannel", ChannelARN=ARN) is None
    assert server.channel()["ChannelStatus"] == "DELETING"
    server.pass_time(1).call("DeleteChannel", ChannelARN=ARN)  # a repeated request does not restart the delay
    server.pass_time(1)
    for operation in ("DescribeChannel", "DeleteChannel"):
        assert server.refused(operation, ChannelARN=ARN) == "ResourceNotFoundException"
    assert server.refused("UpdateChannel", **update) == "ResourceNotFoundException"


def test_without_delays_a_change_is_there_at_once_though_the_answer_tells_of_its_beginning(server):
    server.create_on_demand()
    assert server.create_channel()["ChannelStatus"] == "CREATING"
    assert server.channel() == described(server)
    server.call("DeleteChannel", ChannelARN=ARN)
    assert server.call("ListChannels") == {"ChannelSummaries": []}


# ---- storing and describing


def test_whatever_is_asked_for_is_described(server):
    server.create_on_demand()
    storage = BUCKET | {"CompressionType": "ZSTD", "StorageClass": "GLACIER_IR", "OutputKeyTemplate": "a/{b}"}
    queue = BUCKET | {"ErrorOutputPrefix": "wrong/"}
    destination = {
        "StorageConfiguration": storage,
        "DeadLetterQueueS3Configuration": queue,
        "DataFreshnessInSeconds": 600,
    }
    encryption = {"EncryptionType": "KMS", "KeyId": "alias/ours"}
    logs = {"CloudWatchLogs": {"Enabled": True, "LogGroupName": "/g", "LogStreamName": "s"}}
    server.create_channel(
        destination={"S3DestinationConfiguration": destination},
        record={"RecordFormatType": "BYTE_ARRAY"},
        EncryptionConfiguration=encryption,
        LoggingConfiguration=logs,
        Tags={"a": "b"},
    )
    streams = described(server)["StreamConfigurationList"]
    assert server.channel() == described(
        server,
        S3DestinationConfiguration=destination,
        EncryptionConfiguration=encryption,
        LoggingConfiguration=logs,
        StreamConfigurationList=[streams[0] | {"RecordConfiguration": {"RecordFormatType": "BYTE_ARRAY"}}],
    )
    assert server.call("ListTagsForResource", ResourceARN=ARN) == {"Tags": [{"Key": "a", "Value": "b"}]}


def test_a_channel_to_tables(server):
    server.create_on_demand()
    spec = {"PartitionFields": [{"Transform": "TIME_HOUR", "SourceName": "at"}]}
    destination = TO_TABLES["S3TablesDestinationConfiguration"] | {
        "S3TablesConfigurationList": [TABLE | {"PartitionSpec": spec}]
    }
    server.create_channel(destination={"S3TablesDestinationConfiguration": destination}, record=WITH_SCHEMA)
    channel = server.channel()
    assert "S3DestinationConfiguration" not in channel
    assert channel["S3TablesDestinationConfiguration"] == destination | {"DataFreshnessInSeconds": 300}
    assert channel["StreamConfigurationList"][0]["RecordConfiguration"] == WITH_SCHEMA


def test_logs_have_default_names_when_they_are_enabled(server):
    server.create_on_demand()
    server.create_channel(LoggingConfiguration={"CloudWatchLogs": {"Enabled": True}})
    group = f"/aws/kinesis/c/{server.channel()['ChannelId']}"
    names = {"LogGroupName": group, "LogStreamName": "DestinationDelivery"}
    assert server.channel()["LoggingConfiguration"] == {"CloudWatchLogs": {"Enabled": True} | names}
    off = {"CloudWatchLogs": {"Enabled": False}}
    server.call("UpdateChannel", ChannelARN=ARN, LoggingConfiguration=off)
    assert server.channel()["LoggingConfiguration"] == off


def test_an_update_changes_the_freshness_and_the_logs_and_nothing_else(server):
    server.create_on_demand().create_channel(destination=TO_TABLES, record=WITH_SCHEMA)
    before = server.channel()
    logs = {"CloudWatchLogs": {"Enabled": True, "LogGroupName": "g", "LogStreamName": "s"}}
    update = {"S3TablesDestinationConfiguration": {"DataFreshnessInSeconds": 301}, "LoggingConfiguration": logs}
    server.call("UpdateChannel", ChannelARN=ARN, **update)
    tables = before["S3TablesDestinationConfiguration"] | {"DataFreshnessInSeconds": 301}
    assert server.channel() == before | {"S3TablesDestinationConfiguration": tables, "LoggingConfiguration": logs}


def test_channels_are_counted(server):
    server.create_on_demand("s").create_on_demand("t")
    server.create_channel("a")
    server.create_channel("b", destination=TO_TABLES, record=WITH_SCHEMA)
    server.create_channel("c", "t")
    assert [server.summary(name)["ChannelCount"] for name in "st"] == [2, 1]
    limits = server.call("DescribeLimits")
    assert (limits["ChannelCount"], limits["ChannelCountLimit"]) == (3, 100)


def test_tags_of_a_channel(server):
    server.create_on_demand()
    assert server.refused("TagResource", ResourceARN=ARN, Tags={"a": "b"}) == "ResourceNotFoundException"
    server.create_channel()
    server.call("TagResource", ResourceARN=ARN, Tags={"a": "1", "b": "2"})
    server.call("UntagResource", ResourceARN=ARN, TagKeys=["a"])
    assert server.call("ListTagsForResource", ResourceARN=ARN) == {"Tags": [{"Key": "b", "Value": "2"}]}
    assert server.call("ListTagsForResource", ResourceARN=server.arn()) == {"Tags": []}
    reserved = server.channel_members("d", Tags={"aws:x": "1"}, destination=TO_TABLES, record=WITH_SCHEMA)
    assert server.refused("CreateChannel", **reserved) == "InvalidArgumentException"


# ---- listing


@pytest.fixture
def many(server):
    for number in range(3):
        server.create_on_demand(f"s{number}")
        server.create_channel(f"c{number}", f"s{number}")
    return server


def names(answer):
    return [one["ChannelName"] for one in answer["ChannelSummaries"]]


def test_a_summary(many):
    found = many.call("ListChannels", MaxResults=1)["ChannelSummaries"]
    assert found == [
        {
            "ChannelName": "c0",
            "ChannelARN": f"{ARN}0",
            "ChannelId": many.channel("c0")["ChannelId"],
            "ChannelStatus": "ACTIVE",
            "ChannelCreationTimestamp": many.now,
            "ChannelDestinationType": "S3",
            "Streams": [{"StreamARN": many.arn("s0"), "StreamCreationTimestamp": many.now}],
        }
    ]
    many.create_channel("tables", "s0", destination=TO_TABLES, record=WITH_SCHEMA)
    assert many.call("ListChannels")["ChannelSummaries"][-1]["ChannelDestinationType"] == "S3_TABLES"


def test_channels_are_listed_in_pages(many):
    page = many.call("ListChannels", MaxResults=2)
    assert names(page) == ["c0", "c1"]
    rest = many.call("ListChannels", NextToken=page["NextToken"], MaxResults=2)
    assert (names(rest), "NextToken" in rest) == (["c2"], False)
    assert names(many.call("ListChannels", MaxResults=10_000)) == ["c0", "c1", "c2"]
    assert many.refused("ListChannels", NextToken="nonsense") == "InvalidArgumentException"
    many.pass_time(301)
    assert many.refused("ListChannels", NextToken=page["NextToken"]) == "ExpiredNextTokenException"


def test_at_most_100_channels_a_page(make_server):
    server = make_server(limits=Limits(on_demand_streams=None, channels_per_account=None, control_calls_per_second={}))
    for number in range(101):
        server.create_on_demand(f"s{number:03d}")
        server.create_channel(f"c{number:03d}", f"s{number:03d}")
    page = server.call("ListChannels", MaxResults=10_000)
    assert len(names(page)) == 100
    assert names(server.call("ListChannels", NextToken=page["NextToken"])) == ["c100"]


def test_channels_are_filtered_by_streams(many):
    one, two = {"StreamARN": many.arn("s1")}, {"StreamARN": many.arn("s2")}
    assert names(many.call("ListChannels", StreamFilter=[one])) == ["c1"]
    assert names(many.call("ListChannels", StreamFilter=[two, one])) == ["c1", "c2"]
    assert names(many.call("ListChannels", StreamFilter=[{"StreamARN": many.arn("no")}])) == []
    now = {"StreamCreationTimestamp": many.now}
    assert names(many.call("ListChannels", StreamFilter=[one | now])) == ["c1"]
    assert names(many.call("ListChannels", StreamFilter=[one | {"StreamCreationTimestamp": 1.0}])) == []
    assert many.refused("ListChannels", StreamFilter=[]) == "ValidationException"


# ---- refusals


@pytest.mark.parametrize(
    "changes",
    [
        {"S3DestinationConfiguration": None},
        TO_TABLES,
        {"EncryptionConfiguration": {"EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"}},
        {"EncryptionConfiguration": {"EncryptionType": "KMS", "KeyId": "arn:aws:kms:us-east-1:1:alias/aws/kinesis"}},
        {"S3DestinationConfiguration": TO_S3["S3DestinationConfiguration"] | {"DataFreshnessInSeconds": 299}},
        {"S3DestinationConfiguration": TO_S3["S3DestinationConfiguration"] | {"DataFreshnessInSeconds": 901}},
    ],
)
def test_what_cannot_be_asked_for(server, changes):
    server.create_on_demand()
    members = server.channel_members() | changes
    assert server.refused("CreateChannel", **members) == "InvalidArgumentException"
    assert server.call("ListChannels") == {"ChannelSummaries": []}


def test_a_channel_has_one_stream_and_one_table(server):
    server.create_on_demand("s").create_on_demand("t")
    members = server.channel_members()
    members["StreamConfigurationList"] *= 2
    assert server.refused("CreateChannel", **members) == "InvalidArgumentException"
    tables = TO_TABLES["S3TablesDestinationConfiguration"] | {"S3TablesConfigurationList": [TABLE, TABLE]}
    members = server.channel_members(destination={"S3TablesDestinationConfiguration": tables}, record=WITH_SCHEMA)
    assert server.refused("CreateChannel", **members) == "InvalidArgumentException"


@pytest.mark.parametrize(
    ("destination", "record", "is_good"),
    [
        (TO_S3, {"RecordFormatType": "JSON"}, True),
        (TO_S3, {"RecordFormatType": "STRING"}, True),
        (TO_S3, {"RecordFormatType": "BYTE_ARRAY"}, True),
        (TO_S3, {"RecordFormatType": "GSR_JSON"}, False),
        (TO_TABLES, {"RecordFormatType": "JSON", "GSRSchemaARN": SCHEMA}, True),
        (TO_TABLES, {"RecordFormatType": "JSON"}, False),
        (TO_TABLES, {"RecordFormatType": "GSR_JSON", "GSRSchemaARN": SCHEMA}, True),
        (TO_TABLES, {"RecordFormatType": "GSR_JSON"}, True),
        (TO_TABLES, {"RecordFormatType": "STRING", "GSRSchemaARN": SCHEMA}, False),
        (TO_TABLES, {"RecordFormatType": "BYTE_ARRAY", "GSRSchemaARN": SCHEMA}, False),
    ],
)
def test_each_destination_has_its_record_formats(server, destination, record, is_good):
    server.create_on_demand()
    answer = server.answer("CreateChannel", **server.channel_members(destination=destination, record=record))
    assert (answer.refusal is None) == is_good
    assert is_good or answer.refusal.code == "InvalidArgumentException"


def test_the_stream_must_be_there_active_and_on_demand(make_server):
    server = make_server(delays=Delays(create=5))
    assert server.refused("CreateChannel", **server.channel_members()) == "ResourceNotFoundException"
    server.create("p").create_on_demand()
    assert server.refused("CreateChannel", **server.channel_members()) == "ResourceInUseException"
    server.pass_time(5)
    assert server.refused("CreateChannel", **server.channel_members(stream="p")) == "ValidationException"
    assert server.create_channel()


def test_one_channel_for_each_kind_of_destination(server):
    server.create_on_demand("s").create_on_demand("t")
    server.create_channel("a")
    assert server.refused("CreateChannel", **server.channel_members("b")) == "LimitExceededException"
    server.create_channel("b", destination=TO_TABLES, record=WITH_SCHEMA)
    members = server.channel_members("c", destination=TO_TABLES, record=WITH_SCHEMA)
    assert server.refused("CreateChannel", **members) == "LimitExceededException"
    assert server.refused("CreateChannel", **server.channel_members("a", "t")) == "ResourceInUseException"
    server.create_channel("c", "t")


def test_an_account_has_so_many_channels(make_server):
    server = make_server(limits=Limits(channels_per_account=1)).create_on_demand()
    server.create_channel()
    members = server.channel_members("d", destination=TO_TABLES, record=WITH_SCHEMA)
    assert server.refused("CreateChannel", **members) == "LimitExceededException"
    server.call("DeleteChannel", ChannelARN=ARN)
    server.call("CreateChannel", **members)


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"S3TablesDestinationConfiguration": {"DataFreshnessInSeconds": 600}},
        {"S3DestinationConfiguration": {"DataFreshnessInSeconds": 1}},
    ],
)
def test_an_update_that_cannot_be(server, update):
    server.create_on_demand()
    server.create_channel("c")
    before = server.channel()
    assert server.refused("UpdateChannel", ChannelARN=ARN, **update) == "InvalidArgumentException"
    assert server.channel() == before
    server.create_channel("d", destination=TO_TABLES, record=WITH_SCHEMA)
    to_s3 = {
        "ChannelARN": server.channel("d")["ChannelARN"],
        "S3DestinationConfiguration": {"DataFreshnessInSeconds": 600},
    }
    assert server.refused("UpdateChannel", **to_s3) == "InvalidArgumentException"


def test_a_stream_with_channels_cannot_be_deleted(make_server):
    server = make_server(delays=Delays(delete=5)).create_on_demand()
    server.create_channel()
    delete = {"StreamName": "s", "EnforceConsumerDeletion": True}
    assert server.refused("DeleteStream", **delete) == "ResourceInUseException"
    server.call("DeleteChannel", ChannelARN=ARN)
    server.call("DeleteStream", **delete)
    server.pass_time(5)
    assert server.call("ListChannels") == {"ChannelSummaries": []}
    assert server.call("DescribeLimits")["ChannelCount"] == 0
