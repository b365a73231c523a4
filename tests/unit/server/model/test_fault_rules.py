"""How are rules written and checked, and which hooks do they use?"""

import json

import pytest
from tests.unit.server.conftest import BEGIN, codes, post

from shardline.errors import UsageError
from shardline.server.endpoint import Endpoint, Trouble
from shardline.server.model.fault_kinds import KINDS, read_rule
from shardline.server.model.fault_rules import FaultRule
from shardline.server.model.refusals import Refused
from shardline.server.server_clock import ServerClock

EXAMPLES = [
    {"kind": "throttle", "operation": "PutRecords", "stream": "s", "shard": 2, "count": 3},
    {"kind": "fail_entries", "share": 0.5, "chance": 0.25},
    {"kind": "error", "operation": ["GetRecords", "ListShards"], "code": "InternalFailureException", "count": 1},
    {"kind": "latency", "seconds": 0.5},
    {"kind": "latency", "seconds": [0.1, 0.5], "where": "after"},
    {"kind": "latency", "seconds": {"mean": 0.02, "p99": 0.2}},
    {"kind": "clock_skew", "seconds": -900.0},
    {"kind": "reset", "where": "after", "after": 10},
    {"kind": "truncate", "at": 20},
    {"kind": "malformed", "body_base64": "/w=="},
    {"kind": "html", "status": 502},
    {"kind": "wrong_count", "delta": 1},
    {"kind": "fan_out_exception", "code": "ResourceInUseException", "message": "taken"},
    {"kind": "fan_out_end"},
    {"kind": "fan_out_reset", "shard": "shardId-000000000001"},
    {"kind": "reshard", "delay": 5.0, "stream": "s", "action": "split", "shard": 0},
    {"kind": "random", "intensity": 0.5},
]


@pytest.mark.parametrize("described", EXAMPLES, ids=lambda one: one["kind"])
def test_a_rule_survives_json(described):
    rule = read_rule(json.loads(json.dumps(described)))
    assert rule.to_dict() == described
    assert read_rule(rule.to_dict()) == rule


def test_every_kind_has_an_example():
    assert {one["kind"] for one in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({}, "a fault's kind must be one of clock_skew, error, fail_entries"),
        ({"kind": "fire"}, "not 'fire'"),
        ({"kind": ["throttle"]}, "kind must be one of"),
        (
            {"kind": "throttle", "cout": 3},
            "a throttle fault has no key 'cout': the allowed keys are after, chance, count, operation, shard, stream",
        ),
        ({"kind": "throttle", "count": 0}, "count"),
        ({"kind": "throttle", "count": "3"}, "count"),
        ({"kind": "throttle", "chance": 1.5}, "chance"),
        ({"kind": "throttle", "operation": "PutRecodrs"}, "'PutRecodrs'"),
        ({"kind": "fail_entries"}, "either k or share"),
        ({"kind": "fail_entries", "k": 1, "share": 0.1}, "either k or share"),
        ({"kind": "fail_entries", "k": 1, "operation": "GetRecords"}, "can hit only PutRecords, not GetRecords"),
        ({"kind": "error"}, "code"),
        ({"kind": "error", "code": "X", "status": 200}, "status"),
        ({"kind": "latency", "seconds": -1}, "seconds"),
        (
            {"kind": "latency", "seconds": [2, 1]},
            "seconds from 0 to 3600, or [low, high] in that range, not [2.0, 1.0]",
        ),
        ({"kind": "latency", "seconds": [1]}, "[low, high]"),
        ({"kind": "latency", "seconds": 3601}, "from 0 to 3600, or [low, high] in that range, not 3601"),
        ({"kind": "latency", "seconds": {"mean": 0.1, "p99": 9.0}}, "1 to 14 times the mean"),
        ({"kind": "latency", "seconds": {"mean": 0.1, "p99": 0.05}}, "1 to 14 times the mean"),
        ({"kind": "reset", "where": "never"}, "never"),
        ({"kind": "truncate", "at": 1, "share": 0.5}, "not both"),
        ({"kind": "fan_out_end", "operation": "GetRecords"}, "can hit only SubscribeToShard"),
        ({"kind": "reshard", "action": "split", "delay": 1}, "needs a stream"),
        ({"kind": "reshard", "action": "split", "stream": "s"}, "either at"),
        ({"kind": "reshard", "action": "scale", "stream": "s", "delay": 1}, "needs shards"),
        ({"kind": "reshard", "action": "split", "stream": "s", "delay": 1, "count": 2}, "happens once"),
        ({"kind": "random", "count": 3}, "and nothing else"),
    ],
)
def test_a_rule_that_is_wrong_is_a_usage_error_that_says_what_is_allowed(world, described, words):
    with pytest.raises(UsageError) as caught:
        world.faults.load([{"kind": "throttle"}, described])
    assert words in str(caught.value)
    assert world.faults.rules == [], "all of them, or none"


class Teapot(FaultRule, tag="teapot"):
    """A kind that is defined here: a new fault needs only a class."""

    cups: int = 1

    def on_request(self, plan):
        if plan.operation != "PutRecords":
            plan.refusal = Refused("Teapot", f"{self.cups} cups", 418)

    def on_entries(self, places, _):
        return dict.fromkeys(places[: self.cups], ("Teapot", "short and stout"))

    def on_reply(self, reply):
        reply.headers = reply.headers | {"X-Tea": "hot"}
        reply.delay = 0.25


def test_a_new_kind_is_one_class(world, monkeypatch):
    monkeypatch.setitem(KINDS, "teapot", Teapot)
    endpoint = Endpoint(world.service, ServerClock(lambda: BEGIN), faults=world.faults)
    [fault] = world.faults.load([{"kind": "teapot", "cups": 2, "shard": 1, "count": 2}])
    assert post(endpoint, "ListStreams").status == 200
    assert codes(world.put(1, 0, 1, 1)) == ["Teapot", None, "Teapot", None]
    assert (fault.hits, world.faults.rules) == (2, [])
    world.faults.add({"kind": "teapot"})
    reply = post(endpoint, "ListStreams")
    assert (reply.status, reply.headers["X-Tea"], reply.trouble) == (418, "hot", Trouble(delay=0.25))
    with pytest.raises(UsageError, match="a teapot fault has no key 'cupz'"):
        world.faults.add({"kind": "teapot", "cupz": 1})
