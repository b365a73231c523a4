"""Do the examples of the consumer guides run unchanged?

They run in this process, pointed at the embedded server by environment variables.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from tests.docs import pages
from tests.docs.pages import block_with, run_block

import shardline.sync
from shardline import Client, Consumer, ConsumerConfig, ConsumerStatus, Record, ShardStatus, StreamRecreated
from shardline.adapters.leases import memory

HERE = Path(__file__)
FOLDER, MORE = "docs/guides/consumer", "docs/guides/observability.md"
PAGE = "".join(pages.text_of(page) for page in [*pages.pages_in(FOLDER), MORE])
BLOCKS = pages.blocks_in(FOLDER, "python") + [one for one in pages.blocks_of(MORE, "python") if "Consumer" in one]
QUICK = ConsumerConfig(scan_interval=0.05, checkpoint_interval=0.05, idle_poll_interval=0.05)


# ---- the words


def test_the_pages_name_what_a_user_holds():
    names = {*Record.__struct_fields__, "lag", "lease", "value"} - {"origin"}
    assert {name for name in names if f"`{name}`" not in PAGE} == set()
    for kind, said in ((ConsumerStatus, r"status\(?\)?\.(\w+)"), (ShardStatus, r"(?<!\w)shard\.(\w+)")):
        known = set(dir(kind))
        assert set(re.findall(said, PAGE)) - {"shards"} <= known


# ---- the examples


def test_every_example_runs_in_a_test():
    used = [block_with(BLOCKS, text) for text in re.findall(r'page\("(.+?)"\)', HERE.read_text())]
    assert len(BLOCKS) > 15
    elsewhere = ["in_postgres(add_orders"]  # tests/postgres runs it
    assert [block for block in BLOCKS if block not in used and not any(text in block for text in elsewhere)] == []


@pytest.fixture
def kinesis(kinesis, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    memory._shared_rows.clear()  # the examples' groups have fixed names
    return kinesis


@pytest.fixture
def page(kinesis):
    return lambda text: run_block(BLOCKS, text)


@pytest.fixture
def put(kinesis):
    def put(*data, stream="orders", aggregation=True):
        config = shardline.ProducerConfig(linger=0, aggregation=aggregation)
        with shardline.sync.Producer(stream, config=config) as producer:
            for number, one in enumerate(data):
                producer.put(one, key=f"customer-{number % 5}").result(timeout=10)

    return put


def orders(*amounts):
    return [json.dumps({"amount": amount}).encode() for amount in amounts]


@pytest.mark.parametrize("which", ["asynchronous", "blocking"])
def test_the_quick_starts(page, put, capsys, which):
    put(b"1", b"2", b"3")

    def run():
        _ = page("asyncio.run(main())") if which == "asynchronous" else page("shipping")
        return sorted(capsys.readouterr().out.splitlines())

    assert run() == ["customer-0 b'1'", "customer-1 b'2'", "customer-2 b'3'"]
    assert run() == [], "the group has read it all"


def test_a_handler_in_processes(put, tmp_path):
    put(b"\x01\x02", b"\x03")
    program = tmp_path / "score.py"
    program.write_text(block_with(BLOCKS, "def score("))  # page("def score(") would not be importable by the processes
    ran = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=90
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == ["customer-0 3", "customer-1 3"]


def test_copies_of_retries(page, kinesis, capsys):
    kinesis.faults.reset("after", operation="PutRecords", count=2)  # stored, but the response is lost
    anyio.run(page("def copy_orders(").copy_orders)
    assert len(kinesis.streams["orders"].records) == 3
    assert capsys.readouterr().out == "b'order 1'\n"


def test_a_group(page, put):
    put(b"1", b"2")
    handled = []

    async def main():
        with anyio.move_on_after(20) as scope:

            def handle(record):
                handled.append(record.data)
                if len(handled) == 2:
                    scope.cancel()

            await page("def read_orders(").read_orders(handle)

    anyio.run(main)
    assert sorted(handled) == [b"1", b"2"]


def test_handlers_side_by_side(page, put):
    put(*[b"%d" % number for number in range(20)])
    charged, at_work, most, hot = [], [], [], []

    async def main():
        async with Consumer("orders", until="latest", config=QUICK) as consumer:

            async def charge(key, data):
                at_work.append(key)
                most.append(len(at_work))
                await anyio.sleep(0.05)
                at_work.remove(key)
                charged.append((key, int(data)))
                hot.extend(page("def find_hot_keys(").find_hot_keys(consumer))

            await page("concurrency=64").charge_all(consumer, charge)

    anyio.run(main)
    assert sorted(number for _, number in charged) == list(range(20))
    assert max(most) > 1
    for number in range(5):
        assert [data for key, data in charged if key == f"customer-{number}"] == list(range(number, 20, 5))
    assert hot == []


def test_fan_out(page, put):
    put(b"1", b"2")
    handled = []

    async def main():
        with anyio.move_on_after(20) as scope:

            def handle(record):
                handled.append(record.data)
                if len(handled) == 2:
                    scope.cancel()

            await page("def read_pushed_orders(").read_pushed_orders(handle)

    anyio.run(main)
    assert sorted(handled) == [b"1", b"2"]


def test_a_look(page, put):
    put(*[b"%d" % number for number in range(10)])
    peek = page("def peek(").peek
    assert len(peek("orders", 3)) == 3
    assert len(peek("orders", 30)) == 10


def test_latest(page, put, backend):
    put(b"old")
    ask = page("def ask(").ask

    async def main():
        async with Client() as client:
            return await ask(client, b"what now?")

    assert anyio.run(main, backend=backend) == b"what now?"


def test_a_time(page, put, kinesis, backend):
    put(b"old")
    time.sleep(1.2)
    put(b"new")
    since = page("def since(").since
    assert anyio.run(since, timedelta(seconds=0.6), backend=backend) == [b"new"]
    assert anyio.run(since, timedelta(hours=1), backend=backend) == [b"old", b"new"]


def test_the_fence(page):
    names = page("def write_once(")
    rows = {}

    def record(token, number="1"):
        origin = shardline.model.record.Origin(lease=SimpleNamespace(held=True, token=token))
        return Record(b"x", "k", sequence_number=number, shard_id="shardId-0", origin=origin)

    names.write_once(record(3), rows)
    names.write_once(record(5, "2"), rows)
    with pytest.raises(RuntimeError, match="shardId-0 has a newer owner: token 3 is below 5"):
        names.write_once(record(3, "3"), rows)
    names.write_once(record(5, "4"), rows)
    assert list(rows) == ["1/0", "2/0", "4/0"]


def test_batches(page, put, backend):
    put(*orders(1, 2, 3))
    rows = []

    async def main():
        async with Consumer("orders", deserializer=json.loads, until="latest") as consumer:
            await page("def load(").load(consumer, rows)

    anyio.run(main, backend=backend)
    assert sorted(row["amount"] for row in rows) == [1, 2, 3]


def test_handlers(page, put, backend):
    put(*[b"x"] * 10)
    assert anyio.run(page("def count(").count, "orders", backend=backend) == {f"customer-{n}": 2 for n in range(5)}


def test_dead_letters_in_a_file(page, put, tmp_path):
    put(*orders(1, -5, 3))
    page("def bill(").work("orders", tmp_path / "dead.jsonl")
    [line] = map(json.loads, (tmp_path / "dead.jsonl").read_text().splitlines())
    assert (line["key"], line["attempts"], line["message"]) == ("customer-1", 3, "ValueError: who pays?")


def test_stop_or_bury(page, put, backend):
    put(b"x")
    buried = []
    told = anyio.run(page("def stop_or_bury(").stop_or_bury, buried, backend=backend)
    assert re.fullmatch(
        r"the handler failed for good on record \d+ of shardId-\d+, and the policy is to stop "
        r"after 2 attempts: ValueError\('customer-0'\)",
        told,
    )
    assert [[record.data for record in letter.records] for letter in buried] == [[b"x"]]


def test_deserializers(page, put, backend):
    put(*orders(1, 2), b"no JSON", b"{}")
    good, bad = anyio.run(page("def amounts(").amounts, backend=backend)
    assert (sorted(good), sorted(bad)) == ([1, 2], [b"no JSON", b"{}"])


def test_a_faster_deserializer(page, put, backend):
    put(*orders(1, 2))
    assert anyio.run(page("def total(").total, backend=backend) == 3


def test_many_values_in_a_record(page, put):
    put(b'{"n": 1}\n{"n": 2}\n', b"3")
    assert sorted(map(str, page("def lines(").lines())) == ["3", "{'n': 1}", "{'n': 2}"]


def test_manual_acknowledgements(page, put, backend):
    put(*[b"%d" % number for number in range(20)])
    handled = []
    side_by_side = page("def side_by_side(").side_by_side
    anyio.run(side_by_side, handled, backend=backend)
    assert sorted(handled) == sorted(b"%d" % number for number in range(20))
    put(b"20")
    anyio.run(side_by_side, handled, backend=backend)
    assert handled[20:] == [b"20"], "all before it was committed"


def test_a_worker_that_is_asked_to_stop(page, put, tmp_path):
    """Both ways are tested in turn: handled records are committed, and the leases are free at once."""
    put(*[b"%d" % number for number in range(5)])
    handled = []

    async def handle(record):
        handled.append(record.data)
        if len(handled) == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    anyio.run(page("def worker(").worker, handle)
    assert len(handled) == 5
    put(b"5", b"6")
    old = signal.getsignal(signal.SIGTERM)

    def handle_too(record):
        handled.append(record.data)
        if len(handled) == 7:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        began = time.monotonic()
        page("def work_until_told(").work_until_told(handle_too)
    finally:
        signal.signal(signal.SIGTERM, old)
    assert sorted(handled) == [b"%d" % number for number in range(7)]
    assert time.monotonic() - began < 10
    for thread in [one for one in threading.enumerate() if one.name.startswith("Thread-") and not one.daemon]:
        thread.join(5)
    with shardline.sync.Consumer("orders", group="billing", store="sqlite:///fleet.db", until="latest") as consumer:
        assert list(consumer) == []


def test_status(page, put):
    put(b"x")
    report = page("def report(").report

    async def main():
        async with Consumer("orders", group="looking", store="memory:", worker_id="w1", config=QUICK) as consumer:
            await consumer.wait_ready()
            await anext(aiter(consumer))
            return report(consumer)

    first, *shards = anyio.run(main)
    assert re.fullmatch(r"w1 is ok: handling is [\d.]+ s behind, reading 0.0 s", first)
    assert [line.split()[:3] for line in shards] == [[f"shardId-00000000000{n}", "reading", "w1:"] for n in range(2)]
    assert sum("1 in hand" in line for line in shards) == 1


def test_trimmed_records(page, put, kinesis, backend):
    read_and_watch = page("def read_and_watch(").read_and_watch
    alarms = []
    put(*[b"x"] * 10)
    assert anyio.run(read_and_watch, alarms, backend=backend) == 10
    assert alarms == []
    put(*[b"y"] * 10)
    kinesis.clock.advance(25 * 3600)
    put(*[b"z"] * 5)
    assert anyio.run(read_and_watch, alarms, backend=backend) == 5
    assert {(type(alarm).__name__, alarm.shard_id[-1]) for alarm in alarms} == {
        ("RecordsTrimmed", "0"),
        ("RecordsTrimmed", "1"),
    }


def test_draining_again_and_again(page, put):
    drain = page("def drain(").drain
    with shardline.sync.Consumer("orders", idle_timeout=0.3, config=QUICK) as consumer:
        assert drain(consumer) == 0
        put(*[b"x"] * 10)
        assert drain(consumer) == 10
        assert drain(consumer) == 0


def test_many_streams(page, put, kinesis, backend):
    kinesis.create_stream("returns", shards=1)
    put(b"1", b"2")
    put(b"3", stream="returns")
    assert anyio.run(page("def read_all(").read_all, ["orders", "returns"], backend=backend) == {
        "orders": 2,
        "returns": 1,
    }


def test_a_consumer_that_moves_on_to_another_stream(page, put, kinesis, backend):
    kinesis.create_stream("payments", shards=1)
    put(b"1", stream="payments")

    async def main():
        async with shardline.Consumer(["orders"], config=QUICK) as consumer:
            await page("async def move_on(").move_on(consumer)
            assert (await anext(aiter(consumer))).stream == "payments"

    anyio.run(main, backend=backend)


def test_the_shares_of_several_groups(page, put):
    names = page("one_of_three_groups")
    put(*[b"x"] * 10)
    for config in (names.one_of_three_groups, names.frugal):
        with shardline.sync.Consumer("orders", config=config, until="latest") as consumer:
            assert len(list(consumer)) == 10


def test_a_worker_of_a_fleet(page, put, backend):
    put(*[b"%d" % number for number in range(5)])
    handled = []

    async def main():
        async def handle(record):
            handled.append(record.data)
            if len(handled) == 5:
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(page("worker_id: str | None = None)").work, handle, "w1")

    anyio.run(main, backend=backend)
    assert sorted(handled) == [b"%d" % number for number in range(5)]


def test_whether_a_reshard_is_under_way(page, put, kinesis):
    is_resharding = page("def is_resharding(").is_resharding
    put(*[b"x"] * 10)
    with shardline.sync.Consumer("orders", group="g", store="memory:", config=QUICK) as consumer:
        consumer.wait_ready(timeout=10)
        assert is_resharding(consumer) is False


# ---- statements of the pages


def test_a_recreated_stream_stops_the_consumer(put, kinesis):
    put(b"x")
    config = ConsumerConfig(scan_interval=0.05, list_interval=1.0, idle_poll_interval=0.05)

    async def recreate():
        kinesis.faults.throttle(operation="GetRecords")  # otherwise it may see a missing stream for a moment
        async with kinesis.client() as client:
            await client.delete_stream("orders", wait=True)
            kinesis.clock.advance(60)
            await client.create_stream("orders", shards=1, wait=True)
        kinesis.faults.clear()

    with shardline.sync.Consumer("orders", group="recreated", store="memory:", config=config) as consumer:
        records = iter(consumer)
        assert next(records).data == b"x"
        anyio.run(recreate)
        with pytest.raises(StreamRecreated):
            next(records)


def test_records_outside_of_their_shard_are_handed_out_and_counted_or_dropped(kinesis):
    packed = shardline.aggregate([(f"customer-{number}", b"%d" % number) for number in range(10)])

    async def put():
        async with kinesis.client() as client:
            await client.put_record("orders", packed, "customer-1")

    anyio.run(put)
    with shardline.sync.Consumer("orders", until="latest") as consumer:
        assert len(list(consumer)) == 10
        outside = sum(shard.out_of_range for shard in consumer.status().shards)
        assert 0 < outside < 10
    config = ConsumerConfig(out_of_range="drop")
    with shardline.sync.Consumer("orders", until="latest", config=config) as consumer:
        assert len(list(consumer)) == 10 - outside


def test_callbacks_count_the_records_of_each_shard(page, put, capsys):
    put(*orders(1, 2, 3))
    names = page("on_revoked=print_count")
    anyio.run(names.work)
    counts = [int(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert sum(counts) == 3
    assert names.totals == {}


# ---- control


def test_commit_now(page, put):
    put(b"1", b"2", b"3")
    rows = []
    anyio.run(page("async def load_rows(").load_rows, rows)
    assert sorted(rows) == [b"1", b"2", b"3"]


def test_pause_while_a_database_is_down(page, put):
    wait_for_database = page("async def wait_for_database(").wait_for_database
    states = []

    async def main():
        async with Consumer("orders", config=QUICK) as consumer:

            async def until_up():
                states.append(consumer.status().is_paused)

            await wait_for_database(consumer, until_up)
            states.append(consumer.status().is_paused)

    anyio.run(main)
    assert states == [True, False]


def test_seek_back_by_an_hour(page, put):
    repeat_the_last_hour = page("async def repeat_the_last_hour(").repeat_the_last_hour
    put(b"1", b"2")
    seen = []

    async def main():
        async with Consumer("orders", config=QUICK) as consumer:
            async for record in consumer:
                seen.append(record.data)
                if len(seen) == 2:
                    await repeat_the_last_hour(consumer)
                if len(seen) == 4:
                    break

    anyio.run(main)
    assert sorted(seen) == [b"1", b"1", b"2", b"2"]


def test_filter(page, put):
    put(b'{"to": "us"}', b'{"to": "others"}')
    seen = []
    anyio.run(page("def is_for_us(").read, seen)
    assert seen == [b'{"to": "us"}']


def test_max_leases_changes(page, kinesis):
    follow_load = page("async def follow_load(").follow_load

    async def main():
        async with Consumer("orders", group="g", store="memory:", config=QUICK) as consumer:
            await follow_load(consumer, is_overloaded=True)
            assert consumer.config.max_leases == 2
            await follow_load(consumer, is_overloaded=False)
            assert consumer.config.max_leases is None

    anyio.run(main)


def test_batch_windows(page, put):
    put(*[b"%d" % number for number in range(40)])
    rows, sizes = [], []

    async def insert(data):
        rows.extend(map(int, data))
        sizes.append(len(data))

    async def main():
        async with Consumer("orders", group="g", store="memory:", config=QUICK, until="latest") as consumer:
            await page("async def load_in_windows(").load_in_windows(consumer, insert)

    anyio.run(main)
    assert sorted(rows) == list(range(40))
    assert max(sizes) > 1
