"""Does the embedded server answer as AWS does according to the table, except for listed differences?

Each scenario has its own server, in the process of the test: minutes pass on its clock. ``make conformance`` plays the
same.
"""

import pytest
from tests.conformance import sites
from tests.conformance.__main__ import differences_of
from tests.conformance.expectation import ANY_TEXT
from tests.conformance.known import KNOWN, judge
from tests.conformance.player import Player, Run
from tests.conformance.scenario import Call, Scenario, ok
from tests.conformance.table import SCENARIOS


def play(scenario):
    with sites.embedded() as site:
        return Player(site, scenario, Run("test")).play()


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_the_server_answers_as_aws_does(scenario):
    result = play(scenario)
    listed = [entry for entry in KNOWN["embedded"] if entry.scenario == scenario.name]
    judgement = judge(differences_of([result]), listed, [scenario.name], [scenario.name])
    assert [str(one) for one in judgement.unknown] == []
    assert [str(one) for one in judgement.vanished] == [], "listed as known, and no longer seen: take it off the list"
    assert result.not_run == ""


def test_every_difference_that_is_listed_names_one_scenario():
    assert {entry.scenario for entry in KNOWN["embedded"]} <= set(SCENARIOS)


def test_a_difference_is_seen():
    result = play(Scenario("odd", "t", (Call("DescribeLimits", {}, ok({"ShardLimit": 7, "Odd": ANY_TEXT})),)))
    fields = {difference.mismatch.field for difference in differences_of([result])}
    assert {"body.ShardLimit", "body.Odd", "body.OpenShardCount"} <= fields
