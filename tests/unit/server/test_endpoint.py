"""Does a fault change the reply, and is a reply without a fault unchanged?"""

import json

from tests.unit.server.conftest import BEGIN, post

from shardline.server.endpoint import Endpoint, Trouble
from shardline.server.server_clock import ServerClock


def test_an_endpoint_without_rules_answers_and_keeps_what_was_stored(world):
    kept = []
    endpoint = Endpoint(
        world.service, ServerClock(lambda: BEGIN), on_handled=lambda: kept.append(1), faults=world.faults
    )
    reply = post(endpoint, "ListStreams")
    assert (reply.status, json.loads(reply.body)["StreamNames"], reply.trouble, kept) == (200, ["s"], None, [1])
    assert post(endpoint, "Nonsense").status == 400


def test_a_rule_that_is_added_later_hits_too(world):
    endpoint = Endpoint(world.service, ServerClock(lambda: BEGIN), faults=world.faults)
    world.faults.reset("before", count=1)
    assert post(endpoint, "ListStreams").trouble == Trouble(is_silent=True, ending="reset")
    assert post(endpoint, "ListStreams").trouble is None


def test_the_date_is_skewed_and_nothing_else(world):
    endpoint = Endpoint(world.service, ServerClock(lambda: BEGIN), faults=world.faults)
    world.faults.clock_skew(-3600, count=1)
    skewed, right = post(endpoint, "ListStreams"), post(endpoint, "ListStreams")
    assert [one.headers["Date"] for one in (skewed, right)] == [
        "Tue, 14 Nov 2023 21:13:20 GMT",
        "Tue, 14 Nov 2023 22:13:20 GMT",
    ]
    assert world.service.state.now == BEGIN


def test_a_wait_that_comes_first_is_a_reply_to_ask_for_again(world):
    endpoint = Endpoint(world.service, ServerClock(lambda: BEGIN), faults=world.faults)
    world.faults.latency(0.5, count=1)
    world.faults.truncate(share=0.25, count=1)
    entry = {"Data": "AAAA", "PartitionKey": "k", "ExplicitHashKey": "0"}
    waiting = post(endpoint, "PutRecords", StreamName="s", Records=[entry])
    assert waiting.trouble.delay == 0.5
    assert world.stored() == {}
    reply = waiting.trouble.resume()
    assert reply.trouble == Trouble(cut=len(reply.body) // 4, ending="close")
    assert world.stored() == {0: [0]}
