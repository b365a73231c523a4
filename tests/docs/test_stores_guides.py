"""Do the examples of the guides on lease stores run unchanged?"""

import asyncio
import re
import subprocess
import sys
from types import SimpleNamespace

import anyio
from tests.docs import pages

import shardline.model.record
from shardline import Consumer, ConsumerConfig, Record
from shardline.sync import Producer as BlockingProducer

FOLDER = "docs/guides/stores"


def example(page):
    """Return the names of the only program of a page."""
    [block] = pages.blocks_of(f"{FOLDER}/{page}.md", "python")
    return pages.run_block([block], "import")


def test_the_consumer_of_the_environment(kinesis, monkeypatch, tmp_path):
    for name, value in {"STREAM": "orders", "GROUP": "g", "LEASES": f"sqlite:///{tmp_path}/leases.db"}.items():
        monkeypatch.setenv(name, value)
    with BlockingProducer("orders") as producer:
        producer.put(b"one", key="k")

    async def main():
        async with example("index").consumer_from_environment() as consumer:
            return await anext(aiter(consumer))

    assert asyncio.run(main()).data == b"one"


def test_the_consumers_of_each_store(kinesis, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for page in ("sqlite", "redis", "postgres", "dynamodb"):
        assert repr(example(page).worker()) == "<Consumer of orders of group 'billing', starting>"


def test_the_file_is_relative_to_the_working_directory(kinesis, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    async def main():
        async with example("sqlite").worker():
            pass

    anyio.run(main)
    assert (tmp_path / "leases.db").exists()


def test_a_store_of_the_guide_keeps_the_contract(tmp_path):
    """The blocks are files of a project. pytest runs them as its author would."""
    for block in pages.blocks_of(f"{FOLDER}/write-a-store.md", "python"):
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["conftest.py", "dict_leases.py", "test_dict_leases.py"]
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^3\d passed", run.stdout, re.MULTILINE), run.stdout


def test_the_token():
    origin = shardline.model.record.Origin(lease=SimpleNamespace(held=True, token=7))
    assert example("fencing-tokens").fence(Record(b"x", "k", origin=origin)) == 7


def test_a_store_that_is_deleted(kinesis, tmp_path):
    file = tmp_path / "leases.db"
    handled = []

    def handle(record):
        handled.append(record.data)
        for path in tmp_path.glob("leases.db*"):
            path.unlink()

    async def main():
        config = ConsumerConfig(lease_duration=1)
        async with Consumer("orders", group="g", store=f"sqlite:///{file}", config=config) as consumer:
            return await example("lost-store").work(consumer, handle)

    with BlockingProducer("orders") as producer:
        producer.put(b"one", key="k")
    assert asyncio.run(main()).startswith("the lease store failed: ")
    assert handled == [b"one"]


def test_every_example_is_tested():
    with_example = {page for page in pages.pages_in(FOLDER) if pages.blocks_of(page, "python")}
    assert with_example == {
        f"{FOLDER}/{name}.md"
        for name in (
            "index",
            "sqlite",
            "redis",
            "postgres",
            "dynamodb",
            "fencing-tokens",
            "lost-store",
            "write-a-store",
        )
    }
    assert set().union(*map(pages.languages_of, pages.pages_in(FOLDER))) == {"python", "sql"}
