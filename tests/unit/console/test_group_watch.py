"""Tests of ``group_watch``. ``tests/shell/test_console.py`` watches a real group."""

import pytest

from shardline.console.fleet_metrics import FleetMetrics
from shardline.console.group_watch import HAND_OVERS, GroupPage, GroupWatch
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END
from shardline.ports import GroupOnStream


class Client:
    """A client with a clock."""

    class api:  # noqa: N801 - an attribute
        @staticmethod
        def service_time():
            return 7.0


@pytest.fixture
def watch():
    return GroupWatch(Client(), None, GroupOnStream("billing", "orders"), FleetMetrics([]))


def add(watch, now, *rows):
    watch._add_rows({row.shard_id: row for row in rows}, now)


def test_hand_overs_are_seen_from_row_to_row(watch):
    add(watch, 0.0, Lease("s0", owner="A"), Lease("s1", owner="A"))
    page = GroupPage()
    assert watch.update(page)["hand_overs"] == []
    add(watch, 1.0, Lease("s0", owner="B", checkpoint_owner="A"), Lease("s1", owner="A"))
    add(watch, 2.0, Lease("s0", owner="B"), Lease("s1", owner="A", checkpoint=Checkpoint(SHARD_END)))
    add(watch, 3.0, Lease("s0"), Lease("s1", checkpoint=Checkpoint(SHARD_END)), Lease("s2", owner="A"))
    events = watch.update(page)["hand_overs"]
    assert [(event["shard_id"], event["kind"], event["before"], event["after"]) for event in events] == [
        ("s0", "asked", "A", "B"),
        ("s0", "changed", "A", "B"),
        ("s1", "finished", "A", None),
        ("s0", "changed", "B", None),
        ("s2", "begins", None, "A"),
    ]
    assert watch.update(page)["hand_overs"] == []  # the page has seen them
    assert len(watch.update(GroupPage())["hand_overs"]) == 5


def test_an_owner_that_stops_renewing_is_silent_in_the_next_window(watch):
    for counter in range(3):
        add(watch, float(counter), Lease("s0", counter=counter, owner="A"))
    alive = [shard["owner_alive"] for shard in watch.update(GroupPage())["shards"]]
    add(watch, 20.0, Lease("s0", counter=2, owner="A"))  # a new window, with the judgement of the last one
    alive += [shard["owner_alive"] for shard in watch.update(GroupPage())["shards"]]
    add(watch, 40.0, Lease("s0", counter=2, owner="A"))
    alive += [shard["owner_alive"] for shard in watch.update(GroupPage())["shards"]]
    assert alive == [True, True, False]


def test_the_list_of_hand_overs_is_bounded(watch):
    for number in range(2 * HAND_OVERS):
        add(watch, 1.0, Lease("s0", owner=f"worker-{number}"))
    assert len(watch.update(GroupPage())["hand_overs"]) == HAND_OVERS


def test_the_page_knows_how_long_the_budget_makes_a_measurement_take():
    watch = GroupWatch(Client(), None, GroupOnStream("billing", "orders"), FleetMetrics([]), calls_per_second=7.5)
    assert watch.update(GroupPage())["measured_in"] is None
    rows = [Lease(f"s{number}") for number in range(900)]
    add(watch, 0.0, *rows, Lease("done", checkpoint=Checkpoint(SHARD_END)))
    assert watch.update(GroupPage())["measured_in"] == 240_000
