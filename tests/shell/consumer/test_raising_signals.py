"""A signal handler raises while the event loop's thread is in a consumer's host: its users get the reason."""

import json

import anyio
import pytest
from tests.programs import command_for
from tests.shell.raising_signals import CASES, PRELUDE

ROUNDS = 6

CONSUMER = """
def consumer_of(group):
    config = ConsumerConfig(lease_duration=2.0, checkpoint_interval=0.02)
    bounds = {"idle_timeout": 1.0, "close_timeout": 3.0}
    return Consumer("s", group=group, store="sqlite:///leases.db", config=config, **bounds, **CONNECTION)
"""

ITERATION = """
async def take_over(group):
    async with consumer_of(group) as consumer:
        await consumer.wait_ready(20)


for seed in range(rounds):

    async def main(rang):
        ends_at = time.monotonic() + 1.0
        async with consumer_of(f"g{seed}") as consumer:
            async for _ in consumer:
                if "raised" in rang or time.monotonic() > ends_at:
                    return

    was_raised = play(random.Random(seed), main, 0.3)
    run(lambda: take_over(f"g{seed}"))  # its leases were released, or lapse
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"seed": seed, "raised": was_raised}), flush=True)
"""

RUN = """
async def handle(record):
    await asyncio.sleep(0.005)
    print(int(record.data), flush=True)


async def main(rang):
    async with consumer_of("g") as consumer:
        await consumer.run(handle, concurrency=64, order="key")


play(random.Random(rounds), main, 0.5)
"""


def command_of(connection, program, *arguments):
    keys = connection["credentials"]
    prelude = f"""
from shardline import Credentials
keys = Credentials({keys.access_key!r}, {keys.secret_key!r})
CONNECTION = {{"endpoint_url": {connection["endpoint_url"]!r}, "region": {connection["region"]!r}, "credentials": keys}}
"""
    return [*command_for(prelude + PRELUDE + CONSUMER + program), *arguments]


@pytest.mark.anyio
@pytest.mark.parametrize("event_loop_kind", ["asyncio"])  # of ``put``
@pytest.mark.parametrize(("loop_kind", "raised"), CASES)
async def test_a_consumer_whose_host_was_hit_hangs_nothing_and_another_goes_on(
    connection, put, loop_kind, raised, tmp_path
):
    await put(range(2_000))
    command = command_of(connection, ITERATION, raised, loop_kind, str(ROUNDS))
    done = await anyio.run_process(command, check=False, cwd=tmp_path)
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert (len(rounds), done.returncode) == (ROUNDS, 0), done.stderr.decode()
    assert sum(one["raised"] for one in rounds) > ROUNDS / 2, rounds


@pytest.mark.anyio
@pytest.mark.parametrize("event_loop_kind", ["asyncio"])  # of ``put``
@pytest.mark.parametrize(("loop_kind", "raised"), CASES)
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_run_with_many_handlers_that_was_hit_loses_no_record(
    connection, put, make_consumer, loop_kind, raised, seed, tmp_path
):
    """The run may hang (docs/signal-handlers.md). The program then ends after 30 seconds, and has lost no record."""
    await put(range(1_000))
    command = command_of(connection, RUN, raised, loop_kind, str(seed))
    done = await anyio.run_process(command, check=False, cwd=tmp_path)
    assert done.returncode == 0 or b"Timeout" in done.stderr, done.stderr.decode()
    handled = [int(line) for line in done.stdout.splitlines()]
    async with make_consumer(group="g", store=f"sqlite:///{tmp_path}/leases.db", until="latest") as consumer:
        rest = [int(record.data) async for record in consumer]
    assert {*handled, *rest} == {*range(1_000)}
