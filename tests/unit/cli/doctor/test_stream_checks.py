"""How is a stream judged?"""

import pytest

from shardline.cli.doctor.diagnoses import Verdict
from shardline.cli.doctor.stream_checks import Load, check_consumers, check_load, check_ranges, check_stream
from shardline.codec.shapes import StreamSummary
from shardline.core.error_codes import Failure, FailureKind
from shardline.model.hashing import HASH_KEY_MAX, HashRange
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard

THROTTLED = Failure(FailureKind.THROTTLED, "ProvisionedThroughputExceededException", "too fast", 400)
HALF = HASH_KEY_MAX // 2


def summary(status):
    return StreamSummary(name="orders", arn="arn:aws:kinesis:eu-west-1:000000000000:stream/orders", status=status)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("ACTIVE", Verdict.OK),
        ("UPDATING", Verdict.WARNING),
        ("CREATING", Verdict.FAILED),
        ("DELETING", Verdict.FAILED),
    ],
)
def test_only_a_stream_that_can_be_used_is_well(status, verdict):
    found = {finding.check: finding for finding in check_stream(summary(status))}
    assert found["stream"].verdict is verdict
    assert found["stream"].seen.startswith(status)
    assert (found["stream"].advice is None) == (verdict is Verdict.OK)


@pytest.mark.parametrize(("channels", "seen"), [(None, None), (0, None), (1, "1 channel"), (2, "2 channels")])
def test_channels_are_reported(channels, seen):
    active = StreamSummary(name="orders", arn="arn", status="ACTIVE", channels_shape=channels)
    found = {finding.check: finding for finding in check_stream(active)}
    if seen is None:
        assert "channels" not in found
        return
    assert (found["channels"].verdict, found["channels"].seen) == (
        Verdict.WARNING,
        f"{seen}, which cannot read aggregates",
    )


def shard(index, start, end, *, is_open=True):
    ending = None if is_open else SequenceNumber(9)
    return Shard(f"s{index}", HashRange(start, end), SequenceNumber(1), ending)


def test_closed_shards_share_no_keys():
    shards = [shard(0, 0, HASH_KEY_MAX, is_open=False), shard(1, 0, HALF), shard(2, HALF + 1, HASH_KEY_MAX)]
    found = check_ranges(shards)
    assert (found.verdict, found.seen) == (Verdict.OK, "2 shards, each with 50.0% to 50.0% of the keys")


def test_a_stream_without_open_shards_takes_nothing():
    assert check_ranges([shard(0, 0, HASH_KEY_MAX, is_open=False)]).verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("loads", "verdict", "words"),
    [
        ({"a": Load(0, 0), "b": Load(0, 0)}, Verdict.OK, "at most 0 records/s"),
        (
            {"a": Load(900, 10)},
            Verdict.WARNING,
            "a receives about 900 records/s and 10 B/s (estimated from a sample): it is hot",
        ),
        ({"a": Load(5, 1_000_000)}, Verdict.WARNING, "it is hot"),
        (
            {"a": Load(400, 10), "b": Load(5, 10), "c": Load(4, 9)},
            Verdict.WARNING,
            "half of the shards receive at most 5",
        ),
        ({"a": Load(9, 10), "b": Load(0, 0), "c": Load(0, 0)}, Verdict.OK, "at most 9 records/s"),
        ({"a": Load(300, 10), "b": Load(250, 10)}, Verdict.OK, "at most 300 records/s"),
        ({"a": Load(3, 10), "b": THROTTLED}, Verdict.OK, "a sample of 1 of 2 shards"),
        ({"a": THROTTLED, "b": THROTTLED}, Verdict.NOT_CHECKED, "too fast"),
        ({}, Verdict.NOT_CHECKED, "no open shard"),
    ],
)
def test_a_load_is_reported_with_its_source(loads, verdict, words):
    found = check_load(loads, len(loads))
    assert found.verdict is verdict
    assert words in found.seen


def test_consumers_are_named():
    arn = "arn:aws:kinesis:eu-west-1:000000000000:stream/orders/consumer/reader:1700000000"
    assert check_consumers([arn]).seen == "1 registered for enhanced fan-out: reader"
    assert check_consumers(THROTTLED).verdict is Verdict.NOT_CHECKED
