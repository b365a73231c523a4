"""What does a producer do when the service, the network or the stream fails?"""

import collections
import time

import anyio
import pytest
from tests.shell.blocking import EVERY_API, BlockingProducer, kind_for

from shardline import Credentials, Producer, ProducerConfig, UsageError, deaggregate
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio


def count_of(records):
    return collections.Counter(data for _, data in records)


# ---- permanent failures: reported at once, with the reason, without harm to other records (P5)


async def test_a_missing_stream_fails_fast_and_harms_no_other_producer(make_producer, stored, kinesis):
    """A defect of aiokpl (aiokpl_b7)."""
    async with (
        kinesis.client() as client,
        make_producer("missing", client=client) as lost,
        make_producer("s", client=client) as fine,
    ):
        with anyio.fail_after(3):
            deliveries = await lost.put_many([("k", b"%d" % number) for number in range(50)])
            good = await fine.put(b"x", key="k")
            assert (await good).attempt_count == 1
            outcomes = [await delivery.outcome() for delivery in deliveries]
            assert await lost.flush() == []
    assert {outcome.code for outcome in outcomes} == {"ResourceNotFoundException"}
    assert "missing" in outcomes[0].message
    assert {outcome.attempt_count for outcome in outcomes} == {1}
    assert stored() == [("k", b"x")]


async def test_without_the_permission_to_list_shards_records_go_one_by_one(make_producer, kinesis, complaints):
    kinesis.faults.error("AccessDeniedException", "not authorized", operation="ListShards", status=400)
    async with make_producer() as producer:
        with anyio.fail_after(8):
            deliveries = await producer.put_many([(f"k{number}", b"%d" % number) for number in range(50)])
            assert await producer.flush() == []
        assert all(delivery.delivered for delivery in deliveries)
        await (await producer.put(b"keyless"))
    assert kinesis.streams["s"].record_count == 51
    assert any("listing shards failed" in text for _, text in complaints())


async def test_a_dead_endpoint_is_tried_with_a_backoff_until_the_ttl(make_producer):
    async with make_producer(endpoint_url="http://127.0.0.1:1", record_ttl=0.3) as producer:
        began = time.monotonic()
        outcome = await (await producer.put(b"x", key="k")).outcome()
        assert 0.2 < time.monotonic() - began < 8, "not the ten seconds that it has otherwise"
    assert outcome.code == "Expired"
    assert "last failure: " in outcome.message
    assert 1 <= outcome.attempt_count <= 25
    assert outcome.attempts[-1].code == "Expired"
    assert outcome.maybe_stored is False, "nobody was there"


async def test_a_wrong_key_fails_fast():
    with LocalKinesis(stream="s", verify_signatures=True) as kinesis:
        wrong = Credentials(kinesis.credentials.access_key, "not the key")
        async with Producer(
            "s", endpoint_url=kinesis.endpoint_url, region=kinesis.region, credentials=wrong
        ) as producer:
            with anyio.fail_after(3):
                outcome = await (await producer.put(b"x", key="k")).outcome()
        assert outcome.code == "InvalidSignatureException"
        assert "not the key" not in outcome.message


# ---- transient failures


@EVERY_API
async def test_an_outage_within_the_ttl_loses_nothing_and_makes_no_storm(tmp_path, request):
    local = LocalKinesis(data=tmp_path / "data", stream="o", shards=2, limits=False)
    local.start()
    try:
        config = ProducerConfig(linger=0.005, record_ttl=10, retry_backoff=0.02, retry_backoff_max=0.1)
        way = {"endpoint_url": local.endpoint_url, "region": local.region, "credentials": local.credentials}
        async with kind_for(request, Producer, BlockingProducer)("o", config=config, **way) as producer:
            await (await producer.put(b"before", key="k"))
            await anyio.to_thread.run_sync(local.stop)
            deliveries = await producer.put_many([(f"k{number}", b"%d" % number) for number in range(200)])
            await anyio.sleep(0.8)
            assert not any(delivery.done for delivery in deliveries)
            requests = producer.stats().requests
            await anyio.to_thread.run_sync(local.start)
            with anyio.fail_after(5):
                receipts = [await delivery for delivery in deliveries]
            assert requests < 40, "a trickle, no storm"
        assert set(count_of(_read(local, "o"))) == {b"before", *(b"%d" % number for number in range(200))}
        assert all(2 <= receipt.attempt_count <= 30 for receipt in receipts)
        assert all(receipt.attempts[0].code is not None for receipt in receipts)
    finally:
        local.stop()


def _read(local, stream):
    return [(record.key, record.data) for record in deaggregate(local.streams[stream].records)]


async def test_a_throttling_storm_is_met_with_backoff_and_recovered_from(make_producer, kinesis, stored):
    """A defect of aiokpl (aiokpl_b13)."""
    fault = kinesis.faults.throttle(operation="PutRecords")
    async with make_producer(retry_backoff=0.05, retry_backoff_max=0.2) as producer:
        deliveries = await producer.put_many([(f"k{number}", b"%d" % number) for number in range(500)])
        await anyio.sleep(0.5)
        assert not any(delivery.done for delivery in deliveries)
        assert any(lane.rate_share < 1 for lane in producer.stats().lanes)
        fault.remove()
        with anyio.fail_after(3):
            receipts = [await delivery for delivery in deliveries]
    assert max(receipt.attempt_count for receipt in receipts) <= 14
    assert count_of(stored()) == {b"%d" % number: 1 for number in range(500)}, "a refused entry is not stored"


async def test_one_shard_that_is_throttled_holds_up_no_other(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords", shard=0)
    ranges = {shard.shard_id: shard.hash_range for shard in kinesis.streams["s"].shards}
    async with make_producer(close_timeout=0) as producer:
        for shard_id, hash_range in ranges.items():
            delivery = await producer.put(b"x", key="k", explicit_hash_key=str(hash_range.start))
            if shard_id.endswith("0"):
                hot = delivery
            else:
                with anyio.fail_after(8):
                    assert (await delivery).attempt_count == 1
        assert not hot.done
        with anyio.fail_after(8):  # P8: keyless records go to a healthy shard
            for _ in range(30):
                assert not (await (await producer.put(b"y"))).shard_id.endswith("00000")


async def test_the_attempts_of_a_long_fight_are_bounded_in_memory(make_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords", count=25)
    async with make_producer(retry_backoff=0.001, retry_backoff_max=0.002) as producer:
        receipt = await (await producer.put(b"x", key="k"))
    assert receipt.attempt_count == 26
    assert len(receipt.attempts) <= 17
    assert receipt.attempts[0].code == "ProvisionedThroughputExceededException"
    assert receipt.attempts[-1].code is None
    starts = [attempt.started_at for attempt in receipt.attempts]
    assert starts == sorted(starts)


PASSING = {
    "unavailable": lambda faults: faults.unavailable(operation="PutRecords", count=2),
    "internal failure": lambda faults: faults.error("InternalFailure", status=500, operation="PutRecords", count=2),
    "expired credentials": lambda faults: faults.expired_token(operation="PutRecords", count=2),
    "a proxy's page": lambda faults: faults.html(503, operation="PutRecords", count=2),
    "reset before": lambda faults: faults.reset("before", operation="PutRecords", count=2),
    "some entries": lambda faults: faults.fail_entries(share=0.5, count=2),
    "no map at first": lambda faults: faults.unavailable(operation="ListShards", count=1),
    "garbage for a map": lambda faults: faults.malformed(operation="ListShards", count=1),
    "no summary at first": lambda faults: faults.unavailable(operation="DescribeStreamSummary", count=1),
    "garbage for a summary": lambda faults: faults.malformed(operation="DescribeStreamSummary", count=1),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
async def test_what_passes_is_tried_again_and_stored_once(make_producer, kinesis, stored, fault):
    live = fault(kinesis.faults)
    async with make_producer() as producer:
        with anyio.fail_after(5):
            deliveries = await producer.put_many([(f"k{number}", b"%d" % number) for number in range(100)])
            assert await producer.flush() == []
        assert all(delivery.delivered for delivery in deliveries)
    assert live.hits >= 1
    assert count_of(stored()) == {b"%d" % number: 1 for number in range(100)}


HIDDEN = {
    "answer lost": lambda faults: faults.reset("after", operation="PutRecords", count=1),
    "answer cut": lambda faults: faults.reset("inside", operation="PutRecords", count=1),
    "answer short": lambda faults: faults.truncate(operation="PutRecords", count=1),
    "answer garbled": lambda faults: faults.malformed(operation="PutRecords", count=1),
    "too few results": lambda faults: faults.wrong_count(-1, count=1),
    "too many results": lambda faults: faults.wrong_count(1, count=1),
}


@pytest.mark.parametrize("fault", HIDDEN.values(), ids=HIDDEN)
async def test_an_answer_that_is_lost_after_storing_makes_duplicates_and_says_so(make_producer, kinesis, stored, fault):
    fault(kinesis.faults)
    async with make_producer() as producer:
        deliveries = await producer.put_many([(f"k{number}", b"%d" % number) for number in range(40)])
        with anyio.fail_after(3):
            receipts = [await delivery for delivery in deliveries]
    for receipt in receipts:
        first, last = receipt.attempts
        assert (first.code is not None, first.maybe_stored) == (True, True)
        assert (last.code, last.maybe_stored) == (None, True)
    assert count_of(stored()) == {b"%d" % number: 2 for number in range(40)}


async def test_one_poisonous_record_among_hundreds_fails_alone(make_producer, kinesis, stored):
    """aiokpl_b11: the record is larger than the stream's limit, and the producer was configured with a higher limit."""
    async with make_producer(record_max_bytes=10 * 1024 * 1024) as producer:
        records = [(f"k{number}", b"%d" % number) for number in range(400)]
        records.insert(200, ("poison", b"p" * 1_500_000))
        deliveries = await producer.put_many(records)
        with anyio.fail_after(10):
            outcomes = [await delivery.outcome() for delivery in deliveries]
    bad = [
        (delivery.key, outcome.code)
        for delivery, outcome in zip(deliveries, outcomes, strict=True)
        if not outcome.delivered
    ]
    assert [key for key, _ in bad] == ["poison"]
    assert bad[0][1] in {"ValidationException", "InvalidArgumentException"}
    assert count_of(stored()) == {b"%d" % number: 1 for number in range(400)}
    assert kinesis.requests.count("PutRecords") < 40


async def test_a_stream_of_large_records(make_producer, kinesis):
    async with kinesis.client() as client:
        await client.call("UpdateMaxRecordSize", {"StreamARN": kinesis.streams["s"].arn, "MaxRecordSizeInKiB": 10240})
    async with make_producer(bytes_per_second=1e9, record_ttl=20) as producer:
        sizes = [10 * 1024 * 1024 - 1, 3_000_000, 1_048_576, 100]
        deliveries = [await producer.put(b"x" * size, key="k") for size in sizes]
        with anyio.fail_after(15):
            for delivery in deliveries:
                assert (await delivery).attempt_count == 1
        with pytest.raises(UsageError, match="10485760 bytes"):
            await producer.put(b"x" * (10 * 1024 * 1024), key="k")
    assert sorted(len(record.data) for record in kinesis.streams["s"].records) == sorted(sizes)


async def test_a_record_as_large_as_a_second_of_rate_goes_out(make_producer, kinesis):
    """aiokpl_b12: with the rates of a shard, and the server's limits on."""
    with LocalKinesis(stream="s") as limited:
        config = ProducerConfig(linger=0.005, record_ttl=5)
        way = {"endpoint_url": limited.endpoint_url, "region": limited.region, "credentials": limited.credentials}
        async with Producer("s", config=config, **way) as producer:
            with anyio.fail_after(3):
                large = await producer.put(b"x" * 1_048_575, key="k")
                small = await producer.put(b"y", key="k")
                assert (await large).shard_id == (await small).shard_id


async def test_an_auto_stream_gets_one_record_an_entry(kinesis, make_producer):
    await _make_auto(kinesis, "auto")
    async with make_producer("auto") as producer:
        await producer.put_many([("k", b"%d" % number) for number in range(50)] + [(None, b"keyless")])
        assert await producer.flush() == []
        more = await producer.put_many([("k", b"%d" % number) for number in range(50, 100)])
        receipts = [await delivery for delivery in more]
    records = kinesis.streams["auto"].records
    assert {record.data for record in records} >= {b"%d" % number for number in range(50, 100)}
    assert len({receipt.sequence_number for receipt in receipts}) == 50, "each by itself"


async def test_ordered_is_refused_on_an_auto_stream(kinesis, make_producer, complaints):
    from shardline import Closed

    await _make_auto(kinesis, "auto")
    async with make_producer("auto", ordered=True) as producer:
        outcome = await (await producer.put(b"x", key="k")).outcome()
        if outcome.delivered:  # the summary arrived later than the map
            with anyio.fail_after(10):
                while producer._intake.refusal is None:  # noqa: ASYNC110 - nothing tells
                    await anyio.sleep(0.005)
        else:
            assert "ordered=True cannot be honoured" in outcome.message
        with pytest.raises(Closed, match="ordered=True cannot be honoured"):
            await producer.put(b"y", key="k")


async def _make_auto(kinesis, name):
    async with kinesis.client() as client:
        await client.call(
            "CreateStream",
            {
                "StreamName": name,
                "StreamModeDetails": {"StreamMode": "ON_DEMAND"},
                "RecordDistributionStrategy": "AUTO",
            },
        )


# ---- resharding under load


async def _change(client, action):
    if action == "split":
        await client.split_shard("s", "shardId-000000000000", wait=True)
    elif action == "merge":
        await client.merge_shards("s", "shardId-000000000001", "shardId-000000000002", wait=True)
    else:
        await client.update_shard_count("s", 8 if action == "double" else 2, wait=True)


@pytest.mark.clock
@pytest.mark.parametrize("action", ["split", "merge", "double", "halve"])
async def test_a_reshard_under_load_loses_nothing(make_producer, kinesis, stored, eventually, action):
    deliveries = []
    async with kinesis.client() as client, make_producer(linger=0.01) as producer:
        stop = False

        async def load():
            number = 0
            while not stop:
                many = await producer.put_many([(f"k{place}", b"%d" % (number + place)) for place in range(200)])
                deliveries.extend(many)
                number += 200
                await anyio.sleep(0.005)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load)
            await anyio.sleep(0.1)
            await _change(client, action)
            shards = kinesis.streams["s"].shards
            open_shards = {shard.shard_id for shard in shards if shard.ending_sequence_number is None}
            await eventually(lambda: {lane.shard_id for lane in producer.stats().lanes} == open_shards)
            predicted_at = time.time()
            await anyio.sleep(0.1)
            stop = True
        with anyio.fail_after(10):
            receipts = [await delivery for delivery in deliveries]
    arrived = count_of(stored())
    assert set(arrived) == {b"%d" % number for number in range(len(deliveries))}
    duplicates = sum(arrived.values()) - len(deliveries)
    assert duplicates <= 0.05 * len(deliveries) + 200
    assert kinesis.requests.count("ListShards") <= 6
    late = [one for receipt in receipts for one in receipt.attempts if one.started_at > predicted_at and one.code]
    assert late == [], "prediction is right again"
    # No receipt is for an entry that a KCL reader would drop: each names a copy that lies in its shard's range.
    named = {(receipt.sequence_number, receipt.shard_id) for receipt in receipts}
    ranges = {shard.shard_id: shard.hash_range for shard in kinesis.streams["s"].shards}
    from shardline import hash_key_of

    for outer in kinesis.streams["s"].records:
        if (outer.sequence_number, outer.shard_id) in named:
            members = deaggregate(outer)
            assert all(hash_key_of(one.key) in ranges[outer.shard_id] for one in members if one.aggregated)


@pytest.mark.parametrize("trouble", ["throttling", "split", "lost answers"])
async def test_ordered_keeps_the_order_of_every_key(make_producer, kinesis, trouble):
    """P9 is about first deliveries: repeated copies do not count."""
    async with kinesis.client() as client, make_producer(ordered=True, linger=0.002, aggregate_max_count=7) as producer:
        if trouble == "throttling":
            kinesis.faults.throttle(operation="PutRecords", chance=0.3, count=30)
        elif trouble == "lost answers":
            kinesis.faults.reset("after", operation="PutRecords", chance=0.3, count=10)
        deliveries = []
        for number in range(60):
            deliveries += await producer.put_many([(f"k{place}", b"%d" % number) for place in range(20)])
            if trouble == "split" and number == 20:
                await client.split_shard("s", "shardId-000000000001", wait=True)
            await anyio.sleep(0.002)
        with anyio.fail_after(10):
            assert await producer.flush() == []
    first_seen = collections.defaultdict(list)
    for record in deaggregate(kinesis.streams["s"].records):  # parents come before their children
        number = int(record.data)
        if number not in first_seen[record.key]:
            first_seen[record.key].append(number)
    assert first_seen == {f"k{place}": list(range(60)) for place in range(20)}
