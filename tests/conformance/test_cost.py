"""Is the stated cost an upper bound of AWS's bill?"""

import pytest
from tests.conformance import cost
from tests.conformance.cost import estimate
from tests.conformance.scenario import Scenario, Stream
from tests.conformance.table import SCENARIOS


def scenario(**more):
    return Scenario("s", "t", (), **more)


@pytest.mark.parametrize(
    ("made", "dollars"),
    [
        ({}, 0.0),
        ({"streams": {"a": Stream(3)}}, 3 * 0.015 + 400 * 0.014e-6),
        ({"streams": {"a": Stream(1)}, "shards_at_most": 4, "put_units": 1_000_000}, 4 * 0.015 + 0.014),
        ({"makes": {"a": Stream(1)}, "consumer_shards": 2, "put_units": 1}, 0.015 + 2 * 0.015),
        ({"streams": {"a": Stream(1)}, "extended_retention_shards": 1, "put_units": 1}, 0.015 + 0.02),
        ({"streams": {"a": Stream(4, on_demand=True)}, "put_units": 1}, 0.04),
        ({"streams": {"a": Stream(4, on_demand=True)}, "put_units": 1_000_000}, 0.04 + 0.014 + 0.08 * 23.84),
    ],
)
def test_each_thing_that_is_billed_counts(made, dollars):
    assert estimate([scenario(**made)], 1).dollars == pytest.approx(dollars, abs=2e-3)


def test_a_stream_that_scenarios_share_counts_once():
    assert estimate([scenario(streams={"a": Stream(2, shared=True)}, put_units=1)] * 5, 1).shards == 2


def test_the_time_is_that_of_the_longest_or_of_all_side_by_side():
    assert estimate([scenario(seconds=600), scenario(seconds=60)], 4).minutes == 10
    assert estimate([scenario(seconds=600)] * 8, 4).minutes == 20


def test_the_whole_table_takes_minutes_and_costs_cents():
    whole = estimate([one for one in SCENARIOS.values() if not one.not_on_aws and not one.account_wide], 6)
    assert 0.1 < whole.dollars < 1.0
    assert whole.minutes < 20
    assert cost.PRICES_OF in str(whole)


def test_a_scenario_that_reshards_says_how_many_shards_it_has():
    changing = {"SplitShard", "UpdateShardCount"}
    for each in SCENARIOS.values():
        granted = [
            step
            for step in each.steps
            if getattr(step, "operation", "") in changing and step.expect.get("status") == 200
        ]
        made = sum(stream.shards for stream in (*each.streams.values(), *each.makes.values()))
        assert not granted or each.shards_at_most > made, each.name
