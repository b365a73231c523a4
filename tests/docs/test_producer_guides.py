"""Do the examples of the producer guides run unchanged?

They run in this process, pointed at the embedded server by environment variables.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import anyio
import pytest
from tests.docs import pages
from tests.docs.pages import block_with, run_block

from shardline import DeliveryFailed, Producer, ProducerConfig, Receipt, Undelivered, deaggregate
from shardline.codec.record_lines import PlainRecord, record_of
from shardline.core.producer.producer_stats import ProducerStats
from shardline.core.producer_events import LaneStats
from shardline.model import headers
from shardline.sync import Producer as BlockingProducer
from shardline.testing import LocalKinesis

HERE = Path(__file__)
FOLDER, MORE = "docs/guides/producer", "docs/guides/observability.md"
PAGE = "".join(pages.text_of(page) for page in [*pages.pages_in(FOLDER), MORE])
BLOCKS = pages.blocks_in(FOLDER, "python") + [one for one in pages.blocks_of(MORE, "python") if "Producer" in one]
CUSTOMERS = [f"customer-{number}" for number in range(10)]


# ---- the words


def test_the_pages_name_what_a_user_holds():
    for kind in (Receipt, Undelivered):
        for name in (*kind.__struct_fields__, "attempts"):
            assert name in PAGE or name.startswith("_"), name
    for name in ("outstanding", "oldest_waiting", "delivered_records", "failed_records", "retried_records"):
        assert name in {field.name for field in fields(ProducerStats)}
        assert f"stats.{name}" in PAGE
    assert set(re.findall(r"lane\.(\w+)", PAGE)) <= {field.name for field in fields(LaneStats)}


# ---- the examples


def test_every_example_runs_in_a_test():
    used = [block_with(BLOCKS, text) for text in re.findall(r'(?:page\(|BLOCKS, )"(.+?)"\)', HERE.read_text())]
    assert len(BLOCKS) > 20
    assert [block for block in BLOCKS if block not in used] == []


@pytest.fixture
def page(kinesis):
    return lambda text: run_block(BLOCKS, text)


@pytest.fixture
def with_producer(kinesis, backend):
    """Call an example with a producer, on both event loops."""

    def call(use, *arguments, **settings):
        async def main():
            async with Producer("orders", **settings) as producer:
                return await use(producer, *arguments)

        return anyio.run(main, backend=backend)

    return call


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_headers_are_put_and_read(page, kinesis, backend):
    anyio.run(page("def put_with_headers(").put_with_headers, b"{}", backend=backend)
    found = anyio.run(page("async def sources(").sources, backend=backend)
    assert sorted(found) == ["import", "web-shop", "web-shop"]


def test_bytes_are_put_in_a_header(page, kinesis):
    example = page("def put_proof(")
    example.put_proof(b"\x00\xff")
    (record,) = deaggregate(kinesis.streams["orders"].records)
    assert example.proof_of(record) == b"\x00\xff"


def test_the_page_has_the_limits_of_headers():
    text = " ".join(pages.text_of("docs/guides/producer/headers.md").split())
    assert f"| headers of a record | {headers.HEADERS_MAX_COUNT} |" in text
    assert f"1 to {headers.HEADER_NAME_MAX_LENGTH} characters" in text
    assert f"{headers.HEADERS_MAX_BYTES:,} bytes in UTF-8" in text


def test_aggregation_is_forced(page, kinesis):
    anyio.run(page('aggregation="force"').put_all, [b"1", b"2"])
    assert sorted(record.data for record in deaggregate(kinesis.streams["orders"].records)) == [b"1", b"2"]


def test_packed_values(page, kinesis, backend):
    orders = [{"customer": number % 2, "n": number} for number in range(6)]
    anyio.run(page("def put_lines(").put_lines, orders, backend=backend)
    records = kinesis.streams["orders"].records
    assert {record.key: [json.loads(line)["n"] for line in record.data.splitlines()] for record in records} == {
        "0": [0, 2, 4],
        "1": [1, 3, 5],
    }
    assert page("def put_pair(").put_pair() == (0, 1)


def stored(kinesis):
    return sorted(record.data for record in deaggregate(kinesis.streams["orders"].records))


def deny(kinesis, count=1):
    kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation="PutRecords", count=count)


def test_the_quick_start(page, kinesis, capsys):
    page("asyncio.run(main())  # the end")
    assert re.fullmatch(r"shardId-00000000000[01] \d{56}\n", capsys.readouterr().out)
    assert stored(kinesis) == [b'{"order": 1}', b'{"order": 2}']


def test_the_blocking_quick_start(page, kinesis, capsys):
    page("receipt = delivery.result(timeout=5)")
    assert re.fullmatch(r"shardId-00000000000[01] \d{56}\n", capsys.readouterr().out)
    assert stored(kinesis) == [b'{"order": 1}', b'{"order": 2}']


def test_the_simple_synchronous_case(page, kinesis):
    deliver = page("def deliver(").deliver
    kinesis.faults.throttle(operation="PutRecords", count=2)
    records = [f"{number}".encode() for number in range(1000)]
    assert deliver("orders", records) == []
    assert stored(kinesis) == sorted(records)


def test_the_simple_synchronous_case_lists_what_failed(page, kinesis):
    deliver = page("def deliver(").deliver
    deny(kinesis, count=None)
    assert deliver("orders", ["text", b"refused"]) == [
        ("text", "data must be bytes, not str: encode it, as in data.encode()"),
        (b"refused", "not allowed"),
    ]
    assert stored(kinesis) == []


def test_a_generator_is_put(page, with_producer, kinesis):
    assert with_producer(page("def put_generated(").put_generated) == 1_000
    assert len(stored(kinesis)) == 1_000


def test_invalid_records_fail_and_the_others_are_put(page, kinesis):
    with BlockingProducer("orders") as producer:
        assert len(page("def put_valid(").put_valid(producer)) == 1
    assert stored(kinesis) == [b"1", b"3"]


def test_the_rest_of_what_did_not_fit_is_returned(page, kinesis):
    with BlockingProducer("orders") as producer:
        assert page("def put_what_fits(").put_what_fits(producer, [("k", b"1")]) == []
    assert stored(kinesis) == [b"1"]


def test_a_record_with_options(page, with_producer, kinesis, capsys):
    with_producer(page("def put_price(").put_price, b"17")
    assert (stored(kinesis), capsys.readouterr().out) == ([b"17"], "AMZN stored\n")


def test_futures_of_deliveries(page, kinesis, capsys):
    with BlockingProducer("orders") as producer:
        page("def print_receipts(").print_receipts(producer, [("k", b"1"), ("k", b"2")])
    assert re.fullmatch(r"(\d{56}\n){2}", capsys.readouterr().out)


def test_putting_some(page, with_producer, kinesis):
    with_producer(page("def put_some(").put_some, [("customer-8", b"2"), (None, b"3")])
    assert stored(kinesis) == [b"2", b"3", b'{"order": 1}']


def test_text_is_refused(page, with_producer, kinesis, capsys):
    with_producer(page("def put_text(").put_text, "hello")
    assert capsys.readouterr().out == "data must be bytes, not str: encode it, as in data.encode()\n"
    assert stored(kinesis) == [b"hello"]


def test_the_serializer(page, kinesis, backend):
    anyio.run(page("serializer=lambda order").put_orders, backend=backend)
    assert stored(kinesis) == [b'{"order": 1}', b'{"order": 2}', b'{"order": 3}']


def test_a_receipt(page, with_producer, capsys):
    with_producer(page("def put_and_look(").put_and_look)
    shard, sequence_number, place, attempt = capsys.readouterr().out.splitlines()
    assert (shard.startswith("shardId-"), sequence_number.isdigit(), place) == (True, True, "0")
    assert re.fullmatch(r"[\d.e-]+ None True", attempt)


def test_failures_as_values(page, with_producer, kinesis, capsys):
    deny(kinesis)
    [failed] = with_producer(page("def put_all(producer").put_all, [("customer-7", b"x")])
    assert (failed.key, failed.data, failed.delivered) == ("customer-7", b"x", False)
    assert capsys.readouterr().out == "customer-7 AccessDeniedException not allowed 1 False\n"


def test_failures_as_exceptions(page, with_producer, kinesis, capsys):
    deny(kinesis)
    assert with_producer(page("def put_one(").put_one, b"x") is False
    told = capsys.readouterr().out
    assert told.startswith("not delivered after 1 attempt: AccessDeniedException: not allowed\ncustomer-7 b'x' Access")
    assert with_producer(page("def put_one(").put_one, b"x") is True


def test_dead_letters(page, kinesis, tmp_path):
    deny(kinesis)
    page("dead_letters.write").put_orders(tmp_path / "dead", [("customer-7", b"x")])
    line = json.loads((tmp_path / "dead").read_text())
    assert (line["error"], line["message"]) == ("AccessDeniedException", "not allowed")
    assert record_of(json.dumps(line).encode()) == PlainRecord("customer-7", b"x")


def test_dead_letters_at_the_end(kinesis):
    """Records that are undelivered when the time is over are passed to a plain hook."""
    kinesis.faults.throttle(operation="PutRecords")
    dead = []
    with BlockingProducer("orders", on_failure=dead.append, close_timeout=0.2) as producer:
        producer.put(b"x", key="customer-7")
    assert [(one.data, one.outcome().code) for one in dead] == [(b"x", "Closed")]


def test_flush_and_close(page, kinesis, backend, capsys):
    put_batch = page("def put_batch(").put_batch
    assert anyio.run(put_batch, [b"1", b"2"], backend=backend) == 0
    assert (stored(kinesis), capsys.readouterr().out) == ([b"1", b"2"], "")
    deny(kinesis)
    anyio.run(put_batch, [b"3"], backend=backend)
    assert capsys.readouterr().out == "given up: <Delivery key=None undelivered>\n"


def test_closing_twice_gives_the_same_answer(kinesis):
    kinesis.faults.throttle(operation="PutRecords")
    producer = BlockingProducer("orders")
    producer.start()
    delivery = producer.put(b"x", key="customer-7")
    assert producer.close(timeout=0) == [delivery]
    assert producer.close() == [delivery]
    with pytest.raises(DeliveryFailed, match="Closed"):
        delivery.result(timeout=0)


@pytest.mark.parametrize("drain", [True, False])
def test_ctrl_c_delivers_first_unless_configured_otherwise(kinesis, drain):
    kinesis.faults.latency(0.3, operation="PutRecords", count=1)
    deliveries = []

    def interrupted():
        with BlockingProducer("orders", drain_on_cancel=drain) as producer:
            deliveries.append(producer.put(b"x", key="customer-7"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    [delivery] = deliveries
    assert delivery.delivered is drain
    assert drain or delivery.outcome().code == "Closed"


def test_keys(page, with_producer, kinesis):
    with_producer(page("def put_three(").put_three)
    records = {record.data: record for record in deaggregate(kinesis.streams["orders"].records)}
    assert records[b"with a key"].key == "customer-7"
    assert (records[b"in the upper half"].key, records[b"in the upper half"].shard_id[-1]) == ("customer-7", "1")
    assert records[b"anywhere"].key not in {None, "customer-7"}


def test_order(page, kinesis, backend):
    kinesis.faults.throttle(operation="PutRecords", chance=0.5, count=3)
    events = [f"{number:04}".encode() for number in range(500)]
    anyio.run(page("ordered=True)) as producer").put_in_order, events, backend=backend)
    assert [record.data for record in deaggregate(kinesis.streams["orders"].records)] == events


def test_a_part_of_the_rates(page):
    config = page("one_of_four").one_of_four
    assert (config.records_per_second * 4, config.bytes_per_second * 4) == (1000, 1 << 20)


def test_a_full_buffer(page, with_producer, kinesis):
    put_or_drop = page("def put_or_drop(").put_or_drop

    async def fill(producer):
        return [await put_or_drop(producer, b"x") for _ in range(3)]

    assert with_producer(fill, config=ProducerConfig(buffer_max_records=2)) == [True, True, False]
    assert stored(kinesis) == [b"x", b"x"]


def test_an_outage(page, kinesis, tmp_path, monkeypatch):
    server = LocalKinesis(data=tmp_path / "kinesis", stream="orders")
    with server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_KINESIS", server.endpoint_url)

    async def main():
        outlive = asyncio.create_task(page("def outlive(").outlive(5))
        await asyncio.sleep(0.5)  # there is no server here
        assert not outlive.done()
        async with server:
            await asyncio.wait_for(outlive, 20)
            return [record.data for record in server.streams["orders"].records]

    assert asyncio.run(main()) == [b"it waits for the network"]


def test_a_lost_answer_makes_a_duplicate(page, with_producer, kinesis):
    put_and_count = page("def put_and_count(").put_and_count
    assert with_producer(put_and_count) == 1
    kinesis.faults.reset("after", operation="PutRecords", count=1)
    assert with_producer(put_and_count) == 2
    assert len(stored(kinesis)) == 3


def test_stats(page, with_producer, capsys):
    look = page("def look(").look

    async def put_and_look(producer):
        await producer.put(b"x", key="customer-7")
        await producer.flush()
        look(producer)

    with_producer(put_and_look)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "0 records wait, the oldest for 0.0 s",
        "1 delivered, 0 given up, 0 sent again",
        "1.0 entries in a request",
    ]
    assert lines[3] in {f"{rate} records a second; sent again: {{}}" for rate in (0, 1)}
    assert [line.partition(" ")[2] for line in lines[4:]] == ["0 wait, 0 under way, rates at 1.0"] * 2


def test_aggregation_by_force(page, kinesis, backend):
    anyio.run(page("def put_all(orders").put_all, [b"a", b"b", b"c"], backend=backend)
    assert sorted(record.data for record in deaggregate(kinesis.streams["orders"].records)) == [b"a", b"b", b"c"]


def test_the_sink(page, kinesis, backend):
    kinesis.faults.throttle(operation="PutRecords", count=1)
    counts = anyio.run(page("class Counts").put_and_measure, [(key, b"x") for key in CUSTOMERS], backend=backend)
    assert counts == {"ProvisionedThroughputExceededException": 10, "delivered": 10}


def test_the_lifespan(page, kinesis, backend):
    async def serve():
        async with page("async def lifespan(").lifespan(None) as state:
            await state["producer"].put(b"from a handler")

    anyio.run(serve, backend=backend)
    assert stored(kinesis) == [b"from a handler"]


def test_multiprocessing(kinesis, tmp_path):
    script = tmp_path / "example.py"
    started = 'if __name__ == "__main__":\n    publish([[("customer-7", b"1")], [("customer-8", b"2")]])\n'
    script.write_text("\n\n".join([block_with(BLOCKS, "pool.map(work"), started]))
    subprocess.run([sys.executable, str(script)], env=dict(os.environ), timeout=60, check=True)
    assert stored(kinesis) == [b"1", b"2"]


def test_how_full_requests_are(page, with_producer):
    how_full = page("def how_full(").how_full
    soon, cheap = page("soon = ").soon, page("soon = ").cheap
    assert isinstance(cheap, ProducerConfig)

    async def fill(producer):
        for _ in range(3):
            await producer.put_many([("k", b"x")] * 50)
            await producer.flush()
        return how_full(producer)

    shown = with_producer(fill, config=soon)
    entries, records = re.fullmatch(r"([\d.]+) entries in a request, ([\d.]+) records in an entry", shown).groups()
    assert float(entries) >= 1
    assert float(records) >= 1


def test_the_patience_of_retries(page):
    names = page("patient = ")
    assert (names.patient.record_ttl, names.strict.max_attempts) == (600, 3)


def test_the_figures_of_the_text_are_those_of_the_plots():
    figures = json.loads(pages.text_of("docs/pictures/tuning.json"))
    assert figures["command"] in pages.text_of("docs/guides/producer/throughput.md")
    by_size = {row["aggregate_max_bytes"]: row["cpu_us"] for row in figures["aggregate_max_bytes"]}
    assert 1.25 < by_size[0] / by_size[51_200] < 2, "without aggregation: about 50 % more CPU"
    assert by_size[16_384] < 1.25 * min(by_size.values()), "CPU does not improve above 16 KiB"
    by_linger = {row["linger_ms"]: row for row in figures["linger"]}
    assert by_linger[100]["p50"] < 100 < by_linger[1000]["p50"]
    assert by_linger[0]["requests_per_second"] > 10 * by_linger[100]["requests_per_second"]


# ---- statements of the pages


def test_a_stream_that_does_not_exist_fails_at_once(kinesis):
    with BlockingProducer("no-such-stream") as producer:
        assert producer.put(b"x", key="customer-7").outcome(timeout=5).code == "ResourceNotFoundException"


def test_without_permission_to_look_nothing_is_aggregated(kinesis):
    for operation in ("ListShards", "DescribeStreamSummary"):
        kinesis.faults.error("AccessDeniedException", "not allowed", status=400, operation=operation)
    with BlockingProducer("orders") as producer:
        producer.put_many([(key, b"x") for key in CUSTOMERS])
    assert sorted(record.key for record in kinesis.streams["orders"].records) == CUSTOMERS


def test_an_async_hook_comes_to_its_end(kinesis, backend):
    deny(kinesis)
    dead = []

    async def keep(delivery):
        await anyio.sleep(0.05)
        dead.append(delivery.data)

    async def main():
        async with Producer("orders", on_failure=keep) as producer:
            await producer.put(b"x", key="customer-7")

    anyio.run(main, backend=backend)
    assert dead == [b"x"]


def test_settings_of_a_running_producer(page, kinesis):
    share_the_stream = page("async def share_the_stream(").share_the_stream

    async def main():
        async with Producer("orders") as producer:
            await share_the_stream(producer, 4)
            assert (producer.config.records_per_second, producer.config.bytes_per_second) == (250.0, 262_144.0)

    anyio.run(main)
