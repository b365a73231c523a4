"""What does each kind of fault do, and are the right records stored?"""

from random import Random

import pytest
from tests.unit.server.conftest import BEGIN, WIDTH, FaultyServer, codes

from shardline.server.model.fault_kinds import KINDS
from shardline.server.model.faults import Faults
from shardline.server.model.refusals import THROTTLED
from shardline.server.model.service import Service
from shardline.server.model.settings import Delays, Limits, ServiceSettings

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
    world.service = Service(settings, Random(1), BEGIN)
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
    assert world.service.state.streams["s"].shards["shardId-000000000001"].closed_at == BEGIN + 5
    assert (fault.hits, fault.problem, world.faults.rules) == (1, None, [])
    assert "s" in world.service.take_changed()


def test_a_reshard_at_an_absolute_time_merges_or_scales(world):
    world.faults.reshard_at(BEGIN + 10, stream="s", action="merge", shard=1)
    world.faults.reshard_at(BEGIN + 20, stream="s", action="scale", shards=2)
    world.now += 10
    world.put(1)
    assert world.open_shards() == ["00", "04", "03"]
    world.now += 60
    world.put(1)
    assert len(world.open_shards()) == 2
    ranges = [shard.hash_range for shard in world.service.state.streams["s"].open_shards]
    assert [(one.start, one.end) for one in ranges] == [(0, 2 * WIDTH - 1), (2 * WIDTH, 4 * WIDTH - 1)]


def test_a_reshard_waits_until_the_stream_is_there_and_active():
    world = FaultyServer(delays=Delays(create=10.0, update=10.0))
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


# ---- random mixtures


def test_random_faults_are_many_different_and_the_same_for_a_seed():
    def drawn(seed):
        return [one.rule for one in Faults(Random(seed), lambda: BEGIN).load([{"kind": "random", "intensity": 0.2}])]

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    seen = {rule.kind for seed in range(30) for rule in drawn(seed)}
    assert seen == set(KINDS) - {"random", "reshard", "clock_skew"}
    assert all(0 < rule.chance <= 0.2 for seed in range(30) for rule in drawn(seed))


def test_under_random_faults_what_is_acknowledged_is_stored_and_nothing_else_once():
    """Entries with a sequence number are stored once, and those with an error not at all."""
    acknowledged = hidden = stored = 0
    for seed in range(8):
        world = FaultyServer(seed)
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
