"""A signal handler raises while the event loop's thread is in the host: every delivery ends, and nothing hangs.

Real signals come at random times, many times, in separate processes. ``test_asyncio_hosts.py`` tests each loss of
asyncio by itself.
"""

import json

import pytest
from tests.shell.raising_signals import CASES, PRELUDE

ROUNDS = 12

PROGRAM = """
for seed in range(rounds):
    rng, deliveries = random.Random(seed), []

    async def main(rang):
        config = ProducerConfig(
            linger=rng.choice([0.0, 0.01]),
            record_ttl=5.0,
            request_max_entries=rng.choice([5, 50]),
            aggregation=rng.random() < 0.5,
        )
        async with Producer("s", config=config, close_timeout=5.0, **CONNECTION) as producer:
            until = time.monotonic() + 0.5
            while "raised" not in rang and time.monotonic() < until:
                for number in range(rng.choice([1, 20, 100])):
                    deliveries.append(await producer.put(b"x" * 50, key=f"k{number}"))
                await make_flag().wait(rng.choice([0, 0.001]))
            await deliveries[-1].outcome()

    was_raised = play(rng, main, 0.1)
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
    reasons = {delivery.ending.message for delivery in deliveries if delivery.ending and not delivery.delivered}
    unended = sum(delivery.ending is None for delivery in deliveries)
    told = {"seed": seed, "raised": was_raised, "unended": unended, "of": len(deliveries), "reasons": sorted(reasons)}
    print(json.dumps(told), flush=True)
"""


@pytest.mark.parametrize(("loop_kind", "raised"), [*CASES, ("trio", "KeyboardInterrupt")])
def test_p1_a_signal_handler_that_raises_in_the_host_ends_every_delivery(run_program, loop_kind, raised):
    process = run_program(PRELUDE + PROGRAM, raised, loop_kind, str(ROUNDS))
    told, errors = process.communicate(timeout=120)
    rounds = [json.loads(line) for line in told.splitlines()]
    assert (len(rounds), process.returncode) == (ROUNDS, 0), errors
    assert {one["unended"] for one in rounds} == {0}, rounds
    assert sum(one["raised"] and one["of"] > 0 for one in rounds) > ROUNDS / 2, rounds
    assert all(reason for one in rounds for reason in one["reasons"])
