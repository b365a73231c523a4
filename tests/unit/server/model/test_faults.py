"""Which requests do faults hit, and how often?"""

from tests.unit.server.conftest import WIDTH, FaultyServer, codes

from shardline.server.model.fault_kinds import KINDS
from shardline.server.model.refusals import THROTTLED


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
        world = FaultyServer(seed)
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


def test_rules_are_added_from_objects_and_tell_how_they_stand(world):
    fault = world.faults.add(KINDS["throttle"].make(count=2, shard=0))
    assert world.faults.add({"kind": "html", "operation": "GetRecords"}).rule.status == 503
    world.put(0)
    assert fault.to_dict() == {"id": 1, "hits": 1, "count_left": 1, "kind": "throttle", "count": 2, "shard": 0}
    assert repr(fault) == "<Fault 1 throttle, 1 hits, 1 left>"


def test_a_fault_of_a_shard_hits_requests_that_name_it_in_short():
    world = FaultyServer()
    world.faults.throttle(operation="GetShardIterator", shard=2)
    position = {"StreamName": "s", "ShardIteratorType": "LATEST"}
    assert world.ask("GetShardIterator", ShardId="shardId-2", **position).refusal.code == THROTTLED
    assert world.ask("GetShardIterator", ShardId="1", **position).refusal is None
    assert world.ask("GetShardIterator", ShardId="of-no-shard", **position).refusal.code == "ResourceNotFoundException"
