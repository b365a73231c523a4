"""Which URLs name a lease store?"""

import math
import sys
from pathlib import Path

import pytest

from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.dynamodb import DynamoDbLeases
from shardline.adapters.leases.memory import MemoryLeases
from shardline.adapters.leases.redis import RedisLeases
from shardline.adapters.leases.sqlite import SqliteLeases
from shardline.adapters.leases.store_urls import FORMS, lease_store
from shardline.errors import UsageError
from shardline.ports import KclLeaseStore

AWS = AwsAccess(wall_time=lambda: 0.0, region="eu-west-1")


def made(store, group="billing", stream="orders"):
    return lease_store(store, group=group, stream=stream, aws=AWS)


def test_memory_is_shared_by_group_and_stream_alone():
    one = made("memory:")
    assert isinstance(one, MemoryLeases)
    assert one._rows is made("memory:")._rows
    assert one._rows is not made("memory:", group="other")._rows
    assert one._rows is not MemoryLeases("billing", "orders")._rows


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///leases.db", Path.cwd() / "leases.db"),
        ("sqlite:///a/b c%20d.db", Path.cwd() / "a/b c d.db"),
        ("sqlite:////var/lib/leases.db", Path("/var/lib/leases.db")),
        ("SQLITE:////var/lib/leases", Path("/var/lib/leases")),
    ],
)
def test_sqlite_names_a_file(url, path):
    store = made(url)
    assert isinstance(store, SqliteLeases)
    assert store._path == path


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://localhost:6379/0",
        "redis://user:p%40ss@[::1]:6380/3",
        "rediss://host/1?ssl_cert_reqs=none",
        "redis://host?socket_timeout=2",
    ],
)
def test_redis_names_a_database(url):
    store = made(url)
    assert isinstance(store, RedisLeases)
    assert "p@ss" not in repr(store) + str(vars(store)["_host"])


def test_dynamodb_names_a_table_and_says_where_it_is():
    store = made("dynamodb://My.Table-1_x?region=us-east-2&endpoint_url=http%3A%2F%2Flocalhost%3A8000")
    assert isinstance(store, DynamoDbLeases)
    assert (store._table, store._access.region) == ("My.Table-1_x", "us-east-2")
    assert store._access.endpoint_url == "http://localhost:8000"
    assert made("dynamodb://table")._access.region == "eu-west-1"
    assert made("dynamodb://table").kcl_failover == 10.0
    assert made("dynamodb://table?kcl_failover=30").kcl_failover == 30.0
    assert made("dynamodb://table").follows_kcl
    assert made("dynamodb://table?kcl=auto").follows_kcl
    assert not made("dynamodb://table?kcl=off").follows_kcl
    assert made("dynamodb://table?region=us-east-2&kcl_failover=2.5").kcl_failover == 2.5
    assert made("dynamodb://table/?endpoint_url=http://localhost:8000")._access.endpoint_url == "http://localhost:8000"


@pytest.mark.parametrize(
    "store",
    [
        "",
        "memory",
        "memory:x",
        "memory://x",
        "leases.db",
        "/tmp/leases.db",
        "file:///tmp/leases.db",
        "sqlite:",
        "sqlite:leases.db",
        "sqlite://leases.db",
        "sqlite:///",
        "sqlite:////",
        "sqlite:///:memory:",
        "sqlite:///leases.db?mode=ro",
        "sqlite:///leases.db#x",
        "sqlite:///leases/",
        "sqlite:///a%00b",
        "postgresql:",
        "postgresql://",
        "postgresql:///database",
        "redis:",
        "redis://",
        "redis://host:port",
        "redis://host/zero",
        "redis://host/0#x",
        "redis://[::1/0",
        "dynamodb:",
        "dynamodb://",
        "dynamodb://ab",
        "dynamodb://table:8000",
        "dynamodb://me@table",
        "dynamodb://table/path",
        "dynamodb://table?profile=x",
        "dynamodb://table?region=a&region=b",
        "dynamodb://table?region",
        "dynamodb://table?kcl_failover=1&kcl_failover=2",
        "dynamodb://table#x",
        7,
        None,
        b"memory:",
        object(),
    ],
)
def test_anything_else_is_refused_with_all_that_is_allowed(store):
    with pytest.raises(UsageError) as refused:
        made(store)
    assert all(form in str(refused.value) for form in FORMS)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("dynamodb://table?region=Frankfurt!", "must look like 'eu-west-1'"),
        ("dynamodb://table?endpoint_url=localhost", "endpoint_url must look like"),
        ("dynamodb://table?kcl=on", "kcl of a store must be 'auto' or 'off', not 'on'"),
        ("dynamodb://table?kcl_failover=", "kcl_failover must be a number of seconds from 0.1 to 3600, not ''"),
        ("dynamodb://table?kcl_failover=soon", "kcl_failover must be a number"),
        ("dynamodb://table?kcl_failover=0", "kcl_failover must be a number"),
        ("dynamodb://table?kcl_failover=-5", "kcl_failover must be a number"),
        ("dynamodb://table?kcl_failover=nan", "kcl_failover must be a number"),
        ("dynamodb://table?kcl_failover=3601", "kcl_failover must be a number"),
        ("redis://host/0?password=hunter2", "parameter 'password'; allowed are"),
        ("redis://host/0?decode_responses=true", "parameter 'decode_responses'; allowed are"),
        ("redis://host/0?socket_timeout=soon", "cannot read the store's URL"),
    ],
)
def test_a_wrong_setting_is_named(url, words):
    with pytest.raises(UsageError, match=words):
        made(url)


@pytest.mark.parametrize("url", ["redis://u:hunter2@host/zero", "redus://u:hunter2@host/0", "dynamodb://u:hunter2@ab"])
def test_a_password_is_not_repeated(url):
    with pytest.raises(UsageError) as refused:
        made(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("group", ["", "x" * 257, "a\nb", None, 7])
def test_a_group_is_a_name(group):
    with pytest.raises(UsageError, match="group must be a text"):
        made("memory:", group=group)
    with pytest.raises(UsageError, match="stream must be a text"):
        made("memory:", stream=group)


def test_a_store_is_taken_as_it_is_if_it_is_of_this_group_and_stream():
    store = MemoryLeases("billing", "orders")
    assert made(store) is store
    with pytest.raises(UsageError, match="to group 'billing' on stream 'orders', not to 'billing' on 'clicks'"):
        made(store, stream="clicks")


def test_without_redis_py_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "shardline.adapters.leases.redis")
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UsageError, match=r"pip install 'shardline\[redis\]'"):
        made("redis://host")


@pytest.mark.parametrize("seconds", [True, None, "10", 0, -1.0, math.nan, math.inf])
def test_a_kcl_failover_is_a_number_of_seconds(seconds):
    with pytest.raises(UsageError, match=r"kcl_failover must be a number of seconds from 0\.1 to 3600"):
        DynamoDbLeases(AwsAccess(wall_time=lambda: 0.0), "table", "g", "s", kcl_failover=seconds)
    store = DynamoDbLeases(AwsAccess(wall_time=lambda: 0.0), "table", "g", "s", kcl_failover=30)
    assert isinstance(store, KclLeaseStore)
    assert store.kcl_failover == 30.0
    assert not isinstance(MemoryLeases("g", "s"), KclLeaseStore)
