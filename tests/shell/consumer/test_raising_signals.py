"""A signal handler that raises while the event loop's thread is in a consumer's host: its users get the reason."""

import json

import anyio
import pytest
from tests.programs import command_for

ROUNDS = 6

PROGRAM = """
import asyncio, faulthandler, json, logging, random, signal, sys, time
import uvloop
from shardline import Consumer, ConsumerConfig
from shardline.aio.asyncio_hosts import Flag, watch_of_loop

kind, loop_kind, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
logging.lastResort = None


class Pressed(BaseException):
    pass


class OutOfTime(Exception):
    pass


raised = {"KeyboardInterrupt": KeyboardInterrupt, "BaseException": Pressed, "Exception": OutOfTime}[kind]


def is_in_user_code(frame):
    while frame is not None:
        if frame.f_code.co_name == "main":
            return True
        frame = frame.f_back
    return False


def consumer_of(group):
    config = ConsumerConfig(lease_duration=2.0, checkpoint_interval=0.02)
    bounds = {"idle_timeout": 1.0, "close_timeout": 3.0}
    return Consumer("s", group=group, store="memory:", config=config, **bounds, **CONNECTION)


async def take_over(group):
    async with consumer_of(group) as consumer:
        await consumer.wait_ready(20)


def play(seed):
    chance = random.Random(seed)
    rang, over = [], []

    def ring(_, frame):
        if over:
            return
        if is_in_user_code(frame) and len(rang) < 200:
            rang.append("later")
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.002))
            return
        rang.append("raised")
        raise raised("rang")

    async def main():
        ends_at = time.monotonic() + 1.0
        async with consumer_of(f"g{seed}") as consumer:
            async for _ in consumer:
                if "raised" in rang or time.monotonic() > ends_at:
                    return

    async def protected(work):
        # asyncio may lose the next step of the program's own task as well: hosted, as ours are, it goes on
        ended = Flag()
        user = watch_of_loop().run(work, "user", ended.set)
        await ended.wait()
        user.task.result()

    faulthandler.dump_traceback_later(30, exit=True)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.02, 0.3))
    came = None
    factory = uvloop.new_event_loop if loop_kind == "uvloop" else None
    try:
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(protected(main()))
        finally:
            over.append(1)
    except BaseException as error:
        came = repr(error)
    signal.setitimer(signal.ITIMER_REAL, 0)
    with asyncio.Runner(loop_factory=factory) as runner:  # its leases were released, or lapse
        runner.run(take_over(f"g{seed}"))
    faulthandler.cancel_dump_traceback_later()
    return {"seed": seed, "raised": "raised" in rang, "came": came}


for seed in range(rounds):
    print(json.dumps(play(seed)), flush=True)
"""


@pytest.mark.anyio
@pytest.mark.parametrize("event_loop_kind", ["asyncio"])  # of ``put``
@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "BaseException", "Exception"])
@pytest.mark.parametrize("loop_kind", ["asyncio", "uvloop"])
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
        [*command_for(prelude + PROGRAM), raised, loop_kind, str(ROUNDS)], check=False, cwd=tmp_path
    )
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert (len(rounds), done.returncode) == (ROUNDS, 0), done.stderr.decode()
    assert sum(one["raised"] for one in rounds) > ROUNDS / 2, rounds
