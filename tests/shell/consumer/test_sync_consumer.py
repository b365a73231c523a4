"""Does the blocking consumer hand out every record, in order, and keep C5, from threads?"""

import gc
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from itertools import count
from pathlib import Path
from weakref import ref

import pytest
from tests.sim.interrupting import interrupted

import shardline.sync
from shardline import (
    Producer,
    ProducerConfig,
    Record,
    UsageError,
)
from shardline.events import LeaseGained
from shardline.sync import Consumer
from shardline.sync.host_thread import LoopThread


@pytest.fixture
def make_consumer(make_sync_consumer):
    """The tests often interrupt the threads of the program, so the leases are long."""
    return partial(make_sync_consumer, lease_duration=2.0)


@pytest.fixture
def put(connection):
    """Put numbered records. With a single key, all of them are in one shard."""

    def put(numbers, *, stream="s", keys=50, **config):
        with shardline.sync.Producer(stream, config=ProducerConfig(**config), **connection) as producer:
            producer.put_many([(f"k{number % keys}", b"%d" % number) for number in numbers])
            assert producer.flush(10) == []

    return put


def numbers(records):
    return [int(record.data) for record in records]


def take(consumer, number):
    """Take the next ``number`` records, without asking for more."""
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


def test_a_record_costs_no_hop_to_another_thread(make_consumer, put, monkeypatch):
    put(range(5000), keys=1)
    calls = []
    call = LoopThread.call
    monkeypatch.setattr(LoopThread, "call", lambda self, work: calls.append(work) or call(self, work))
    with make_consumer(until="latest") as consumer:
        assert numbers(consumer) == list(range(5000))
    assert len(calls) < 40


# ---- C5


def leave_behind(consumer, iterator):
    """Leave a question with the host, like a thread that was interrupted just after it had asked."""
    session, taker = consumer._session, iterator._taker
    taker.asked += 1
    session.post(partial(session.hand_out.ask, taker, taker.asked))


def test_a_thread_that_was_interrupted_lost_nothing(make_consumer, put):
    """The page arrived after its waiter had left."""
    with make_consumer(until=None) as consumer:
        records = iter(consumer)
        threading.Timer(0.3, signal.pthread_kill, [threading.get_ident(), signal.SIGINT]).start()
        with pytest.raises(KeyboardInterrupt):
            next(records)
        leave_behind(consumer, records)  # as if it had come a moment later
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
    """Two such questions wait beside that of the thread that asks; then it has its last record in hand."""
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
    """The exception that a signal handler raises, like that of Ctrl-C."""


@pytest.fixture
def alarm():
    """Call a function, or raise, in the main thread after this many seconds, wherever it is then."""

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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an exception in a weakref's callback
@pytest.mark.parametrize("anew", [False, True], ids=["goes on", "begins anew"])
@pytest.mark.parametrize("begin", [iter, lambda consumer: consumer.batches(max_records=10)], ids=["records", "batches"])
def test_c5_signals_in_the_middle_of_asking_skip_nothing(make_consumer, put, group, alarm, begin, anew):
    put(range(2_000), keys=100, aggregation=False)
    rng, seen, pressed = random.Random(7), [], 0
    with make_consumer(group=group, store="memory:", until="latest", page_max_records=20) as consumer:
        iterator = handed = noted = None
        is_through = False
        while not is_through:
            try:
                alarm(rng.uniform(0.0002, 0.003))
                if iterator is None:
                    iterator = begin(consumer)
                for handed in iterator:
                    signal.setitimer(signal.ITIMER_REAL, 0)  # only the waiting is interrupted
                    seen += [handed] if isinstance(handed, Record) else handed
                    noted = handed
                    alarm(rng.uniform(0.00005, 0.001))
                is_through = True
            except Pressed:
                pressed += 1
                iterator = None if anew else iterator
                if handed is not noted:  # the loop had the record just when the signal came
                    seen += [handed] if isinstance(handed, Record) else handed
                    noted = handed
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert pressed > 20
    assert sorted(numbers(seen)) == list(range(2_000))


@pytest.mark.parametrize("look", ["status", "ack"])
def test_a_signal_handler_may_call_the_consumer_that_it_interrupts(make_consumer, put, group, alarm, look):
    put(range(600), keys=100, aggregation=False)
    rng, seen, looks = random.Random(7), [], []
    with make_consumer(group=group, store="memory:", until="latest", page_max_records=1) as consumer:

        def look_again():
            looks.append(consumer.status() if look == "status" else seen and consumer.ack(seen[-1]))
            alarm(rng.uniform(0.0002, 0.002), look_again)

        alarm(0.001, look_again)
        for record in consumer:
            seen.append(record)  # noqa: PERF402 - the handler looks at it
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert sorted(numbers(seen)) == list(range(600))
    assert len(looks) > 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an exception in a weakref's callback
def test_a_thread_that_is_interrupted_in_every_other_call_does_not_hang_the_loop(make_consumer, alarm):
    rng, pressed = random.Random(7), 0
    with make_consumer(until=None) as consumer:
        consumer.wait_ready()
        for _ in range(500):
            try:
                alarm(rng.uniform(0.00002, 0.0006))
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
            with interrupted(after, "shardline/aio/consumer/", steps="line") as interruption:
                consumer.ack(first)
            consumer.ack(first)
            consumer.ack(second)
            place = str(second.sequence_number)
            eventually(lambda place=place, consumer=consumer: place in str(consumer.status().shards))
        if interruption.where is None:
            break
    assert after > 5


# ---- run


def test_an_async_producer_takes_no_dead_letters_here(make_consumer, connection):
    with make_consumer() as consumer, pytest.raises(UsageError, match=r"shardline\.sync\.Producer"):
        consumer.run(print, dead_letter=Producer("dead", **connection))


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


@pytest.mark.parametrize("way", ["records", "batches"])
def test_a_thread_that_died_with_a_record_is_not_waited_for_and_the_record_comes_again(make_consumer, put, group, way):
    put(range(10), keys=1)
    with make_consumer(group=group, store="memory:") as consumer:
        records = iter(consumer) if way == "records" else consumer.batches(max_records=1)

        def die():
            for _ in range(3):
                next(records)

        for target in (die, consumer.close):  # the second thread may have the ident of the first
            thread = threading.Thread(target=target)
            thread.start()
            thread.join(5)
            assert not thread.is_alive()
    with make_consumer(group=group, store="memory:", until="latest") as consumer:
        assert numbers(consumer) == list(range(2, 10))


def test_a_batch_in_another_thread_is_waited_for_too(make_consumer, put, group):
    """Tasks come and go with every batch, and their ids are reused: none of them is mistaken for the closer's."""
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


@pytest.mark.parametrize("begin", [iter, Consumer.batches], ids=["records", "batches"])
def test_one_iteration_at_a_time(make_consumer, put, begin):
    with make_consumer(until=None) as consumer:
        waiting = begin(consumer)
        got = []
        thread = threading.Thread(target=lambda: got.append(next(waiting)))
        thread.start()
        eventually(lambda: waiting._taker.waiting)
        with pytest.raises(UsageError, match="already being iterated"):
            iter(consumer)
        with pytest.raises(UsageError, match="another task or thread waits in this iterator"):
            next(waiting)  # regression: it hung
        put([1])
        thread.join()
        assert len(got) == 1


@pytest.mark.parametrize("begin", [iter, Consumer.batches], ids=["records", "batches"])
def test_what_an_interrupt_left_behind_takes_nothing_from_a_new_iteration(make_consumer, put, begin):
    with make_consumer(until=None) as consumer:
        old = begin(consumer)
        leave_behind(consumer, old)
        new = iter(consumer)
        put(range(10), keys=1, aggregation=False)
        assert numbers(take(new, 10)) == list(range(10))
        eventually(lambda: old._taker.is_over)


def test_a_sink_may_look_wait_and_close(make_consumer, put, caplog):
    put([1])
    seen = []

    def sink(event):
        if isinstance(event, LeaseGained) and not seen:
            consumer.wait_ready()
            seen.append(consumer.status().worker_id)
            began_at = time.monotonic()
            consumer.close()
            seen.append(time.monotonic() - began_at)

    consumer = make_consumer(sinks=[sink], until=None)
    with consumer:
        assert len(list(consumer)) <= 1, "it ends, though it is not bounded"
    eventually(lambda: len(seen) == 2)
    assert seen[0] == consumer.worker_id
    assert seen[1] < 1.5, "it does not wait for itself"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_consumer_that_is_dropped_says_so_and_lets_go(make_consumer, group):
    consumer = make_consumer(group=group, store="memory:")
    consumer.start()
    consumer.wait_ready()
    driver = consumer._session.driver
    with pytest.warns(ResourceWarning, match="never closed") as warned:  # noqa: PT031 - where it is said is not ours to choose
        del consumer
        eventually(lambda: gc.collect() is not None and warned.list)  # its thread may hold it for a moment
    eventually(lambda: driver.has_ended and "shardline consumer" not in {one.name for one in threading.enumerate()})
    assert all(host.coordinator.is_closed for host in driver.streams.values())


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
