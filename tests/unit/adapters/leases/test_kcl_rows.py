"""The rows of a KCL fleet are read wherever the KCL keeps them, and our metrics row is written beside them."""

import pytest

from shardline import __version__
from shardline.adapters.leases.kcl_rows import decode_kcl_rows, metrics_request
from shardline.core.kcl_requests import DeleteMetrics, KclRows, LeaderRow, MetricsPlace, MetricsRow, WriteMetrics

LEADER = {"ownerName": {"S": "java"}, "recordVersionNumber": {"S": "v"}, "leaseDuration": {"S": "120000"}}
OWN, AMONG = MetricsPlace.OWN_TABLE, MetricsPlace.LEASE_TABLE


def test_the_rows_of_two_tables():
    items = [
        {"wid": {"S": "java"}, "lut": {"N": "17"}, "sts": {"M": {}}},
        {"key": {"S": "Leader"}, **LEADER},
        {"key": {"S": "Migration3.0"}, "cv": {"S": "CLIENT_VERSION_3X"}},
        {"key": {"S": "TableMigration3.5"}, "tm": {"S": "TABLE_MIGRATION_STATUS_INIT"}},
    ]
    assert decode_kcl_rows(items, [], has_metrics_table=True) == KclRows(
        LeaderRow("java", "v"),
        (MetricsRow("java", 17),),
        "CLIENT_VERSION_3X",
        "TABLE_MIGRATION_STATUS_INIT",
        has_metrics_table=True,
    )


def test_the_rows_among_the_leases():
    among = [
        {"leaseKey": {"S": "Leader"}, **LEADER, "isReleased": {"S": "1"}},
        {"leaseKey": {"S": "java"}, "lut": {"N": "17"}, "sup": {"N": "1"}},
    ]
    older = [{"wid": {"S": "java"}, "lut": {"N": "3"}}]
    assert decode_kcl_rows(older, among, has_metrics_table=False) == KclRows(
        LeaderRow("java", "v", is_released=True),
        (MetricsRow("java", 17, can_share_table=True, place=AMONG),),
        has_rows_among_leases=True,
    )


@pytest.mark.parametrize(
    "item", [{"wid": {"S": "x"}, "lut": {"N": "?"}}, {"wid": {"S": "x"}, "lut": {}}, {"key": {"N": "1"}}]
)
def test_a_row_that_cannot_be_read_is_skipped(item):
    assert decode_kcl_rows([item], [], has_metrics_table=False) == KclRows()


@pytest.mark.parametrize(("place", "table", "key"), [(OWN, "t-WorkerMetricStats", "wid"), (AMONG, "t", "leaseKey")])
@pytest.mark.parametrize("can_share", [False, True])
def test_the_row_that_is_written_is_read_as_ours(place, table, key, can_share):
    name, members = metrics_request(WriteMetrics("me", 17, place, can_share), "t")
    assert (name, members["TableName"], members["Key"]) == ("UpdateItem", table, {key: {"S": "me"}})
    values = members["ExpressionAttributeValues"]
    item = members["Key"] | {
        attribute: values[f":{attribute}"] for attribute in members["ExpressionAttributeNames"].values()
    }
    [row] = decode_kcl_rows([item], [], has_metrics_table=True).metrics
    assert row == MetricsRow("me", 17, can_share, __version__, place)
    assert ("entityType" in item) is (place is AMONG)


def test_the_row_is_deleted_where_it_was_written():
    expected = {"TableName": "t-WorkerMetricStats", "Key": {"wid": {"S": "me"}}}
    assert metrics_request(DeleteMetrics("me", OWN), "t") == ("DeleteItem", expected)
