"""Do the examples of the client's page work unchanged?

Each block runs in a separate Python process, as a user would run it, pointed at the embedded server by environment
variables.
"""

import ast

from tests.docs import pages
from tests.docs.programs import run

from shardline import aggregate

PAGE = "docs/guides/client.md"
BLOCKS = pages.blocks_of(PAGE, "python")


def test_every_block_is_valid_python():
    assert len(BLOCKS) >= 3
    for block in BLOCKS:
        ast.parse(block)


def test_the_first_program(local_kinesis, tmp_path):
    code = pages.block_with(BLOCKS, "describe_stream_summary") + "\n\nimport asyncio\n\nasyncio.run(main())\n"
    assert "orders" in run(code, local_kinesis, tmp_path)


def test_the_aggregates_of_the_client_page(local_kinesis, tmp_path):
    code = pages.block_with(BLOCKS, "async def put_together") + (
        "\n\nimport asyncio\n\n\nasync def main() -> None:\n"
        "    async with Client() as client:\n"
        "        await put_together(client, [(f'k{n}', b'x') for n in range(50)])\n\n\nasyncio.run(main())\n"
    )
    run(code, local_kinesis, tmp_path)
    stored = local_kinesis.streams["orders"].records
    assert len(stored) == 2
    assert aggregate([("k", b"x")])[:4] == stored[0].data[:4]


def test_the_subscription_of_the_client_page(local_kinesis, tmp_path):
    code = pages.block_with(BLOCKS, "async def follow") + (
        "\n\nimport asyncio\n\n\nasync def main() -> None:\n"
        "    async with Client() as client:\n"
        "        consumer = await client.register_stream_consumer('orders', 'reader', wait=True)\n"
        "        reading = asyncio.create_task(follow(client, consumer.arn, 'shardId-000000000000'))\n"
        "        await asyncio.sleep(0.2)\n"
        "        await client.split_shard('orders', 'shardId-000000000000', wait=True)\n"
        "        await asyncio.wait_for(reading, 10)\n\n\nasyncio.run(main())\n"
    )
    assert "0 records, 0 ms behind" in run(code, local_kinesis, tmp_path)
