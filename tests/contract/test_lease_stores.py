"""What does every ``LeaseStore`` promise, wherever it keeps its rows? One suite over all of them, on both loops.

``core.leases.apply`` is the reference: whatever it says, every store says, also to several workers at once.
"""

import random
import time
from functools import partial

import anyio
import anyio.to_thread
import pytest

from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.store_urls import lease_catalog, lease_store
from shardline.core.failures import Failure, FailureKind
from shardline.core.leases import (
    AskHandOver,
    CancelHandOver,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    FinishHandOver,
    Refused,
    ReleaseLease,
    RenewLease,
    ResetLease,
    TakeLease,
    WriteChildren,
    apply,
    apply_to,
)
from shardline.model.credentials import Credentials
from shardline.model.hashing import HASH_KEY_MAX, HashRange
from shardline.model.lease import Checkpoint, Fence, Incarnation, Lease
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_sequence_number, at_timestamp
from shardline.model.sequence import SequenceNumber

pytestmark = pytest.mark.anyio

SHARD = "shardId-000000000000"
NUMBER = "49" + "0" * 54
STORES = ["memory", "sqlite", "redis", "dynalite", "ministack"]
WORKERS = ["worker-a", "worker-b", "worker-ü c:1"]
FAR = 4_102_444_800_000  # the year 2100: no clock of a store is ahead of it


def at(number, sub_sequence=0):
    return Checkpoint(at_sequence_number(SequenceNumber(number, sub_sequence)))


@pytest.fixture(params=STORES)
def kind(request):
    return request.param


@pytest.fixture
def url(request, kind, tmp_path, unique):
    """Where the leases of this test are."""
    if kind == "memory":
        return "memory:"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'leases.db'}"
    if kind == "redis":
        return f"redis://127.0.0.1:{request.getfixturevalue('valkey_port')}/0"
    return f"dynamodb://{unique}?region=eu-west-1&endpoint_url={request.getfixturevalue(f'{kind}_url')}"


AWS = AwsAccess(wall_time=time.time, credentials=Credentials("AKIDEXAMPLE", "secret"))


@pytest.fixture
def make_store(url, unique):
    """Make a store of this test's group: each call one more worker's."""
    return lambda group=unique, stream="orders": lease_store(url, group=group, stream=stream, aws=AWS)


@pytest.fixture
async def stores(make_store):
    """Eight open stores of one group, as eight workers would have them."""
    made = [make_store() for _ in range(8)]
    for one in made:
        assert await one.open() is None
    yield made
    for one in made:
        await one.close()


@pytest.fixture
def store(stores):
    return stores[0]


async def create(store, **fields):
    lease = Lease(SHARD, **fields)
    assert await store.apply(CreateLease(lease)) == lease
    return lease


# ---- rows

FULL = Lease(
    SHARD,
    counter=7,
    owner="worker-b",
    checkpoint=at(int(NUMBER), 3),
    parent_ids=frozenset({"shardId-000000000008", "shardId-000000000009"}),
    child_ids=frozenset({"shardId-000000000010"}),
    hash_range=HashRange(0, HASH_KEY_MAX),
    owner_switches=2,
    checkpoint_owner="worker-a",
    pending_checkpoint=at(int(NUMBER) + 5, 1),
    throughput=12.345678,
    incarnation=Incarnation("worker-a", "0123456789abcdef", 7.5),
)


@pytest.mark.parametrize(
    "lease",
    [
        Lease(SHARD),
        FULL,
        Lease(SHARD, checkpoint=Checkpoint(LATEST), latest_at=1_700_000_000.123),
        Lease(SHARD, checkpoint=Checkpoint(LATEST)),
        Lease(SHARD, checkpoint=Checkpoint(at_timestamp(1_700_000_000.5))),
        Lease(SHARD, checkpoint=Checkpoint(SHARD_END), owner_switches=1),
        Lease(SHARD, checkpoint=Checkpoint(TRIM_HORIZON), pending_checkpoint=Checkpoint(SHARD_END)),
        Lease(SHARD, throughput=0.0, hash_range=HashRange(5, 5)),
    ],
)
async def test_a_row_is_read_as_it_was_written(stores, lease):
    assert await stores[0].apply(CreateLease(lease)) == lease
    assert await stores[1].list_leases() == [lease]
    assert await stores[1].apply(CreateLease(Lease(SHARD, counter=99))) == Refused(lease)


async def test_leases_are_listed_by_shard_id_however_many_there_are(store, kind):
    """On DynamoDB that is several pages: its answers end at 1 MB."""
    names = [f"shardId-{number:012d}" for number in range(450)]
    random.Random(1).shuffle(names)
    worker = "w" * 3_000
    for name in names:
        assert not isinstance(await store.apply(CreateLease(Lease(name, owner=worker))), (Failure, Refused))
    listed = await store.list_leases()
    assert [lease.shard_id for lease in listed] == sorted(names)


# ---- operations, one by one


async def test_a_token_is_no_less_than_the_floor_and_greater_than_the_last(store):
    row = await create(store)
    for floor, token in ((FAR, FAR), (7, FAR + 1), (FAR + 1, FAR + 2), (FAR + 9, FAR + 9)):
        row = await store.apply(TakeLease(SHARD, "a", row.fence, floor=floor))
        assert row.counter == token
    renewed = await store.apply(RenewLease(SHARD, "a", row.counter))
    assert renewed.counter == FAR + 10
    assert await store.list_leases() == [renewed]


async def test_a_row_says_which_process_took_it_until_that_lets_go(stores):
    row = await create(stores[0])
    first, second = Incarnation("a", "x", 10.0), Incarnation("a", "y", 60.0)
    for incarnation in (first, second):
        row = await stores[0].apply(TakeLease(SHARD, "a", row.fence, incarnation))
        assert row.incarnation == incarnation
        assert await stores[1].list_leases() == [row]
    row = await stores[1].apply(TakeLease(SHARD, "java", row.fence))
    assert (row.incarnation, row.incarnation_of("java")) == (second, None)
    row = await stores[0].apply(TakeLease(SHARD, "a", row.fence, first))
    row = await stores[0].apply(RenewLease(SHARD, "a", row.counter))
    assert row.incarnation == first
    row = await stores[0].apply(ReleaseLease(SHARD, "a", row.counter))
    assert row.incarnation is None
    assert await stores[1].list_leases() == [row]


async def test_a_zombie_writes_nothing(stores):
    """L4: who lost its lease while it slept is refused whatever it tries, and told who has it."""
    old, new = stores[:2]
    created = await create(old)
    mine = await old.apply(TakeLease(SHARD, "old", created.fence))
    theirs = await new.apply(TakeLease(SHARD, "new", mine.fence))
    for attempt in (
        RenewLease(SHARD, "old", 1),
        CommitCheckpoint(SHARD, "old", 1, at(9)),
        CommitCheckpoint(SHARD, "old", 2, at(9)),
        ReleaseLease(SHARD, "old", 1),
        ReleaseLease(SHARD, "old", 2),
        FinishHandOver(SHARD, "old", 2),
        TakeLease(SHARD, "old", mine.fence),
        DeleteLease(SHARD, 1),
    ):
        assert await old.apply(attempt) == Refused(theirs)
    assert await new.list_leases() == [theirs]


# ---- against the reference


def draw(choose, rows, among=("shardId-000000000000", "shardId-000000000001")):
    """An operation that has a fair chance of being allowed."""
    shard_id = choose.choice(among)
    row = rows.get(shard_id) or Lease(shard_id)
    by = row.holder if row.holder is not None and choose.random() < 0.7 else choose.choice(WORKERS)
    counter = row.counter - (choose.random() < 0.15)
    counter = max(counter, 0)
    position = choose.choice([TRIM_HORIZON, LATEST, at_timestamp(1.7e9)])
    fence = row.fence if choose.random() < 0.7 else Fence(counter, choose.choice([None, *WORKERS]), None)
    kind = choose.randrange(18)
    if kind < 2 or (shard_id not in rows and kind < 10):
        pinned = 1.7e9 if position == LATEST and choose.random() < 0.5 else None
        return CreateLease(Lease(shard_id, checkpoint=Checkpoint(position), latest_at=pinned))
    if kind < 4:
        return RenewLease(shard_id, by, counter, choose.choice([None, round(choose.random() * 1e4, 6)]))
    if kind < 7:
        taker = choose.choice(WORKERS)
        incarnation = choose.choice([None, Incarnation(taker, choose.choice("xy"), choose.choice([10.0, 60.5]))])
        return TakeLease(shard_id, taker, fence, incarnation, choose.choice([0, FAR]))
    if kind < 9:
        old = row.owner or WORKERS[0]
        return AskHandOver(shard_id, choose.choice([name for name in WORKERS if name != old]), old)
    if kind < 11:
        return FinishHandOver(shard_id, by, counter)
    if kind < 12:
        return ReleaseLease(shard_id, by, counter)
    if kind < 14:
        checkpoint = choose.choice([at(choose.randrange(10**56), choose.randrange(3)), Checkpoint(position)])
        return CommitCheckpoint(shard_id, by, counter, checkpoint)
    if kind < 15:
        return WriteChildren(shard_id, frozenset({"x", choose.choice("yz")}))
    if kind < 16:
        pinned = 1.6e9 if position == LATEST else None
        return ResetLease(shard_id, fence, Checkpoint(position), pinned)
    if kind < 17:
        return CancelHandOver(shard_id, row.owner or by, row.checkpoint_owner or by)
    if choose.random() < 0.3:
        return CommitCheckpoint(shard_id, by, counter, Checkpoint(SHARD_END))
    return DeleteLease(shard_id, counter)


ROWS = [
    None,
    Lease(SHARD, counter=4),
    Lease(SHARD, counter=4, owner="a", owner_switches=2, checkpoint=Checkpoint(LATEST), latest_at=1.7e9),
    Lease(SHARD, counter=4, owner="b", checkpoint_owner="a", pending_checkpoint=at(9), throughput=1.5),
    Lease(SHARD, counter=4, owner="a", incarnation=Incarnation("a", "x", 10.0)),
    Lease(SHARD, counter=4, owner="b", checkpoint_owner="a", incarnation=Incarnation("a", "x", 10.0)),
    Lease(SHARD, counter=4, owner="a", checkpoint=Checkpoint(SHARD_END)),
    Lease(SHARD, counter=4, owner="b", checkpoint_owner="a", checkpoint=Checkpoint(SHARD_END)),
]
EVERY_OPERATION = [
    CreateLease(Lease(SHARD, counter=9)),
    WriteChildren(SHARD, frozenset("xy")),
    *(AskHandOver(SHARD, *pair) for pair in ("ba", "ca", "cb", "ab")),
    *(CancelHandOver(SHARD, *pair) for pair in ("ba", "ca", "cb", "ab")),
    *(DeleteLease(SHARD, counter) for counter in (3, 4, 5)),
    *(
        TakeLease(SHARD, by, Fence(counter, *owners))
        for by in "abc"
        for counter in (3, 4)
        for owners in ((None, None), ("a", None), ("b", None), ("b", "a"))
    ),
    *(
        TakeLease(SHARD, by, Fence(4, *owners), Incarnation(by, "y", 2.5), FAR)
        for by in "ab"
        for owners in ((None, None), ("a", None), ("b", "a"))
    ),
    *(
        ResetLease(SHARD, Fence(counter, *owners), *place)
        for counter in (3, 4)
        for owners in ((None, None), ("a", None), ("b", None), ("b", "a"))
        for place in ((at(7, 1),), (Checkpoint(LATEST), 1.6e9), (Checkpoint(at_timestamp(1.5e9)),))
    ),
    *(
        make(SHARD, by, counter)
        for make in (RenewLease, FinishHandOver, ReleaseLease, lambda *held: CommitCheckpoint(*held, at(7, 1)))
        for by in "abc"
        for counter in (3, 4, 5)
    ),
]


@pytest.mark.parametrize("row", ROWS)
async def test_it_does_what_the_reference_says_in_every_case(store, row):
    """Every operation on every sort of row: the same answer, and the same row after it."""
    current = None
    for operation in EVERY_OPERATION:
        if current != row:
            assert current is None or await store.apply(DeleteLease(SHARD, current.counter)) is None
            assert row is None or await store.apply(CreateLease(row)) == row
        expected = apply(row, operation)
        assert await store.apply(operation) == expected, operation
        current = expected if not isinstance(expected, Refused) else row
        assert await store.list_leases() == ([] if current is None else [current]), operation


@pytest.mark.parametrize("seed", range(3))
async def test_it_does_what_the_reference_says(stores, seed):
    choose = random.Random(seed)
    rows = {}
    seen = set()
    for _ in range(200):
        operation = draw(choose, rows)
        expected = apply_to(rows, operation)
        answer = await stores[choose.randrange(3)].apply(operation)
        assert answer == expected, operation
        seen.add((type(operation).__name__, isinstance(answer, Refused)))
        if choose.random() < 0.1:
            assert await stores[choose.randrange(3)].list_leases() == sorted(
                rows.values(), key=lambda row: row.shard_id
            )
    assert len(seen) > 12, seen  # the interesting cases were reached


# ---- many in one call, where a store takes them (``BatchingLeaseStore``)

BATCHING = ["memory", "sqlite", "redis"]


@pytest.mark.parametrize("kind", BATCHING)
@pytest.mark.parametrize("seed", range(3))
async def test_many_at_once_are_answered_as_one_by_one(stores, seed):
    choose, rows, seen = random.Random(seed), {}, set()
    for _ in range(40):
        operations, expected = [], []
        for number in choose.sample(range(8), choose.randrange(1, 9)):
            operation = draw(choose, rows, [f"shardId-{number:012d}"])
            answer = apply_to(rows, operation)
            operations.append(operation)
            expected.append(answer)
            seen.add((type(operation).__name__, isinstance(answer, Refused)))
        assert await stores[choose.randrange(3)].apply_many(operations) == expected, operations
        assert await stores[3].list_leases() == sorted(rows.values(), key=lambda row: row.shard_id)
    assert len(seen) > 12, seen


@pytest.mark.parametrize("kind", BATCHING)
async def test_nothing_at_once_is_nothing(store):
    assert await store.apply_many([]) == []


@pytest.mark.parametrize("kind", BATCHING)
async def test_of_many_takers_of_many_leases_one_wins_each(stores):
    names = [f"shardId-{number:012d}" for number in range(30)]
    rows = await stores[0].apply_many([CreateLease(Lease(name)) for name in names])
    for _ in range(5):
        order = {store: random.Random(number).sample(rows, len(rows)) for number, store in enumerate(stores)}
        answers = await together(
            *(
                lambda store=store, number=number, wanted=order[store]: store.apply_many(
                    [TakeLease(row.shard_id, f"worker-{number}", row.fence) for row in wanted]
                )
                for number, store in enumerate(stores)
            )
        )
        won = [answer for each in answers for answer in each if isinstance(answer, Lease)]
        refused = [answer.current for each in answers for answer in each if isinstance(answer, Refused)]
        rows = await stores[0].list_leases()
        assert sorted(won, key=lambda row: row.shard_id) == rows, "each was taken once"
        assert len(refused) == 7 * len(names)
        assert all(row in rows for row in refused)


# ---- several at once


async def together(*calls):
    answers = [None] * len(calls)

    async def run(index, call):
        answers[index] = await call()

    async with anyio.create_task_group() as group:
        for index, call in enumerate(calls):
            group.start_soon(run, index, call)
    return answers


async def test_of_several_takers_one_wins(stores):
    row = await create(stores[0])
    for _ in range(8):
        calls = [
            lambda store=store, number=number: store.apply(TakeLease(SHARD, f"worker-{number}", row.fence))  # noqa: B023
            for number, store in enumerate(stores)
        ]
        answers = await together(*calls)
        winners = [answer for answer in answers if isinstance(answer, Lease)]
        assert len(winners) == 1, answers
        assert all(answer in {winners[0], Refused(winners[0])} for answer in answers)
        assert winners[0].counter == row.counter + 1
        row = winners[0]


async def test_of_commit_and_takeover_one_wins_and_neither_is_lost(stores):
    row = await create(stores[0], owner="old")
    for number in range(10):
        commit = CommitCheckpoint(SHARD, row.owner, row.counter, at(number + 1))
        take = TakeLease(SHARD, f"new-{number}", row.fence)
        first, second = await together(lambda: stores[0].apply(commit), lambda: stores[1].apply(take))  # noqa: B023
        assert isinstance(first, Lease) != isinstance(second, Lease)
        (row,) = await stores[2].list_leases()
        assert row in {first, second}
    assert row.counter == 10


async def test_no_update_is_lost(stores):
    """Every worker takes the lease five times, from whomever has it: the counter has counted each of them."""
    await create(stores[0])

    async def take_five(store, name):
        left = 5
        while left:
            (row,) = await store.list_leases()
            answer = await store.apply(TakeLease(SHARD, name, row.fence))
            assert not isinstance(answer, Failure) or answer.code == "Contended"
            left -= isinstance(answer, Lease)

    async with anyio.create_task_group() as group:
        for number, store in enumerate(stores[:5]):
            group.start_soon(take_five, store, f"worker-{number}")
    (row,) = await stores[0].list_leases()
    assert row.counter == 25


async def test_threads_with_loops_of_their_own_lose_no_update(make_store, anyio_backend):
    """The blocking half of an application may run beside the other."""
    first = make_store()
    assert await first.open() is None
    await create(first)

    async def take_ten(name):
        store = make_store()
        assert await store.open() is None
        left = 10
        while left:
            (row,) = await store.list_leases()
            left -= isinstance(await store.apply(TakeLease(SHARD, name, row.fence)), Lease)
        await store.close()

    async with anyio.create_task_group() as group:
        for name in "abc":
            backend, options = anyio_backend
            run = partial(anyio.run, take_ten, name, backend=backend, backend_options=options)
            group.start_soon(anyio.to_thread.run_sync, run)
    (row,) = await first.list_leases()
    assert row.counter == 30
    await first.close()


async def test_of_several_creators_one_wins(stores):
    leases = [Lease(SHARD, counter=number) for number in range(8)]
    answers = await together(
        *(
            lambda store=store, lease=lease: store.apply(CreateLease(lease))
            for store, lease in zip(stores, leases, strict=True)
        )
    )
    (row,) = await stores[0].list_leases()
    assert sorted(map(repr, answers)) == sorted(repr(row if lease == row else Refused(row)) for lease in leases)


async def test_several_may_open_what_is_not_there_yet(make_store):
    made = [make_store() for _ in range(6)]
    assert await together(*(one.open for one in made)) == [None] * 6
    await create(made[0])
    for one in made:
        assert len(await one.list_leases()) == 1
        await one.close()


# ---- life


async def test_opening_and_closing_twice_is_harmless(make_store):
    store = make_store()
    assert await store.open() is None
    await create(store)
    assert await store.open() is None
    await store.close()
    await store.close()
    again = make_store()
    assert await again.open() is None
    assert len(await again.list_leases()) == 1
    await again.close()


async def test_a_cancelled_write_leaves_a_store_that_works(store):
    row = await create(store, owner="a")
    for _ in range(5):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await store.apply(RenewLease(SHARD, "a", row.counter))
        with anyio.move_on_after(0.0005):
            await store.apply(RenewLease(SHARD, "a", row.counter))
        (row,) = await store.list_leases()
    assert isinstance(await store.apply(RenewLease(SHARD, "a", row.counter)), Lease)


async def test_groups_and_streams_never_meet(make_store, unique, kind):
    """Whatever their names look like; a DynamoDB table serves one of each, as for the KCL."""
    first = make_store(f"{unique}:a", "b")
    assert await first.open() is None
    await create(first)
    for group, stream in ((unique, "a:b"), (f"{unique}:a", "c"), (f"{unique}:a:b", "b"), (f"{unique}%3Aa", "b")):
        other = make_store(group, stream)
        opened = await other.open()
        if kind in {"dynalite", "ministack"}:
            assert (opened.code, opened.retryable) == ("ForeignTable", False)
            assert f"{unique}:a" in opened.message
            answer = await other.apply(RenewLease(SHARD, "a", 0))
            assert answer.code == "ForeignTable"
        else:
            assert opened is None
            assert await other.list_leases() == []
            await create(other, counter=5)
            assert {(f"{unique}:a", "b"), (group, stream)} <= set(await other.list_groups())
        await other.close()
    assert await first.list_leases() == [Lease(SHARD)]
    assert (f"{unique}:a", "b") in await first.list_groups()
    await first.close()


async def test_a_catalog_tells_the_groups_of_a_store(store, url, unique):
    """Before any of them is named, and whichever they are."""
    catalog = lease_catalog(url, AWS)
    assert await catalog.open() is None
    assert (unique, "orders") not in await catalog.list_groups()
    await create(store)
    assert (unique, "orders") in await catalog.list_groups()
    await catalog.close()


async def test_what_is_not_there_is_not_made_for_those_who_only_look(url, unique, kind):
    for _ in range(2):  # the first would have made it
        for one in (
            lease_catalog(url, AWS),
            lease_store(url, group=unique, stream="orders", aws=AWS, existing=True),
        ):
            opened = await one.open()
            if kind in {"memory", "redis"}:
                assert opened is None  # nothing has to be made there
            else:
                assert (opened.kind, opened.code) == (FailureKind.NOT_FOUND, "NoSuchStore")
            await one.close()


async def test_its_intervals_are_those_of_the_architecture(make_store, kind, unique):
    store = make_store()
    remote = kind in {"dynalite", "ministack"}
    assert (store.scan_interval, store.checkpoint_interval) == ((2.0, 10.0) if remote else (0.5, 1.0))
    assert (store.group, store.stream) == (unique, "orders")
    assert unique in repr(store)
