"""Tests of ``call_budget``."""

import pytest

from shardline.console.call_budget import CallBudget


def test_calls_over_the_budget_wait_until_a_minute_has_passed():
    budget = CallBudget(2)
    assert [budget.take("ListShards", now) for now in (0.0, 10.0, 20.0, 59.0, 60.0)] == [0.0, 0.0, 40.0, 1.0, 0.0]
    assert budget.take("GetRecords", 65.0) == 5.0


def test_the_background_leaves_a_quarter_of_the_budget():
    budget = CallBudget(8)
    sent = [now for now in range(60) if budget.take("GetRecords", float(now), background=True) == 0.0]
    assert sent == [0, 1, 2, 3, 13, 23]  # half of the six at once, and the rest evenly spaced
    assert [budget.take("ListShards", 59.5) for _ in range(3)] == [0.0, 0.0, pytest.approx(0.5)]


@pytest.mark.parametrize("per_minute", [1, 10, 600])
def test_no_minute_has_more_calls_than_the_budget(per_minute):
    budget, sent, background = CallBudget(per_minute), [], []
    for tick in range(4 * 180):
        now = tick / 4
        if budget.take("GetRecords", now, background=True) == 0.0:
            sent.append(now)
            background.append(now)
        while tick % 40 == 0 and budget.take("ListShards", now) == 0.0:
            sent.append(now)
    assert max(sum(at - 60 < other <= at for other in sent) for at in sent) <= per_minute
    assert len(background) >= 1


def test_the_object_counts_the_calls_of_the_last_minute():
    budget = CallBudget(2)
    for operation in ("ListShards", "GetRecords", "GetRecords"):
        budget.take(operation, 100.0)
    budget.waiting = 1
    assert budget.to_json(100.0) == {
        "per_minute": 2,
        "last_minute": 2,
        "waiting": 1,
        "total": 2,
        "operations": {"GetRecords": 1, "ListShards": 1},
    }
    assert budget.to_json(160.0)["last_minute"] == 0
