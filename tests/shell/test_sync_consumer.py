"""Does the blocking consumer hand out every record, in order, and keep what C5 promises, from threads?"""

import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from functools import partial
from itertools import count
from pathlib import Path
from weakref import ref

import pytest
from tests.sim.interrupting import interrupted

import shardline.sync
from shardline import (
    Closed,
    ConsumerConfig,
    FailurePolicy,
    HandlerFailed,
    Producer,
    ProducerConfig,
    Record,
    ServiceError,
    UsageError,
    WaitTimeout,
    aggregate,
)
from shardline.sync import Consumer
from shardline.sync.loop_thread import LoopThread
from shardline.testing import LocalKinesis

QUICK = {
    "lease_duration": 2.0,
    "checkpoint_interval": 0.05,
    "scan_interval": 0.05,
    "list_interval": 1.0,
    "idle_poll_interval": 0.05,
    "calls_per_second": 200.0,
    "hand_over_timeout": 2.0,
}
SOON = FailurePolicy(attempts=2, backoff=0.01, backoff_max=0.01)
groups = count(1)


@pytest.fixture
def kinesis():
    with LocalKinesis(shards=2, limits=False, stream="s") as running:
        yield running


@pytest.fixture
def connection(kinesis):
    return {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}


@pytest.fixture
def make_consumer(connection):
    def make(stream="s", **arguments):
        knobs = {name: arguments.pop(name) for name in list(arguments) if name in ConsumerConfig.__dataclass_fields__}
        return Consumer(stream, config=ConsumerConfig(**(QUICK | knobs)), **(connection | arguments))

    return make


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/leases.db"


@pytest.fixture
def group():
    return f"blocking-{next(groups)}"


@pytest.fixture
def put(connection):
    """Put numbered records; with one key they all lie in one shard."""

    def put(numbers, *, stream="s", keys=50, **config):
        with shardline.sync.Producer(stream, config=ProducerConfig(**config), **connection) as producer:
            producer.put_many([(f"k{number % keys}", b"%d" % number) for number in numbers])
            assert producer.flush(10) == []

    return put


@pytest.fixture
def call(kinesis):
    """One call of the client."""

    def call(name, *arguments, **settings):
        async def main():
            async with kinesis.client() as client:
                return await getattr(client, name)(*arguments, **settings)

        return asyncio.run(main())

    return call


@pytest.fixture(autouse=True)
def nothing_is_left_open():
    """What is unclosed warns when it is collected, and a warning is a failure here."""
    yield
    gc.collect()
    assert [one.name for one in threading.enumerate() if one.name == "shardline consumer"] == []


def numbers(records):
    return [int(record.data) for record in records]


def take(consumer, number):
    """The next ``number`` records, and no asking for more than these."""
    records = []
    for record in consumer:
        records.append(record)
        if len(records) == number:
            break
    return records


def eventually(true, limit=20.0):
    end = time.monotonic() + limit
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    assert true()


# ---- order, and nothing left out


def test_every_record_comes_once_and_in_order(make_consumer, put):
    put(range(2000))
    by_shard, by_key = defaultdict(list), defaultdict(list)
    with make_consumer(until="latest") as consumer:
        for record in consumer:
            by_shard[record.shard_id].append(record.order)
            by_key[record.key].append(int(record.data))
    assert sorted(number for key in by_key.values() for number in key) == list(range(2000))
    assert len(by_shard) == 2
    assert all(orders == sorted(orders) for orders in [*by_shard.values(), *by_key.values()])


def test_a_record_costs_no_hop_to_another_thread(make_consumer, put, monkeypatch):
    put(range(5000), keys=1)
    calls = []
    call = LoopThread.call
    monkeypatch.setattr(LoopThread, "call", lambda self, work: calls.append(work) or call(self, work))
    with make_consumer(until="latest") as consumer:
        assert numbers(consumer) == list(range(5000))
    assert len(calls) < 40


def test_batches_have_records_of_one_shard(make_consumer, put):
    put(range(500))
    seen = []
    with make_consumer(until="latest", deserializer=json.loads) as consumer:
        for batch in consumer.batches(max_records=30):
            assert {record.shard_id for record in batch} == {batch.shard_id}
            assert len(batch) <= 30
            seen += batch.values
    assert sorted(seen) == list(range(500))


def test_a_batch_waits_for_its_fill(make_consumer, put):
    with make_consumer(page_max_records=5, idle_timeout=1.0) as consumer:
        put(range(12), keys=1)
        assert sum(map(len, consumer.batches(max_records=100, max_wait=0.2))) == 12


def test_a_reshard_is_followed_and_parents_come_first(make_consumer, put, call, group, store):
    put(range(200))
    seen = []
    with make_consumer(group=group, store=store, idle_timeout=0.6) as consumer:
        for record in consumer:
            seen.append(record)
            if len(seen) == 50:
                call("split_shard", "s", "shardId-000000000000", wait=True)
                put(range(200, 400))
    assert sorted(numbers(seen)) == list(range(400))
    assert len({record.shard_id for record in seen}) == 4
    by_key = defaultdict(list)
    for record in seen:
        by_key[record.key].append(int(record.data))
    assert all(order == sorted(order) for order in by_key.values())


# ---- C5


@pytest.mark.parametrize("way", ["clean", "exception", "interrupt"])
def test_what_was_asked_past_is_done_and_the_last_only_after_a_clean_end(make_consumer, put, group, store, way):
    put(range(100), keys=1)
    kinds = {"clean": None, "exception": RuntimeError, "interrupt": KeyboardInterrupt}
    try:
        with make_consumer(group=group, store=store) as consumer:
            assert len(take(consumer, 40)) == 40
            if kinds[way] is not None:
                raise kinds[way]
    except (RuntimeError, KeyboardInterrupt):
        assert way != "clean"
    with make_consumer(group=group, store=store, until="latest") as consumer:
        assert numbers(consumer) == list(range(40 if way == "clean" else 39, 100))


@pytest.mark.parametrize("way", ["asked", "acked", "left", "broken"])
def test_a_batch_is_done_when_the_next_is_asked_for_or_it_is_acked(make_consumer, put, group, store, way):
    put(range(100), keys=1)
    try:
        with make_consumer(group=group, store=store) as consumer:
            batches = consumer.batches(max_records=20)
            batch = next(batches)
            if way == "asked":
                next(batches)
            if way == "acked":
                assert batch.ack()
            if way != "left":
                raise RuntimeError  # noqa: TRY301 - what leaves the block is tested
    except RuntimeError:
        assert way != "left"
    with make_consumer(group=group, store=store, until="latest") as consumer:
        assert numbers(consumer) == list(range(0 if way == "broken" else 20, 100))
    assert not batch.ack(), "too late, and harmless"


def test_what_is_done_is_committed_while_the_next_is_worked_on(make_consumer, put, group):
    """One record of a page takes long: those before it are committed meanwhile, and itself is not."""
    put(range(10), keys=1)
    with make_consumer(group=group, store="memory:") as consumer:
        records = iter(consumer)
        handed = [next(records) for _ in range(5)]

        def checkpoints():
            return [one.checkpoint.sequence_number for one in consumer.status().shards if one.state == "reading"]

        eventually(lambda: handed[3].order in checkpoints())
        time.sleep(0.3)
        assert handed[4].order not in checkpoints()
        del records


def test_aggregates_are_resumed_in_the_middle(make_consumer, call, group, store):
    packed = aggregate([("k", b"%d" % number) for number in range(10)])
    call("put_record", "s", packed, "k")
    with make_consumer(group=group, store=store) as consumer:
        assert [(int(one.data), one.sub_sequence) for one in take(consumer, 4)] == [(n, n) for n in range(4)]
    with make_consumer(group=group, store=store, until="latest") as consumer:
        assert numbers(consumer) == list(range(4, 10))


def test_an_iteration_goes_on_where_the_last_was_left(make_consumer, put):
    put(range(10), keys=1)
    with make_consumer(until="latest") as consumer:
        assert numbers(take(consumer, 3)) == [0, 1, 2]
        assert [len(batch) for batch in consumer.batches(max_records=2)] == [2, 2, 2, 1]


def test_manual_acknowledgements_in_any_order(make_consumer, put, group, store):
    put(range(10), keys=1)
    with make_consumer(group=group, store=store, ack="manual") as consumer:
        records = take(consumer, 8)
        for place in (1, 0, 3):
            assert consumer.ack(records[place])
    with make_consumer(group=group, store=store, ack="manual", until="latest") as consumer:
        again = list(consumer)
        assert numbers(again) == list(range(2, 10))
        consumer.ack(again[3], through=True)
    with make_consumer(group=group, store=store, until="latest") as consumer:
        assert numbers(consumer) == list(range(6, 10))
    assert not consumer.ack(again[4]), "the lease is gone"


def leave_behind(consumer, iterator):
    """A question for the host, as of a thread that was interrupted just after it had asked."""
    session, taker = consumer._session, iterator._taker
    taker.asked += 1
    session.post(partial(session.hand_out.ask, taker, taker.asked))


def test_a_thread_that_was_interrupted_lost_nothing(make_consumer, put):
    """The page came while nobody waited for it any more."""
    with make_consumer(until=None) as consumer:
        records = iter(consumer)
        threading.Timer(0.3, signal.pthread_kill, [threading.get_ident(), signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            next(records)
        leave_behind(consumer, records)  # as if it had been a moment later
        put(range(5), keys=1)
        eventually(lambda: records._taker.cursor.end)
        assert [int(next(records).data) for _ in range(5)] == list(range(5))


def test_a_batch_that_came_for_an_interrupted_thread_is_handed_to_the_next(make_consumer, put, group):
    put(range(5), keys=1)
    with pytest.raises(RuntimeError), make_consumer(group=group, store="memory:") as consumer:  # noqa: PT012 - it is tested
        batches = consumer.batches()
        leave_behind(consumer, batches)
        eventually(lambda: batches._taker.cursor.end)
        assert numbers(next(batches)) == list(range(5))
        raise RuntimeError
    began = time.monotonic()
    with make_consumer(group=group, store="memory:") as consumer:
        batches = consumer.batches()
        leave_behind(consumer, batches)
        eventually(lambda: batches._taker.cursor.end)
    assert time.monotonic() - began < 5, "nobody is waited for"
    with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert numbers(consumer) == list(range(5)), "nobody was handed it"


@pytest.mark.parametrize("begin", [iter, Consumer.batches], ids=["records", "batches"])
def test_what_came_for_an_interrupted_thread_is_handed_out_by_the_next_iteration(make_consumer, put, group, begin):
    put(range(5), keys=1)
    with make_consumer(group=group, store="memory:", until="latest") as consumer:
        drop_what_has_arrived(consumer, begin(consumer))
        assert numbers(consumer) == list(range(5))


def drop_what_has_arrived(consumer, iterator):
    leave_behind(consumer, iterator)
    eventually(lambda: iterator._taker.cursor.end)


@pytest.mark.parametrize("begin", [iter, Consumer.batches], ids=["records", "batches"])
def test_a_question_that_was_left_behind_takes_nothing_and_acknowledges_nothing(make_consumer, put, group, begin):
    """Two of them wait beside the one of the thread that asks; then it has its last record in hand."""
    with pytest.raises(RuntimeError), make_consumer(group=group, store="memory:") as consumer:  # noqa: PT012 - it is tested
        consumer.wait_ready()
        iterator = begin(consumer)
        for _ in range(2):
            leave_behind(consumer, iterator)
        threading.Timer(0.2, put, [range(20)], {"keys": 20}).start()
        seen = []
        while len(seen) < 20:
            handed = next(iterator)
            seen += numbers([handed] if isinstance(handed, Record) else handed)
        assert sorted(seen) == list(range(20))
        put([20], keys=1)
        time.sleep(0.5)
        raise RuntimeError
    with make_consumer(group=group, store="memory:", until="latest") as consumer:
        again = numbers(consumer)
        assert seen[-1] in again, "it was never asked past"
        assert 20 in again


@pytest.mark.parametrize("begin", [iter, Consumer.batches], ids=["records", "batches"])
def test_a_question_that_was_left_behind_keeps_no_iteration_alive(make_consumer, begin):
    with make_consumer(until=None) as consumer:
        iterator = begin(consumer)
        leave_behind(consumer, iterator)
        time.sleep(0.05)
        weak = ref(iterator)
        del iterator
        assert weak() is None


class Pressed(BaseException):
    """What a signal handler raises, as that of Ctrl-C does."""


@pytest.fixture
def alarm():
    """Call this, or raise, in the main thread after so many seconds, wherever it is then."""

    def ring(seconds, what=None):
        def press(*_):
            if what is None:
                raise Pressed
            what()

        signal.signal(signal.SIGALRM, press)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.getsignal(signal.SIGALRM)
    yield ring
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one in a weakref's callback
@pytest.mark.parametrize("anew", [False, True], ids=["goes on", "begins anew"])
@pytest.mark.parametrize("begin", [iter, lambda consumer: consumer.batches(max_records=10)], ids=["records", "batches"])
def test_c5_signals_in_the_middle_of_asking_skip_nothing(make_consumer, put, group, alarm, begin, anew):
    put(range(2_000), keys=100, aggregation=False)
    chance, seen, pressed = random.Random(7), [], 0
    with make_consumer(group=group, store="memory:", until="latest", page_max_records=20) as consumer:
        iterator = handed = noted = None
        is_through = False
        while not is_through:
            try:
                alarm(chance.uniform(0.0002, 0.003))
                if iterator is None:
                    iterator = begin(consumer)
                for handed in iterator:
                    signal.setitimer(signal.ITIMER_REAL, 0)  # only asking is interrupted
                    seen += [handed] if isinstance(handed, Record) else handed
                    noted = handed
                    alarm(chance.uniform(0.00005, 0.001))
                is_through = True
            except Pressed:
                pressed += 1
                iterator = None if anew else iterator
                if handed is not noted:  # the loop had it just when the signal came
                    seen += [handed] if isinstance(handed, Record) else handed
                    noted = handed
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert pressed > 20
    assert sorted(numbers(seen)) == list(range(2_000))


@pytest.mark.parametrize("look", ["status", "ack"])
def test_lt4_a_signal_handler_may_call_the_consumer_that_it_interrupts(make_consumer, put, group, alarm, look):
    put(range(600), keys=100, aggregation=False)
    chance, seen, looks = random.Random(7), [], []
    with make_consumer(group=group, store="memory:", until="latest", page_max_records=1) as consumer:

        def look_again():
            looks.append(consumer.status() if look == "status" else seen and consumer.ack(seen[-1]))
            alarm(chance.uniform(0.0002, 0.002), look_again)

        alarm(0.001, look_again)
        for record in consumer:
            seen.append(record)  # noqa: PERF402 - the handler looks at it
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert sorted(numbers(seen)) == list(range(600))
    assert len(looks) > 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # one in a weakref's callback
def test_lt1_a_thread_that_is_interrupted_in_every_other_call_does_not_hang_the_loop(make_consumer, alarm):
    chance, pressed = random.Random(7), 0
    with make_consumer(until=None) as consumer:
        consumer.wait_ready()
        for _ in range(500):
            try:
                alarm(chance.uniform(0.00002, 0.0006))
                for _ in range(20):
                    consumer.status()
            except Pressed:
                pressed += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert consumer.status().is_ready
    assert pressed > 200


def test_an_acknowledgement_that_is_interrupted_anywhere_does_not_silence_the_next(make_consumer, put, group):
    put(range(3), keys=1)
    for after in count():
        with make_consumer(group=f"{group}-{after}", store="memory:", ack="manual") as consumer:
            first, second = take(consumer, 2)
            with interrupted(after, "shardline/aio/consumer_", steps="line") as interruption:
                consumer.ack(first)
            consumer.ack(first)
            consumer.ack(second)
            place = str(second.sequence_number)
            eventually(lambda place=place, consumer=consumer: place in str(consumer.status().shards))
        if interruption.where is None:
            break
    assert after > 5


# ---- run


def test_a_handler_runs_in_threads_and_in_order_within_a_shard(make_consumer, put, group, store):
    put(range(300))
    seen, threads = defaultdict(list), set()

    def handle(record):
        threads.add(threading.current_thread().name)
        seen[record.shard_id].append(record)

    with make_consumer(group=group, store=store, until="latest") as consumer:
        consumer.run(handle)
    assert sorted(number for shard in seen.values() for number in numbers(shard)) == list(range(300))
    assert all([one.order for one in shard] == sorted(one.order for one in shard) for shard in seen.values())
    assert not threads & {"shardline consumer", threading.current_thread().name}
    with make_consumer(group=group, store=store, until="latest") as consumer:
        assert list(consumer) == []


def test_a_handler_gets_batches(make_consumer, put):
    put(range(100))
    sizes = []
    with make_consumer(until="latest") as consumer:
        consumer.run(lambda batch: sizes.append(len(batch)), batch=10)
    assert sum(sizes) == 100
    assert max(sizes) == 10


def test_a_coroutine_function_is_a_handler_too(make_consumer, put):
    put(range(10))
    seen = []

    async def handle(record):
        seen.append(int(record.data))

    with make_consumer(until="latest") as consumer:
        consumer.run(handle)
    assert sorted(seen) == list(range(10))


def fails_on(number):
    def handle(record):
        if int(record.data) == number:
            raise ValueError("poison")

    return handle


def test_a_handler_that_fails_for_good_stops_the_run(make_consumer, put, group):
    put(range(10), keys=1)
    with make_consumer(group=group, store="memory:") as consumer, pytest.raises(HandlerFailed) as told:
        consumer.run(fails_on(4), policy=SOON)
    assert numbers(told.value.records) == [4]
    assert isinstance(told.value.__cause__, ValueError)
    with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert numbers(consumer) == list(range(4, 10))


@pytest.mark.parametrize("kind", ["callable", "coroutine", "file", "stream", "producer"])
def test_dead_letters(make_consumer, put, kinesis, connection, tmp_path, kind):
    put(range(10), keys=1)
    kinesis.create_stream("dead", shards=1)
    letters, threads = [], []

    def keep(letter):
        threads.append(threading.current_thread().name)
        letters.extend(numbers(letter.records))

    async def keep_too(letter):
        keep(letter)

    with shardline.sync.Producer("dead", **connection) as producer, make_consumer(until="latest") as consumer:
        file = tmp_path / "dead.jsonl"
        targets = {"callable": keep, "coroutine": keep_too, "file": file, "stream": "dead", "producer": producer}
        consumer.run(fails_on(4), policy=SOON, dead_letter=targets[kind])
    if kind == "file":
        letters += [int(json.loads(line)["data"]) for line in file.read_text().splitlines()]
    letters += [int(record.data) for record in kinesis.streams["dead"].records if len(record.data) < 5]
    assert letters == [4] or (kind == "producer" and len(kinesis.streams["dead"].records) == 1)
    assert ("shardline consumer" in threads) is (kind == "coroutine")


def test_an_async_producer_takes_no_dead_letters_here(make_consumer, connection):
    with make_consumer() as consumer, pytest.raises(UsageError, match=r"shardline\.sync\.Producer"):
        consumer.run(print, dead_letter=Producer("dead", **connection))
    with make_consumer() as consumer, pytest.raises(UsageError, match="handler must be callable"):
        consumer.run(5)
    with make_consumer() as consumer, pytest.raises(UsageError, match="must not be a generator function"):
        consumer.run(lambda record: (yield record))


def test_a_handler_may_close_the_consumer(make_consumer, put):
    put(range(50), keys=1)
    seen = []
    with make_consumer() as consumer:

        def handle(record):
            seen.append(int(record.data))
            if len(seen) == 7:
                consumer.close()

        began = time.monotonic()
        consumer.run(handle)
    assert seen == list(range(7))
    assert time.monotonic() - began < 5


# ---- closing


def test_closing_from_another_thread_ends_a_wait(make_consumer):
    with make_consumer() as consumer:
        threading.Timer(0.2, consumer.close).start()
        assert list(consumer) == []
    with make_consumer() as consumer:
        threading.Timer(0.2, consumer.close).start()
        assert list(consumer.batches()) == []
    with make_consumer() as consumer:
        threading.Timer(0.2, consumer.close).start()
        consumer.run(print)
        assert consumer.status().health in ("closing", "closed")


def test_closing_from_another_thread_waits_for_the_record_in_hand(make_consumer, put, group):
    put(range(10), keys=1)
    seen, closing = [], None
    with make_consumer(group=group, store="memory:") as consumer:
        for record in consumer:
            seen.append(int(record.data))
            if len(seen) == 3:
                closing = threading.Thread(target=consumer.close)
                closing.start()
                closing.join(0.3)
                assert closing.is_alive(), "it waits for us"
    closing.join()
    assert seen == [0, 1, 2]
    with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert numbers(consumer) == list(range(3, 10))


def test_closing_from_another_thread_does_not_wait_for_ever(make_consumer, put, group):
    put(range(10), keys=1)
    with make_consumer(group=group, store="memory:") as consumer:
        records = iter(consumer)
        next(records)
        held = next(records)
        closing = threading.Thread(target=consumer.close, args=[0.1])
        closing.start()
        closing.join()
        assert not held.lease.held
        assert list(records) == []
    with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert numbers(consumer) == list(range(1, 10)), "the second was not done"


@pytest.mark.parametrize("way", ["records", "batches"])
def test_a_thread_that_died_with_a_record_is_not_waited_for_and_the_record_comes_again(make_consumer, put, group, way):
    put(range(10), keys=1)
    with make_consumer(group=group, store="memory:") as consumer:
        records = iter(consumer) if way == "records" else consumer.batches(max_records=1)

        def die():
            for _ in range(3):
                next(records)

        for target in (die, consumer.close):  # the second may well have the ident of the first
            thread = threading.Thread(target=target)
            thread.start()
            thread.join(5)
            assert not thread.is_alive()
    with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert numbers(consumer) == list(range(2, 10))


def test_a_batch_in_another_thread_is_waited_for_too(make_consumer, put, group):
    """Tasks come and go with every batch, and their ids come again: none of them is taken for the closer's."""
    put(range(100), keys=1)
    with make_consumer(group=group, store="memory:") as consumer:
        for batch in consumer.batches(max_records=10):
            if batch[0].data == b"50":
                closers = [threading.Thread(target=consumer.close, args=[0.2]) for _ in range(20)]
                for closer in closers:
                    closer.start()
                for closer in closers:
                    closer.join()
                break
    with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert numbers(consumer) == list(range(50, 100)), "it was not done, and time was up"


def test_what_is_not_started_or_closed_refuses(make_consumer, put):
    put([1])
    consumer = make_consumer()
    record = Record(b"", "k")
    for use in (iter, Consumer.batches, Consumer.wait_ready, lambda one: one.run(print), lambda one: one.ack(record)):
        with pytest.raises(Closed, match="not started"):
            use(consumer)
    assert consumer.status().health == "starting"
    consumer.close()
    consumer.close()
    assert "closed" in repr(consumer)
    with pytest.raises(Closed, match="closed"):
        consumer.start()
    with make_consumer() as consumer:
        consumer.start()
        assert len(take(consumer, 1)) == 1
    with pytest.raises(Closed, match="closed"):
        iter(consumer)
    assert consumer.status().health == "closed"


@pytest.mark.parametrize("begin", [iter, Consumer.batches], ids=["records", "batches"])
def test_one_iteration_at_a_time(make_consumer, put, begin):
    with make_consumer(until=None) as consumer:
        waiting = begin(consumer)
        got = []
        thread = threading.Thread(target=lambda: got.append(next(waiting)))
        thread.start()
        eventually(lambda: waiting._taker.waiting)
        with pytest.raises(UsageError, match="iterated already"):
            iter(consumer)
        with pytest.raises(UsageError, match="another task or thread waits in this iterator"):
            next(waiting)  # it hung once
        put([1])
        thread.join()
        assert len(got) == 1


@pytest.mark.parametrize("begin", [iter, lambda consumer: consumer.batches(max_records=3)], ids=["records", "batches"])
def test_co2_a_new_iteration_ends_the_older_and_goes_on_behind_it(make_consumer, put, begin):
    put(range(10), keys=1, aggregation=False)
    with make_consumer(until="latest") as consumer:
        old = begin(consumer)
        next(old)
        new = consumer.batches(max_records=1)
        with pytest.raises(UsageError, match="this iteration is over"):
            next(old)
        assert [number for batch in new for number in numbers(batch)] == list(range(1 if begin is iter else 3, 10))


@pytest.mark.parametrize("begin", [iter, Consumer.batches], ids=["records", "batches"])
def test_co2_what_an_interrupt_left_behind_takes_nothing_from_a_new_iteration(make_consumer, put, begin):
    with make_consumer(until=None) as consumer:
        old = begin(consumer)
        leave_behind(consumer, old)
        new = iter(consumer)
        put(range(10), keys=1, aggregation=False)
        assert numbers(take(new, 10)) == list(range(10))
        eventually(lambda: old._taker.is_over)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [({"client": 5}, "client"), ({"group": "g"}, "a group needs a store"), ({"colour": 1}, "colour")],
)
def test_a_wrong_argument_is_named(arguments, told):
    with pytest.raises(UsageError, match=told):
        Consumer("s", **arguments)


def test_wrong_sizes_and_times_are_refused(make_consumer):
    with make_consumer() as consumer:
        for arguments in ({"max_records": 0}, {"max_wait": -1}):
            with pytest.raises(UsageError):
                consumer.batches(**arguments)
        with pytest.raises(UsageError):
            consumer.close(-1)


def test_a_failure_is_raised_where_records_are_asked_for(make_consumer):
    with make_consumer("gone") as consumer:
        with pytest.raises(ServiceError) as told:
            next(iter(consumer))
        assert told.value.kind == "not-found"
        with pytest.raises(ServiceError):
            consumer.wait_ready()
        assert consumer.status().health == "failed"


def test_a_start_that_fails_leaves_nothing_behind(make_consumer, tmp_path):
    file = tmp_path / "leases.db"
    file.write_text("something else")
    consumer = make_consumer(group="g", store=f"sqlite:///{file}")
    with pytest.raises(shardline.StoreError):
        consumer.start()
    eventually(lambda: "shardline consumer" not in {one.name for one in threading.enumerate()})
    assert consumer.status().health == "starting"
    assert file.read_text() == "something else"


def test_a_start_that_failed_may_be_tried_again(make_consumer, put, tmp_path):
    put(range(10))
    file = tmp_path / "leases.db"
    file.write_text("something else")
    consumer = make_consumer(group="g", store=f"sqlite:///{file}", until="latest")
    for _ in range(2):
        with pytest.raises(shardline.StoreError):
            consumer.start()
    file.unlink()
    with consumer:
        assert len(list(consumer)) == 10


def test_readiness_and_status(make_consumer, put, group):
    with make_consumer(group=group, store="memory:", start="LATEST", worker_id="w1") as consumer:
        consumer.wait_ready(10)
        assert consumer.is_ready
        put(range(10))
        assert sorted(numbers(take(consumer, 10))) == list(range(10))
        status = consumer.status()
        assert (status.worker_id, consumer.worker_id, status.workers) == ("w1", "w1", {"w1": 2})
        assert status.health == "ok"
    with make_consumer() as consumer, pytest.raises(WaitTimeout):
        consumer.wait_ready(0.0)


def test_a_callback_may_look_and_may_not_wait(make_consumer, put):
    put([1])
    told = []

    def sink(event):
        told.append(consumer.status().worker_id)
        for wait in (consumer.close, consumer.wait_ready, lambda: iter(consumer)):
            try:
                wait()
            except (UsageError, Closed) as error:
                told.append(type(error))

    consumer = make_consumer(sink=sink, until="latest")
    with consumer:
        assert len(list(consumer)) == 1
    assert consumer.worker_id in told
    assert UsageError in told


def test_a_consumer_that_is_dropped_says_so_and_lets_go(make_consumer, group):
    consumer = make_consumer(group=group, store="memory:")
    consumer.start()
    consumer.wait_ready()
    driver = consumer._session.driver
    with pytest.warns(ResourceWarning, match="never closed"):  # noqa: PT031 - where it is said is not ours to choose
        del consumer
        gc.collect()
    eventually(lambda: driver.has_ended and "shardline consumer" not in {one.name for one in threading.enumerate()})
    assert driver.coordinator.is_closed


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_after_a_fork_the_child_refuses_and_leaves_the_leases_alone(make_consumer, put, group):
    put(range(10), keys=1)
    with make_consumer(group=group, store="memory:") as consumer:
        assert len(take(consumer, 3)) == 3
        child = os.fork()
        if not child:
            code = 1
            try:
                iter(consumer)
            except Closed as error:
                consumer.close()
                code = 0 if "fork" in str(error) else 2
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert numbers(take(consumer, 7)) == list(range(3, 10))


def test_two_share_a_stream_and_hand_over(make_consumer, put, group, store):
    """A second worker takes its share; nothing is left out, and each shard is read by one."""
    seen = {"a": [], "b": []}
    one = make_consumer(group=group, store=store, worker_id="a", idle_timeout=2.0)
    two = make_consumer(group=group, store=store, worker_id="b", idle_timeout=2.0)

    def read(consumer):
        seen[consumer.worker_id] += list(consumer)

    with one:
        one.wait_ready()
        with two:
            threads = [threading.Thread(target=read, args=[each]) for each in (one, two)]
            for thread in threads:
                thread.start()
            eventually(lambda: one.status().workers == {"a": 1, "b": 1})
            put(range(500))
            for thread in threads:
                thread.join()
    assert seen["a"]
    assert seen["b"]
    assert sorted(numbers(seen["a"] + seen["b"])) == list(range(500))


# ---- Ctrl-C, in a process of its own

PROGRAM = """
import sys, time
from shardline import ConsumerConfig, Credentials
from shardline.sync import Consumer

url, region, key, secret, store, how = sys.argv[1:]
consumer = Consumer("s", group="g", store=store, config=ConsumerConfig(checkpoint_interval=0.05, scan_interval=0.05),
    endpoint_url=url, region=region, credentials=Credentials(key, secret))

def handle(record):
    print(record.data.decode(), flush=True)
    if record.data == b"4":
        time.sleep(0.5)

with consumer:
    if how == "idle":
        consumer.wait_ready()
        print("4", flush=True)
        for record in consumer:
            pass
    elif how == "run":
        consumer.run(handle)
    else:
        for record in consumer:
            print(record.data.decode(), flush=True)
            if record.data == b"4":
                time.sleep(60)
"""


def keys_of(kinesis):
    return kinesis.credentials.access_key, kinesis.credentials.secret_key


@pytest.mark.parametrize("how", ["idle", "body", "run"])
def test_ctrl_c_stops_it_promptly_and_leases_are_free(make_consumer, put, kinesis, tmp_path, how):
    if how != "idle":
        put(range(10), keys=1)
    store = f"sqlite:///{tmp_path}/leases.db"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, kinesis.endpoint_url, kinesis.region, *keys_of(kinesis), store, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(tmp_path),
    )
    try:
        while process.stdout.readline().strip() != "4":
            assert process.poll() is None, process.stderr.read()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        _, errors = process.communicate(timeout=10)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert time.monotonic() - began < 4
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "never closed" not in errors
    began = time.monotonic()
    with make_consumer(group="g", store=store, until="latest") as consumer:
        again = numbers(consumer)
    assert time.monotonic() - began < 5, "nobody waits for a lease to lapse"
    assert again == ([] if how == "idle" else list(range(4, 10)))


@pytest.mark.parametrize("what", [None, 7, "record", b"data", []])
def test_only_records_and_batches_are_acknowledged(make_consumer, what):
    with make_consumer(ack="manual") as consumer, pytest.raises(shardline.UsageError, match="a Record or a Batch, not"):
        consumer.ack(what)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_an_exit_of_a_handler_is_the_callers_and_the_consumer_goes_on(make_consumer, put, group, error):
    put(range(20), keys=1)
    seen = []

    def leave(record):
        if record.data == b"5":
            raise error
        seen.append(int(record.data))

    with make_consumer(group=group, store="memory:", until="latest") as consumer:
        with pytest.raises(type(error)):
            consumer.run(leave)
        assert seen == list(range(5))
        assert numbers(consumer) == list(range(5, 20))
