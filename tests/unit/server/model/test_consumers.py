"""Tests of ``server.model.consumers``."""

from random import Random

import pytest

from shardline.model.hashing import HASH_KEY_COUNT
from shardline.server.model.faults import Faults
from shardline.server.model.settings import Delays, Limits

MIB = 1024 * 1024


def data(event):
    return [record["Data"] for record in event["Records"]]


def drain(server, subscription):
    """Return the data of all records that are pushed now."""
    found = []
    while (event := server.pushed(subscription)) is not None:
        found += data(event)
    return found


# ---- consumers


def test_a_consumer_is_registered_over_time(make_server):
    server = make_server(delays=Delays(register=3, deregister=4)).create()
    answer = server.call("RegisterStreamConsumer", StreamARN=server.arn(), ConsumerName="c")["Consumer"]
    arn = f"{server.arn()}/consumer/c:{int(server.now)}"
    assert answer == {
        "ConsumerName": "c",
        "ConsumerARN": arn,
        "ConsumerStatus": "CREATING",
        "ConsumerCreationTimestamp": server.now,
    }
    start = {"ShardId": "shardId-000000000000", "StartingPosition": {"Type": "LATEST"}}
    assert server.refused("SubscribeToShard", ConsumerARN=arn, **start) == "ResourceInUseException"
    server.pass_time(3)
    described = server.call("DescribeStreamConsumer", ConsumerARN=arn)["ConsumerDescription"]
    assert described == answer | {"ConsumerStatus": "ACTIVE", "StreamARN": server.arn()}
    assert server.summary()["ConsumerCount"] == 1
    server.call("DeregisterStreamConsumer", ConsumerARN=arn)
    server.pass_time(2)
    server.call("DeregisterStreamConsumer", ConsumerARN=arn)  # a repeated request does not restart the delay
    by_name = {"StreamARN": server.arn(), "ConsumerName": "c"}
    assert server.call("DescribeStreamConsumer", **by_name)["ConsumerDescription"]["ConsumerStatus"] == "DELETING"
    server.pass_time(2)
    assert server.refused("DescribeStreamConsumer", **by_name) == "ResourceNotFoundException"


def test_a_register_without_delay_still_answers_creating(server):
    server.create()
    members = {"StreamARN": server.arn(), "ConsumerName": "c"}
    assert server.call("RegisterStreamConsumer", **members)["Consumer"]["ConsumerStatus"] == "CREATING"
    assert server.call("DescribeStreamConsumer", **members)["ConsumerDescription"]["ConsumerStatus"] == "ACTIVE"
    assert server.refused("RegisterStreamConsumer", **members) == "ResourceInUseException"


def test_a_stream_has_20_consumers(server):
    server.create()
    for number in range(20):
        server.register(f"c{number:02d}")
    members = {"StreamARN": server.arn(), "ConsumerName": "c20"}
    assert server.refused("RegisterStreamConsumer", **members) == "LimitExceededException"
    server.call("DeregisterStreamConsumer", StreamARN=server.arn(), ConsumerName="c00")
    server.register("c20")


def test_five_consumers_are_created_at_once(make_server):
    server = make_server(delays=Delays(register=1)).create()
    for number in range(5):
        server.register(f"c{number}")
    members = {"StreamARN": server.arn(), "ConsumerName": "c5"}
    assert server.refused("RegisterStreamConsumer", **members) == "LimitExceededException"
    server.pass_time(1).register("c5")


def test_consumers_are_listed_in_pages(server):
    server.create().create("t")
    for number in range(5):
        server.register(f"c{number}")
    page, names = server.call("ListStreamConsumers", StreamARN=server.arn(), MaxResults=2), []
    names += [one["ConsumerName"] for one in page["Consumers"]]
    token = page["NextToken"]
    while "NextToken" in page:
        page = server.call("ListStreamConsumers", StreamARN=server.arn(), NextToken=page["NextToken"], MaxResults=2)
        names += [one["ConsumerName"] for one in page["Consumers"]]
    assert names == [f"c{number}" for number in range(5)]
    assert len(server.call("ListStreamConsumers", StreamARN=server.arn(), MaxResults=10_000)["Consumers"]) == 5
    dated = {"StreamARN": server.arn(), "NextToken": token, "StreamCreationTimestamp": server.now}
    assert server.why("ListStreamConsumers", **dated) == (
        "NextToken and StreamCreationTimestamp cannot be provided together."
    )
    other = {"StreamARN": server.arn("t"), "NextToken": token}
    assert server.refused("ListStreamConsumers", **other) == "InvalidArgumentException"
    server.pass_time(301)
    late = {"StreamARN": server.arn(), "NextToken": token}
    assert server.refused("ListStreamConsumers", **late) == "ExpiredNextTokenException"


def test_a_consumer_is_named_by_arn_or_by_stream_and_name_or_by_all_that_agree(server):
    server.create()
    arn = server.register()
    server.register("d")
    assert server.refused("DescribeStreamConsumer") == "InvalidArgumentException"
    assert server.refused("DescribeStreamConsumer", StreamARN=server.arn()) == "InvalidArgumentException"
    assert server.call("DescribeStreamConsumer", ConsumerARN=arn, StreamARN=server.arn(), ConsumerName="c")
    assert server.refused("DescribeStreamConsumer", ConsumerARN=arn, ConsumerName="d") == "InvalidArgumentException"
    assert server.refused("DescribeStreamConsumer", ConsumerARN=arn + "1") == "ResourceNotFoundException"


# ---- subscriptions


def test_records_are_pushed_as_they_come(server):
    server.create().put(b"0")
    subscription = server.subscribe(server.register())
    event = server.pushed(subscription)
    assert data(event) == [b"0"]
    assert event["MillisBehindLatest"] == 0
    assert server.pushed(subscription) is None
    number = server.put(b"1")["SequenceNumber"]
    event = server.pushed(subscription)
    assert data(event) == [b"1"]
    assert int(event["ContinuationSequenceNumber"]) > int(number)
    assert int(event["ContinuationSequenceNumber"]) < int(server.put(b"2")["SequenceNumber"])


@pytest.mark.parametrize(("kind", "expected"), [("TRIM_HORIZON", [b"0", b"1", b"2"]), ("LATEST", [])])
def test_a_subscription_begins_where_it_says(server, kind, expected):
    server.create()
    server.put_many([(b"%d" % number, "k") for number in range(3)])
    assert drain(server, server.subscribe(server.register(), kind=kind)) == expected


def test_a_subscription_begins_at_a_number_or_a_time(server):
    server.create()
    numbers = [server.pass_time(1).put(b"%d" % number)["SequenceNumber"] for number in range(3)]
    arn = server.register()

    def begin(kind, **position):
        return drain(server, server.pass_time(5).subscribe(arn, kind=kind, **position))

    assert begin("AT_SEQUENCE_NUMBER", SequenceNumber=numbers[1]) == [b"1", b"2"]
    assert begin("AFTER_SEQUENCE_NUMBER", SequenceNumber=numbers[1]) == [b"2"]
    assert begin("AT_TIMESTAMP", Timestamp=server.now - 10) == [b"2"]
    request = {"ConsumerARN": arn, "ShardId": "shardId-000000000000"}
    server.pass_time(5)
    for position in ({"Type": "AT_SEQUENCE_NUMBER"}, {"Type": "LATEST", "SequenceNumber": "1"}):
        assert server.refused("SubscribeToShard", StartingPosition=position, **request) == "InvalidArgumentException"


def test_what_is_not_there_has_no_subscription(server):
    server.create()
    arn = server.register()
    start = {"StartingPosition": {"Type": "LATEST"}}
    unknown = {"ConsumerARN": arn, "ShardId": "shardId-000000000007"}
    assert server.refused("SubscribeToShard", **unknown, **start) == "ResourceNotFoundException"
    stranger = {"ConsumerARN": arn + "9", "ShardId": "shardId-000000000000"}
    assert server.refused("SubscribeToShard", **stranger, **start) == "ResourceNotFoundException"


def test_a_second_one_within_5_seconds_is_refused_and_a_later_one_takes_over(server):
    server.create(shards=2)
    arn = server.register()
    first = server.subscribe(arn)
    request = {"ConsumerARN": arn, "ShardId": "shardId-000000000000", "StartingPosition": {"Type": "LATEST"}}
    server.pass_time(4.999)
    assert server.refused("SubscribeToShard", **request) == "ResourceInUseException"
    server.subscribe(arn, 1)  # another shard
    server.subscribe(server.register("d"))  # another consumer
    assert not first.ended
    server.pass_time(0.001)
    second = server.subscribe(arn)
    assert first.ended
    assert server.pushed(first) is None
    assert not second.ended


def test_the_wait_counts_from_the_last_success_also_when_that_has_ended(server):
    server.create()
    arn = server.register()
    server.subscribe(arn).ended = True
    request = {"ConsumerARN": arn, "ShardId": "shardId-000000000000", "StartingPosition": {"Type": "LATEST"}}
    assert server.refused("SubscribeToShard", **request) == "ResourceInUseException"


def test_a_refused_request_ends_nothing_and_does_not_begin_the_wait(server):
    server.create()
    arn = server.register()
    first = server.subscribe(arn)
    server.pass_time(5)
    bad = {"ConsumerARN": arn, "ShardId": "shardId-000000000000", "StartingPosition": {"Type": "AT_TIMESTAMP"}}
    assert server.refused("SubscribeToShard", **bad) == "InvalidArgumentException"
    assert not first.ended
    server.subscribe(arn)


def test_a_dry_run_subscribes_to_nothing_and_ends_nothing(server):
    server.create()
    arn = server.register()
    request = {"ConsumerARN": arn, "ShardId": "shardId-000000000000", "StartingPosition": {"Type": "LATEST"}}
    for _ in range(3):
        assert server.refused("SubscribeToShard", **request, DryRun=True) == "DryRunOperationException"
    first = server.subscribe(arn)  # at once: the dry run did not start the wait
    assert server.refused("SubscribeToShard", **request, DryRun=True) == "ResourceInUseException"
    server.pass_time(5)
    assert server.refused("SubscribeToShard", **request, DryRun=True) == "DryRunOperationException"
    assert not first.ended
    unknown = request | {"ShardId": "shardId-000000000009"}
    assert server.refused("SubscribeToShard", **unknown, DryRun=True) == "ResourceNotFoundException"


def test_without_the_wait_one_call_a_second(make_server):
    server = make_server(limits=Limits(subscription_takeover_wait=None)).create()
    arn = server.register()
    server.subscribe(arn)
    request = {"ConsumerARN": arn, "ShardId": "shardId-000000000000", "StartingPosition": {"Type": "LATEST"}}
    assert server.refused("SubscribeToShard", **request) == "LimitExceededException"
    server.pass_time(1).subscribe(arn)
    server = make_server(limits=Limits(subscription_takeover_wait=None, subscribe_calls_per_second=None)).create()
    arn = server.register()
    assert server.subscribe(arn) is not server.subscribe(arn)


def test_it_ends_after_five_minutes(server):
    server.create()
    subscription = server.subscribe(server.register())
    server.pass_time(299.999)
    assert server.pushed(subscription)["Records"] == []
    assert not subscription.ended
    server.pass_time(0.001).put(b"x")
    assert server.pushed(subscription) is None
    assert subscription.ended


def test_it_ends_with_the_shard_and_names_the_children(server):
    server.create().put(b"0")
    subscription = server.subscribe(server.register())
    server.split()
    event = server.pushed(subscription)
    assert data(event) == [b"0"]
    assert "ContinuationSequenceNumber" not in event
    assert [child["ShardId"] for child in event["ChildShards"]] == ["shardId-000000000001", "shardId-000000000002"]
    assert subscription.ended
    assert server.pushed(subscription) is None


def test_it_ends_with_its_stream_or_consumer(server):
    server.create()
    arn, other = server.register(), server.register("d")
    gone, left = server.subscribe(arn), server.subscribe(other)
    server.call("DeregisterStreamConsumer", ConsumerARN=arn)
    assert server.pushed(gone) is None
    assert gone.ended
    assert server.pushed(left) is not None
    server.subscribe(server.register())  # a new consumer of that name, in the same second
    server.call("DeleteStream", StreamName="s", EnforceConsumerDeletion=True)
    server.pushed(left)
    assert left.ended


def test_two_mib_a_second(server, make_server):
    server = make_server(limits=Limits(write_bytes_per_second=None)).create()
    server.put_many([(bytes(MIB - 1), "k")] * 10)
    subscription = server.subscribe(server.register())
    pushed = len(drain(server, subscription))
    assert pushed == 3  # a full bucket of two, and one that borrows
    server.pass_time(0.499)
    assert server.pushed(subscription) is None
    server.pass_time(0.001)
    assert len(drain(server, subscription)) == 1
    for _ in range(4):
        server.pass_time(1)
        pushed += len(drain(server, subscription))
    assert pushed == 9
    unlimited = make_server().create()
    unlimited.put_many([(bytes(MIB - 1), "k")] * 10)
    assert len(drain(unlimited, unlimited.subscribe(unlimited.register()))) == 10


def test_while_behind_it_says_so(server):
    server.create()
    server.put_many([(bytes(MIB - 1), "k")] * 2)
    server.pass_time(7)
    assert server.pushed(server.subscribe(server.register()))["MillisBehindLatest"] == 7000


def test_an_idle_subscription_gets_an_empty_event_every_five_seconds(server):
    server.create()
    subscription = server.subscribe(server.register())
    first = server.pushed(subscription)
    assert first["Records"] == []
    assert server.pushed(subscription) is None
    server.pass_time(4.999)
    assert server.pushed(subscription) is None
    server.pass_time(0.001)
    again = server.pushed(subscription)
    assert again["Records"] == []
    assert int(again["ContinuationSequenceNumber"]) >= int(first["ContinuationSequenceNumber"])


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"])
def test_a_continuation_number_goes_on_exactly_there(server, kind):
    server.create()
    arn = server.register()
    found, number, position = [], 0, {"kind": "TRIM_HORIZON"}
    for step in range(30):
        subscription = server.subscribe(arn, **position)
        for _ in range(step % 3):
            server.put(b"%d" % number)
            number += 1
        event = server.pushed(subscription)
        found += data(event)
        server.put(b"between %d" % step)
        server.pass_time(5)
        position = {"kind": kind, "SequenceNumber": event["ContinuationSequenceNumber"]}
    found += drain(server, server.subscribe(arn, **position))
    assert found == server.read()
    assert len(found) == len(set(found)) == 60


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"])
def test_the_continuation_in_a_child_whose_numbers_begin_in_the_future_is_good(server, kind):
    server.create().split()
    arn = server.register()
    number = server.put(b"0", hash_key=0)["SequenceNumber"]
    continuation = server.pushed(server.subscribe(arn, shard=1))["ContinuationSequenceNumber"]
    assert int(continuation) > int(number)
    server.put(b"1", hash_key=0)
    server.pass_time(5)
    assert drain(server, server.subscribe(arn, shard=1, kind=kind, SequenceNumber=continuation)) == [b"1"]


def test_the_continuation_of_an_empty_or_trimmed_shard_is_good(server):
    server.create(shards=2)
    arn = server.register()
    for step in range(3):
        for shard in range(2):
            event = server.pushed(server.subscribe(arn, shard, kind="LATEST"))
            server.pass_time(5)
            resumed = server.subscribe(
                arn, shard, kind="AFTER_SEQUENCE_NUMBER", SequenceNumber=event["ContinuationSequenceNumber"]
            )
            server.put(b"%d" % step, hash_key=shard * (HASH_KEY_COUNT - 1))
            assert drain(server, resumed) == [b"%d" % step]
        server.pass_time(25 * 3600)


# ---- when a shell must poll


def test_due_at_says_when_the_next_push_is_due(server):
    server.create()
    subscription = server.subscribe(server.register())
    assert subscription.due_at <= server.now
    server.pushed(subscription)
    assert subscription.due_at == server.now + 5
    server.pass_time(4)
    assert server.pushed(subscription) is None
    server.pass_time(1)
    assert server.pushed(subscription) is not None
    server.pass_time(293)
    server.pushed(subscription)
    assert subscription.due_at == subscription.ends_at


def test_a_subscription_within_its_byte_rate_is_due_when_the_rate_allows(make_server):
    server = make_server(limits=Limits(write_bytes_per_second=None)).create()
    subscription = server.subscribe(server.register())
    for _ in range(3):
        server.put(bytes(1_000_000))
    for _ in range(3):
        assert len(server.pushed(subscription)["Records"]) == 1
    assert server.pushed(subscription) is None
    assert server.now < subscription.due_at < server.now + 1
    server.now = subscription.due_at
    assert server.pushed(subscription) is None  # the debt is paid; there is nothing more
    assert subscription.due_at > server.now + 3


def test_records_that_are_left_are_due_at_once(server):
    server.create()
    subscription = server.subscribe(server.register())
    for _ in range(3):
        server.put(bytes(900_000))
    for left in (True, True, False):
        assert len(server.pushed(subscription)["Records"]) == 1
        assert (subscription.due_at == server.now) is left


def touched_by(server, act):
    server.service.state.touched.clear()
    act()
    server.service.state.advance(server.now)
    return server.service.state.touched


@pytest.mark.parametrize("delay", [0.0, 3.0])
def test_whatever_concerns_a_subscription_touches_its_log(make_server, delay):
    server = make_server(delays=Delays(update=delay, deregister=delay, delete=delay)).create(shards=2).create("other")
    arn = server.register()
    one, two = server.subscribe(arn), server.subscribe(arn, 1)

    def put(hash_key, name="s"):
        return touched_by(server, lambda: server.put(b"x", hash_key=hash_key, name=name))

    assert put(0) == {one.log}
    assert put(HASH_KEY_COUNT - 1) == {two.log}
    assert put(0, "other") == set()
    assert touched_by(server, lambda: server.pass_time(6).subscribe(arn)) == {one.log}  # a new one takes its place
    assert one.ended

    def later(act):
        return touched_by(server, lambda: (act(), server.pass_time(delay)))

    assert later(lambda: server.split(0, HASH_KEY_COUNT // 4)) == {one.log, two.log}
    assert later(lambda: server.call("DeregisterStreamConsumer", ConsumerARN=arn)) == {one.log, two.log}
    assert later(lambda: server.call("DeleteStream", StreamName="other")) == set()
    assert later(lambda: server.call("DeleteStream", StreamName="s", EnforceConsumerDeletion=True)) >= {two.log}


def test_the_state_says_when_it_must_be_advanced(make_server):
    server = make_server(delays=Delays(update=3.0)).create(shards=2)
    server.service.state.advance(server.now)
    assert server.service.state.due_at > server.now
    server.split(0, HASH_KEY_COUNT // 4)
    server.service.state.advance(server.now)
    assert server.service.state.due_at == server.now + 3
    server.service.use_faults(Faults(Random(1), lambda: server.now))
    server.service.state.faults.reshard_at(delay=1, stream="s", action="split", shard=1)
    assert server.service.state.due_at == server.now + 1
    server.pass_time(1)
    server.service.state.advance(
        server.now
    )  # the stream is UPDATING: the reshard waits for that, and is not due before
    assert server.service.state.due_at == server.now + 2
