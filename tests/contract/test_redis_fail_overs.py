"""Does the Redis store survive a fail-over of a real cluster and of a real sentinel, even to a stale replica?"""

import contextlib
import os
import signal
import time

import anyio
import pytest
import redis

from shardline.adapters.leases.redis import RedisLeases
from shardline.core.error_codes import Failure
from shardline.core.leases import CreateLease, Refused, RenewLease, TakeLease
from shardline.model.lease import Lease

pytestmark = pytest.mark.anyio
SHARD = "shardId-000000000000"


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@contextlib.asynccontextmanager
async def opened(url, group="billing"):
    store = RedisLeases(url, group, "orders", limit=1.0)
    try:
        assert await store.open() is None
        yield store
    finally:
        await store.close()


def kill(port, password=None):
    """Kill a server at once. It replies nothing."""
    with raw(port, password) as client:
        pid = client.info("server")["process_id"]
    os.kill(pid, signal.SIGKILL)


def raw(port, password=None):
    return redis.Redis("127.0.0.1", port, password=password)


async def applied(store, operation, limit=30.0):
    """Repeat the operation until the store answers it, as a worker does. Return the answer and the failures before."""
    failures = []
    give_up_at = time.monotonic() + limit
    while True:
        answer = await store.apply(operation)
        if not isinstance(answer, Failure):
            return answer, failures
        failures.append(answer)
        assert answer.retryable, answer
        assert time.monotonic() < give_up_at, answer
        await anyio.sleep(0.1)


def take(row, by):
    return TakeLease(SHARD, by, row.fence, floor=1)


def replica_group(ports):
    """A group whose hash is on the first node, which has a replica."""
    for number in range(100):
        name = f"g{number}"
        with raw(ports[0]) as client:
            if client.execute_command("CLUSTER", "KEYSLOT", f"shardline:leases:{name}:orders") <= 5460:
                return name
    raise AssertionError("no group has its hash on the first node")


async def fail_over(store, master, replica, key, password=None):
    """Kill the master after the replica missed a take. Check that tokens grow, and that the loser is refused."""
    row = await store.apply(CreateLease(Lease(SHARD)))
    first = await store.apply(take(row, "a"))
    with raw(master, password) as old, raw(replica, password) as new:
        stale = old.hget(key, SHARD)
        second = await store.apply(take(first, "b"))
        with anyio.fail_after(10):
            while new.hget(key, SHARD) in (None, stale):  # noqa: ASYNC110 - another server
                await anyio.sleep(0.02)
        new.hset(key, SHARD, stale)  # this replica lacks the last write: Redis replicates asynchronously
    kill(master, password)
    renewed, failures = await applied(store, RenewLease(SHARD, "b", second.counter))
    assert failures, "the master was dead"
    assert isinstance(renewed, Refused), "the new master does not know the second take"
    assert (renewed.current.owner, renewed.current.counter) == ("a", first.counter)
    third, _ = await applied(store, take(renewed.current, "c"))
    assert third.counter > second.counter, "the token grows, although the new master never saw the second one"
    assert await store.list_leases() == [third]
    assert isinstance(await store.apply(RenewLease(SHARD, "b", second.counter)), Refused)


async def test_a_sentinel_fails_over_to_a_stale_replica(start_sentinel):
    master, replica, sentinel = await anyio.to_thread.run_sync(start_sentinel)
    async with opened(f"redis+sentinel://127.0.0.1:{sentinel}/leases/0") as store:
        await fail_over(store, master, replica, store._hash)


async def test_sentinels_and_servers_with_different_passwords_fail_over(start_sentinel):
    master, replica, sentinel = await anyio.to_thread.run_sync(start_sentinel, "secret,1", "secret:2")
    login = "redis+sentinel://:secret%2C1,:secret%3A2"
    async with opened(f"{login}@127.0.0.1:{sentinel}/leases/0") as store:
        await fail_over(store, master, replica, store._hash, "secret,1")


@pytest.mark.parametrize(
    ("login", "message"),
    [
        (":secret@", "master"),
        (":secret,:wrong@", "master"),
        (",:sentinel@", "Authentication"),
        (":wrong,:sentinel@", ""),
    ],
)
async def test_a_missing_or_wrong_password_is_reported(start_sentinel, login, message):
    *_, sentinel = await anyio.to_thread.run_sync(start_sentinel, "secret", "sentinel")
    store = RedisLeases(f"redis+sentinel://{login}127.0.0.1:{sentinel}/leases", "billing", "orders", limit=1.0)
    failure = await store.open()
    assert isinstance(failure, Failure)
    assert message in failure.message, failure
    assert not {"secret", "wrong", "sentinel@"} & {*failure.message.replace(":", " ").split()}
    await store.close()


async def test_a_cluster_fails_over_to_a_stale_replica(start_cluster):
    ports = await anyio.to_thread.run_sync(start_cluster)
    group = replica_group(ports)
    async with opened(f"redis+cluster://127.0.0.1:{ports[1]},127.0.0.1:{ports[2]}", group) as store:
        await survive_in_cluster(store, ports)


async def survive_in_cluster(store, ports):
    """A replica of a cluster cannot be written to, so the stale row is written after the fail-over."""
    row = await store.apply(CreateLease(Lease(SHARD)))
    first = await store.apply(take(row, "a"))
    with raw(ports[0]) as old:
        stale = old.hget(store._hash, SHARD)
        second = await store.apply(take(first, "b"))
        old.execute_command("WAIT", 1, 5_000)
    kill(ports[0])
    renewed, failures = await applied(store, RenewLease(SHARD, "b", second.counter))
    assert failures, "the master was dead"
    assert renewed.counter == second.counter + 1, "the replica had the row"
    with raw(ports[3]) as new:
        assert new.info("replication")["role"] == "master"
        new.hset(store._hash, SHARD, stale)  # as if the last writes had not been replicated
    refused = await store.apply(RenewLease(SHARD, "b", renewed.counter))
    third = await store.apply(take(refused.current, "c"))
    assert third.counter > renewed.counter
    assert await store.list_leases() == [third]


async def test_a_slot_moves_to_another_node_under_load(start_cluster):
    """While the slot moves, a node redirects with ASK, and then with MOVED. No operation fails or is repeated."""
    ports = await anyio.to_thread.run_sync(start_cluster)
    group = replica_group(ports)
    async with (
        opened(f"redis+cluster://127.0.0.1:{ports[2]}", group) as store,
        opened(f"redis+cluster://127.0.0.1:{ports[0]}", group) as other,
    ):
        row = await store.apply(take(await store.apply(CreateLease(Lease(SHARD))), "a"))
        with raw(ports[0]) as source, raw(ports[1]) as target:
            slot = source.execute_command("CLUSTER", "KEYSLOT", store._hash)
            ids = [each.execute_command("CLUSTER", "MYID").decode() for each in (source, target)]
            target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
            source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
            row = await store.apply(RenewLease(SHARD, "a", row.counter))
            source.execute_command("MIGRATE", "127.0.0.1", ports[1], store._hash, 0, 5_000)
            row = await store.apply(RenewLease(SHARD, "a", row.counter))  # ASK
            assert await store.list_leases() == [row]
            for each in (target, source):
                each.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
            row = await store.apply(RenewLease(SHARD, "a", row.counter))  # MOVED
            assert await store.list_leases() == await other.list_leases() == [row]
            assert target.hlen(store._hash) == 1
