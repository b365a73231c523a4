"""How many round trips does a lease write take on Redis, and how slow may the network be?"""

import contextlib
import socket
import threading
import time

import anyio
import pytest

from shardline import Consumer, ConsumerConfig
from shardline.adapters.leases.redis import RedisLeases
from shardline.core.consumer.consumer_events import LeaseGained, LeaseLost
from shardline.core.leases import (
    AskHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    FinishHandOver,
    Refused,
    ReleaseLease,
    RenewLease,
    TakeLease,
)
from shardline.model.lease import Checkpoint, Incarnation, Lease
from shardline.model.position import at_sequence_number
from shardline.testing import LocalKinesis

pytestmark = pytest.mark.anyio

SHARD = "shardId-000000000000"
ME = Incarnation("a", "1f", 10.0)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


class Network:
    """The connection to a server: it counts round trips, and can be slow."""

    def __init__(self, port):
        self.port = port
        self.latency = 0.0
        self.trips = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self.listener.getsockname()[1]}/0"
        self.sockets = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.port))
                self.sockets += [near, far]
                threading.Thread(target=self.serve, args=(near, far), daemon=True).start()

    def serve(self, near, far):
        """Count round trips: a client of Redis sends, then waits for all answers, so everything that it sends at once
        is one trip.
        """
        with contextlib.suppress(OSError):
            while request := self.receive(near):
                self.trips += 1
                time.sleep(self.latency)
                far.sendall(request)
                near.sendall(self.receive(far))

    def receive(self, peer):
        """Receive everything that arrives at once."""
        peer.settimeout(None)
        data = bytearray(peer.recv(1 << 20))
        peer.settimeout(0.02)
        with contextlib.suppress(TimeoutError):
            while data and (more := peer.recv(1 << 20)):
                data += more
        return data

    def close(self):
        self.listener.close()
        for one in self.sockets:
            one.close()


@pytest.fixture
def network(valkey_port):
    one = Network(valkey_port)
    yield one
    one.close()


@pytest.fixture
async def store(network, unique):
    one = RedisLeases(network.url, unique, "orders")
    assert await one.open() is None
    yield one
    await one.close()


@pytest.fixture
async def other(valkey_port, unique):
    """The store of another worker, which does not use the counting connection."""
    one = RedisLeases(f"redis://127.0.0.1:{valkey_port}/0", unique, "orders")
    assert await one.open() is None
    yield one
    await one.close()


async def test_every_write_takes_one_round_trip(store, network):
    row = await store.apply(CreateLease(Lease(SHARD)))
    network.trips = 0
    steps = [
        lambda row: TakeLease(SHARD, "a", row.fence, ME, floor=1),
        lambda row: RenewLease(SHARD, "a", row.counter),
        lambda row: CommitCheckpoint(SHARD, "a", row.counter, Checkpoint(at_sequence_number("5"))),
        lambda _: AskHandOver(SHARD, "b", "a"),
        lambda row: FinishHandOver(SHARD, "a", row.counter),
        lambda row: TakeLease(SHARD, "b", row.fence, ME._replace(owner="b"), floor=1),
        lambda row: ReleaseLease(SHARD, "b", row.counter),
    ]
    for number, step in enumerate(steps, 1):
        row = await store.apply(step(row))
        assert isinstance(row, Lease)
        assert network.trips == number, step(row)
    assert await store.apply(DeleteLease(SHARD, row.counter)) is None
    assert network.trips == len(steps) + 1


async def test_what_others_wrote_is_known_from_the_listing(store, other, network):
    created = await other.apply(CreateLease(Lease(SHARD)))
    assert await store.list_leases() == [created]
    network.trips = 0
    taken = await store.apply(TakeLease(SHARD, "a", created.fence, ME, floor=1))
    assert (taken.owner, network.trips) == ("a", 1)


async def test_a_row_that_another_has_changed_costs_one_round_trip_more_at_most(store, other, network):
    created = await store.apply(CreateLease(Lease(SHARD, owner="a")))
    await other.apply(AskHandOver(SHARD, "b", "a"))
    network.trips = 0
    assert (await store.apply(RenewLease(SHARD, "a", created.counter))).checkpoint_owner == "a"
    assert network.trips == 2
    (row,) = await other.list_leases()
    stolen = await other.apply(TakeLease(SHARD, "c", row.fence, floor=1))
    network.trips = 0
    assert await store.apply(RenewLease(SHARD, "a", row.counter)) == Refused(stolen)
    assert network.trips == 1


async def test_many_writes_at_once_take_one_round_trip(store, network):
    rows = await store.apply_many([CreateLease(Lease(f"s{number}", owner="a")) for number in range(64)])
    network.trips = 0
    assert len(await store.apply_many([RenewLease(row.shard_id, "a", 0) for row in rows])) == 64
    assert network.trips == 1


async def test_a_write_during_a_slow_listing_is_not_forgotten(store, network):
    row = await store.apply(CreateLease(Lease(SHARD, owner="a")))
    read = store._read

    def list_then_write():
        found = read()
        store._rows.apply_all([RenewLease(SHARD, "a", row.counter)])
        return found

    store._read = list_then_write
    await store.list_leases()
    network.trips = 0
    assert (await store.apply(RenewLease(SHARD, "a", row.counter + 1))).counter == row.counter + 2
    assert network.trips == 1


async def test_writes_that_wait_for_a_connection_travel_together(store, network):
    """On a slow network, one after the other, the last of 60 would be written after 20 round trips."""
    rows = await store.apply_many([CreateLease(Lease(f"s{number}", owner="a")) for number in range(60)])
    network.latency, network.trips = 0.3, 0
    began_at, answers = time.monotonic(), {}

    async def renew(row):
        answers[row.shard_id] = await store.apply(RenewLease(row.shard_id, "a", 0))

    async with anyio.create_task_group() as tasks:
        for row in rows:
            tasks.start_soon(renew, row)
    assert {answer.counter for answer in answers.values()} == {1}
    assert set(answers) == {row.shard_id for row in rows}
    assert network.trips <= 6
    assert time.monotonic() - began_at < 2.0


async def test_a_write_that_is_cancelled_while_it_waits_is_not_written_and_holds_up_no_other(store, network):
    rows = await store.apply_many([CreateLease(Lease(f"s{number}", owner="a")) for number in range(9)])
    network.latency = 0.3
    answers = {}

    async def renew(row, scope):
        with scope:
            answers[row.shard_id] = await store.apply(RenewLease(row.shard_id, "a", 0))

    scopes = {row.shard_id: anyio.CancelScope() for row in rows}
    async with anyio.create_task_group() as tasks:
        for row in rows:
            tasks.start_soon(renew, row, scopes[row.shard_id])
            await anyio.sleep(0.01)
        for name in ("s5", "s7"):
            scopes[name].cancel()
    network.latency = 0.0
    listed = {row.shard_id: row.counter for row in await store.list_leases()}
    assert answers.keys() == listed.keys() - {"s5", "s7"}
    assert listed == {row.shard_id: int(row.shard_id in answers) for row in rows}


async def test_a_network_that_takes_a_third_of_a_lease_costs_no_lease(network, unique):
    """This corresponds to 3 s with leases of 10 s."""
    events = []
    config = ConsumerConfig(lease_duration=3.0, checkpoint_interval=0.5, scan_interval=0.5, list_interval=5.0)
    with LocalKinesis(shards=3, limits=False, stream="orders") as kinesis:
        connection = {
            "endpoint_url": kinesis.endpoint_url,
            "region": kinesis.region,
            "credentials": kinesis.credentials,
        }
        consumer = Consumer(
            "orders", group=unique, store=network.url, config=config, sinks=[events.append], **connection
        )
        async with consumer:
            await consumer.wait_ready(timeout=20)
            network.latency = 0.9
            await anyio.sleep(9.0)
            assert len(consumer.status().shards) == 3
            assert [event for event in events if isinstance(event, LeaseLost)] == []
            assert len([event for event in events if isinstance(event, LeaseGained)]) == 3
            network.latency = 0.0
