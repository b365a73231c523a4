"""Do all of our lease stores fulfil the published contract, on every event loop?

``shardline.testing.LeaseStoreContract`` has the tests. This module has the stores, and tests that apply only to some of
them.
"""

import time

import pytest

from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.store_urls import lease_catalog, lease_store
from shardline.model.credentials import Credentials
from shardline.stores import CreateLease, DeleteLease, FailureKind, Lease, RenewLease
from shardline.testing import BatchingLeaseStoreContract, LeaseStoreContract

pytestmark = pytest.mark.anyio

SHARD = "shardId-000000000000"
BATCHING = ["memory", "sqlite", "redis", "cluster", "sentinel"]
DYNAMODB = ["dynalite", "ministack"]
AWS = AwsAccess(wall_time=time.time, credentials=Credentials("AKIDEXAMPLE", "secret"))


@pytest.fixture(params=[*BATCHING, *DYNAMODB])
def kind(request):
    return request.param


@pytest.fixture
def url(request, kind, tmp_path, unique):
    """The URL of this test's store."""
    if kind == "memory":
        return "memory:"
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'leases.db'}"
    if kind == "redis":
        return f"redis://127.0.0.1:{request.getfixturevalue('valkey_port')}/0"
    if kind in {"cluster", "sentinel"}:
        return request.getfixturevalue(f"{kind}_url")
    return f"dynamodb://{unique}?region=eu-west-1&endpoint_url={request.getfixturevalue(f'{kind}_url')}"


@pytest.fixture
def make_store(url):
    return lambda group, stream: lease_store(url, group=group, stream=stream, aws=AWS)


@pytest.mark.parametrize("kind", BATCHING)
class TestBatchingStores(BatchingLeaseStoreContract):
    @pytest.fixture
    def make_store(self, url):
        return lambda group, stream: lease_store(url, group=group, stream=stream, aws=AWS)


@pytest.mark.parametrize("kind", DYNAMODB)
class TestDynamoDb(LeaseStoreContract):
    @pytest.fixture
    def make_store(self, url):
        return lambda group, stream: lease_store(url, group=group, stream=stream, aws=AWS)

    async def test_groups_and_streams_are_separate(self, make_store, lease_group):
        """A table serves one group on one stream, as for the KCL."""
        first = make_store(lease_group, "orders")
        assert await first.open() is None
        assert await first.apply(CreateLease(Lease(SHARD))) == Lease(SHARD)
        for group, stream in ((lease_group, "other"), ("other", "orders")):
            other = make_store(group, stream)
            opened = await other.open()
            assert (opened.code, opened.retryable) == ("ForeignTable", False)
            assert lease_group in opened.message
            assert (await other.apply(RenewLease(SHARD, "a", 0))).code == "ForeignTable"
            await other.close()
        assert await first.list_leases() == [Lease(SHARD)]
        await first.close()


async def test_a_catalog_lists_the_groups_of_a_store(make_store, url, unique):
    """This works before any group is named, whatever characters the names have."""
    store, catalog = make_store(f"{unique}:a", "b%3A:c"), lease_catalog(url, AWS)
    assert await store.open() is None
    assert await catalog.open() is None
    assert (f"{unique}:a", "b%3A:c") not in await catalog.list_groups()
    assert await store.apply(CreateLease(Lease(SHARD))) == Lease(SHARD)
    for lists in (catalog, store):
        assert (f"{unique}:a", "b%3A:c") in await lists.list_groups()
        await lists.close()


@pytest.mark.parametrize("kind", BATCHING)
async def test_a_catalog_lists_groups_with_similar_names(make_store, url, unique):
    names = {
        (f"{unique}:a", "b"),
        (unique, "a:b"),
        (f"{unique}:a", "c"),
        (f"{unique}:a:b", "b"),
        (f"{unique}%3Aa", "b"),
    }
    for group, stream in names:
        store = make_store(group, stream)
        assert await store.open() is None
        assert await store.apply(CreateLease(Lease(SHARD))) == Lease(SHARD)
        await store.close()
    catalog = lease_catalog(url, AWS)
    assert await catalog.open() is None
    assert names <= set(await catalog.list_groups())
    await catalog.close()


async def test_a_missing_store_is_not_created_for_those_who_only_look(url, unique, kind):
    for _ in range(2):  # the first call would have created it
        for one in (
            lease_catalog(url, AWS),
            lease_store(url, group=unique, stream="orders", aws=AWS, existing=True),
        ):
            opened = await one.open()
            if kind in {"memory", "redis", "cluster", "sentinel"}:
                assert opened is None  # these need not be created
            else:
                assert (opened.kind, opened.code) == (FailureKind.NOT_FOUND, "NoSuchStore")
            await one.close()


async def test_its_intervals_are_those_of_the_architecture(make_store, kind, unique):
    store = make_store(unique, "orders")
    assert (store.scan_interval, store.checkpoint_interval) == ((2.0, 10.0) if kind in DYNAMODB else (0.5, 1.0))
    assert unique in repr(store)


@pytest.mark.parametrize("kind", DYNAMODB)
class TestDynamoDbOfSeveralStreams(LeaseStoreContract):
    @pytest.fixture
    def make_store(self, url):
        def make(group, stream):
            store = lease_store(url, group=group, stream=stream, aws=AWS).for_stream(stream)
            store.identify("123456789012", 1_700_000_000.9)
            return store

        return make

    async def test_groups_and_streams_are_separate(self, make_store, lease_group):
        """A table serves one group on several streams, as for the KCL."""
        first, second = make_store(lease_group, "orders"), make_store(lease_group, "payments")
        for store in (first, second):
            assert await store.open() is None
            assert await store.apply(CreateLease(Lease(SHARD))) == Lease(SHARD)
        await first.apply(DeleteLease(SHARD, 0))
        assert (await first.list_leases(), await second.list_leases()) == ([], [Lease(SHARD)])
        other = make_store(f"not {lease_group}", "payments")
        assert (await other.open()).code == "ForeignTable"
        for store in (first, second, other):
            await store.close()
