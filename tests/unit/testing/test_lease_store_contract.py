"""Does the contract suite detect a wrong store? (Right ones pass it in tests/contract.)"""

from dataclasses import replace
from functools import partial

import anyio
import pytest

from shardline.adapters.leases.memory import MemoryLeases
from shardline.core.error_codes import Failure, FailureKind
from shardline.core.leases import CreateLease, Refused, TakeLease
from shardline.model.lease import Lease
from shardline.testing import BatchingLeaseStoreContract, LeaseStoreContract


class Wrong:
    """A store in memory, with one defect."""

    def __init__(self, group, stream, rows):
        self._right = MemoryLeases(group, stream, rows)

    def __getattr__(self, name):
        return getattr(self._right, name)


class NoFence(Wrong):
    async def apply(self, operation):
        answer = await self._right.apply(operation)
        if isinstance(operation, TakeLease) and isinstance(answer, Refused) and answer.current is not None:
            return await self._right.apply(replace(operation, seen=answer.current.fence))
        return answer


class Unsorted(Wrong):
    async def list_leases(self):
        return (await self._right.list_leases())[::-1]


class Forgetful(Wrong):
    async def apply(self, operation):
        if isinstance(operation, CreateLease):
            operation = CreateLease(replace(operation.lease, throughput=None))
        return await self._right.apply(operation)


class Failing(Wrong):
    async def list_leases(self):
        return Failure(FailureKind.DENIED, "No", "not you")


class Hasty(Wrong):
    """Skips a refused operation of a batch."""

    async def apply_many(self, operations):
        return [answer for answer in await self._right.apply_many(operations) if not isinstance(answer, Refused)]


def passes(test, make=MemoryLeases, *arguments):
    """Whether a test of the contract passes for eight stores of one group."""
    rows = {}
    stores = [make("billing", "orders", rows) for _ in range(8)]
    try:
        anyio.run(partial(test, BatchingLeaseStoreContract(), stores, *arguments))
    except (AssertionError, ExceptionGroup):
        return False
    return True


LOST = LeaseStoreContract.test_a_worker_that_lost_its_lease_writes_nothing
SORTED = LeaseStoreContract.test_leases_are_listed_in_the_order_of_their_shard_ids
READ = LeaseStoreContract.test_a_row_is_read_as_it_was_written
MANY = BatchingLeaseStoreContract.test_many_operations_at_once_are_answered_like_single_ones
UPDATES = LeaseStoreContract.test_no_update_is_lost


@pytest.mark.parametrize(
    ("test", "wrong", "arguments"),
    [
        (LOST, NoFence, ()),
        (SORTED, Unsorted, ()),
        (READ, Forgetful, (Lease("shardId-000000000000", throughput=1.5),)),
        (UPDATES, Failing, ()),
        (MANY, Hasty, (0,)),
    ],
)
def test_a_wrong_store_is_noticed(test, wrong, arguments):
    assert passes(test, MemoryLeases, *arguments)
    assert not passes(test, wrong, *arguments)


def test_a_subclass_must_make_stores():
    contract = LeaseStoreContract()
    with pytest.raises(NotImplementedError, match="define the fixture make_store"):
        contract.make_store.__wrapped__(contract)
