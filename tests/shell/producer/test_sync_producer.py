"""Does the blocking producer put, wait, flush and close, from any thread (SP1, SP2, P7)?"""

import gc
import sys
import threading
import time
from itertools import count

import pytest
from tests.sim.interrupting import interrupted

from shardline import BufferFull, Closed
from shardline.aio.loop.latch import Latch
from shardline.core.producer.intake import Intake, Put
from shardline.core.producer.producer_config import ProducerConfig
from shardline.core.producer.producer_record import BufferedRecord
from shardline.sync import Producer
from shardline.sync.blocking_backpressure import ThreadWaitQueue


def in_threads(number_of_threads, work):
    """Run ``work(number)`` in this many threads, and raise what one of them raised."""
    errors = []

    def run(number):
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(number_of_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_many_threads_put_and_every_record_arrives_once(make_sync_producer, stored, all_in_range):
    with make_sync_producer() as producer:

        def work(number):
            deliveries = [producer.put(b"%d-%d" % (number, place), key=f"k{place}") for place in range(200)]
            assert all(delivery.result(5).attempt_count == 1 for delivery in deliveries)

        in_threads(8, work)
        stats = producer.stats()
    assert (stats.delivered_records, stats.outstanding) == (1600, 0)
    assert sorted(data for _, data in stored()) == sorted(
        b"%d-%d" % (number, place) for number in range(8) for place in range(200)
    )
    assert all_in_range()


# ---- room


def test_without_room_put_gives_up_after_its_timeout_and_put_nowait_at_once(make_sync_producer, kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    with make_sync_producer(buffer_max_records=1, close_timeout=0) as producer:
        producer.put(b"x", key="k")
        began = time.monotonic()
        with pytest.raises(BufferFull, match="1 records, 2 bytes"):
            producer.put_nowait(b"y", key="k")
        assert time.monotonic() - began < 5, "there will be no room for the ten seconds of its life"
        for put in (
            lambda: producer.put(b"y", key="k", timeout=0.05),
            lambda: producer.put_many([("k", b"y")], timeout=0.05),
        ):
            with pytest.raises(BufferFull):
                put()
        assert 0.1 <= time.monotonic() - began < 8
        assert (producer.outstanding, len(producer._intake.waiters)) == (1, 0)


def test_a_put_that_is_refused_does_not_disturb_the_network_thread(make_sync_producer, kinesis, monkeypatch):
    kinesis.faults.throttle(operation="PutRecords")
    with make_sync_producer(buffer_max_records=1, close_timeout=0) as producer:
        producer.put(b"x", key="k")
        wakes = []
        monkeypatch.setattr(producer._driver, "wake", lambda: wakes.append(1))
        for _ in range(3):
            with pytest.raises(BufferFull):
                producer.put_nowait(b"y", key="k")
        assert wakes == []
        monkeypatch.undo()


def test_p7_room_is_given_in_the_order_of_waiting_and_who_is_out_of_time_leaves():
    intake = Intake(ProducerConfig(buffer_max_records=1))
    queue = ThreadWaitQueue(intake)
    order = []

    def wait(name, timeout):
        record = BufferedRecord(b"", name, None, 30.0)
        order.append(
            (name, queue.wait_in_turn(lambda first: intake.put(record, 1, in_turn=first) is not Put.FULL, timeout))
        )

    intake.put(BufferedRecord(b"", "-", None, 30.0), 1)
    threads = []
    for name, timeout in (("a", 5), ("b", 0.02), ("c", 5), ("d", None)):
        thread = threading.Thread(target=wait, args=(name, timeout))
        threads.append(thread)
        thread.start()
        while len(intake.waiters) + len(order) < len(threads):  # on a busy machine, "b" may already have left
            time.sleep(0.001)
    threads[1].join()
    queue.notify()
    assert order == [("b", False)], "there is no room"
    for name in "acd":
        intake.release(1, 1)
        queue.notify()
        queue.notify()
        while (name, True) not in order:
            time.sleep(0.001)
    for thread in threads:
        thread.join(5)
    assert order == [("b", False), ("a", True), ("c", True), ("d", True)]
    assert not intake.waiters


def test_a_blocked_put_and_a_running_flush_delay_no_other_thread(make_sync_producer, kinesis):
    """A defect of aiokpl (aiokpl_b10)."""
    kinesis.faults.throttle(operation="PutRecords")
    with make_sync_producer(buffer_max_records=2, close_timeout=0) as producer:
        first = producer.put(b"1", key="k")
        flushing = threading.Thread(target=producer.flush, args=(5,))
        flushing.start()
        producer.put(b"2", key="k")
        refused = []

        def put():
            try:
                producer.put(b"3", key="k")
            except Closed as error:
                refused.append(error)

        blocked = threading.Thread(target=put)
        blocked.start()
        began = time.monotonic()
        assert producer.stats().outstanding == 2
        with pytest.raises(TimeoutError):
            first.result(0.01)
        with pytest.raises(BufferFull):
            producer.put_nowait(b"4", key="k")
        assert len(producer.close(0)) == 2
        assert time.monotonic() - began < 5
        for thread in (flushing, blocked):
            thread.join(5)
            assert not thread.is_alive()
    assert len(refused) == 1
    assert first.outcome(0).code == "Closed", "it can be asked after the close"


# ---- start and end


@pytest.mark.parametrize("drain", [True, False])
def test_an_interrupted_block_drains_or_hands_back_as_asked(make_sync_producer, stored, drain):
    def work():
        with make_sync_producer(linger=0.1, drain_on_cancel=drain) as producer:
            deliveries.extend(producer.put_many([("k", b"%d" % number) for number in range(20)]))
            raise KeyboardInterrupt

    deliveries = []
    with pytest.raises(KeyboardInterrupt):
        work()
    assert [delivery.outcome(0).delivered for delivery in deliveries] == [drain] * 20
    assert len(stored()) == (20 if drain else 0)


def test_an_interrupt_while_it_closes_ends_it_at_once(make_sync_producer, kinesis, monkeypatch):
    kinesis.faults.throttle(operation="PutRecords")
    producer = make_sync_producer(close_timeout=30)
    producer.start()
    delivery = producer.put(b"x", key="k")

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "_flush_and_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    assert delivery.outcome(5).code == "Closed"
    assert producer.close() == [delivery]


def test_an_interrupt_while_it_starts_leaves_no_thread(make_sync_producer, monkeypatch, kinesis):
    producer = make_sync_producer()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Latch, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.start()
    until = time.monotonic() + 5
    while any(thread.name == "shardline producer" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.005)
    assert producer.close() == []


def test_a_producer_that_is_dropped_says_so_and_delivers(make_sync_producer, complaints):
    producer = make_sync_producer(linger=0.05)
    producer.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "shardline producer"]
    delivery = producer.put(b"x", key="k")
    with pytest.warns(ResourceWarning, match="1 outstanding> was never closed"):  # noqa: PT031 - at either
        del producer
        gc.collect()
    assert delivery.result(5).attempt_count == 1
    thread.join(5)
    assert not thread.is_alive()
    assert complaints()[0][0] == "ERROR"


def test_it_works_where_an_event_loop_runs(make_sync_producer, stored):
    """For example, in a notebook: the network thread has its own loop, whatever runs here."""
    import anyio

    async def main():
        with make_sync_producer() as producer:
            producer.put(b"x", key="k").result(5)

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)
    assert len(stored()) == 2


def test_p7_a_thread_that_is_interrupted_in_its_turn_passes_it_on(make_sync_producer, kinesis, monkeypatch):
    """At each point where a signal may end the wait, at the very moment when there is room."""
    found = []  # where the interrupts came
    with make_sync_producer(buffer_max_records=1, linger=0.0) as producer:
        for after in count():
            kinesis.faults.throttle(operation="PutRecords")
            first = producer.put(b"first", key="k")

            ended = []

            def put_and_be_interrupted(after=after, ended=ended):
                with interrupted(after, "shardline/sync/blocking_backpressure.py", steps="signal") as seen:
                    producer.put(b"second", key="k")
                ended.append(seen.where)

            one = threading.Thread(target=put_and_be_interrupted)
            one.start()
            while not (producer._intake.waiters or ended):
                time.sleep(0.001)
            other = threading.Thread(target=producer.put, args=(b"third",), kwargs={"key": "k"})
            other.start()
            kinesis.faults.clear()
            one.join(10)
            other.join(10)
            assert not one.is_alive(), after
            assert not other.is_alive(), after
            assert first.result(5)
            assert producer.flush(5) == []
            assert (producer.outstanding, len(producer._intake.waiters)) == (0, 0), ended
            found += ended
            if found[-3:] == [None] * 3:
                break
        assert len({*found}) > 5 or sys.version_info[:2] == (3, 13), "3.13 reports few opcodes of a thread"


def test_p9_records_are_dated_in_the_order_in_which_they_are_accepted(make_sync_producer, monkeypatch, stored):
    """A thread that was delayed between reading the clock and taking the lock would otherwise overtake earlier puts."""
    with make_sync_producer(ordered=True, linger=0.2) as producer:
        producer.put(b"0", key="k")
        clock = time.monotonic
        for number in range(1, 20):
            monkeypatch.setattr("shardline.sync.blocking_producer._clock", lambda late=number % 2: clock() - 0.1 * late)
            producer.put(b"%d" % number, key="k")
        monkeypatch.undo()
        assert producer.flush(5) == []
    assert [int(data) for _, data in stored()] == list(range(20))
