"""A signal handler that raises while the event loop's thread is in the host: every delivery ends, and nothing hangs.

Real signals at random moments, many times, in processes of their own. ``test_asyncio_hosts.py`` has each loss of asyncio
by itself.
"""

import json

import pytest

ROUNDS = 12

PROGRAM = """
import asyncio, faulthandler, gc, json, logging, random, signal, sys, time
import trio, uvloop
from shardline import Producer, ProducerConfig
from shardline.aio.asyncio_hosts import Flag, watch_of_loop
from shardline.aio.host_tasks import make_flag

kind, loop_kind, first, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
logging.lastResort = None


class Pressed(BaseException):
    pass


class OutOfTime(Exception):
    pass


raised = {"KeyboardInterrupt": KeyboardInterrupt, "BaseException": Pressed, "Exception": OutOfTime}[kind]


def run(main):
    if loop_kind == "trio":
        trio.run(main)
        return

    async def protected():
        # asyncio may lose the next step of the program's own task as well: hosted, as ours are, it goes on
        over = Flag()
        user = watch_of_loop().run(main(), "user", over.set)
        await over.wait()
        user.task.result()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop_kind == "uvloop" else None) as runner:
        runner.run(protected())


def is_in_user_code(frame):
    while frame is not None:
        if frame.f_code.co_name == "main":
            return True
        frame = frame.f_back
    return False


def play(seed):
    chance = random.Random(seed)
    deliveries, rang, over = [], [], []

    def ring(_, frame):
        if over:
            return
        if loop_kind != "trio" and is_in_user_code(frame) and len(rang) < 200:  # the user would catch it: a little later
            rang.append("later")
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.002))
            return
        rang.append("raised")
        if loop_kind == "trio":  # it defers its own handler's, and no other's
            signal.raise_signal(signal.SIGINT)
        raise raised("rang")

    async def main():
        config = ProducerConfig(
            linger=chance.choice([0.0, 0.01]),
            record_ttl=5.0,
            request_max_entries=chance.choice([5, 50]),
            aggregation=chance.random() < 0.5,
        )
        async with Producer("s", config=config, close_timeout=5.0, **CONNECTION) as producer:
            until = time.monotonic() + 0.5
            while "raised" not in rang and time.monotonic() < until:
                for number in range(chance.choice([1, 20, 100])):
                    deliveries.append(await producer.put(b"x" * 50, key=f"k{number}"))
                await make_flag().wait(chance.choice([0, 0.001]))
            await deliveries[-1].outcome()

    faulthandler.dump_traceback_later(20, exit=True)
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.02, 0.1))
    try:
        try:
            run(main)
        finally:
            over.append(1)
    except BaseException:
        pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    reasons = {delivery.ending.message for delivery in deliveries if delivery.ending and not delivery.delivered}
    return {
        "seed": seed,
        "raised": "raised" in rang,
        "unended": sum(delivery.ending is None for delivery in deliveries),
        "of": len(deliveries),
        "reasons": sorted(reasons),
    }


for seed in range(first, first + rounds):
    print(json.dumps(play(seed)), flush=True)
"""


CASES = [
    (loop, raised) for loop in ("asyncio", "uvloop") for raised in ("KeyboardInterrupt", "BaseException", "Exception")
]


@pytest.mark.parametrize(("loop_kind", "raised"), [*CASES, ("trio", "KeyboardInterrupt")])
def test_p1_a_signal_handler_that_raises_in_the_host_ends_every_delivery(run_program, loop_kind, raised):
    process = run_program(PROGRAM, raised, loop_kind, "0", str(ROUNDS))
    told, errors = process.communicate(timeout=120)
    rounds = [json.loads(line) for line in told.splitlines()]
    assert (len(rounds), process.returncode) == (ROUNDS, 0), errors
    assert {one["unended"] for one in rounds} == {0}, rounds
    assert sum(one["raised"] and one["of"] > 0 for one in rounds) > ROUNDS / 2, rounds
    assert all(reason for one in rounds for reason in one["reasons"])
