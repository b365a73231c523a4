"""Do the examples of the README and of the client's page work as they stand?

Each block runs in a Python of its own, as a user would run it, pointed at the embedded server by environment variables.
``test_first_steps.py`` follows the README's walk-through.
"""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shardline import aggregate, deaggregate

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks_of(page):
    return BLOCK.findall((ROOT / page).read_text())


def block_with(page, text):
    [found] = [block for block in blocks_of(page) if text in block]
    return found


@pytest.fixture
def kinesis(local_kinesis):
    return local_kinesis


def run(code, kinesis, tmp_path):
    """Run a script; give what it printed."""
    script = tmp_path / "example.py"
    script.write_text(code)
    ended = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)} | kinesis.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/client.md"])
def test_every_block_is_valid_python(page):
    blocks = blocks_of(page)
    assert len(blocks) >= 3
    for block in blocks:
        ast.parse(block)


@pytest.mark.parametrize("example", ["asyncio.run(main())", "from shardline.sync import Producer"])
def test_the_producers_of_the_readme(kinesis, tmp_path, example):
    [code] = [one for one in blocks_of("README.md") if "Producer(" in one and example in one and "region=" in one]
    printed = run(code, kinesis, tmp_path)
    assert re.fullmatch(r"shardId-00000000000[01] \d{56}\n" if "asyncio" in example else "", printed)
    stored = deaggregate(kinesis.streams["orders"].records)
    assert sorted(record.data for record in stored) == [b'{"order": 1}', b'{"order": 2}']
    assert [record.key for record in stored if record.data == b'{"order": 1}'] == ["customer-7"]


def test_the_client_and_the_consumer_of_the_readme(kinesis, tmp_path):
    printed = run(block_with("README.md", "await client.put_records("), kinesis, tmp_path)
    assert re.fullmatch(r"(shardId-00000000000[01] \d{56}\n){2}", printed)
    printed = run(block_with("README.md", "get_shard_iterator("), kinesis, tmp_path)
    assert sorted(printed.splitlines()) == ["customer-7 b'{\"order\": 1}'", "customer-8 b'{\"order\": 2}'"]


def test_the_consumers_of_the_readme(kinesis, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(block_with("README.md", "if not delivery.delivered"), kinesis, tmp_path)
    [code] = [one for one in blocks_of("README.md") if "Consumer(" in one and "asyncio" in one]
    printed = run(code, kinesis, tmp_path)
    assert sorted(line.partition(" ")[2] for line in printed.splitlines()) == ["b'{\"order\": 1}'", "b'{\"order\": 2}'"]
    assert run(code, kinesis, tmp_path) == "", "the group has read it all"
    printed = run(block_with("README.md", "for batch in consumer.batches(max_records=500)"), kinesis, tmp_path)
    assert sum(int(line.split()[0]) for line in printed.splitlines()) == 2


def test_the_failure_of_the_readme(kinesis, tmp_path):
    code = block_with("README.md", "except RequestError") + (
        "\n\nimport asyncio\n\n\nasync def main() -> None:\n"
        "    async with Client() as client:\n"
        "        try:\n            await put(client, b'x')\n"
        "        except RequestError:\n            print('raised')\n\n\nasyncio.run(main())\n"
    )
    kinesis.faults.throttle(operation="PutRecord", count=1)
    printed = run(code, kinesis, tmp_path)
    assert printed.split() == ["throttled", "ProvisionedThroughputExceededException", "True", "True", "raised"]


def test_the_lambda_handler_of_the_readme(kinesis, tmp_path):
    code = block_with("README.md", "def handler(event, context)") + (
        "\n\nimport base64\nfrom shardline import aggregate\n"
        "data = base64.b64encode(aggregate([('a', b'1'), ('b', b'2')])).decode()\n"
        "handler({'Records': [{'kinesis': {'data': data, 'partitionKey': 'a', 'sequenceNumber': '1'}}]}, None)\n"
    )
    assert run(code, kinesis, tmp_path) == "a 0 b'1'\nb 1 b'2'\n"


def test_the_test_of_the_readme(kinesis, tmp_path):
    code = block_with("README.md", "LocalKinesis(") + "\n\ntest_a_throttled_record_is_reported()\nprint('passed')\n"
    assert run(code, kinesis, tmp_path) == "passed\n"


def test_the_aggregates_of_the_client_page(kinesis, tmp_path):
    code = block_with("docs/client.md", "async def put_together") + (
        "\n\nimport asyncio\n\n\nasync def main() -> None:\n"
        "    async with Client() as client:\n"
        "        await put_together(client, [(f'k{n}', b'x') for n in range(50)])\n\n\nasyncio.run(main())\n"
    )
    run(code, kinesis, tmp_path)
    stored = kinesis.streams["orders"].records
    assert len(stored) == 2
    assert aggregate([("k", b"x")])[:4] == stored[0].data[:4]


def test_the_subscription_of_the_client_page(kinesis, tmp_path):
    code = block_with("docs/client.md", "async def follow") + (
        "\n\nimport asyncio\n\n\nasync def main() -> None:\n"
        "    async with Client() as client:\n"
        "        consumer = await client.register_stream_consumer('orders', 'reader', wait=True)\n"
        "        reading = asyncio.create_task(follow(client, consumer.arn, 'shardId-000000000000'))\n"
        "        await asyncio.sleep(0.2)\n"
        "        await client.split_shard('orders', 'shardId-000000000000', wait=True)\n"
        "        await asyncio.wait_for(reading, 10)\n\n\nasyncio.run(main())\n"
    )
    assert "0 records, 0 ms behind" in run(code, kinesis, tmp_path)
