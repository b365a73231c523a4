"""Is a waiting subscription woken by the events that concern it, and by nothing else?"""

import asyncio
from random import Random

import pytest

from shardline.server.model.service import Service
from shardline.server.model.settings import Delays, Limits, ServiceSettings
from shardline.server.server_clock import ServerClock
from shardline.server.wakeups import Wakeups

NOW = 1_700_000_000.0
ARN = "arn:aws:kinesis:us-east-1:000000000000:stream/s"


class World:
    """A service with a frozen clock, and its subscriptions."""

    def __init__(self):
        self.clock = ServerClock(lambda: NOW)
        self.clock.freeze()
        settings = ServiceSettings(limits=Limits.without_rates(), delays=Delays(update=3.0))
        self.service = Service(settings, Random(1), NOW)
        self.wakeups = Wakeups(self.service.state, self.clock)
        self.call("CreateStream", StreamName="s", ShardCount=2)
        self.call("RegisterStreamConsumer", StreamARN=ARN, ConsumerName="c")
        self.consumer = next(iter(self.service.state.consumers))

    def call(self, operation, **members):
        answer = self.service.handle(operation, members, self.clock.now())
        assert answer.refusal is None, answer.refusal
        return answer

    def subscribe(self, shard):
        members = {"ShardId": f"shardId-{shard:012d}", "StartingPosition": {"Type": "LATEST"}}
        subscription = self.call("SubscribeToShard", ConsumerARN=self.consumer, **members).subscription
        subscription.poll(self.clock.now())
        return subscription

    async def waiting(self, *shards):
        """Start tasks that wait for the subscriptions of these shards."""
        subscriptions = [self.subscribe(shard) for shard in shards]
        tasks = [asyncio.ensure_future(self.wakeups.wait(one)) for one in subscriptions]
        await asyncio.sleep(0)
        return subscriptions, tasks


async def woken(tasks):
    """Return which of the tasks are done after an iteration of the loop. The others are cancelled."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done = [task.done() for task in tasks]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


@pytest.fixture
def world():
    return World()


def put(world, hash_key):
    world.call("PutRecord", StreamName="s", Data=b"x", PartitionKey="k", ExplicitHashKey=str(hash_key))


def test_a_record_wakes_the_subscriptions_of_its_shard_alone(world):
    async def main():
        _, tasks = await world.waiting(0, 1)
        put(world, 0)
        world.wakeups.wake_touched()
        return await woken(tasks)

    assert asyncio.run(main()) == [True, False]
    assert world.service.state.touched == set()


def test_an_ended_subscription_does_not_wait(world):
    async def main():
        subscription = world.subscribe(0)
        subscription.ended = True
        await asyncio.wait_for(world.wakeups.wait(subscription), 1)

    asyncio.run(main())


def test_a_moved_clock_wakes_all_and_carries_out_what_is_due(world):
    async def main():
        subscriptions, tasks = await world.waiting(0, 1)
        world.call("SplitShard", StreamName="s", ShardToSplit="shardId-000000000000", NewStartingHashKey=str(1 << 125))
        world.wakeups.wake_touched()
        assert not any(task.done() for task in tasks)
        world.clock.advance(3)
        world.wakeups.wake_all()
        assert not subscriptions[0]._shard.is_open  # no request came
        return await woken(tasks)

    assert asyncio.run(main()) == [True, True]


def test_a_client_that_went_wakes_its_own(world):
    async def main():
        subscriptions, tasks = await world.waiting(0, 1)
        world.wakeups.wake(subscriptions[1])
        world.wakeups.wake(subscriptions[1])  # twice is harmless
        return await woken(tasks)

    assert asyncio.run(main()) == [False, True]
    world.clock.advance(6)
    world.wakeups.wake(world.subscribe(0))  # one that does not wait: harmless


def test_nothing_is_left_when_nothing_waits(world):
    async def main():
        world.clock.resume()
        _, tasks = await world.waiting(0, 1)
        assert world.wakeups._timer is not None
        await woken(tasks)
        return world.wakeups._timer, world.wakeups._waiting

    assert asyncio.run(main()) == (None, {})


def test_what_is_due_in_seconds_comes_together(world):
    """A thousand heartbeats wake the loop a few times a second."""

    async def main():
        loop = asyncio.get_running_loop()
        world.clock.resume()
        soon = world.wakeups._loop_time(loop, NOW + 0.25) - loop.time()
        later = {world.wakeups._loop_time(loop, NOW + 5 + part / 1000) for part in range(50)}
        return soon, later, loop.time()

    soon, later, now = asyncio.run(main())
    assert 0.2 < soon <= 0.25
    assert len(later) <= 2
    assert all(4.9 < one - now <= 5.2 for one in later)
