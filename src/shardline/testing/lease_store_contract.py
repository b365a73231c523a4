"""The contract suite: pytest tests that every lease store must pass, wherever it keeps its rows.

Subclass ``LeaseStoreContract`` in a test module, and define the fixture ``make_store``. For a store that also has
``apply_many``, subclass ``BatchingLeaseStoreContract``, which adds the tests of that method::

    class TestMyStore(LeaseStoreContract):
        @pytest.fixture
        def make_store(self, tmp_path: Path) -> MakeStore:
            return lambda group, stream: MyStore(tmp_path / "leases", group, stream)

The tests are async. The tests run with the pytest plugin of anyio, which is installed with Shardline, on each event
loop that your fixture ``anyio_backend`` names.

``shardline.stores.apply`` is the reference: a store must give the same answer to each operation, and must then hold the
same row, even if several workers write at the same time.
"""

import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias, cast

import anyio
import anyio.to_thread
import pytest

from shardline.stores import (
    HASH_KEY_MAX,
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    AskHandOver,
    BatchingLeaseStore,
    CancelHandOver,
    Checkpoint,
    CommitCheckpoint,
    CreateLease,
    DeleteLease,
    Failure,
    Fence,
    FinishHandOver,
    HashRange,
    Incarnation,
    Lease,
    LeaseAnswer,
    LeaseOperation,
    LeaseStore,
    Refused,
    ReleaseLease,
    RenewLease,
    ResetLease,
    SequenceNumber,
    TakeLease,
    WriteChildren,
    apply,
    apply_to,
    at_sequence_number,
    at_timestamp,
)

MakeStore: TypeAlias = Callable[[str, str], LeaseStore]
"""A function that returns a new store, which is not open yet, for a group and a stream. Stores of the same group and
stream share rows.
"""

_SHARD: Final = "shardId-000000000000"
_NUMBER: Final = 49 * 10**54
_WORKERS: Final = ("worker-a", "worker-b", "worker-ü c:1")
_FAR: Final = 4_102_444_800_000  # the year 2100 in milliseconds: no clock of a store is ahead of it
_MANY: Final = 450  # rows
_LONG_NAME: Final = "w" * 3_000  # so that many rows need several pages in a store that answers in pages
_KINDS_REACHED: Final = 12  # pairs of (operation, refused or not) that a random test must have reached


def _at(number: int, sub_sequence: int = 0) -> Checkpoint:
    return Checkpoint(at_sequence_number(SequenceNumber(number, sub_sequence)))


def _check(actual: object, expected: object, about: object) -> None:
    # This is not an assert statement: python -O removes such statements, and pytest explains them only in test modules.
    if actual != expected:
        raise AssertionError(f"{about}: the store says {actual!r}, and the contract {expected!r}")


def _row(answer: LeaseAnswer, about: object) -> Lease:
    """Check that an operation was accepted, and return the row in the answer."""
    if isinstance(answer, Lease):
        return answer
    raise AssertionError(f"{about}: the store says {answer!r}, and must accept the operation")


async def _listed(store: LeaseStore) -> list[Lease]:
    listed = await store.list_leases()
    if not isinstance(listed, Failure):
        return listed
    raise AssertionError(f"list_leases failed: {listed}")


async def _create(store: LeaseStore, lease: Lease) -> Lease:
    _check(await store.apply(CreateLease(lease)), lease, "the answer to CreateLease is the row")
    return lease


async def _together(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Make all calls concurrently and return their results in order."""
    answers: list[Any] = [None] * len(calls)

    async def run(index: int) -> None:
        answers[index] = await calls[index]()

    async with anyio.create_task_group() as group:
        for index in range(len(calls)):
            group.start_soon(run, index)
    return answers


_WINDOW: Final = "1 7.1 " + ";".join(f"abcdefg{number:03}@66666666:0-ff,101-1ff" for number in range(128))
_ROWS_TO_WRITE: Final = (
    Lease(_SHARD),
    Lease(
        _SHARD,
        counter=7,
        owner="worker-b",
        checkpoint=_at(_NUMBER, 3),
        parent_ids=frozenset({"shardId-000000000008", "shardId-000000000009"}),
        child_ids=frozenset({"shardId-000000000010"}),
        hash_range=HashRange(0, HASH_KEY_MAX),
        owner_switches=2,
        checkpoint_owner="worker-a",
        pending_checkpoint=_at(_NUMBER + 5, 1),
        throughput=12.345678,
        handling=1.234567,
        incarnation=Incarnation("worker-a", "0123456789abcdef", 7.5, "fan-out"),
    ),
    Lease(_SHARD, checkpoint=Checkpoint(LATEST), latest_at=1_700_000_000.123),
    Lease(_SHARD, checkpoint=Checkpoint(LATEST)),
    Lease(_SHARD, checkpoint=Checkpoint(at_timestamp(1_700_000_000.5))),
    Lease(_SHARD, checkpoint=Checkpoint(SHARD_END), owner_switches=1),
    Lease(_SHARD, checkpoint=Checkpoint(TRIM_HORIZON), pending_checkpoint=Checkpoint(SHARD_END)),
    Lease(_SHARD, throughput=0.0, handling=0.0, hash_range=HashRange(5, 5)),
    Lease(_SHARD, checkpoint=_at(7, 1), window=_WINDOW),
)

_ROWS_TO_CHANGE: Final = (
    None,
    Lease(_SHARD, counter=4),
    Lease(_SHARD, counter=4, owner="a", owner_switches=2, checkpoint=Checkpoint(LATEST), latest_at=1.7e9),
    Lease(_SHARD, counter=4, owner="b", checkpoint_owner="a", pending_checkpoint=_at(9), throughput=1.5),
    Lease(_SHARD, counter=4, owner="a", incarnation=Incarnation("a", "x", 10.0)),
    Lease(_SHARD, counter=4, owner="b", checkpoint_owner="a", incarnation=Incarnation("a", "x", 10.0)),
    Lease(_SHARD, counter=4, owner="a", checkpoint=_at(6), window="1 6.0 "),
    Lease(_SHARD, counter=4, owner="a", checkpoint=Checkpoint(SHARD_END)),
    Lease(_SHARD, counter=4, owner="b", checkpoint_owner="a", checkpoint=Checkpoint(SHARD_END)),
)

_OWNERS: Final[tuple[tuple[str | None, str | None], ...]] = ((None, None), ("a", None), ("b", None), ("b", "a"))
_RESETS: Final[tuple[tuple[Checkpoint, float | None], ...]] = (
    (_at(7, 1), None),
    (Checkpoint(LATEST), 1.6e9),
    (Checkpoint(at_timestamp(1.5e9)), None),
)
_EVERY_OPERATION: Final[tuple[LeaseOperation, ...]] = (
    CreateLease(Lease(_SHARD, counter=9)),
    WriteChildren(_SHARD, frozenset("xy")),
    *(AskHandOver(_SHARD, by, owner) for by, owner in ("ba", "ca", "cb", "ab")),
    *(CancelHandOver(_SHARD, by, owner) for by, owner in ("ba", "ca", "cb", "ab")),
    *(DeleteLease(_SHARD, counter) for counter in (3, 4, 5)),
    *(TakeLease(_SHARD, by, Fence(counter, *owners)) for by in "abc" for counter in (3, 4) for owners in _OWNERS),
    *(
        TakeLease(_SHARD, by, Fence(4, *owners), Incarnation(by, "y", 2.5), _FAR)
        for by in "ab"
        for owners in ((None, None), ("a", None), ("b", "a"))
    ),
    *(
        ResetLease(_SHARD, Fence(counter, *owners), checkpoint, latest_at)
        for counter in (3, 4)
        for owners in _OWNERS
        for checkpoint, latest_at in _RESETS
    ),
    *(RenewLease(_SHARD, by, counter) for by in "abc" for counter in (3, 4, 5)),
    *(FinishHandOver(_SHARD, by, counter) for by in "abc" for counter in (3, 4, 5)),
    *(ReleaseLease(_SHARD, by, counter) for by in "abc" for counter in (3, 4, 5)),
    *(CommitCheckpoint(_SHARD, by, counter, _at(7, 1)) for by in "abc" for counter in (3, 4, 5)),
    *(CommitCheckpoint(_SHARD, "a", 4, _at(7, 1), window) for window in ("", _WINDOW)),
)


def _draw(choose: random.Random, rows: dict[str, Lease], shard_ids: Sequence[str]) -> LeaseOperation:  # noqa: C901 - one choice after another
    """Draw an operation that has a fair chance of being allowed."""
    shard_id = choose.choice(shard_ids)
    row = rows.get(shard_id) or Lease(shard_id)
    by = row.holder if row.holder is not None and choose.random() < 0.7 else choose.choice(_WORKERS)  # noqa: PLR2004
    counter = max(row.counter - (choose.random() < 0.15), 0)  # noqa: PLR2004
    position = choose.choice([TRIM_HORIZON, LATEST, at_timestamp(1.7e9)])
    fence = row.fence if choose.random() < 0.7 else Fence(counter, choose.choice([None, *_WORKERS]), None)  # noqa: PLR2004
    kinds = ["create"] * 8 if shard_id not in rows else []
    kinds += ["create", "renew", "renew", "take", "take", "take", "ask", "ask", "finish", "finish", "release"]
    kinds += ["commit", "commit", "end", "children", "reset", "cancel", "delete"]
    match choose.choice(kinds):
        case "create":
            latest_at = 1.7e9 if position == LATEST and choose.random() < 0.5 else None  # noqa: PLR2004
            return CreateLease(Lease(shard_id, checkpoint=Checkpoint(position), latest_at=latest_at))
        case "renew":
            throughput, handling = (choose.choice([None, round(choose.random() * most, 6)]) for most in (1e4, 10.0))
            return RenewLease(shard_id, by, counter, throughput, handling)
        case "take":
            taker = choose.choice(_WORKERS)
            read_by = choose.choice([None, "polling", "fan-out"])
            identity = Incarnation(taker, choose.choice("xy"), choose.choice([10.0, 60.5]), read_by)
            incarnation = choose.choice([None, identity])
            return TakeLease(shard_id, taker, fence, incarnation, choose.choice([0, _FAR]))
        case "ask":
            owner = row.owner or _WORKERS[0]
            return AskHandOver(shard_id, choose.choice([name for name in _WORKERS if name != owner]), owner)
        case "finish":
            return FinishHandOver(shard_id, by, counter)
        case "release":
            return ReleaseLease(shard_id, by, counter)
        case "commit":
            checkpoint = choose.choice([_at(choose.randrange(10**56), choose.randrange(3)), Checkpoint(position)])
            return CommitCheckpoint(shard_id, by, counter, checkpoint, choose.choice([None, "", _WINDOW]))
        case "end":
            return CommitCheckpoint(shard_id, by, counter, Checkpoint(SHARD_END))
        case "children":
            return WriteChildren(shard_id, frozenset({"x", choose.choice("yz")}))
        case "reset":
            return ResetLease(shard_id, fence, Checkpoint(position), 1.6e9 if position == LATEST else None)
        case "cancel":
            return CancelHandOver(shard_id, row.owner or by, row.checkpoint_owner or by)
        case _:
            return DeleteLease(shard_id, counter)


class LeaseStoreContract:
    """The tests for every ``LeaseStore``. A subclass defines ``make_store``."""

    pytestmark: ClassVar[list[pytest.MarkDecorator]] = [pytest.mark.anyio]

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Return a function that makes a store for a group and a stream. Each test has its own rows."""
        raise NotImplementedError("define the fixture make_store: it returns a function of (group, stream)")

    @pytest.fixture
    def lease_group(self) -> str:
        """The name of the group of this test, which no other test uses."""
        return f"group-{secrets.token_hex(6)}"

    @pytest.fixture
    async def stores(self, make_store: MakeStore, lease_group: str) -> AsyncIterator[list[LeaseStore]]:
        """Eight open stores of one group and stream: the stores of eight workers."""
        stores = [make_store(lease_group, "orders") for _ in range(8)]
        for store in stores:
            _check(await store.open(), None, "opening")
        yield stores
        for store in stores:
            await store.close()

    # ---- rows

    @pytest.mark.parametrize("lease", _ROWS_TO_WRITE)
    async def test_a_row_is_read_as_it_was_written(self, stores: list[LeaseStore], lease: Lease) -> None:
        await _create(stores[0], lease)
        _check(await stores[1].list_leases(), [lease], "another worker lists the row")
        _check(await stores[1].apply(CreateLease(Lease(_SHARD, counter=99))), Refused(lease), "a second CreateLease")

    async def test_leases_are_listed_in_the_order_of_their_shard_ids(self, stores: list[LeaseStore]) -> None:
        shard_ids = [f"shardId-{number:012d}" for number in range(_MANY)]
        random.Random(1).shuffle(shard_ids)  # noqa: S311 - no secret
        for shard_id in shard_ids:
            await _create(stores[0], Lease(shard_id, owner=_LONG_NAME))
        _check([lease.shard_id for lease in await _listed(stores[0])], sorted(shard_ids), f"{_MANY} rows")

    # ---- operations

    @pytest.mark.parametrize("row", _ROWS_TO_CHANGE)
    async def test_every_operation_does_what_the_reference_says(
        self, stores: list[LeaseStore], row: Lease | None
    ) -> None:
        store, current = stores[0], None
        for operation in _EVERY_OPERATION:
            if current != row:
                if current is not None:
                    _check(await store.apply(DeleteLease(_SHARD, current.counter)), None, "deleting the row")
                if row is not None:
                    await _create(store, row)
            expected = apply(row, operation)
            _check(await store.apply(operation), expected, operation)
            current = row if isinstance(expected, Refused) else expected
            _check(await store.list_leases(), [] if current is None else [current], f"the rows after {operation}")

    @pytest.mark.parametrize("seed", range(3))
    async def test_random_operations_do_what_the_reference_says(self, stores: list[LeaseStore], seed: int) -> None:
        choose, rows = random.Random(seed), dict[str, Lease]()  # noqa: S311 - no secret
        reached: set[tuple[str, bool]] = set()
        for _ in range(200):
            operation = _draw(choose, rows, ("shardId-000000000000", "shardId-000000000001"))
            expected = apply_to(rows, operation)
            _check(await choose.choice(stores[:3]).apply(operation), expected, operation)
            reached.add((type(operation).__name__, isinstance(expected, Refused)))
            if choose.random() < 0.1:  # noqa: PLR2004
                _check(await choose.choice(stores[:3]).list_leases(), [rows[key] for key in sorted(rows)], "the rows")
        _check(len(reached) > _KINDS_REACHED, True, f"the operations {reached} are most cases")  # noqa: FBT003

    async def test_a_token_is_at_least_the_floor_and_greater_than_the_last(self, stores: list[LeaseStore]) -> None:
        row = await _create(stores[0], Lease(_SHARD))
        for floor, token in ((_FAR, _FAR), (7, _FAR + 1), (_FAR + 1, _FAR + 2), (_FAR + 9, _FAR + 9)):
            row = _row(await stores[0].apply(TakeLease(_SHARD, "a", row.fence, floor=floor)), "a take")
            _check(row.counter, token, f"the token of a take with the floor {floor}")
        row = _row(await stores[0].apply(RenewLease(_SHARD, "a", row.counter)), "a renewal")
        _check(row.counter, _FAR + 10, "the counter after a renewal")
        _check(await stores[0].list_leases(), [row], "the rows")

    async def test_a_row_names_the_process_that_took_it_until_its_release(self, stores: list[LeaseStore]) -> None:
        mine, other = stores[:2]
        row = await _create(mine, Lease(_SHARD))
        first, second = Incarnation("a", "x", 10.0), Incarnation("a", "y", 60.0)
        for incarnation in (first._replace(read_by="fan-out"), first, second):
            row = _row(await mine.apply(TakeLease(_SHARD, "a", row.fence, incarnation)), "a take")
            _check(row.incarnation, incarnation, "the incarnation after a take")
            _check(await other.list_leases(), [row], "the rows")
        row = _row(await other.apply(TakeLease(_SHARD, "java", row.fence)), "a take without an incarnation")
        _check((row.incarnation, row.incarnation_of("java")), (second, None), "the incarnation is kept")
        row = _row(await mine.apply(TakeLease(_SHARD, "a", row.fence, first)), "a take")
        row = _row(await mine.apply(RenewLease(_SHARD, "a", row.counter)), "a renewal")
        _check(row.incarnation, first, "the incarnation after a renewal")
        row = _row(await mine.apply(ReleaseLease(_SHARD, "a", row.counter)), "a release")
        _check(row.incarnation, None, "the incarnation after a release")
        _check(await other.list_leases(), [row], "the rows")

    async def test_a_worker_that_lost_its_lease_writes_nothing(self, stores: list[LeaseStore]) -> None:
        """Every write by the worker is refused, and the answer contains the new owner's row (L4)."""
        old, new = stores[:2]
        created = await _create(old, Lease(_SHARD))
        lost = _row(await old.apply(TakeLease(_SHARD, "old", created.fence)), "a take")
        taken = _row(await new.apply(TakeLease(_SHARD, "new", lost.fence)), "a take")
        attempts: tuple[LeaseOperation, ...] = (
            RenewLease(_SHARD, "old", 1),
            CommitCheckpoint(_SHARD, "old", 1, _at(9)),
            CommitCheckpoint(_SHARD, "old", 2, _at(9)),
            ReleaseLease(_SHARD, "old", 1),
            ReleaseLease(_SHARD, "old", 2),
            FinishHandOver(_SHARD, "old", 2),
            TakeLease(_SHARD, "old", lost.fence),
            DeleteLease(_SHARD, 1),
        )
        for attempt in attempts:
            _check(await old.apply(attempt), Refused(taken), attempt)
        _check(await new.list_leases(), [taken], "the rows")

    # ---- several workers at once

    async def test_one_of_several_takers_wins(self, stores: list[LeaseStore]) -> None:
        row = await _create(stores[0], Lease(_SHARD))
        for _ in range(8):
            takes = [TakeLease(_SHARD, f"worker-{number}", row.fence) for number in range(len(stores))]
            answers = await _together([partial(s.apply, t) for s, t in zip(stores, takes, strict=True)])
            winners = [answer for answer in answers if isinstance(answer, Lease)]
            _check(len(winners), 1, f"the number of takers that won, of {answers}")
            row = winners[0]
            _check([a for a in answers if a not in (row, Refused(row))], [], "the answers to the others")

    async def test_either_a_commit_or_a_takeover_wins(self, stores: list[LeaseStore]) -> None:
        row = await _create(stores[0], Lease(_SHARD, owner="old"))
        for number in range(10):
            commit = CommitCheckpoint(_SHARD, row.owner or "", row.counter, _at(number + 1))
            take = TakeLease(_SHARD, f"new-{number}", row.fence)
            answers = await _together([partial(stores[0].apply, commit), partial(stores[1].apply, take)])
            _check(sum(isinstance(answer, Lease) for answer in answers), 1, f"how many of {answers} were accepted")
            (row,) = await _listed(stores[2])
            _check(row in answers, True, f"{row} is the row that was accepted")  # noqa: FBT003 - the expected value
        _check(row.counter, 10, "the counter after ten writes")

    async def test_no_update_is_lost(self, stores: list[LeaseStore]) -> None:
        """Five workers take the lease five times each, and the counter grows each time."""
        await _create(stores[0], Lease(_SHARD))
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(_take_often, stores[number], f"worker-{number}", 5)
        (row,) = await _listed(stores[0])
        _check(row.counter, 25, "the counter after 25 takes")

    async def test_event_loops_in_threads_lose_no_update(
        self,
        make_store: MakeStore,
        lease_group: str,
        anyio_backend_name: str,
        anyio_backend_options: dict[str, Any],
    ) -> None:
        """An application may run a blocking and an async consumer at the same time."""
        first = make_store(lease_group, "orders")
        _check(await first.open(), None, "opening")
        await _create(first, Lease(_SHARD))

        async def take_ten(name: str) -> None:
            store = make_store(lease_group, "orders")
            _check(await store.open(), None, "opening")
            await _take_often(store, name, 10)
            await store.close()

        async def take_in_thread(name: str) -> None:
            def run() -> None:
                anyio.run(take_ten, name, backend=anyio_backend_name, backend_options=anyio_backend_options)

            await anyio.to_thread.run_sync(run)

        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(take_in_thread, name)
        (row,) = await _listed(first)
        _check(row.counter, 30, "the counter after 30 takes")
        await first.close()

    async def test_one_of_several_creators_wins(self, stores: list[LeaseStore]) -> None:
        leases = [Lease(_SHARD, counter=number) for number in range(len(stores))]
        answers = await _together(
            [partial(s.apply, CreateLease(lease)) for s, lease in zip(stores, leases, strict=True)]
        )
        (row,) = await _listed(stores[0])
        expected = [row if lease == row else Refused(row) for lease in leases]
        _check(answers, expected, "the answers to eight CreateLease")

    async def test_several_workers_may_create_the_store(self, make_store: MakeStore, lease_group: str) -> None:
        stores = [make_store(lease_group, "orders") for _ in range(6)]
        _check(await _together([store.open for store in stores]), [None] * 6, "opening")
        await _create(stores[0], Lease(_SHARD))
        for store in stores:
            _check(await store.list_leases(), [Lease(_SHARD)], "the rows")
            await store.close()

    # ---- opening, closing and cancelling

    async def test_opening_and_closing_twice_is_harmless(self, make_store: MakeStore, lease_group: str) -> None:
        store = make_store(lease_group, "orders")
        _check(await store.open(), None, "opening")
        await _create(store, Lease(_SHARD))
        _check(await store.open(), None, "opening again")
        await store.close()
        await store.close()
        again = make_store(lease_group, "orders")
        _check(await again.open(), None, "opening")
        _check(await again.list_leases(), [Lease(_SHARD)], "the rows outlast a store that is closed")
        await again.close()

    async def test_a_store_works_after_a_cancelled_write(self, stores: list[LeaseStore]) -> None:
        store = stores[0]
        row = await _create(store, Lease(_SHARD, owner="a"))
        for _ in range(5):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await store.apply(RenewLease(_SHARD, "a", row.counter))
            with anyio.move_on_after(0.0005):
                await store.apply(RenewLease(_SHARD, "a", row.counter))
            (row,) = await _listed(store)
        _row(await store.apply(RenewLease(_SHARD, "a", row.counter)), "a renewal after cancelled ones")

    async def test_groups_and_streams_are_separate(self, make_store: MakeStore, lease_group: str) -> None:
        """The names of groups and streams may contain any characters. Override this test if a store serves only one
        group.
        """
        first = make_store(f"{lease_group}:a", "b")
        _check(await first.open(), None, "opening")
        await _create(first, Lease(_SHARD))
        names = (
            (lease_group, "a:b"),
            (f"{lease_group}:a", "c"),
            (f"{lease_group}:a:b", "b"),
            (f"{lease_group}%3Aa", "b"),
        )
        for group, stream in names:
            other = make_store(group, stream)
            _check(await other.open(), None, "opening")
            _check(await other.list_leases(), [], f"the rows of {group!r} on {stream!r}")
            await _create(other, Lease(_SHARD, counter=5))
            await other.close()
        _check(await first.list_leases(), [Lease(_SHARD)], "the rows of the first group")
        await first.close()

    async def test_a_store_knows_its_group_stream_and_intervals(self, make_store: MakeStore, lease_group: str) -> None:
        store = make_store(lease_group, "orders")
        _check((store.group, store.stream), (lease_group, "orders"), "the group and the stream")
        _check(store.scan_interval > 0 and store.checkpoint_interval > 0, True, "both intervals are above 0")  # noqa: FBT003


async def _take_often(store: LeaseStore, name: str, times: int) -> None:
    """Try to take the lease from its owner until this has succeeded ``times`` times."""
    while times:
        (row,) = await _listed(store)
        answer = await store.apply(TakeLease(_SHARD, name, row.fence))
        if isinstance(answer, Failure) and not answer.retryable:
            raise AssertionError(f"a take failed: {answer}")
        times -= isinstance(answer, Lease)


class BatchingLeaseStoreContract(LeaseStoreContract):
    """The tests for every store that is also a ``BatchingLeaseStore``: those of ``LeaseStoreContract``, and those of
    ``apply_many``.
    """

    @pytest.mark.parametrize("seed", range(3))
    async def test_many_operations_at_once_are_answered_like_single_ones(
        self, stores: list[LeaseStore], seed: int
    ) -> None:
        choose, rows = random.Random(seed), dict[str, Lease]()  # noqa: S311 - no secret
        reached: set[tuple[str, bool]] = set()
        for _ in range(40):
            operations: list[LeaseOperation] = []
            expected: list[LeaseAnswer] = []
            for number in choose.sample(range(8), choose.randrange(1, 9)):
                operation = _draw(choose, rows, [f"shardId-{number:012d}"])
                operations.append(operation)
                expected.append(apply_to(rows, operation))
                reached.add((type(operation).__name__, isinstance(expected[-1], Refused)))
            _check(await _batching(choose.choice(stores[:3])).apply_many(operations), expected, operations)
            _check(await stores[3].list_leases(), [rows[key] for key in sorted(rows)], "the rows")
        _check(len(reached) > _KINDS_REACHED, True, f"the operations {reached} are most cases")  # noqa: FBT003

    async def test_no_operations_have_no_answers(self, stores: list[LeaseStore]) -> None:
        _check(await _batching(stores[0]).apply_many([]), [], "no operations")

    async def test_one_of_several_takers_of_many_leases_wins_each(self, stores: list[LeaseStore]) -> None:
        rows = [await _create(stores[0], Lease(f"shardId-{number:012d}")) for number in range(30)]
        for _ in range(5):
            batches = [
                [
                    TakeLease(row.shard_id, f"worker-{number}", row.fence)
                    for row in random.Random(number).sample(rows, len(rows))  # noqa: S311 - no secret
                ]
                for number in range(len(stores))
            ]
            calls = [partial(_batching(s).apply_many, batch) for s, batch in zip(stores, batches, strict=True)]
            answers = [answer for many in await _together(calls) for answer in many]
            rows = await _listed(stores[0])
            won = sorted((a for a in answers if isinstance(a, Lease)), key=lambda lease: lease.shard_id)
            _check(won, rows, "each lease was taken once")
            refused = [answer.current for answer in answers if isinstance(answer, Refused)]
            _check(len(refused), (len(stores) - 1) * len(rows), "the number of refusals")
            _check([row for row in refused if row not in rows], [], "a refusal has the current row")


def _batching(store: LeaseStore) -> BatchingLeaseStore:
    _check(isinstance(store, BatchingLeaseStore), True, f"{store!r} has apply_many")  # noqa: FBT003
    return cast("BatchingLeaseStore", store)
