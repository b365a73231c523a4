"""Can a lease store be written outside the package, with public names only? The example store passes the contract."""

import ast
import importlib
import importlib.util
from pathlib import Path

import anyio
import pytest

from shardline import Consumer, LeaseStore
from shardline.stores import CreateLease, FailureKind, Lease
from shardline.sync import Producer as BlockingProducer
from shardline.testing import LeaseStoreContract, LocalKinesis

EXAMPLE = Path(__file__).parents[2] / "examples" / "file_leases.py"
PUBLIC = {
    "shardline",
    "shardline.sync",
    "shardline.events",
    "shardline.stores",
    "shardline.testing",
    "shardline.errors",
}


def loaded():
    spec = importlib.util.spec_from_file_location("file_leases", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILE_LEASES = loaded().FileLeases


def imported_names(source):
    """Return every module and name of ours that a program imports, as pairs. The name is None for a plain import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "shardline")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shardline":
            yield from ((node.module, alias.name) for alias in node.names)


def private(source):
    return [
        (module, name)
        for module, name in imported_names(source)
        if module not in PUBLIC or name not in importlib.import_module(module).__all__
    ]


def test_the_store_imports_public_names_only():
    assert len(list(imported_names(EXAMPLE.read_text()))) == 9
    assert private(EXAMPLE.read_text()) == []


def test_a_private_name_would_be_seen():
    assert private("from shardline.core.leases import apply") == [("shardline.core.leases", "apply")]
    assert private("from shardline.stores import Final") == [("shardline.stores", "Final")]
    assert private("import shardline.ports") == [("shardline.ports", None)]


class TestFileLeases(LeaseStoreContract):
    @pytest.fixture
    def make_store(self, tmp_path):
        return lambda group, stream: FILE_LEASES(tmp_path, group, stream)


@pytest.mark.anyio
async def test_failures_are_values(tmp_path):
    store: LeaseStore = FILE_LEASES(tmp_path / "file", "billing", "orders")
    (tmp_path / "file").write_text("not a folder")
    assert (await store.open()).kind is FailureKind.TRANSIENT
    (tmp_path / "file").unlink()
    assert await store.open() is None
    lease = Lease("shardId-000000000000")
    assert await store.apply(CreateLease(lease)) == lease
    [row] = tmp_path.rglob("*.json")
    row.write_text("{}")
    assert (await store.list_leases()).kind is FailureKind.INVALID


def test_a_consumer_uses_the_store(tmp_path, monkeypatch):
    with LocalKinesis(stream="orders") as kinesis:
        for name, value in kinesis.environment.items():
            monkeypatch.setenv(name, value)
        with BlockingProducer("orders") as producer:
            producer.put_many([("k", b"one"), ("k", b"two")])

        async def read():
            store = FILE_LEASES(tmp_path, "billing", "orders")
            async with Consumer("orders", group="billing", store=store, until="latest") as consumer:
                return [record.data async for record in consumer]

        assert anyio.run(read) == [b"one", b"two"]
        assert anyio.run(read) == []  # the first run committed its records in the store
