"""Tests of ``shardline.adapters.postgres_database`` without a server. tests/postgres has those with one."""

import anyio
import psycopg
import pytest

from shardline import UsageError
from shardline.adapters.postgres_database import PostgresDatabase


def finish(work):
    """Run a coroutine that never waits."""
    with pytest.raises(StopIteration) as end:
        work.send(None)
    return end.value.value


@pytest.mark.parametrize("found", [None, 5, "postgresql://localhost"])
def test_a_function_must_return_a_connection(found):
    database = PostgresDatabase(lambda: found, is_async=False)
    with pytest.raises(UsageError, match=f"must return a connection of psycopg, not {type(found).__name__}"):
        finish_failed(database.connect())


def finish_failed(work):
    work.send(None)


@pytest.mark.parametrize(("is_async", "kind"), [(False, psycopg.Connection), (True, psycopg.AsyncConnection)])
def test_connections_to_a_url_keep_no_prepared_statements(monkeypatch, is_async, kind):
    """pgbouncer may give each transaction another session."""
    given = []

    def connect(url, **settings):
        given.append((url, settings))
        raise psycopg.OperationalError("no server")

    monkeypatch.setattr(kind, "connect", connect)
    database = PostgresDatabase("postgresql://db", is_async=is_async)

    async def main():
        with pytest.raises(psycopg.OperationalError, match="no server"):
            await database.connect()

    anyio.run(main)
    assert given == [("postgresql://db", {"prepare_threshold": None})]
