"""``shardline streams`` changes the retention, mode, encryption, record size and tags of a stream.

The real command, as a process of its own.
"""

import json

import anyio
import pytest

from shardline.testing import Delays, LocalKinesis


def described(kinesis):
    async def main():
        async with kinesis.client() as client:
            return await client.describe_stream_summary("orders"), await client.list_tags_for_stream("orders")

    return anyio.run(main)


def changes_sent(kinesis):
    """The number of requests that were neither a description nor a listing."""
    readings = sum(map(kinesis.requests.count, ("DescribeStreamSummary", "ListTagsForStream")))
    return kinesis.requests.total - readings


def test_the_retention_grows_at_once_and_shrinks_after_a_confirmation(shardline, kinesis):
    assert shardline("streams", "retention", "orders", "48h").lines == [
        "changed orders: retention 24 h (1 d) -> 48 h (2 d)"
    ]
    ended = shardline("streams", "retention", "orders", "1d", stdin=b"y\n", code=2)
    assert ended.stderr == (
        "Error: not a terminal: pass --yes to confirm retention 48 h (2 d) -> 24 h (1 d) of orders: records older than "
        "24 h (1 d) are deleted\n"
    )
    assert described(kinesis)[0].retention_hours == 48
    result = json.loads(shardline("streams", "retention", "orders", "1d", "--yes", "--output", "json").stdout)
    assert result == {
        "name": "orders",
        "setting": "retention_hours",
        "before": 48,
        "after": 24,
        "changed": True,
        "dry_run": False,
    }
    assert described(kinesis)[0].retention_hours == 24


def test_a_terminal_asks_before_records_are_deleted(on_terminal, shardline, kinesis):
    shardline("streams", "retention", "orders", "48h")
    shown, code = on_terminal("streams", "retention", "orders", "24h", typed=b"n\n", columns=300)
    assert code == 1
    assert "Records older than 24 h (1 d) are deleted. Change orders in us-east-1 at " in shown
    assert "nothing was changed" in shown
    assert described(kinesis)[0].retention_hours == 48
    shown, code = on_terminal("streams", "retention", "orders", "24h", typed=b"y\n", columns=300)
    assert code == 0
    assert "changed orders: retention 48 h (2 d) -> 24 h (1 d)" in shown
    assert described(kinesis)[0].retention_hours == 24


def test_the_mode_changes_twice_a_day(shardline, kinesis):
    ended = shardline("streams", "mode", "orders", "on-demand", code=2)
    assert "the service allows 2 changes of the mode in 24 hours" in ended.stderr
    assert shardline("streams", "mode", "orders", "on-demand", "--yes").lines == [
        "changed orders: mode provisioned -> on demand"
    ]
    assert described(kinesis)[0].mode == "ON_DEMAND"
    shardline("streams", "mode", "orders", "provisioned", "--yes")
    ended = shardline("streams", "mode", "orders", "on-demand", "--yes", code=1)
    assert ended.stderr.startswith("Error: UpdateStreamMode: ")
    assert ended.stderr.endswith("(LimitExceededException)\n")
    assert "is not one of 'provisioned', 'on-demand'" in shardline("streams", "mode", "orders", "free", code=2).stderr


def test_encryption_starts_changes_and_stops(shardline, kinesis):
    first, second = "alias/aws/kinesis", "alias/other"
    assert shardline("streams", "encrypt", "orders", "--key", first).lines == [
        f"changed orders: encryption none -> KMS {first}"
    ]
    shardline("streams", "encrypt", "orders", "--key", second)
    assert (described(kinesis)[0].encryption_type, described(kinesis)[0].key_id) == ("KMS", second)
    assert "new records are stored unencrypted" in shardline("streams", "encrypt", "orders", "--off", code=2).stderr
    result = json.loads(shardline("streams", "encrypt", "orders", "--off", "--yes", "-o", "json").stdout)
    assert (result["setting"], result["before"], result["after"]) == ("kms_key_id", second, None)
    assert described(kinesis)[0].encryption_type == "NONE"


def test_the_record_size(shardline, kinesis):
    assert shardline("streams", "record-size", "orders", "1.5MiB").lines == [
        "changed orders: record size 1.0 MiB -> 1.5 MiB"
    ]
    assert described(kinesis)[0].max_record_bytes == 1_572_864


def test_tags(shardline, kinesis):
    assert shardline("streams", "tag", "orders").stderr == "the stream has no tags\n"
    assert shardline("streams", "tag", "orders", "team=billing", "env=test").lines == [
        "changed orders: tags none -> env=test, team=billing"
    ]
    assert shardline("streams", "tag", "orders").lines == ["env=test", "team=billing"]
    shardline("streams", "tag", "orders", "env=prod", "--remove", "team", "--remove", "missing")
    assert described(kinesis)[1] == {"env": "prod"}
    assert json.loads(shardline("streams", "tag", "orders", "-o", "json").stdout) == {"env": "prod"}


def test_a_failure_between_adding_and_removing_loses_no_tag(shardline, kinesis):
    shardline("streams", "tag", "orders", "team=billing")
    kinesis.faults.error("AccessDeniedException", "no", operation="RemoveTagsFromStream")
    ended = shardline("streams", "tag", "orders", "owner=billing", "--remove", "team", code=1)
    assert ended.stderr == "Error: RemoveTagsFromStream: no (AccessDeniedException)\n"
    assert described(kinesis)[1] == {"team": "billing", "owner": "billing"}


@pytest.mark.parametrize(
    "command",
    [
        ["retention", "orders", "24h"],
        ["mode", "orders", "provisioned"],
        ["encrypt", "orders", "--off"],
        ["record-size", "orders", "1MiB"],
        ["tag", "orders", "--remove", "team"],
    ],
)
def test_the_current_value_sends_nothing_and_succeeds(shardline, kinesis, command):
    (line,) = shardline("streams", *command).lines
    assert line.startswith("nothing to change: orders already has ")
    assert json.loads(shardline("streams", *command, "-o", "json").stdout)["changed"] is False
    assert changes_sent(kinesis) == 0


@pytest.mark.parametrize(
    ("command", "notices"),
    [
        (["retention", "orders", "7d"], ""),
        (["mode", "orders", "on-demand"], "the service allows 2 changes"),
        (["encrypt", "orders", "--key", "alias/x"], ""),
        (["record-size", "orders", "2MiB"], ""),
        (["tag", "orders", "team=billing"], ""),
    ],
)
def test_a_dry_run_shows_the_change_and_sends_nothing(shardline, kinesis, command, notices):
    ended = shardline("streams", *command, "--dry-run")
    assert ended.lines[0].startswith("would change orders: ")
    assert ended.stderr.startswith(notices)
    result = json.loads(shardline("streams", *command, "--dry-run", "--output", "json").stdout)
    assert (result["changed"], result["dry_run"]) == (False, True)
    assert result["before"] != result["after"]
    assert changes_sent(kinesis) == 0


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["retention", "orders", "23h"], "retention is a whole number of hours from 24h to 8760h (365d), not 23 h"),
        (["retention", "orders", "soon"], "a duration is written as"),
        (["encrypt", "orders"], "give either --key KEY or --off"),
        (["encrypt", "orders", "--off", "--key", "x"], "give either --key KEY or --off"),
        (["record-size", "orders", "11MiB"], "the record size is a whole number of KiB from 1.0 MiB to 10.0 MiB"),
        (["record-size", "orders", "5"], "a size is written as 512KiB, 5MiB or 1.5MiB, not '5'"),
        (["tag", "orders", "team"], "a tag is written as KEY=VALUE, not 'team'"),
        (["retention", "no stream!", "48h"], "'no stream!' is not a stream name"),
    ],
)
def test_a_wrong_value_changes_nothing(shardline, kinesis, command, message):
    assert shardline("streams", *command, code=2).stderr.startswith(f"Error: {message}")
    assert changes_sent(kinesis) == 0


def test_a_missing_stream_and_a_missing_permission(shardline, kinesis):
    assert "Stream other under account" in shardline("streams", "retention", "other", "48h", code=1).stderr
    kinesis.faults.error("AccessDeniedException", "not authorized", operation="UpdateMaxRecordSize")
    ended = shardline("streams", "record-size", "orders", "2MiB", code=1)
    assert ended.stderr == "Error: UpdateMaxRecordSize: not authorized (AccessDeniedException)\n"


def test_a_throttled_change_is_repeated(shardline, kinesis):
    kinesis.faults.error("ThrottlingException", "Rate exceeded", operation="IncreaseStreamRetentionPeriod", count=2)
    shardline("streams", "retention", "orders", "48h")
    assert described(kinesis)[0].retention_hours == 48


def test_waiting_for_the_change_and_not(shardline):
    with LocalKinesis(stream="orders", delays=Delays(update=1000.0)) as slow:
        ended = shardline("streams", "record-size", "orders", "2MiB", "--timeout", "300ms", code=1, **slow.environment)
        assert ended.stderr == "Error: the stream orders is not ACTIVE after 0.3 s: it is UPDATING\n"
        slow.clock.advance(1001)
        ended = shardline("streams", "record-size", "orders", "3MiB", "--no-wait", **slow.environment)
        assert ended.lines == ["changing orders: record size 2.0 MiB -> 3.0 MiB"]


def test_an_arn_names_a_stream(shardline, kinesis):
    arn = "arn:aws:kinesis:us-east-1:000000000000:stream/orders"
    for command in (
        ["retention", arn, "48h"],
        ["mode", arn, "on-demand", "--yes"],
        ["encrypt", arn, "--key", "alias/x"],
        ["record-size", arn, "2MiB"],
        ["tag", arn, "a=b"],
    ):
        assert shardline("streams", *command).lines[0].startswith("changed orders: ")
