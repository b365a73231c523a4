"""Tests of ``call_budget``."""

from shardline.console.call_budget import CallBudget


def test_calls_over_the_budget_wait_until_a_minute_has_passed():
    budget = CallBudget(2)
    assert [budget.reserve("ListShards", now) for now in (0.0, 10.0, 20.0, 20.0)] == [0.0, 10.0, 60.0, 70.0]
    assert budget.reserve("GetRecords", 75.0) == 120.0


def test_the_object_counts_the_calls_of_the_last_minute():
    budget = CallBudget(2)
    for operation in ("ListShards", "GetRecords", "GetRecords"):
        budget.reserve(operation, 100.0)
    assert budget.to_json(100.0) == {
        "per_minute": 2,
        "last_minute": 2,
        "waiting": 1,
        "total": 3,
        "operations": {"GetRecords": 1, "ListShards": 1},
    }
    assert budget.to_json(160.0)["operations"] == {"GetRecords": 1}
    assert budget.to_json(220.0)["last_minute"] == 0
