"""Do faults hit what they are told to, and is stored what they leave? (FA1 to FA6, FR1, FR2)"""

import json
from random import Random

import pytest

from shardline.errors import UsageError
from shardline.server.clock import ServerClock
from shardline.server.endpoint import Endpoint, Trouble
from shardline.server.model.fault_kinds import KINDS, read_rule
from shardline.server.model.fault_rules import FaultRule
from shardline.server.model.faults import Faults
from shardline.server.model.refusals import Refused
from shardline.server.model.service import Service
from shardline.server.model.settings import Delays, Limits, ServiceSettings

NOW = 1_700_000_000.0
WIDTH = (1 << 128) // 4
THROTTLED = "ProvisionedThroughputExceededException"


class World:
    """A service with faults, four shards, and hands on the clock."""

    def __init__(self, seed=1, delays=None):
        self.now = NOW
        settings = ServiceSettings(limits=Limits.without_rates(), delays=delays or Delays())
        self.service = Service(settings, Random(seed), NOW)
        self.faults = Faults(Random(seed), lambda: self.now)
        self.service.use_faults(self.faults)
        self.ask("CreateStream", StreamName="s", ShardCount=4)

    def ask(self, operation, **members):
        return self.service.handle(operation, members, self.now)

    def put(self, *shards, stream="s"):
        """One entry for each shard's number; its data is its place."""
        entries = [
            {"Data": bytes([at]), "PartitionKey": "k", "ExplicitHashKey": str(shard * WIDTH)}
            for at, shard in enumerate(shards)
        ]
        return self.ask("PutRecords", StreamName=stream, Records=entries)

    def put_one(self, shard):
        return self.ask("PutRecord", StreamName="s", Data=b"1", PartitionKey="k", ExplicitHashKey=str(shard * WIDTH))

    def stored(self, stream="s"):
        """The data of every record, by the number of the shard."""
        shards = self.service.state.streams[stream].shards.values()
        return {one.index: [record.data[0] for record in one.log.records] for one in shards if one.log.records}

    def iterator(self, shard, kind="TRIM_HORIZON"):
        shard_id = f"shardId-{shard:012d}"
        return self.ask("GetShardIterator", StreamName="s", ShardId=shard_id, ShardIteratorType=kind)

    def open_shards(self):
        return [shard.shard_id[-2:] for shard in self.service.state.streams["s"].open_shards]


@pytest.fixture
def world():
    return World()


def codes(answer):
    assert answer.refusal is None
    return [one.error_code for one in answer.body.records]


# ---- throttling


def test_the_next_three_put_records_on_a_shard_are_throttled_there_and_stored_elsewhere(world):
    fault = world.faults.throttle(operation="PutRecords", shard=2, count=3)
    assert codes(world.put(0, 1)) == [None, None]
    assert fault.count_left == 3, "a request that does not touch the shard does not count"
    for left in (2, 1, 0):
        answer = world.put(2, 1, 2, 3)
        assert codes(answer) == [THROTTLED, None, THROTTLED, None]
        assert answer.body.failed_record_count == 2
        assert answer.body.records[0].error_message == (
            "Rate exceeded for shard shardId-000000000002 in stream s under account 000000000000."
        )
        assert [one.shard_id and one.shard_id[-1] for one in answer.body.records] == [None, "1", None, "3"]
        assert fault.count_left == left
    assert world.faults.rules == []
    assert codes(world.put(2)) == [None]
    assert world.stored() == {0: [0], 1: [1, 1, 1, 1], 2: [0], 3: [3, 3, 3]}
    assert fault.hits == 3


def test_other_data_requests_are_refused_whole_when_throttled_and_control_ones_exceed_a_limit(world):
    fault = world.faults.throttle()
    for answer in (world.put_one(1), world.iterator(1)):
        assert (answer.refusal.code, answer.refusal.status) == (THROTTLED, 400)
    refusal = world.ask("ListShards", StreamName="s").refusal
    assert (refusal.code, refusal.message) == (
        "LimitExceededException",
        "Rate exceeded for stream s under account 000000000000.",
    )
    assert codes(world.put(0, 1)) == [THROTTLED, THROTTLED]
    assert world.stored() == {}
    assert fault.hits == 4
    fault.remove()
    fault.remove()
    assert world.put_one(1).refusal is None


def test_reads_are_throttled_by_the_shard_of_their_iterator(world):
    one, two = (world.iterator(shard).body["ShardIterator"] for shard in (1, 2))
    world.faults.throttle(operation="GetRecords", stream="s", shard="shardId-000000000002")
    assert world.ask("GetRecords", ShardIterator=one).refusal is None
    refusal = world.ask("GetRecords", ShardIterator=two).refusal
    assert refusal.code == THROTTLED
    assert refusal.message == "Rate exceeded for Shard - 000000000000/s/shardId-000000000002"


# ---- entries


def test_k_entries_fail_with_their_code_and_only_the_rest_is_stored(world):
    fault = world.faults.fail_entries(k=2, count=1)
    answer = world.put(0, 0, 0, 0, 0)
    failed = [at for at, code in enumerate(codes(answer)) if code == "InternalFailure"]
    assert len(failed) == 2
    assert answer.body.failed_record_count == 2
    assert answer.body.records[failed[0]].error_message == "Internal Service Failure"
    assert answer.body.records[failed[0]].sequence_number is None
    assert world.stored() == {0: [at for at in range(5) if at not in failed]}
    assert fault.count_left == 0
    assert codes(world.put(0)) == [None]


def test_a_share_is_rounded_up_and_k_ends_at_all_of_them(world):
    world.faults.fail_entries(share=0.26, count=1)
    assert sum(code is not None for code in codes(world.put(0, 0, 0, 0))) == 2
    world.faults.fail_entries(share=0.0, count=1)
    assert codes(world.put(0, 0)) == [None, None]
    world.faults.fail_entries(share=0.25, count=1)
    assert sum(code is not None for code in codes(world.put(0, 0, 0, 0))) == 1
    world.faults.fail_entries(k=9, code="Strange", message="words", count=1)
    assert codes(world.put(0, 0)) == ["Strange", "Strange"]


def test_entries_of_a_shard_fail_and_each_by_the_first_rule_that_names_it(world):
    world.faults.throttle(operation="PutRecords", shard=1, count=1)
    world.faults.fail_entries(k=4, count=1)
    assert codes(world.put(0, 1, 2, 1)) == ["InternalFailure", THROTTLED, "InternalFailure", THROTTLED]
    assert world.stored() == {}


def test_failed_entries_cost_no_rate(world):
    settings = ServiceSettings(limits=Limits(write_records_per_second=2.0))
    world.service = Service(settings, Random(1), NOW)
    world.service.use_faults(world.faults)
    world.ask("CreateStream", StreamName="s", ShardCount=4)
    world.faults.fail_entries(k=4, count=1)
    assert codes(world.put(0, 0, 0, 0)) == ["InternalFailure"] * 4
    assert codes(world.put(0, 0, 0)) == [None, None, THROTTLED]


def test_the_wrong_number_of_results_hides_nothing_that_is_stored(world):
    world.faults.wrong_count(-1, count=1)
    assert len(world.put(0, 0, 0).body.records) == 2
    world.faults.wrong_count(2, count=1)
    assert len(world.put(0, 0, 0).body.records) == 5
    assert len(world.put(0, 0, 0).body.records) == 3
    world.faults.wrong_count(-9, shard=0, count=1)
    assert len(world.put(1).body.records) == 1
    assert world.put(0).body.records == []
    assert world.stored() == {0: [0, 1, 2] * 3 + [0], 1: [0]}


# ---- refusals of any type


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("InternalFailureException", 500),
        ("InternalFailure", 500),
        ("ServiceUnavailable", 503),
        ("ServiceUnavailableException", 503),
        ("KMSDisabledException", 400),
        ("AccessDeniedException", 400),
    ],
)
def test_an_error_of_any_type_stores_nothing_and_has_its_status(world, code, status):
    fault = world.faults.error(code, "because", count=1)
    refusal = world.put(0).refusal
    assert (refusal.code, refusal.message, refusal.status) == (code, "because", status)
    assert world.stored() == {}
    assert fault.hits == 1
    assert world.put(0).refusal is None


def test_shortcuts_for_errors(world):
    iterator = world.iterator(0).body["ShardIterator"]
    world.faults.expired_iterator(count=1)
    assert world.put(0).refusal is None
    assert world.ask("GetRecords", ShardIterator=iterator).refusal.code == "ExpiredIteratorException"
    assert world.ask("GetRecords", ShardIterator=iterator).refusal is None
    world.faults.expired_token(count=1)
    assert world.put(0).refusal.message == "The security token included in the request is expired"
    world.faults.unavailable(count=1)
    assert world.put(0).refusal.status == 503
    world.faults.error("Odd", status=418, count=1)
    assert world.put(0).refusal.status == 418


# ---- which requests, and how often


def test_operations_streams_and_the_first_ones_pass(world):
    world.ask("CreateStream", StreamName="other", ShardCount=1)
    fault = world.faults.error("X", operation={"PutRecord", "ListShards"}, stream="s", after=2, count=1)
    answers = [
        world.put(0),
        world.ask("ListShards", StreamName="other"),
        world.put_one(0),
        world.ask("ListShards", StreamARN=world.service.state.streams["s"].arn),
    ]
    assert [one.refusal for one in answers] == [None] * 4
    assert world.put_one(0).refusal.code == "X"
    assert fault.hits == 1
    assert world.put_one(0).refusal is None


def test_requests_are_hit_by_the_shard_that_their_records_go_to(world):
    world.faults.error("X", shard=1)
    assert world.put(0, 2, 3).refusal is None
    assert world.put(0, 1).refusal.code == "X"
    assert world.put_one(1).refusal.code == "X"
    assert world.put_one(2).refusal is None
    split = {"ShardToSplit": "shardId-000000000001", "NewStartingHashKey": str(WIDTH + 5)}
    assert world.ask("SplitShard", StreamName="s", **split).refusal.code == "X"
    assert world.stored() == {0: [0], 2: [1, 49], 3: [2]}


def test_chance_is_a_share_of_the_requests_and_the_same_for_a_seed():
    def run(seed):
        world = World(seed)
        world.faults.error("X", chance=0.3)
        return [world.put(0).refusal is not None for _ in range(1_000)]

    hits = run(7)
    assert 250 < sum(hits) < 350
    assert hits == run(7)
    assert hits != run(8)


def test_the_first_of_a_sort_is_taken_and_the_later_ones_keep_their_counts(world):
    first = world.faults.error("First", count=1)
    second = world.faults.error("Second", count=1)
    reset = world.faults.reset("before", count=1)
    third = world.faults.error("Third", count=1)
    answer = world.put(0)
    assert (answer.plan.is_handled, answer.refusal, answer.body) == (False, None, None)
    assert [one.hits for one in (first, second, reset, third)] == [1, 0, 1, 0]
    assert [world.put(0).refusal.code for _ in range(2)] == ["Second", "Third"]
    assert world.stored() == {}


def test_faults_can_be_cleared(world):
    handles = [world.faults.throttle(), world.faults.fail_entries(k=1), world.faults.fan_out_end()]
    assert world.faults.rules == handles
    assert [one.id for one in handles] == [1, 2, 3]
    world.faults.clear()
    assert world.faults.rules == []
    assert [one.count_left for one in handles] == [0, 0, 0]
    faults = world.faults
    assert [faults.for_requests, faults.has_entries, faults.for_pushes, faults.for_time] == [{}, False, {}, {}]
    assert codes(world.put(0)) == [None]


# ---- plans for the shells


def test_resets_and_answers_are_plans_and_tell_whether_the_request_was_carried_out(world):
    world.faults.reset("after", count=1)
    answer = world.put(0)
    assert (answer.plan.is_handled, answer.body.failed_record_count) == (True, 0)
    world.faults.html(count=1)
    assert world.put(0).plan.is_handled is False
    world.faults.html(count=1, handled=True)
    assert world.put(0).plan.is_handled is True
    world.faults.malformed(b"\xff", count=1, handled=False)
    answer = world.put(0)
    assert (answer.plan.is_handled, answer.body) == (False, None)
    assert world.stored() == {0: [0, 0]}


def test_waits_are_fixed_uniform_or_lognormal(world):
    world.faults.latency(0.25, where="after", count=1)
    plan = world.put(0).plan
    assert (plan.delay, plan.waits_first) == (0.25, False)
    uniform = world.faults.latency((0.1, 0.2))
    waits = [world.put(0).plan.delay for _ in range(500)]
    assert 0.1 <= min(waits) < 0.11
    assert 0.19 < max(waits) <= 0.2
    uniform.remove()
    world.faults.latency({"mean": 0.02, "p99": 0.1})
    waits = sorted(world.put(0).plan.delay for _ in range(5_000))
    assert sum(waits) / 5_000 == pytest.approx(0.02, rel=0.1)
    assert waits[4_950] == pytest.approx(0.1, rel=0.2)


# ---- reshards


def test_a_reshard_comes_at_its_moment_by_the_services_clock(world):
    fault = world.faults.reshard_at(delay=5, stream="s", action="split", shard=1)
    world.now += 4.999
    world.put(1)
    assert world.open_shards() == ["00", "01", "02", "03"]
    world.now += 0.001
    answer = world.put(1)
    assert world.open_shards() == ["00", "04", "05", "02", "03"]
    assert answer.body.records[0].shard_id == "shardId-000000000004"
    assert world.service.state.streams["s"].status == "ACTIVE"
    assert world.service.state.streams["s"].shards["shardId-000000000001"].closed_at == NOW + 5
    assert (fault.hits, fault.problem, world.faults.rules) == (1, None, [])
    assert "s" in world.service.take_changed()


def test_a_reshard_at_an_absolute_time_merges_or_scales(world):
    world.faults.reshard_at(NOW + 10, stream="s", action="merge", shard=1)
    world.faults.reshard_at(NOW + 20, stream="s", action="scale", shards=2)
    world.now += 10
    world.put(1)
    assert world.open_shards() == ["00", "04", "03"]
    world.now += 60
    world.put(1)
    assert len(world.open_shards()) == 2
    ranges = [shard.hash_range for shard in world.service.state.streams["s"].open_shards]
    assert [(one.start, one.end) for one in ranges] == [(0, 2 * WIDTH - 1), (2 * WIDTH, 4 * WIDTH - 1)]


def test_a_reshard_waits_until_the_stream_is_there_and_active():
    world = World(delays=Delays(create=10.0, update=10.0))
    world.faults.reshard_at(delay=1, stream="s", action="split", shard=0)
    world.now += 5
    assert world.put(0).refusal.code == "ResourceNotFoundException"
    world.now += 6
    world.put(0)
    assert world.open_shards() == ["04", "05", "01", "02", "03"]


def test_a_reshard_that_cannot_be_says_why(world):
    fault = world.faults.reshard_at(delay=0, stream="s", action="merge", shard=3)
    world.put(0)
    assert (fault.hits, fault.count_left) == (0, 0)
    assert fault.problem == "there is no open shard shardId-000000000003 to merge in stream s"
    assert world.open_shards() == ["00", "01", "02", "03"]


# ---- enhanced fan-out


def subscribe(world, shard=0, name="c"):
    arn = world.service.state.streams["s"].arn
    consumer = world.ask("RegisterStreamConsumer", StreamARN=arn, ConsumerName=name).body["Consumer"]
    start = {"Type": "TRIM_HORIZON"}
    answer = world.ask(
        "SubscribeToShard",
        ConsumerARN=consumer["ConsumerARN"],
        ShardId=f"shardId-{shard:012d}",
        StartingPosition=start,
    )
    assert answer.refusal is None
    return answer.subscription


def test_a_live_subscription_meets_an_exception_at_once(world):
    world.put(0)
    subscription = subscribe(world)
    assert [one.data for one in subscription.poll(world.now).records] == [b"\0"]
    fault = world.faults.fan_out_exception("ResourceInUseException", "taken", shard=0, count=1)
    assert subscription.poll(world.now) is None
    assert subscription.ended
    assert subscription.fault.exception == ("ResourceInUseException", "taken")
    assert fault.hits == 1
    assert subscribe(world, name="d").poll(world.now) is not None


def test_pushes_are_counted_before_a_subscription_ends_early(world):
    world.faults.fan_out_end(stream="s", shard=1, after=2, count=1)
    subscription = subscribe(world, 1)
    other = subscribe(world, 2, "d")
    pushes = 0
    for _ in range(20):
        world.now += 1.0
        other.poll(world.now)
        pushes += subscription.poll(world.now) is not None
    assert pushes == 2
    assert subscription.ended
    assert not other.ended


# ---- through the endpoint


def post(endpoint, operation, **members):
    headers = {"content-type": "application/x-amz-json-1.1", "x-amz-target": f"Kinesis_20131202.{operation}"}
    return endpoint.reply(headers, json.dumps(members).encode())


def test_an_endpoint_without_rules_answers_and_keeps_what_was_stored(world):
    kept = []
    endpoint = Endpoint(world.service, ServerClock(lambda: NOW), on_handled=lambda: kept.append(1), faults=world.faults)
    reply = post(endpoint, "ListStreams")
    assert (reply.status, json.loads(reply.body)["StreamNames"], reply.trouble, kept) == (200, ["s"], None, [1])
    assert post(endpoint, "Nonsense").status == 400


def test_a_rule_that_comes_after_the_endpoint_has_looked_is_kept_too(world):
    endpoint = Endpoint(world.service, ServerClock(lambda: NOW))  # it is not told of the faults: the service is
    world.faults.reset("before", count=1)
    assert post(endpoint, "ListStreams").trouble == Trouble(is_silent=True, ending="reset")
    assert post(endpoint, "ListStreams").trouble is None


def test_the_date_is_skewed_and_nothing_else(world):
    endpoint = Endpoint(world.service, ServerClock(lambda: NOW), faults=world.faults)
    world.faults.clock_skew(-3600, count=1)
    skewed, right = post(endpoint, "ListStreams"), post(endpoint, "ListStreams")
    assert [one.headers["Date"] for one in (skewed, right)] == [
        "Tue, 14 Nov 2023 21:13:20 GMT",
        "Tue, 14 Nov 2023 22:13:20 GMT",
    ]
    assert world.service.state.now == NOW


def test_a_wait_that_comes_first_is_a_reply_to_ask_for_again(world):
    endpoint = Endpoint(world.service, ServerClock(lambda: NOW), faults=world.faults)
    world.faults.latency(0.5, count=1)
    world.faults.truncate(share=0.25, count=1)
    entry = {"Data": "AAAA", "PartitionKey": "k", "ExplicitHashKey": "0"}
    waiting = post(endpoint, "PutRecords", StreamName="s", Records=[entry])
    assert waiting.trouble.delay == 0.5
    assert world.stored() == {}
    reply = waiting.trouble.resume()
    assert reply.trouble == Trouble(cut=len(reply.body) // 4, ending="close")
    assert world.stored() == {0: [0]}


# ---- as data


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
        ({}, "a fault's kind is one of clock_skew, error, fail_entries"),
        ({"kind": "fire"}, "not 'fire'"),
        ({"kind": ["throttle"]}, "kind is one of"),
        (
            {"kind": "throttle", "cout": 3},
            "a throttle fault has no 'cout': it may have after, chance, count, operation, shard, stream",
        ),
        ({"kind": "throttle", "count": 0}, "count"),
        ({"kind": "throttle", "count": "3"}, "count"),
        ({"kind": "throttle", "chance": 1.5}, "chance"),
        ({"kind": "throttle", "operation": "PutRecodrs"}, "'PutRecodrs'"),
        ({"kind": "fail_entries"}, "either k or share"),
        ({"kind": "fail_entries", "k": 1, "share": 0.1}, "either k or share"),
        ({"kind": "fail_entries", "k": 1, "operation": "GetRecords"}, "hits PutRecords, never GetRecords"),
        ({"kind": "error"}, "code"),
        ({"kind": "error", "code": "X", "status": 200}, "status"),
        ({"kind": "latency", "seconds": -1}, "seconds"),
        ({"kind": "latency", "seconds": [2, 1]}, "from low to high, of 0 to 3600, not [2.0, 1.0]"),
        ({"kind": "latency", "seconds": [1]}, "from low to high"),
        ({"kind": "latency", "seconds": 3601}, "of 0 to 3600, not 3601"),
        ({"kind": "latency", "seconds": {"mean": 0.1, "p99": 9.0}}, "1 to 14 times the mean"),
        ({"kind": "latency", "seconds": {"mean": 0.1, "p99": 0.05}}, "1 to 14 times the mean"),
        ({"kind": "reset", "where": "never"}, "never"),
        ({"kind": "truncate", "at": 1, "share": 0.5}, "not both"),
        ({"kind": "fan_out_end", "operation": "GetRecords"}, "hits SubscribeToShard"),
        ({"kind": "reshard", "action": "split", "delay": 1}, "needs a stream"),
        ({"kind": "reshard", "action": "split", "stream": "s"}, "either at"),
        ({"kind": "reshard", "action": "scale", "stream": "s", "delay": 1}, "needs shards"),
        ({"kind": "reshard", "action": "split", "stream": "s", "delay": 1, "count": 2}, "happens once"),
        ({"kind": "random", "count": 3}, "no more"),
    ],
)
def test_a_rule_that_is_wrong_is_a_usage_error_that_says_what_is_allowed(world, described, words):
    with pytest.raises(UsageError) as caught:
        world.faults.load([{"kind": "throttle"}, described])
    assert words in str(caught.value)
    assert world.faults.rules == [], "all of them, or none"


def test_rules_are_added_from_objects_and_tell_how_they_stand(world):
    fault = world.faults.add(KINDS["throttle"].make(count=2, shard=0))
    assert world.faults.add({"kind": "html", "operation": "GetRecords"}).rule.status == 503
    world.put(0)
    assert fault.to_dict() == {"id": 1, "hits": 1, "count_left": 1, "kind": "throttle", "count": 2, "shard": 0}
    assert repr(fault) == "<Fault 1 throttle, 1 hits, 1 left>"


class Teapot(FaultRule, tag="teapot"):
    """A kind that is defined here: a class is all that a new fault needs."""

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
    endpoint = Endpoint(world.service, ServerClock(lambda: NOW), faults=world.faults)
    [fault] = world.faults.load([{"kind": "teapot", "cups": 2, "shard": 1, "count": 2}])
    assert post(endpoint, "ListStreams").status == 200
    assert codes(world.put(1, 0, 1, 1)) == ["Teapot", None, "Teapot", None]
    assert (fault.hits, world.faults.rules) == (2, [])
    world.faults.add({"kind": "teapot"})
    reply = post(endpoint, "ListStreams")
    assert (reply.status, reply.headers["X-Tea"], reply.trouble) == (418, "hot", Trouble(delay=0.25))
    with pytest.raises(UsageError, match="a teapot fault has no 'cupz'"):
        world.faults.add({"kind": "teapot", "cupz": 1})


def test_random_faults_are_many_different_and_the_same_for_a_seed():
    def drawn(seed):
        return [one.rule for one in Faults(Random(seed), lambda: NOW).load([{"kind": "random", "intensity": 0.2}])]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    seen = {rule.kind for seed in range(30) for rule in drawn(seed)}
    assert seen == set(KINDS) - {"random", "reshard", "clock_skew"}
    assert all(0 < rule.chance <= 0.2 for seed in range(30) for rule in drawn(seed))


def test_under_random_faults_what_is_acknowledged_is_stored_and_nothing_else_once():
    """FA3 as an oracle: entries with a sequence number are stored once, those with an error not at all."""
    acknowledged = hidden = stored = 0
    for seed in range(8):
        world = World(seed)
        world.faults.load([{"kind": "random", "intensity": 0.5}])
        for _ in range(300):
            answer = world.put(0, 1, 2, 3)
            if answer.refusal is not None or not answer.plan.is_handled:
                continue
            if len(answer.body.records) == 4:
                acknowledged += sum(one.sequence_number is not None for one in answer.body.records)
            else:
                hidden += 4 - answer.body.failed_record_count
        stored += sum(len(records) for records in world.stored().values())
    assert hidden > 0
    assert stored == acknowledged + hidden


def test_a_fault_of_a_shard_hits_requests_that_name_it_in_short():
    world = World()
    world.faults.throttle(operation="GetShardIterator", shard=2)
    position = {"StreamName": "s", "ShardIteratorType": "LATEST"}
    assert world.ask("GetShardIterator", ShardId="shardId-2", **position).refusal.code == THROTTLED
    assert world.ask("GetShardIterator", ShardId="1", **position).refusal is None
    assert world.ask("GetShardIterator", ShardId="of-no-shard", **position).refusal.code == "ResourceNotFoundException"
