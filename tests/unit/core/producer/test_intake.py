"""What was put, and is in no lane yet? P7, P11 and IN1 are the invariants of ``shardline.core.producer.intake``."""

from itertools import pairwise
from random import Random

import pytest

from shardline.codec.shapes import HashKeyRangeShape, ListShardsResponse, SequenceNumberRangeShape, ShardShape
from shardline.core.producer.config import ProducerConfig
from shardline.core.producer.intake import Intake, Put
from shardline.core.producer.machine import ProducerMachine
from shardline.core.producer.record import BufferedRecord
from shardline.model.hashing import HASH_KEY_COUNT
from shardline.model.limits import KIB, MIB
from shardline.model.stream import StreamRef


def record(data=b"data", key="key"):
    return BufferedRecord(data, key, None, 30.0)


def test_it_begins_without_room():
    """P11: the first record has deadlines to arm."""
    assert (Intake().max_records, Intake().max_bytes) == (0, 0)


def test_what_is_taken_is_gone_and_counted_no_more():
    intake, records = Intake(), [record(), record()]
    for one in records:
        intake.add(one, 7)
    assert (intake.size, intake.take()) == (14, (records, 14))
    assert (intake.size, intake.records, intake.take()) == (0, [], ([], 0))


def test_in1_while_it_is_shut_nothing_opens_it():
    intake = Intake()
    intake.open(5, 100)
    intake.shut()
    assert intake.max_records == 0
    intake.open(5, 100)
    assert intake.max_records == 0
    intake.unshut()
    assert intake.max_records == 0
    intake.open(5, 100)
    assert (intake.max_records, intake.max_bytes) == (5, 100)


@pytest.mark.parametrize("settings", [{"buffer_max_records": 4}, {"buffer_max_bytes": 1024}])
def test_p7_what_it_lets_in_fits_into_the_buffer(settings):
    config = ProducerConfig(**settings)
    machine = ProducerMachine(StreamRef("s"), config, Random(1), 0.0)
    intake, one = machine.intake, record(b"x" * 297, "key")
    assert machine.put(one, 0.0) is Put.PUMP
    while len(intake.records) < intake.max_records and intake.size + 300 <= intake.max_bytes:
        intake.add(record(b"x" * 297), 300)
    assert machine.outstanding <= config.buffer_max_records
    assert machine.buffered_bytes <= config.buffer_max_bytes
    assert machine.outstanding == (4 if "buffer_max_records" in settings else 3)
    assert machine.put(record(b"x" * 297), 0.0) is Put.FULL


def test_in1_a_machine_whose_intake_is_shut_takes_records_by_call():
    machine = ProducerMachine(StreamRef("s"), ProducerConfig(), Random(1), 0.0)
    machine.intake.shut()
    assert [machine.put(record(), 0.0) for _ in range(3)] == [Put.PUMP, Put.QUIET, Put.QUIET]
    assert machine.intake.max_records == 0
    assert machine.outstanding == 3


def machine_with_lanes(count, **settings):
    machine = ProducerMachine(StreamRef("s"), ProducerConfig(**settings), Random(1), 0.0)
    edges = [HASH_KEY_COUNT * place // count for place in range(count + 1)]
    shards = [
        ShardShape(f"s-{place}", HashKeyRangeShape(str(start), str(end - 1)), SequenceNumberRangeShape("0"))
        for place, (start, end) in enumerate(pairwise(edges))
    ]
    machine.poll_list_shards(0.0)
    machine.handle_list_shards(ListShardsResponse(shards), 0.0)
    assert machine.put(record(), 0.0) is Put.PUMP
    return machine


@pytest.mark.parametrize(
    ("lanes", "settings", "records", "size"),
    [
        (1, {}, 500, 512 * KIB),
        (64, {}, 512, 512 * KIB),
        (256, {}, 2_048, 1 * MIB),
        (256, {"aggregation": False}, 500, 512 * KIB),
        (256, {"request_max_entries": 3, "aggregation": False}, 3, 512 * KIB),
        (256, {"aggregate_max_count": 3}, 1_500, 1 * MIB),
        (256, {"aggregate_max_count": 1}, 500, 1 * MIB),
        (256, {"buffer_max_records": 8_000, "buffer_max_bytes": 4 * MIB}, 1_000, 512 * KIB),
    ],
)
def test_in2_a_round_grows_with_the_lanes_but_is_no_more_than_a_part_of_the_buffer(lanes, settings, records, size):
    machine = machine_with_lanes(lanes, record_max_bytes=10 * MIB, **settings)
    assert (machine.intake.max_records, machine.intake.max_bytes) == (records - 1, size)


@pytest.mark.parametrize(("ordered", "keys"), [(True, ["key", None, "a", None]), (False, ["key", "a", None, None])])
def test_p9_in_order_a_round_is_sorted_record_by_record(ordered, keys):
    machine = machine_with_lanes(1, ordered=ordered)
    for key in (None, "a", None):
        machine.put(record(b"data", key), 0.0)
    machine._sort(0.0)
    (lane,) = machine._router.lanes
    assert [one.key for one in lane.unsent()] == keys
