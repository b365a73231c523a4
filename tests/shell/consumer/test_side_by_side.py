"""Does ``run`` with ``concurrency`` keep the order of each key, the limit of handlers, and the commit rules?"""

import threading
import time
from collections import Counter, defaultdict

import anyio
import pytest
from tests.shell.blocking import EVERY_API

from shardline import Batch, FailurePolicy, HandlerFailed, UsageError

pytestmark = pytest.mark.anyio

HASTY = FailurePolicy(attempts=2, backoff=0.01, backoff_max=0.02)


class Watch:
    """Notes which keys are in handlers, and checks what must hold of them."""

    def __init__(self):
        self.keys = Counter()
        self.most = 0
        self.seen = defaultdict(list)
        self.lock = threading.Lock()

    def enter(self, records):
        with self.lock:
            keys = {record.key for record in records}
            assert not keys & set(+self.keys), "a key is in two handlers"
            self.keys.update(keys)
            self.most = max(self.most, self.at_work + 1)
            self.at_work += 1
            for record in records:
                self.seen[record.key].append(int(record.data))

    at_work = 0

    def leave(self, records):
        with self.lock:
            self.keys.subtract({record.key for record in records})
            self.at_work -= 1

    def check(self, count):
        assert sorted(number for numbers in self.seen.values() for number in numbers) == list(range(count))
        assert all(numbers == sorted(numbers) for numbers in self.seen.values()), "the order of a key"


@EVERY_API
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_c6_the_records_of_a_key_are_handled_in_order_and_other_keys_beside_them(make_consumer, put, kind):
    await put(range(200), keys=12)
    watch = Watch()

    async def handle(record):
        watch.enter([record])
        await anyio.sleep(0.005)
        watch.leave([record])

    def handle_in_thread(record):
        watch.enter([record])
        time.sleep(0.005)
        watch.leave([record])

    async with make_consumer(until="latest") as consumer:
        await consumer.run(handle if kind == "async" else handle_in_thread, concurrency=8, order="key")
    watch.check(200)
    assert 2 <= watch.most <= 8


@EVERY_API
async def test_no_key_is_in_two_batches_at_once(make_consumer, put):
    await put(range(300), keys=10)
    watch, sizes = Watch(), []

    async def handle(batch):
        assert isinstance(batch, Batch)
        sizes.append(len(batch))
        watch.enter(batch.records)
        await anyio.sleep(0.01)
        watch.leave(batch.records)

    async with make_consumer(until="latest") as consumer:
        await consumer.run(handle, batch=7, max_wait=0.05, concurrency=4, order="key")
    watch.check(300)
    assert max(sizes) == 7
    assert watch.most > 1


async def test_without_order_the_records_of_one_key_are_handled_side_by_side(make_consumer, put):
    await put(range(40), keys=1)
    at_work = most = 0
    seen = []

    async def handle(record):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await anyio.sleep(0.02)
        at_work -= 1
        seen.append(int(record.data))

    async with make_consumer(until="latest") as consumer:
        await consumer.run(handle, concurrency=10, order="none")
    assert sorted(seen) == list(range(40))
    assert most == 10


async def test_concurrency_limits_the_shards_that_are_handled_at_once(make_consumer, put, ledger):
    await put(range(30))
    at_work = []

    async def handle(record):
        at_work.append(record)
        assert len(at_work) == 1
        await anyio.sleep(0.001)
        at_work.remove(record)
        ledger(record)

    async with make_consumer(until="latest") as consumer:
        await consumer.run(handle, concurrency=1)
    assert sorted(ledger.numbers) == list(range(30))
    ledger.check_order()


@EVERY_API
async def test_a_failing_record_holds_up_only_its_own_key(make_consumer, put):
    """Even with a single handler at a time: the other records are done while the failing one waits for its retry."""
    await put(range(60), keys=20)
    attempts, done = [], []

    async def handle(record):
        number = int(record.data)
        if number == 3 and len(attempts) < 2:
            attempts.append(len(done))
            raise ValueError("not yet")
        done.append(number)

    policy = FailurePolicy(attempts=3, backoff=0.5, backoff_max=0.5)
    async with make_consumer(until="latest") as consumer:
        await consumer.run(handle, concurrency=1, order="key", policy=policy)
    assert sorted(done) == list(range(60))
    assert [number for number in done if number % 20 == 3] == [3, 23, 43], "the order of its key"
    assert attempts[1] - attempts[0] > 20, "others went on during the pause"


@EVERY_API
async def test_a_poisonous_record_of_a_batch_is_dead_lettered_and_its_key_goes_on(make_consumer, put):
    await put(range(100), keys=5)
    done, letters = [], []

    async def handle(batch):
        if any(record.data == b"42" for record in batch):
            raise ValueError("poison")
        done.extend(int(record.data) for record in batch)

    async with make_consumer(until="latest") as consumer:
        await consumer.run(
            handle,
            batch=10,
            concurrency=4,
            order="key",
            policy=HASTY,
            dead_letter=letters.append,
        )
    assert [record.data for letter in letters for record in letter.records] == [b"42"]
    assert sorted(done) == [number for number in range(100) if number != 42]
    assert [number for number in done if number % 5 == 2] == [number for number in range(2, 100, 5) if number != 42]


@EVERY_API
async def test_a_run_that_stops_commits_no_record_behind_the_failed_one(make_consumer, put, group):
    await put(range(50), keys=50)
    done = []

    async def handle(record):
        if int(record.data) == 10 and not done.count("again"):
            raise ValueError("no")
        done.append(int(record.data))

    policy = FailurePolicy(attempts=1)
    with pytest.raises(HandlerFailed):
        async with make_consumer(until="latest", group=group, store="memory:") as consumer:
            await consumer.run(handle, concurrency=4, order="key", policy=policy)
    assert 10 not in done
    done.append("again")
    async with make_consumer(until="latest", group=group, store="memory:") as consumer:
        await consumer.run(handle, concurrency=4, order="key", policy=policy)
    done.remove("again")
    assert set(done) == set(range(50)), "no record was skipped"


@EVERY_API
async def test_close_waits_for_the_handlers_at_work_and_starts_no_others(make_consumer, put, group):
    await put(range(100), keys=100)
    started, ended = [], []
    enough = threading.Event()

    async def handle(record):
        started.append(int(record.data))
        if len(started) == 5:
            enough.set()
        await anyio.sleep(0.2)
        ended.append(int(record.data))

    async with make_consumer(group=group, store="memory:") as consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: consumer.run(handle, concurrency=5, order="key"))
        assert await anyio.to_thread.run_sync(enough.wait, 20)
        await consumer.close()
    assert sorted(started) == sorted(ended), "all handlers ended"
    assert len(started) < 100
    rest = []
    async with make_consumer(until="latest", group=group, store="memory:") as consumer:
        await consumer.run(lambda record: rest.append(int(record.data)), concurrency=5, order="none")
    assert not set(rest) & set(ended), "what was done is not delivered again"
    assert sorted([*rest, *ended]) == list(range(100))


async def test_an_iteration_after_a_run_leaves_out_the_records_that_are_done(make_consumer, put):
    await put(range(20), keys=20)
    done = []

    async def handle(record):
        if int(record.data) == 4:
            raise ValueError("no")
        done.append(int(record.data))

    async with make_consumer(until="latest") as consumer:
        with pytest.raises(HandlerFailed):
            await consumer.run(handle, concurrency=2, order="none", policy=FailurePolicy(attempts=1))
        rest = [int(record.data) async for record in consumer]
    assert 4 in rest
    assert sorted([*done, *rest]) == list(range(20)), "each record once"


async def test_the_status_shows_the_keys_in_flight_and_the_hot_ones(make_consumer, put):
    await put(range(30), keys=2)
    found = []

    async with make_consumer(until="latest") as consumer:

        async def handle(_record):
            await anyio.sleep(0.02)
            found.append(consumer.status().keys)

        await consumer.run(handle, concurrency=8, order="key")
        assert consumer.status().keys.in_flight == 0
    most = max(found, key=lambda keys: keys.in_flight)
    assert most.in_flight == 2
    assert most.oldest in {"k0", "k1"}
    assert 0 <= time.time() - most.oldest_started_at < 30
    assert max(hot.waiting for keys in found for hot in keys.hot) > 5
    assert {hot.key for keys in found for hot in keys.hot} <= {"k0", "k1"}


@EVERY_API
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"concurrency": 0}, "concurrency must be a whole number from 1 to 10,000, or None, not 0"),
        ({"concurrency": True}, "concurrency must be a whole number"),
        ({"concurrency": 2.0}, "concurrency must be a whole number"),
        ({"concurrency": 2, "order": "key "}, "order must be 'shard' or 'key' or 'none', not 'key '"),
        ({"order": "key"}, "order='key' needs concurrency="),
    ],
)
async def test_wrong_arguments_are_refused(make_consumer, arguments, message):
    async with make_consumer(until="latest") as consumer:
        with pytest.raises(UsageError, match=message):
            await consumer.run(print, **arguments)


async def test_manual_acknowledgements_need_the_order_of_the_shard(make_consumer):
    async with make_consumer(until="latest", ack="manual") as consumer:
        with pytest.raises(UsageError, match="order='key' needs ack='auto'"):
            await consumer.run(print, concurrency=2, order="key")
