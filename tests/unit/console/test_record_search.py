"""Tests of ``record_search``."""

import asyncio

import pytest

from shardline.aio.control_plane import value_of
from shardline.codec.shapes import GetRecordsResponse, RawRecord
from shardline.console.record_search import PAGES, SEARCHES, OpenSearches, RecordSearch
from shardline.console.record_views import RecordFilter
from shardline.core.error_codes import Failure, FailureKind
from shardline.errors import UsageError
from shardline.model.position import TRIM_HORIZON

EXPIRED = Failure(FailureKind.EXPIRED_ITERATOR, "ExpiredIteratorException", "Iterator expired.")


class FakeClient:
    """Serves pages of one record each. An iterator names the shard and the place of the next page."""

    def __init__(self, pages):
        self.pages = pages  # by shard
        self.positions = []
        self.expired = 0

    async def get_shard_iterator(self, _, shard_id, position):
        self.positions.append(str(position))
        at = 0 if position == TRIM_HORIZON else int(str(position.sequence_number))
        return f"{shard_id} {at}"

    async def get_records(self, iterator):
        if self.expired:
            self.expired -= 1
            value_of(EXPIRED, "GetRecords")
        shard_id, at = iterator.split()
        count = self.pages[shard_id]
        number = int(at) + 1
        records = [RawRecord(b"x", str(number), f"{shard_id}-{number}", float(number))] if count else []
        behind = 1000 * (count - number) if number < count else 0
        return GetRecordsResponse(records, next_iterator=f"{shard_id} {number}", millis_behind_latest=behind)


def search_of(client, wanted=None, **how):
    places = [(shard_id, TRIM_HORIZON) for shard_id in client.pages]
    return RecordSearch(
        client, "orders", places, wanted or RecordFilter(), **({"is_in_order": False, "is_whole": False} | how)
    )


def keys_of(found):
    return [record["key"] for record in found["records"]]


def test_reading_on_finds_every_record_once_and_in_order():
    async def run():
        search = search_of(FakeClient({"a": PAGES + 3, "b": 2}), is_in_order=True)
        first = await search.read_on(100)
        assert keys_of(first) == [f"a-{number}" for number in range(1, PAGES + 1)]
        assert (first["is_end"], first["read"], first["shards"]) == (False, PAGES, ["a"])
        assert first["read_to"].startswith("1970-01-01T00:00:20")
        second = await search.read_on(100)
        assert keys_of(second) == [*(f"a-{number}" for number in range(PAGES + 1, PAGES + 4)), "b-1", "b-2"]
        assert second["is_end"]

    asyncio.run(run())


def test_all_shards_get_their_turn():
    async def run():
        shards = [f"s{number}" for number in range(PAGES + 10)]
        search = search_of(FakeClient(dict.fromkeys(shards, 1)))
        first, second = await search.read_on(100), await search.read_on(100)
        assert (first["shards"], second["shards"]) == (shards[:PAGES], shards[PAGES:])
        assert (first["is_end"], second["is_end"], first["read_to"]) == (False, True, None)

    asyncio.run(run())


def test_the_records_over_the_limit_come_next():
    async def run():
        search = search_of(FakeClient({"a": 3}), is_in_order=True)
        found = [await search.read_on(1) for _ in range(3)]
        assert [keys_of(part) for part in found] == [["a-1"], ["a-2"], ["a-3"]]
        assert [part["is_end"] for part in found] == [False, False, True]

    asyncio.run(run())


def test_an_expired_iterator_is_replaced_at_the_same_place():
    async def run():
        client = FakeClient({"a": 3})
        search = search_of(client, is_in_order=True)
        await search.read_on(1)
        client.expired = 1
        assert keys_of(await search.read_on(100)) == ["a-2", "a-3"]
        assert client.positions == ["TRIM_HORIZON", "AFTER_SEQUENCE_NUMBER(1)"]

    asyncio.run(run())


def test_a_search_ends_at_its_time_and_counts_what_does_not_match():
    async def run():
        search = search_of(FakeClient({"a": 9}), RecordFilter(key="a-2", until=4.0), is_in_order=True)
        found = await search.read_on(100)
        assert (keys_of(found), found["read"], found["is_end"]) == (["a-2"], 4, True)

    asyncio.run(run())


def test_a_search_is_continued_once_and_old_searches_are_forgotten():
    async def run():
        client, searches = FakeClient({"a": 9}), OpenSearches()
        names = [(await searches.read_on(search_of(client), 1))["next"] for _ in range(SEARCHES + 1)]
        with pytest.raises(UsageError, match="find again"):
            searches.take(names[0])
        search = searches.take(names[1])
        with pytest.raises(UsageError, match="find again"):
            searches.take(names[1])
        assert (await searches.read_on(search, 100))["next"] is None

    asyncio.run(run())
