"""What happens to the records when the program ends, is interrupted, or forks (P1)?

Each program runs in a separate process, and gets the address of the local Kinesis.
"""

import signal

import pytest

from shardline.codec.aggregation import split_columns

ASYNC = """
import asyncio, sys, anyio
from shardline import Producer, ProducerConfig
config = ProducerConfig(linger=float(sys.argv[2]))
deliveries = []
async def main():
    async with Producer("s", **CONNECTION, config=config, close_timeout=float(sys.argv[3]), drain_on_cancel=sys.argv[4] == "drain") as p:
        deliveries.extend(await p.put_many([("k", b"%d" % n) for n in range(50)]))
        print("ready", flush=True)
        await anyio.sleep(30)
try:
    anyio.run(main, **LOOPS[sys.argv[1]])
except KeyboardInterrupt:
    print("interrupted", sum(d.delivered for d in deliveries), sum(d.done for d in deliveries), flush=True)
"""

SYNC = """
import sys, time
from shardline import ProducerConfig
from shardline.sync import Producer
config = ProducerConfig(linger=float(sys.argv[2]))
deliveries = []
try:
    with Producer("s", **CONNECTION, config=config, close_timeout=float(sys.argv[3]), drain_on_cancel=sys.argv[4] == "drain") as p:
        deliveries.extend(p.put_many([("k", b"%d" % n) for n in range(50)]))
        print("ready", flush=True)
        if sys.argv[1] == "result":
            deliveries[0].result()
        for _ in range(300):  # not at one stroke: a signal that another thread gets wakes no sleeper
            time.sleep(0.1)
except KeyboardInterrupt:
    print("interrupted", sum(d.delivered for d in deliveries), sum(d.done for d in deliveries), flush=True)
"""

KINDS = {
    "asyncio": (ASYNC, "asyncio"),
    "uvloop": (ASYNC, "uvloop"),
    "trio": (ASYNC, "trio"),
    "sync": (SYNC, "sleep"),
    "sync result": (SYNC, "result"),
}


@pytest.mark.parametrize("how", ["drain", "hand back"])
@pytest.mark.parametrize("kind", KINDS)
def test_ctrl_c_drains_or_hands_back(run_program, stored, kind, how):
    program, argument = KINDS[kind]
    process = run_program(program, argument, "3", "10", how)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=40)
    delivered = 50 if how == "drain" else 0
    assert out == f"interrupted {delivered} 50\n", err
    assert process.returncode == 0
    assert len(stored()) == delivered
    assert ("50 records given up" in err) is (how != "drain")
    assert "Traceback" not in err


@pytest.mark.parametrize("kind", ["asyncio", "uvloop", "sync"])
def test_a_second_ctrl_c_ends_the_drain(run_program, kinesis, kind):
    kinesis.faults.throttle(operation="PutRecords")
    program, argument = KINDS[kind]
    process = run_program(program, argument, "0", "30", "drain")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    while not kinesis.requests.count("PutRecords"):
        pass
    with pytest.raises(Exception, match="timed out"):
        process.wait(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    assert process.returncode in {0, -signal.SIGINT, 1, 130}
    assert "interrupted 0" in out


@pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
def test_a_loop_that_ends_with_an_open_producer_says_what_is_lost(run_program, loop):
    process = run_program(
        """
        import sys, anyio
        from shardline import Producer, ProducerConfig
        async def main():
            global producer, delivery
            producer = Producer("s", **CONNECTION, config=ProducerConfig(linger=5))
            await producer.start()
            delivery = await producer.put(b"x", key="k")
        anyio.run(main, **LOOPS[sys.argv[1]])
        print(delivery.ending.code)
        """,
        loop,
    )
    out, err = process.communicate(timeout=40)
    assert (out, process.returncode) == ("Closed\n", 0)
    assert "s: 1 record given up: Closed: the event loop ended before the producer was closed" in err
    assert "Traceback" not in err


LEFT_AT_EXIT = {
    "a loop that was abandoned": """
    import asyncio
    from shardline import Producer, ProducerConfig
    async def main():
        global producer
        producer = Producer("s", **CONNECTION, config=ProducerConfig(linger=5))
        await producer.start()
        await producer.put(b"x", key="k")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    """,
    "a blocking producer": """
    from shardline import ProducerConfig
    from shardline.sync import Producer
    producer = Producer("s", **CONNECTION, config=ProducerConfig(linger=5))
    producer.start()
    producer.put(b"x", key="k")
    """,
    # The interpreter stops daemon threads wherever they are, even in the middle of a log line.
    "a lock of a thread that is gone": """
    import atexit, logging, threading
    from shardline import ProducerConfig
    at_exit, is_held = threading.Event(), threading.Event()
    # Not a function of this module: the thread would keep the module alive, and so the producer.
    hold = "at_exit.wait(); lock.acquire(); is_held.set(); at_exit.__class__().wait()"
    names = {"at_exit": at_exit, "is_held": is_held, "lock": logging.lastResort.lock}
    threading.Thread(target=exec, args=(hold, names), daemon=True).start()
    def take():
        at_exit.set()
        is_held.wait()
    atexit.unregister(logging.shutdown)  # it takes the lock too
    atexit.register(take)  # before the import: it comes after what the producer does at exit
    from shardline.sync import Producer
    producer = Producer("s", **CONNECTION, config=ProducerConfig(linger=5))
    producer.start()
    producer.put(b"x", key="k")
    """,
}


@pytest.mark.parametrize("program", LEFT_AT_EXIT.values(), ids=LEFT_AT_EXIT)
def test_a_producer_that_is_left_open_at_exit_says_so(run_to_end, program):
    _, err, code = run_to_end(program)
    assert "<Producer s, open, 1 outstanding> was never closed: its undelivered records are lost" in err
    assert code == 0


def test_one_that_is_closed_at_exit_delivers_also_where_it_must_connect_first(run_to_end, stored):
    """By then, asyncio's executor, which asyncio's own name look-up needs, accepts no more work."""
    done = run_to_end(
        """
        import atexit
        from shardline import ProducerConfig
        from shardline.sync import Producer
        CONNECTION["endpoint_url"] = CONNECTION["endpoint_url"].replace("127.0.0.1", "localhost")
        producer = Producer("s", **CONNECTION, config=ProducerConfig(linger=1), close_timeout=10)
        producer.start()
        atexit.register(producer.close)
        producer.put_many([(f"k{n}", b"x") for n in range(50)])
        """
    )
    assert done == ("", "", 0)
    assert len(stored()) == 50


def test_one_that_delivered_everything_is_quiet_at_exit(run_to_end, stored):
    done = run_to_end(
        """
        from shardline.sync import Producer
        producer = Producer("s", **CONNECTION)
        producer.start()
        producer.put(b"x", key="k").result()
        """
    )
    assert done == ("", "", 0)
    assert len(stored()) == 1


FORK = """
import os, sys, traceback
def in_child(work):
    pid = os.fork()
    if not pid:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def test_after_a_fork_the_blocking_producer_refuses_and_a_new_one_works(run_to_end, stored):
    done = run_to_end(
        FORK
        + """
from shardline import Closed, DeliveryFailed, ProducerConfig
from shardline.sync import Producer
producer = Producer("s", **CONNECTION, config=ProducerConfig(linger=0.3))
producer.start()
# One delivery first: a thread that forks while another imports leaves the import lock taken for ever, in any program.
assert producer.put(b"first", key="k").result(5)
delivery = producer.put(b"parent", key="k")
def work():
    for use in (lambda: producer.put(b"x", key="k"), lambda: producer.put_many([("k", b"x")]), producer.flush, producer.start):
        try:
            use()
        except Closed as error:
            assert "created before a fork" in str(error), error
        else:
            raise AssertionError(use)
    try:
        delivery.result()
    except DeliveryFailed as error:
        assert error.code == "Forked" and error.maybe_stored
    assert producer.close() == []
    with Producer("s", **CONNECTION) as own:
        own.put(b"child", key="k").result(5)
assert in_child(work) == 0
assert delivery.result(5)
print(producer.close())
"""
    )
    assert done == ("[]\n", "", 0)
    assert sorted(data for _, data in stored()) == [b"child", b"first", b"parent"]


def test_p1_a_fork_at_any_moment_leaves_a_child_that_refuses_and_ends_its_copies(run_to_end):
    """Other threads are in the middle of puts, and the network thread packs, sends and handles responses."""
    done = run_to_end(
        FORK
        + """
import random, threading, time
from shardline import BufferFull, Closed, ProducerConfig
from shardline.sync import Producer
producer = Producer("s", **CONNECTION, config=ProducerConfig(linger=0.002, buffer_max_records=2_000))
producer.start()
assert producer.put(b"first", key="k").result(5)
is_over, deliveries = threading.Event(), [[], []]
def put_on(mine):
    for number in range(10_000_000):
        if is_over.is_set():
            return
        mine.append(producer.put(b"%d" % number, key=f"k{number}"))
threads = [threading.Thread(target=put_on, args=(mine,)) for mine in deliveries]
for thread in threads:
    thread.start()
def work():
    began_at = time.monotonic()
    for delivery in [one for mine in deliveries for one in mine[-3_000:]]:
        outcome = delivery.outcome(1)
        assert outcome.delivered or outcome.code == "Forked", outcome
    for use in (lambda: producer.put(b"x", key="k"), lambda: producer.put_many([("k", b"x")]), producer.flush):
        try:
            use()
        except Closed:
            continue
        raise AssertionError(use)
    assert producer.close() == [] and producer.stats() is not None
    assert time.monotonic() - began_at < 5
for _ in range(40):
    time.sleep(random.uniform(0.0, 0.02))
    assert in_child(work) == 0
is_over.set()
for thread in threads:
    thread.join()
print(producer.close(), all(one.delivered for mine in deliveries for one in mine), producer.outstanding)
"""
    )
    assert done == ("[] True 0\n", "", 0)


def test_p1_a_signal_handler_that_forks_in_the_middle_of_a_put_leaves_a_child_that_refuses(run_to_end):
    """Its thread holds the producer's lock, and the lock for entering waiters."""
    done = run_to_end(
        FORK
        + """
from shardline import Closed, ProducerConfig
from shardline.sync import Producer
from shardline.sync import blocking_delivery as sync_delivery
producer = Producer("s", **CONNECTION, config=ProducerConfig(linger=0.2))
producer.start()
assert producer.put(b"first", key="k").result(5)
waiting = producer.put(b"parent", key="k")
def work():
    assert waiting.outcome(5).code == "Forked"
    try:
        producer.put(b"x", key="k")
    except Closed:
        pass
    else:
        raise AssertionError
    with Producer("s", **CONNECTION) as own:
        own.put(b"child", key="k").result(5)
with producer._lock, sync_delivery._WaitersLock.lock:
    assert in_child(work) == 0
print(waiting.result(5).attempt_count, producer.close())
"""
    )
    assert done == ("1 []\n", "", 0)


def test_after_a_fork_the_async_producer_refuses(run_to_end, stored):
    done = run_to_end(
        FORK
        + """
import asyncio
from shardline import Closed, Producer, ProducerConfig
async def main():
    async with Producer("s", **CONNECTION, config=ProducerConfig(linger=0.2)) as producer:
        delivery = await producer.put(b"parent", key="k")
        def work():
            for use in (lambda: producer.put(b"x", key="k"), producer.flush):
                try:
                    use().send(None)
                except Closed as error:
                    assert "created before a fork" in str(error), error
                else:
                    raise AssertionError(use)
            try:
                producer.put_nowait(b"x", key="k")
            except Closed as error:
                assert "create a new one in the child" in str(error)
            else:
                raise AssertionError
            assert delivery.done and delivery.ending.code == "Forked"
        assert in_child(work) == 0
        await delivery
asyncio.run(main())
"""
    )
    assert done == ("", "", 0)
    assert stored() == [("k", b"parent")]


def test_a_worker_of_multiprocessing_is_refused_too(run_program):
    process = run_program(
        """
        import multiprocessing
        from shardline import Closed
        from shardline.sync import Producer
        producer = Producer("s", **CONNECTION)
        def work(results):
            try:
                producer.put(b"x", key="k")
            except Closed as error:
                results.put(str(error))
        producer.start()
        producer.put(b"first", key="k").result(5)
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        worker = context.Process(target=work, args=(results,))
        worker.start()
        print(results.get(timeout=10))
        worker.join()
        producer.put(b"x", key="k").result(5)
        producer.close()
        """
    )
    out, err = process.communicate(timeout=20)
    assert "created before a fork: create a new one in the child" in out
    assert (err, process.returncode) == ("", 0)


def test_a_producer_that_was_not_started_may_cross_a_fork(run_to_end, stored):
    done = run_to_end(
        FORK
        + """
from shardline.sync import Producer
producer = Producer("s", **CONNECTION)
def work():
    with producer:
        producer.put(b"child", key="k").result(5)
assert in_child(work) == 0
"""
    )
    assert done == ("", "", 0)
    assert stored() == [("k", b"child")]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_forks_that_start_a_copy_of_one_producer_stamp_their_records_differently(run_to_end, kinesis, kind):
    """With equal stamps, a consumer with ``dedup`` would drop the records of the second fork."""
    done = run_to_end(
        FORK
        + f"""
import anyio
import shardline, shardline.sync
kind = {kind!r}
producer = (shardline if kind == "async" else shardline.sync).Producer("s", dedup=True, **CONNECTION)
async def put():
    async with producer:
        await (await producer.put(b"child", key="k"))
def work():
    if kind == "async":
        anyio.run(put)
    else:
        with producer:
            producer.put(b"child", key="k").result(5)
assert in_child(work) == 0
assert in_child(work) == 0
"""
    )
    assert done == ("", "", 0)
    first, second = (split_columns(record.data).stamps[0] for record in kinesis.streams["s"].records)
    assert first.producer != second.producer
