"""Tests of ``shardline.adapters.postgres_database`` without a server. tests/postgres has those with one."""

import anyio
import anyio.lowlevel
import psycopg
import pytest

from shardline import UsageError
from shardline.adapters import postgres_database
from shardline.adapters.postgres_database import PostgresDatabase, cancel_once


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


@pytest.mark.anyio
async def test_work_is_cancelled_once_and_may_clean_up(anyio_backend_name):
    log = []

    async def work():
        try:
            await anyio.sleep_forever()
        finally:
            for number in range(3):
                await anyio.sleep(0.01)
                log.append(number)

    with anyio.move_on_after(0.1) as scope:
        await cancel_once(work())
    assert scope.cancelled_caught
    assert log == ([] if anyio_backend_name == "trio" else [0, 1, 2]), "trio has no async connections"


@pytest.mark.anyio
async def test_work_that_ignores_its_cancellation_is_cancelled_again(anyio_backend_name, monkeypatch):
    monkeypatch.setattr(postgres_database, "_CANCEL_LIMIT", 0.05)
    cancelled = []

    async def work():
        while len(cancelled) < 2:
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                cancelled.append(1)
                if anyio_backend_name == "trio":
                    raise

    with anyio.move_on_after(0.1) as scope:
        await cancel_once(work())
    assert scope.cancel_called
    assert len(cancelled) == (1 if anyio_backend_name == "trio" else 2)


@pytest.mark.anyio
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
async def test_an_exception_of_the_work_is_raised(error):
    async def work():
        await anyio.lowlevel.checkpoint()
        raise error

    with pytest.raises(type(error)):
        await cancel_once(work())


@pytest.mark.anyio
async def test_an_exit_during_the_clean_up_is_raised(anyio_backend_name):
    async def work():
        try:
            await anyio.sleep_forever()
        finally:
            raise SystemExit(3)

    with pytest.raises(SystemExit), anyio.move_on_after(0.1):
        await cancel_once(work())
