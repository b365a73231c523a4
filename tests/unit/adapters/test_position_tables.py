"""Tests of ``shardline.adapters.position_tables``. tests/postgres runs the same statements on PostgreSQL."""

import sqlite3

import pytest

from shardline.adapters.position_tables import PositionTables, ShardKey, parse_numbers
from shardline.model.sequence import SequenceNumber

KEY, OTHER = ShardKey("billing", "orders", "shard-0"), ShardKey("audit", "orders", "shard-0")


@pytest.fixture
def run():
    tables = PositionTables(is_postgres=False)
    connection = sqlite3.connect(":memory:")

    def execute(name, *arguments, **options):
        made = getattr(tables, name)(*arguments, **options)
        return [
            row
            for text, values in (made if isinstance(made, list) else [made])
            for row in connection.execute(text, values)
        ]

    assert execute("find") == [(0,)]
    execute("create")
    execute("create")
    yield execute
    connection.close()


def test_a_token_never_goes_back(run):
    assert run("find") == [(2,)]
    run("claim", KEY, 5)
    run("claim", KEY, 4)
    run("claim", OTHER, 9)
    assert run("read", KEY) == [(5, "0", -1)]
    run("claim", KEY, 6)
    assert run("lock", KEY, is_exclusive=True) == [(6, "0", -1)]
    assert run("read", KEY._replace(shard_id="shard-1")) == []


def test_the_watermark_and_the_records_beyond_it(run):
    run("claim", KEY, 5)
    records = [SequenceNumber(9, 1), SequenceNumber(10), SequenceNumber(11, 2), SequenceNumber(11, 3)]
    assert len(run("add_done", KEY, records)) == 4
    assert len(run("add_done", OTHER, records)) == 4
    assert run("add_done", KEY, records[1:2]) == []
    run("move", KEY, SequenceNumber(11, 2))
    run("prune", KEY, SequenceNumber(11, 2))
    assert run("read", KEY) == [(5, "11", 2)]
    assert parse_numbers(run("read_done", KEY)) == [SequenceNumber(11, 3)]
    assert sorted(parse_numbers(run("read_done", OTHER))) == records


def test_many_records_take_several_statements(run):
    assert len(run("add_done", KEY, [SequenceNumber(number) for number in range(10_000)])) == 10_000


def test_postgres_gets_its_marks_and_locks():
    tables = PositionTables(is_postgres=True)
    assert "%s" in tables.read(KEY)[0]
    assert "?" not in tables.claim(KEY, 1)[0]
    assert tables.lock(KEY, is_exclusive=True)[0].endswith("FOR NO KEY UPDATE")
    assert tables.lock(KEY, is_exclusive=False)[0].endswith("FOR SHARE")
    assert "advisory" in tables.create()[0][0]
    assert "to_regclass" in tables.find()[0]
