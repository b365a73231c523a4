"""Does Ctrl-C while a program waits for records lose any record, if the program continues?"""

import anyio
import pytest
from tests.sim.interrupting import interrupted

from shardline.aio.loop.host_tasks import running_task

pytestmark = pytest.mark.anyio

COUNT = 40
WAYS = ["records", "batches", "manual"]
STRIDE = 97  # not every step: each case starts at another one


@pytest.fixture
def anyio_backend():
    """The steps are the same on both event loops."""
    return "asyncio"


@pytest.fixture
async def resharded(put, client_of):
    """A shard that has ended, and its children."""
    await put(range(COUNT // 2), keys=40)
    async with client_of() as client:
        await client.split_shard("s", "shardId-000000000000", str(2**126))
        await anyio.sleep(0.05)
    await put(range(COUNT // 2, COUNT), keys=40)


def begin_of(way):
    return (lambda consumer: consumer.batches(max_records=5)) if way == "batches" else aiter


async def read_all(consumer, begin, after, *, anew, is_manual, within="src/shardline/"):
    """Return the records that were handed out until the end, and where the interrupt came."""
    me = running_task()
    seen, handed = [], begin(consumer)
    where = None
    while True:
        given = None
        try:
            if where is not None:
                given = await anext(handed)
            else:
                is_me = lambda: running_task() is me  # noqa: E731
                with interrupted(after, within, steps="signal", is_meant=is_me) as one:
                    given = await anext(handed)
                after, where = one.after, one.where
        except StopAsyncIteration:
            return seen, where
        if given is None:
            handed = begin(consumer) if anew else handed
            continue
        seen += [given] if hasattr(given, "data") else given
        if is_manual:
            consumer.ack(given)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # created, and then interrupted
@pytest.mark.parametrize("anew", [False, True], ids=["goes on", "begins anew"])
@pytest.mark.parametrize("way", WAYS)
async def test_an_interrupt_between_any_two_steps_of_asking_loses_nothing(make_consumer, resharded, group, way, anew):
    first = (WAYS.index(way) * 2 + anew) * STRIDE // 6
    after, where = first, "not yet"
    while where is not None:
        settings = {"group": f"{group}-{after}", "store": "memory:", "page_max_records": 7, "lease_duration": 20.0}
        settings["ack"] = "manual" if way == "manual" else "auto"
        with anyio.move_on_after(60) as limit:  # a hang would not end
            async with make_consumer(until="latest", **settings) as consumer:
                seen, where = await read_all(consumer, begin_of(way), after, anew=anew, is_manual=way == "manual")
        assert not limit.cancelled_caught, f"it hangs after an interrupt in {where}"
        numbers = [int(record.data) for record in seen]
        assert sorted(numbers) == list(range(COUNT)), where
        if (after - first) % (5 * STRIDE) == 0:
            async with make_consumer(until="latest", **settings) as consumer:
                assert [int(record.data) async for record in consumer] == [], f"all was done, in spite of {where}"
        after += STRIDE


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("way", WAYS)
async def test_an_interrupt_at_any_step_of_the_iterator_itself_loses_and_repeats_nothing(
    make_consumer, put, group, way
):
    await put(range(3), keys=1)
    after, where = 0, "not yet"
    while where is not None:
        settings = {"group": f"{group}-{after}", "store": "memory:", "ack": "manual" if way == "manual" else "auto"}
        async with make_consumer(until="latest", **settings) as consumer:
            seen, where = await read_all(
                consumer,
                begin_of(way),
                after,
                anew=False,
                is_manual=way == "manual",
                within="aio/consumer/async_iteration.py",
            )
        assert sorted(int(record.data) for record in seen) == [0, 1, 2], where
        after += 1
    assert after > 5
