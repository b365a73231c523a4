"""The requests of a machine to the service: plain values under AWS's own names."""

import inspect
from dataclasses import FrozenInstanceError, fields, is_dataclass

import pytest
from botocore.loaders import Loader

from shardline.core import requests
from shardline.model.position import TRIM_HORIZON
from shardline.model.record import Entry
from shardline.model.stream import parse_stream

STREAM = parse_stream("orders")
ALL = {
    "PutRecords": requests.PutRecords(STREAM, (Entry(b"x", "k"),)),
    "GetShardIterator": requests.GetShardIterator(STREAM, "shardId-000000000000", TRIM_HORIZON),
    "GetRecords": requests.GetRecords("iterator"),
    "ListShards": requests.ListShards(STREAM),
    "DescribeStreamSummary": requests.DescribeStreamSummary(STREAM),
    "SubscribeToShard": requests.SubscribeToShard("arn", "shardId-000000000000", TRIM_HORIZON),
}


def test_the_set_is_closed_and_each_request_is_an_operation_of_the_service():
    operations = Loader().load_service_model("kinesis", "service-2")["operations"]
    defined = {
        name
        for name, value in vars(requests).items()
        if inspect.isclass(value) and is_dataclass(value) and value.__module__ == requests.__name__
    }
    assert defined - {"ShardFilter"} == set(ALL)
    assert set(ALL) <= set(operations)


@pytest.mark.parametrize("request_", ALL.values(), ids=ALL)
def test_requests_are_values(request_):
    same = type(request_)(**{field.name: getattr(request_, field.name) for field in fields(request_)})
    assert same == request_
    assert hash(same) == hash(request_)
    with pytest.raises(FrozenInstanceError):
        setattr(request_, fields(request_)[0].name, None)


def test_what_is_optional_is_left_out():
    assert ALL["GetRecords"] == requests.GetRecords("iterator", None, None)
    assert ALL["ListShards"] == requests.ListShards(STREAM, None, None, None)
    assert requests.ShardFilter("AT_LATEST") == requests.ShardFilter("AT_LATEST", None, None)
