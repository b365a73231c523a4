"""Does a consumer report its work: pages, hand-outs, handling, commits, lag; and count it in its status?"""

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline.core import rates
from shardline.core.consumer import consumer_totals
from shardline.events import Committed, LagMeasured, PageRead, RecordsHandedOut, RecordsHandled

pytestmark = pytest.mark.anyio


def of(events, kind):
    return [event for event in events if isinstance(event, kind)]


@EVERY_API
@pytest.mark.parametrize("way", ["iterate", "run", "batch"])
async def test_the_work_of_a_consumer_is_reported_and_counted(make_consumer, put, group, eventually, way):
    await put(range(40))
    events = []

    async def handle(_):
        await anyio.sleep(0.002)

    async with make_consumer(group=group, store="memory:", sinks=[events.append], until="latest") as consumer:
        if way == "iterate":
            async for _ in consumer:
                await anyio.sleep(0.002)
        else:
            await consumer.run(handle, **({"batch": 7} if way == "batch" else {}))
        await eventually(lambda: of(events, Committed))
        status = consumer.status()
    read, out, handled = of(events, PageRead), of(events, RecordsHandedOut), of(events, RecordsHandled)
    assert sum(event.records for event in read) == 40
    assert sum(event.payload_bytes for event in read) == sum(len(b"%d" % number) for number in range(40))
    assert {event.read_by for event in read} == {"polling"}
    assert all(event.duration >= 0 for event in read)
    assert sum(event.records for event in out) == sum(event.records for event in handled) == 40
    assert sum(event.duration for event in handled) >= 0.002 * (40 / 7 if way == "batch" else 40) * 0.5
    assert len(handled) <= 20, "never one per record"
    assert {event.shard_id for event in of(events, Committed)} <= {event.shard_id for event in read}
    totals = status.totals
    assert (totals.records_read, totals.records_handled, totals.records_handed_out) == (40, 40, 40)
    assert totals.pages >= 2
    assert totals.leases_gained == 2
    assert totals.commits >= 1
    assert status.rates.records_handled > 0


async def test_the_lag_is_measured_for_sinks(make_consumer, put, group, eventually, monkeypatch):
    monkeypatch.setattr(consumer_totals, "MEASURE_INTERVAL", 0.1)
    assert rates.MEASURE_INTERVAL == 5.0
    await put(range(40))
    events = []
    async with make_consumer(group=group, store="memory:", sinks=[events.append]) as consumer:
        async for _ in consumer:
            break
        await eventually(lambda: len(of(events, LagMeasured)) >= 3)
        measured = of(events, LagMeasured)[-1]
        status = {shard.shard_id: shard for shard in consumer.status().shards}
    assert sum(shard.in_hand for shard in measured.shards) == 1
    assert sum(shard.prefetched for shard in measured.shards) == 39
    for shard in measured.shards:
        assert shard.handling_lag is not None
        assert shard.handling_lag >= 0.1
        assert shard.reading_lag == status[shard.shard_id].reading_lag
