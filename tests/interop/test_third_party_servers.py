"""Do the third-party servers start and store a record, as a third-party client sees it?"""

import time

import boto3
import pytest
from botocore.config import Config

pytestmark = pytest.mark.interop


def boto3_client(url, ca_path=None):
    return boto3.client(
        "kinesis",
        region_name="us-east-1",
        endpoint_url=url,
        aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret",
        verify=ca_path,
        config=Config(retries={"total_max_attempts": 1}),
    )


def wait_until_active(client, stream):
    give_up_at = time.monotonic() + 20
    while client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamStatus"] != "ACTIVE":
        assert time.monotonic() < give_up_at, f"{stream} does not become ACTIVE"
        time.sleep(0.02)


def read_back(client, stream, shard_id, sequence_number):
    iterator = client.get_shard_iterator(
        StreamName=stream,
        ShardId=shard_id,
        ShardIteratorType="AT_SEQUENCE_NUMBER",
        StartingSequenceNumber=sequence_number,
    )["ShardIterator"]
    give_up_at = time.monotonic() + 20
    while time.monotonic() < give_up_at:
        page = client.get_records(ShardIterator=iterator)
        if page["Records"]:
            return page["Records"]
        iterator = page["NextShardIterator"]
    pytest.fail(f"no record came back from {shard_id} of {stream}")


def assert_keeps_a_record(client, stream):
    try:
        client.create_stream(StreamName=stream, ShardCount=2)
        wait_until_active(client, stream)
        entries = [{"Data": b"\x00payload\xff", "PartitionKey": "user-1"}]
        answer = client.put_records(StreamName=stream, Records=entries)
        assert answer["FailedRecordCount"] == 0
        [put] = answer["Records"]
        records = read_back(client, stream, put["ShardId"], put["SequenceNumber"])
        assert [(one["PartitionKey"], one["Data"]) for one in records] == [("user-1", b"\x00payload\xff")]
    finally:
        client.close()


def test_kinesis_local_keeps_a_record_over_http(kinesis_local, stream_name):
    assert_keeps_a_record(boto3_client(kinesis_local.http_url), stream_name)


def test_kinesis_local_keeps_a_record_over_https_with_a_certificate_that_verifies(kinesis_local, stream_name):
    assert_keeps_a_record(boto3_client(kinesis_local.https_url, kinesis_local.ca_path), stream_name)


def test_kinesalite_keeps_a_record(kinesalite, stream_name):
    assert_keeps_a_record(boto3_client(kinesalite.http_url), stream_name)


def test_ministack_keeps_a_record(ministack, stream_name):
    assert_keeps_a_record(boto3_client(ministack.http_url), stream_name)
