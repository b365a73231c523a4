"""A signal handler raises while the event loop's thread is in a consumer's host: its users get the reason."""

import json

import anyio
import pytest
from tests.programs import command_for
from tests.shell.raising_signals import CASES, PRELUDE

ROUNDS = 6

PROGRAM = """
def consumer_of(group):
    config = ConsumerConfig(lease_duration=2.0, checkpoint_interval=0.02)
    bounds = {"idle_timeout": 1.0, "close_timeout": 3.0}
    return Consumer("s", group=group, store="sqlite:///leases.db", config=config, **bounds, **CONNECTION)


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


@pytest.mark.anyio
@pytest.mark.parametrize("event_loop_kind", ["asyncio"])  # of ``put``
@pytest.mark.parametrize(("loop_kind", "raised"), CASES)
async def test_a_consumer_whose_host_was_hit_hangs_nothing_and_another_goes_on(
    connection, put, loop_kind, raised, tmp_path
):
    await put(range(2_000))
    keys = connection["credentials"]
    prelude = f"""
from shardline import Credentials
keys = Credentials({keys.access_key!r}, {keys.secret_key!r})
CONNECTION = {{"endpoint_url": {connection["endpoint_url"]!r}, "region": {connection["region"]!r}, "credentials": keys}}
"""
    done = await anyio.run_process(
        [*command_for(prelude + PRELUDE + PROGRAM), raised, loop_kind, str(ROUNDS)], check=False, cwd=tmp_path
    )
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert (len(rounds), done.returncode) == (ROUNDS, 0), done.stderr.decode()
    assert sum(one["raised"] for one in rounds) > ROUNDS / 2, rounds
