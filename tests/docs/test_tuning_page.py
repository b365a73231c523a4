"""Does the page on tuning have every knob, with its default, and do its programs run?"""

import re
from pathlib import Path

import anyio
from tests.docs import pages
from tests.docs import tuning_tables as tables

from shardline import Consumer, ConsumerConfig, Producer, ProducerConfig
from shardline.testing import LocalKinesis

HERE = Path(__file__)
PAGE = "docs/tuning.md"
TEXT = pages.text_of(PAGE)


def test_the_tables_have_every_knob_in_the_order_of_the_code():
    assert list(tables.PRODUCER) == [knob.name for knob in tables.producer["KNOBS"]]
    assert list(tables.CONSUMER) == list(tables.consumer["SETTINGS"])
    for words in (tables.PRODUCER, tables.CONSUMER):
        for name, cells in words.items():
            assert len(cells) == 3, name
            assert all(cells), name


def test_the_tables_are_those_of_the_page():
    assert tables.written(TEXT) == TEXT, "run: python tests/docs/tuning_tables.py"
    assert re.findall(r"<!-- table: (\w+) -->\n\|", TEXT) == ["producer", "consumer"]


def test_a_stale_default_is_seen():
    assert "| `linger` | 0.1 |" in TEXT
    assert tables.written(TEXT.replace("| `linger` | 0.1 |", "| `linger` | 0.2 |")) == TEXT


def test_the_page_names_no_knob_that_does_not_exist():
    known = {*tables.PRODUCER, *tables.CONSUMER}
    for block in pages.blocks_of(PAGE, "python"):
        for arguments in re.findall(r"(?:Producer|Consumer)Config\((.*?)\)", block):
            assert set(re.findall(r"(\w+)=", arguments)) <= known


def test_the_programs():
    assert pages.languages_of(PAGE) == {"python"}
    names = {}
    for block in pages.blocks_of(PAGE, "python"):
        exec(compile(block, PAGE, "exec"), names)  # our own page
    assert isinstance(names["soon"], ProducerConfig)
    assert isinstance(names["cheap"], ProducerConfig)

    async def main():
        async with LocalKinesis(stream="orders", shards=1) as kinesis, kinesis.client() as client:
            async with Producer("orders", client=client, config=names["soon"]) as producer:
                for _ in range(3):
                    await producer.put_many([("k", b"x")] * 50)
                    await producer.flush()
                told = names["how_full"](producer)
            for config in (names["one_of_three_groups"], names["frugal"]):
                assert isinstance(config, ConsumerConfig)
                async with Consumer("orders", client=client, config=config, until="latest") as consumer:
                    assert len([record async for record in consumer]) == 150
        return told

    entries, records = map(
        float, re.fullmatch(r"([\d.]+) entries in a request, ([\d.]+) records in .*", anyio.run(main)).groups()
    )
    assert round(entries * records) >= 1


def test_the_figures_of_the_text_are_those_of_the_plots():
    import json

    figures = json.loads(pages.text_of("docs/pictures/tuning.json"))
    assert figures["command"] in TEXT
    by_size = {row["aggregate_max_bytes"]: row["cpu_us"] for row in figures["aggregate_max_bytes"]}
    assert 1.25 < by_size[0] / by_size[51_200] < 2, "off: half as much CPU again, about"
    assert by_size[16_384] < 1.25 * min(by_size.values()), "nothing is gained above 16 KiB"
    by_linger = {row["linger_ms"]: row for row in figures["linger"]}
    assert by_linger[100]["p50"] < 100 < by_linger[1000]["p50"]
    assert by_linger[0]["requests_per_second"] > 10 * by_linger[100]["requests_per_second"]
