"""The planned change of each setting: its values, its risk, and the values that the service does not allow."""

import pytest

from shardline.cli.streams import stream_settings as settings
from shardline.codec.shapes import StreamModeShape, StreamSummary
from shardline.errors import UsageError

HOUR = 3600


def summary(**changes):
    members = {"name": "orders", "arn": "arn:aws:kinesis:us-east-1:000000000000:stream/orders", "status": "ACTIVE"}
    return StreamSummary(**members | changes)


def test_a_longer_retention_has_no_risk():
    change = settings.retention_change(summary(), 48 * HOUR)
    assert (change.before, change.after, change.risk, change.is_needed) == (24, 48, None, True)
    assert change.sentence == "retention 24 h (1 d) -> 48 h (2 d)"


def test_a_shorter_retention_deletes_records():
    change = settings.retention_change(summary(retention_hours=49), 25 * HOUR)
    assert change.risk == "records older than 25 h are deleted"
    assert change.sentence == "retention 49 h -> 25 h"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (23 * HOUR, "23 h"),
        (8761 * HOUR, "8761 h"),
        (24.5 * HOUR, "24.5 h"),
        (48, "48 s"),
        (0, "0 s"),
        (24 * HOUR + 0.5, "24.0001 h"),
    ],
)
def test_a_retention_that_the_service_does_not_allow(seconds, shown):
    with pytest.raises(UsageError, match="whole number of hours from 24h to 8760h") as caught:
        settings.retention_change(summary(), seconds)
    assert str(caught.value).endswith(f"not {shown}")


def test_the_allowed_limits_of_the_retention():
    assert settings.retention_change(summary(), 24 * HOUR).is_needed is False
    assert settings.retention_change(summary(), 8760 * HOUR).after == 8760


def test_a_mode():
    on_demand = summary(mode_shape=StreamModeShape("ON_DEMAND"))
    change = settings.mode_change(on_demand, "provisioned")
    assert (change.before, change.after) == ("ON_DEMAND", "PROVISIONED")
    assert change.sentence == "mode on demand -> provisioned"
    assert "2 changes of the mode in 24 hours" in change.risk
    assert settings.mode_change(on_demand, "on-demand").is_needed is False
    assert settings.shown_mode(summary(mode_shape=StreamModeShape("SOMETHING_NEW"))) == "SOMETHING_NEW"


def test_encryption():
    change = settings.encryption_change(summary(), "alias/x")
    assert (change.before, change.after, change.risk) == (None, "alias/x", None)
    assert change.sentence == "encryption none -> KMS alias/x"
    encrypted = summary(encryption_type="KMS", key_id="alias/x")
    assert settings.encryption_change(encrypted, "alias/x").is_needed is False
    assert settings.encryption_change(encrypted, "alias/y").sentence == "encryption KMS alias/x -> KMS alias/y"
    change = settings.encryption_change(encrypted, None)
    assert change.risk == "new records are stored unencrypted"
    assert change.sentence == "encryption KMS alias/x -> none"
    assert settings.encryption_change(summary(encryption_type="NONE"), None).is_needed is False
    without_key = settings.encryption_change(summary(encryption_type="KMS"), None)
    assert (without_key.before, without_key.is_needed) == ("alias/aws/kinesis", True)


def test_a_record_size():
    change = settings.record_size_change(summary(), 10 * 1024 * 1024)
    assert (change.before, change.after) == (1_048_576, 10_485_760)
    assert change.sentence == "record size 1.0 MiB -> 10.0 MiB"
    assert settings.record_size_change(summary(), 1_048_576).is_needed is False


@pytest.mark.parametrize("size", [1_047_552, 10_486_784, 1_048_577])
def test_a_record_size_that_the_service_does_not_allow(size):
    with pytest.raises(UsageError, match=r"a whole number of KiB from 1\.0 MiB to 10\.0 MiB, not 1"):
        settings.record_size_change(summary(), size)


def test_tags_are_added_replaced_and_removed():
    change = settings.tag_change({"team": "a", "env": "test", "old": "1"}, ["team=b", "note=x=y"], ["old", "missing"])
    assert change.after == {"team": "b", "env": "test", "note": "x=y"}
    assert change.sentence == "tags env=test, old=1, team=a -> env=test, note=x=y, team=b"
    assert settings.tag_change({"team": "a"}, ["team=a"], ["missing"]).is_needed is False
    assert settings.tag_change({"team": "a"}, [], ["team"]).shown_after == "none"
    assert settings.tag_change({}, ["empty="], []).after == {"empty": ""}


@pytest.mark.parametrize(
    ("added", "removed", "message"),
    [
        (["team"], [], "a tag is written as KEY=VALUE, not 'team'"),
        (["=x"], [], "a tag is written as KEY=VALUE, not '=x'"),
        (["team=a", "team=b"], [], "the tag 'team' is given twice"),
        (["team=a"], ["team"], "the tag 'team' cannot be added and removed"),
        (["k" * 129 + "=x"], [], "at most 128 characters"),
        (["k=" + "x" * 257], [], "'k' has 1 and 257"),
        (["aws:x=y"], [], "reserved for AWS"),
        ([f"more{number}=x" for number in range(49)], ["a"], "this would make 51: remove others first"),
    ],
)
def test_tags_that_the_service_does_not_allow(added, removed, message):
    with pytest.raises(UsageError, match=message):
        settings.tag_change({"a": "1", "b": "2"}, added, removed)


def test_the_largest_allowed_tags():
    added = [f"{number:0128}={'x' * 256}" for number in range(48)]
    assert len(settings.tag_change({"a": "1", "b": "2"}, added, []).after) == 50
