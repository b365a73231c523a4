"""Tests of ``server.storage``."""

import contextlib
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from random import Random

import pytest

from shardline.errors import UsageError
from shardline.model.hashing import HASH_KEY_COUNT
from shardline.server.model.settings import Delays, Limits, ServiceSettings
from shardline.server.storage import APPLICATION_ID, SCHEMA_VERSION, Storage

from .conftest import BEGIN, POLICY, Server

HOUR = 3600.0
DATA = Path(__file__).parent / "data"


class Life:
    """A server with a data file, which can be ended and started again."""

    def __init__(self, path, **settings):
        self.path = path
        self.settings = ServiceSettings(**({"limits": Limits.without_rates()} | settings))
        self.seed = 0
        self.storage = None
        self.server = None

    def begin(self, now=BEGIN):
        self.seed += 1
        self.storage = Storage.open(self.path, self.settings, Random(self.seed), now)
        self.server = Kept(self.storage, now)
        return self.server

    def again(self):
        self.storage.close()
        return self.begin(self.server.now)


class Kept(Server):
    """Persists after every request, as the endpoint does."""

    def __init__(self, storage, now):
        super().__init__(storage.service, now)
        self.storage = storage

    def answer(self, operation, **members):
        answer = super().answer(operation, **members)
        self.storage.keep()
        return answer


@pytest.fixture
def life(tmp_path):
    made = []

    def make(**settings):
        made.append(Life(tmp_path / "data.db", **settings))
        return made[-1]

    yield make
    for one in made:
        if one.storage is not None:
            one.storage.close()


def told(server, name="s"):
    """Return everything that is visible of a stream."""
    description = server.call("DescribeStream", StreamName=name)
    records = [server.page(server.iterator(one["ShardId"], name=name)) for one in server.shards(name)]
    for page in records:
        page.pop("NextShardIterator", None)
    consumers = server.call("ListStreamConsumers", StreamARN=server.arn(name))
    tags = server.call("ListTagsForStream", StreamName=name)
    return description, server.summary(name), records, consumers, tags


def test_everything_comes_back_unchanged(life):
    one = life()
    server = one.begin()
    server.create(shards=3, Tags={"a": "1"})
    server.put_many([(b"%d" % number, str(number)) for number in range(100)])
    server.pass_time(5.25)
    server.split(0, at=1000)
    server.merge(1, 2)
    server.call("StartStreamEncryption", StreamName="s", EncryptionType="KMS", KeyId="key")
    server.put_many([(os.urandom(50), f"\u00e9{number}") for number in range(100)])
    server.call("EnableEnhancedMonitoring", StreamName="s", ShardLevelMetrics=["ALL"])
    server.call("IncreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=48)
    server.call("UpdateMaxRecordSize", StreamARN=server.arn(), MaxRecordSizeInKiB=2048)
    arn = server.register()
    server.call("TagResource", ResourceARN=arn, Tags={"b": "2"})
    server.call(
        "CreateStream", StreamName="d", StreamModeDetails={"StreamMode": "ON_DEMAND"}, RecordDistributionStrategy="AUTO"
    )
    server.call("PutRecords", StreamName="d", Records=[{"Data": b"keyless"}] * 10)
    before = told(server), told(server, "d"), server.call("ListStreams"), server.call("DescribeLimits")
    server = one.again()
    assert (told(server), told(server, "d"), server.call("ListStreams"), server.call("DescribeLimits")) == before
    assert server.call("ListTagsForResource", ResourceARN=arn)["Tags"] == [{"Key": "b", "Value": "2"}]


def test_numbers_and_routing_go_on(life):
    one = life()
    server = one.begin()
    server.create(shards=2)
    server.split(0, at=1000)
    before = [server.put(b"x", hash_key=edge) for edge in (0, 1000, HASH_KEY_COUNT - 1)]
    server = one.again()
    after = [server.put(b"y", hash_key=edge) for edge in (0, 1000, HASH_KEY_COUNT - 1)]
    assert [entry["ShardId"] for entry in before] == [entry["ShardId"] for entry in after]
    assert all(int(old["SequenceNumber"]) < int(new["SequenceNumber"]) for old, new in zip(before, after, strict=True))
    for shard in (1, 2, 3):
        assert server.read(shard) == [b"x", b"y"]
    server.split(1, at=HASH_KEY_COUNT - 1000)
    assert server.ids() == [0, 1, 2, 3, 4, 5]
    (child, _) = server.page(server.iterator(1))["ChildShards"]
    assert child["ParentShards"] == ["shardId-000000000001"]
    assert len(server.page(server.iterator(0))["ChildShards"]) == 2


def test_iterators_and_tokens_stay_good(life):
    one = life()
    server = one.begin()
    server.create(shards=2)
    server.put_many([(b"%d" % number, "k") for number in range(10)])
    shard = server.put(b"10")["ShardId"]
    iterator = server.page(server.iterator(shard), Limit=4)["NextShardIterator"]
    token = server.call("ListShards", StreamName="s", MaxResults=1)["NextToken"]
    server = one.again()
    found = [record["Data"] for record in server.page(iterator)["Records"]]
    assert found == [b"%d" % number for number in range(4, 11)]
    assert len(server.call("ListShards", NextToken=token)["Shards"]) == 1


def test_a_pending_change_is_carried_out_after_the_restart_at_its_time(life):
    one = life(delays=Delays(create=5, update=10, delete=10, register=10))
    server = one.begin()
    server.create(shards=1)
    server = one.again()
    assert server.status() == "CREATING"
    server.pass_time(5)
    split = HASH_KEY_COUNT // 3
    server.split(at=split)
    arn = server.register()
    server = one.again()
    assert server.status() == "UPDATING"
    assert server.put(b"old", hash_key=0)["ShardId"] == "shardId-000000000000"
    server.pass_time(10)
    server = one.again()
    assert server.status() == "ACTIVE"
    assert [shard["HashKeyRange"]["StartingHashKey"] for shard in server.shards()] == ["0", "0", str(split)]
    assert server.call("DescribeStreamConsumer", ConsumerARN=arn)["ConsumerDescription"]["ConsumerStatus"] == "ACTIVE"
    server.call("DeleteStream", StreamName="s", EnforceConsumerDeletion=True)
    server = one.again()
    assert server.status() == "DELETING"
    server.pass_time(10)
    server = one.again()
    assert server.call("ListStreams")["StreamNames"] == []
    assert one.storage._database.execute("SELECT count(*) FROM batch").fetchone() == (0,)


def test_a_stream_recreated_under_its_name_has_nothing_of_the_old_one(life):
    one = life()
    server = one.begin()
    server.create(shards=2).put(b"old")
    server.call("DeleteStream", StreamName="s")
    server.create(shards=1).put(b"new")
    server = one.again()
    assert server.ids() == [0]
    assert server.read() == [b"new"]


def test_a_deregistered_consumer_stays_away(life):
    one = life()
    server = one.begin()
    server.create()
    arn = server.register()
    server.register("d")
    server.call("DeregisterStreamConsumer", ConsumerARN=arn)
    server = one.again()
    assert [one["ConsumerName"] for one in server.call("ListStreamConsumers", StreamARN=server.arn())["Consumers"]] == [
        "d"
    ]


def test_trimmed_records_leave_the_file_and_numbers_go_on(life):
    one = life()
    server = one.begin()
    server.create()
    numbers = [int(server.put(b"%d" % number)["SequenceNumber"]) for number in range(5)]
    server.pass_time(12 * HOUR).put(b"later")
    server.pass_time(12 * HOUR + 61)
    assert server.read() == [b"later"]
    count = "SELECT count(*) FROM batch"
    assert one.storage._database.execute(count).fetchone() == (1,)
    server = one.again()
    assert server.read() == [b"later"]
    server.pass_time(24 * HOUR)
    assert server.read() == []
    assert one.storage._database.execute(count).fetchone() == (0,)
    server = one.again()
    assert int(server.put(b"new")["SequenceNumber"]) >> 80 == (numbers[0] >> 80) + 6
    server = one.again()
    assert server.read() == [b"new"]


def test_what_was_trimmed_for_a_shorter_retention_stays_trimmed(life):
    one = life()
    server = one.begin()
    server.create()
    server.call("IncreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=48)
    server.put(b"old")
    server.pass_time(30 * HOUR).put(b"new")
    server.call("DecreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=24)
    server.call("IncreaseStreamRetentionPeriod", StreamName="s", RetentionPeriodHours=48)
    server = one.again()
    assert server.read() == [b"new"]


def test_a_clock_that_was_set_back_changes_no_order(life):
    one = life()
    server = one.begin()
    server.create().put(b"0")
    server.pass_time(100).put(b"1")
    one.storage.close()
    server = one.begin(BEGIN)
    server.put(b"2")
    times = [record["ApproximateArrivalTimestamp"] for record in server.page(server.iterator())["Records"]]
    assert times == [BEGIN, BEGIN + 100, BEGIN + 100]


def test_where_nothing_changed_nothing_is_written(life):
    one = life()
    server = one.begin()
    server.create().put(b"x")
    changes = one.storage._database.total_changes
    server.read()
    server.summary()
    assert one.storage._database.total_changes == changes


def test_what_could_not_be_written_goes_with_the_next(life):
    one = life()
    server = one.begin()
    server.create()
    database = one.storage._database
    database.execute("PRAGMA query_only = ON")
    for step in range(3):
        with pytest.raises(sqlite3.OperationalError):
            server.put(b"%d" % step)
    with pytest.raises(sqlite3.OperationalError):
        server.create("t")
    database.execute("PRAGMA query_only = OFF")
    server.put(b"3")
    server = one.again()
    assert server.read() == [b"0", b"1", b"2", b"3"]
    assert server.call("ListStreams")["StreamNames"] == ["s", "t"]
    server.put(b"4", name="t")
    assert one.again().read(name="t") == [b"4"]


# ---- refusals


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\0" + b"\xff" * 200, b"x" * 5000])
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path, content):
    path = tmp_path / "data.db"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"data\.db"):
        Life(path).begin()
    assert path.read_bytes() == content


def test_the_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "data.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mine (x)")
    content = path.read_bytes()
    with pytest.raises(UsageError, match="another application"):
        Life(path).begin()
    assert path.read_bytes() == content


def test_a_later_version_is_refused(life):
    one = life()
    one.begin()
    one.storage.close()
    with contextlib.closing(sqlite3.connect(one.path)) as database:
        assert database.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(UsageError, match="later version"):
        one.begin()


def test_a_file_of_schema_1_keeps_the_numbers_of_its_shards(life):
    """The version with schema 1 wrote the file, and the JSON beside it has that version's answers."""
    one = life()
    then = json.loads((DATA / "schema_1.json").read_text())
    with contextlib.closing(sqlite3.connect(one.path)) as database:
        database.executescript((DATA / "schema_1.sql").read_text())
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute("PRAGMA user_version = 1")
    server = one.begin(BEGIN + 10)
    for _ in range(2):
        for shard_id, number, data in then["put"]:
            iterator = server.iterator(shard_id, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=number)
            record = server.page(iterator)["Records"][0]
            assert (record["SequenceNumber"], record["Data"]) == (number, data.encode())
        ranges = {shard["ShardId"]: shard["SequenceNumberRange"] for shard in server.shards()}
        assert then["shards"] == [
            [shard_id, numbers["StartingSequenceNumber"], numbers.get("EndingSequenceNumber")]
            for shard_id, numbers in ranges.items()
        ]
        server = one.again()
    assert server.call("ListTagsForStream", StreamName="s")["Tags"] == [{"Key": "team", "Value": "a"}]
    # shards that are created now have the current layout, and follow the older ones
    server.call("SplitShard", StreamName="s", ShardToSplit="shardId-000000000005", NewStartingHashKey=str(2**128 - 9))
    put = server.put(b"g", hash_key=2**128 - 1)
    assert int(put["SequenceNumber"]) > max(int(number) for _, number, _ in then["put"])
    assert f"{int(put['SequenceNumber']):x}"[10] == "7"
    assert one.again().read(7) == [b"g"]
    one.storage.close()
    with contextlib.closing(sqlite3.connect(one.path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_what_was_changed_today_is_known_after_a_restart(life):
    one = life(limits=Limits())
    server = one.begin()
    server.create()
    for mode in ("ON_DEMAND", "PROVISIONED"):
        server.call("UpdateStreamMode", StreamARN=server.arn(), StreamModeDetails={"StreamMode": mode})
    server = one.again()
    details = {"StreamARN": server.arn(), "StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
    assert server.refused("UpdateStreamMode", **details) == "LimitExceededException"


def test_a_stream_keeps_its_second_of_creation_and_its_start_numbers(life):
    one = life(delays=Delays(create=5))
    server = one.begin()
    server.create().pass_time(5)
    server.call("DeleteStream", StreamName="s")
    server.create()  # in the second in which another stream was deleted
    before = server.summary()["StreamCreationTimestamp"], server.service.state.streams["s"].numbers_begin
    server = one.again()
    assert (server.summary()["StreamCreationTimestamp"], server.service.state.streams["s"].numbers_begin) == before
    server.pass_time(5)
    assert server.service.state.advance(server.now)
    assert server.service.state.streams["s"].last_began == before[1]


def test_another_account_is_refused(life):
    one = life()
    one.begin()
    one.storage.close()
    one.settings = ServiceSettings(account_id="123456789012")
    with pytest.raises(UsageError, match="000000000000 us-east-1"):
        one.begin()


def test_a_damaged_stream_is_reported(life):
    one = life()
    one.begin().create().put(b"0")
    one.server.put(b"1")
    one.server.put(b"2")
    one.storage.close()
    with contextlib.closing(sqlite3.connect(one.path)) as database:
        database.execute("DELETE FROM batch WHERE first = 2")
        database.commit()
    with pytest.raises(UsageError, match="damaged: records are missing"):
        one.begin()
    with contextlib.closing(sqlite3.connect(one.path)) as database:
        database.execute("UPDATE stream SET description = '{}'")
        database.commit()
    with pytest.raises(UsageError, match="damaged"):
        one.begin()


def test_a_damaged_page_is_reported(life):
    one = life()
    server = one.begin()
    server.create()
    for number in range(200):
        server.put(b"%d" % number * 100)
    one.storage.close()
    content = bytearray(one.path.read_bytes())
    content[5 * 4096 :] = b"\xff" * (len(content) - 5 * 4096)
    one.path.write_bytes(content)
    with pytest.raises(UsageError, match="damaged"):
        one.begin()


def test_records_of_a_stream_that_went_before_they_were_written_are_not(life):
    one = life()
    server = one.begin()
    server.create()
    plain = Server(server.service, server.now)
    plain.put(b"old")
    plain.call("DeleteStream", StreamName="s")
    plain.create().put(b"new")
    server = one.again()
    assert server.read() == [b"new"]


def test_rows_of_a_shard_that_has_vanished_are_passed_over(life):
    one = life()
    server = one.begin()
    server.create().put(b"x")
    server.pass_time(1)
    server.split()
    server.pass_time(24 * HOUR + 0.5).call("AddTagsToStream", StreamName="s", Tags={"a": "b"})
    server.pass_time(1).call("AddTagsToStream", StreamName="s", Tags={"a": "c"})
    assert server.ids() == [1, 2]
    server = one.again()
    assert server.ids() == [1, 2]
    assert server.read(1) == []


def test_a_path_that_cannot_be_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "no" / "such" / "data.db"):
        with pytest.raises(UsageError, match="cannot be opened"):
            Life(path).begin()


def test_a_second_server_is_refused_until_the_first_has_ended(life):
    one = life()
    one.begin().create().put(b"x")
    with pytest.raises(UsageError, match="in use"):
        Life(one.path).begin()
    code = "import sys; from tests_life import open_it; open_it(sys.argv[1])"
    assert "in use" in run_child(code, one.path)
    one.server.put(b"y")
    one.storage.close()
    assert run_child(code, one.path) == ""
    assert one.begin().read() == [b"x", b"y"]


def test_closing_twice_is_harmless(life):
    one = life()
    one.begin().create()
    one.storage.close()
    one.storage.close()
    assert "s" in life().begin().service.state.streams


def test_an_empty_file_is_a_new_one(tmp_path):
    path = tmp_path / "data.db"
    path.touch()
    one = Life(path)
    one.begin().create()
    assert one.again().ids() == [0]
    one.storage.close()


# ---- a killed process

CHILD = textwrap.dedent(
    """
    import sys, time
    from random import Random
    from shardline.errors import UsageError
    from shardline.server.model.settings import Limits, ServiceSettings
    from shardline.server.storage import Storage

    SETTINGS = ServiceSettings(limits=Limits.without_rates())

    def open_it(path, now=0.0):
        try:
            return Storage.open(path, SETTINGS, Random(0), now)
        except UsageError as error:
            sys.exit(str(error))

    def load(path, life):
        storage = open_it(path, time.time())
        service = storage.service
        def call(operation, **members):
            answer = service.handle(operation, members, time.time())
            assert answer.refusal is None, answer.refusal.message
            storage.keep()
            return answer.body
        if not service.state.streams:
            call("CreateStream", StreamName="s", ShardCount=3)
        number = 0
        while True:
            records = [{"Data": b"%d-%d" % (life, number + one), "PartitionKey": str(number + one)} for one in range(20)]
            number += 20
            body = call("PutRecords", StreamName="s", Records=records)
            print(*(f"{entry['Data'].decode()},{one.shard_id},{one.sequence_number}"
                    for entry, one in zip(records, body.records)), flush=True)
            if number % 1000 == 0:
                stream = service.state.streams["s"]
                shard = max(stream.open_shards, key=lambda one: one.hash_range.end - one.hash_range.start)
                at = (shard.hash_range.start + shard.hash_range.end) // 2
                call("SplitShard", StreamName="s", ShardToSplit=shard.shard_id, NewStartingHashKey=str(at))
    """
)


def start_child(code, *arguments):
    program = "import sys, types\nmodule = types.ModuleType('tests_life')\nsys.modules['tests_life'] = module\n"
    program += f"exec(compile({CHILD!r}, 'tests_life', 'exec'), module.__dict__)\n{code}"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run_child(code, *arguments):
    """Run a child, and return its errors."""
    child = start_child(code, *arguments)
    return child.communicate(timeout=30)[1].decode().strip()


def run_until_killed(path, life, seconds):
    """Run a child until it is killed, and return what it acknowledged."""
    child = start_child("import sys; from tests_life import load; load(sys.argv[1], int(sys.argv[2]))", path, life)
    acknowledged = b""
    try:
        assert select.select([child.stdout], [], [], 30)[0], "the child does not begin"
        time.sleep(seconds)
        os.set_blocking(child.stdout.fileno(), False)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            acknowledged += child.stdout.read() or b""
    finally:
        child.send_signal(signal.SIGKILL)
        os.set_blocking(child.stdout.fileno(), True)
        out, err = child.communicate(timeout=30)
    assert err == b""
    assert child.returncode == -signal.SIGKILL
    whole = (acknowledged + out).rpartition(b"\n")[0]
    return [entry.split(",") for entry in whole.decode().split()]


def test_what_was_acknowledged_survives_kill_9(tmp_path):
    path, rng = tmp_path / "data.db", Random(7)
    acknowledged = []
    for life in range(5):
        acknowledged += run_until_killed(path, life, rng.uniform(0.1, 0.35))
    assert len(acknowledged) > 1000
    storage = Storage.open(path, ServiceSettings(limits=Limits.without_rates()), Random(0), time.time())
    try:
        stream = storage.service.state.streams["s"]
        found = {
            record.sequence_number: (record.data.decode(), shard.shard_id)
            for shard in stream.shards.values()
            for record in shard.log.records
        }
        count = sum(len(shard.log.records) for shard in stream.shards.values())
        assert len(found) == count  # no number twice
        lost = [entry for entry in acknowledged if found.get(entry[2]) != (entry[0], entry[1])]
        assert lost == []
        assert len({entry[2] for entry in acknowledged}) == len(acknowledged)
        assert len({data for data, _ in found.values()}) == count  # no record twice
        for shard in stream.shards.values():
            numbers = [int(record.sequence_number) for record in shard.log.records]
            assert numbers == sorted(numbers)
            order = [tuple(map(int, record.data.decode().split("-"))) for record in shard.log.records]
            assert order == sorted(order)
        assert len(stream.shards) > 5  # it was resharded in between
    finally:
        storage.close()


def test_what_is_written_is_small(life):
    one = life()
    server = one.begin()
    server.create(shards=8)
    for _ in range(20):
        server.put_many([(bytes(200), str(number)) for number in range(500)])
    one.storage.close()
    assert one.path.stat().st_size / 10_000 < 300


# ---- channels, policies and the account


def told_of_the_account(server):
    answers = [server.call(operation) for operation in ("DescribeAccountSettings", "ListChannels", "DescribeLimits")]
    arns = [server.arn("d"), server.arn("d") + f"/consumer/c:{int(BEGIN)}"]
    answers += [server.call("GetResourcePolicy", ResourceARN=arn) for arn in arns]
    channel = server.channel()
    return [
        *answers,
        channel,
        server.call("ListTagsForResource", ResourceARN=channel["ChannelARN"]),
        server.summary("d"),
    ]


def test_channels_policies_warm_throughput_and_the_commitment_come_back(life):
    one = life(delays=Delays(update=10))
    server = one.begin()
    server.set_commitment()
    server.create_on_demand("d").register("c", "d")
    server.create_channel("c", "d", Tags={"a": "b"})
    for arn in (server.arn("d"), server.arn("d") + f"/consumer/c:{int(BEGIN)}"):
        server.call("PutResourcePolicy", ResourceARN=arn, Policy=POLICY)
    server.call("UpdateStreamWarmThroughput", StreamName="d", WarmThroughputMiBps=64)
    server.set_commitment("DISABLED")
    channel = server.channel()["ChannelARN"]
    update = {"ChannelARN": channel, "S3DestinationConfiguration": {"DataFreshnessInSeconds": 600}}
    server.call("UpdateChannel", **update)
    before = told_of_the_account(server)
    server = one.again()
    assert told_of_the_account(server) == before
    assert (server.status("d"), server.channel()["ChannelStatus"]) == ("UPDATING", "UPDATING")
    server.pass_time(10)
    assert server.summary("d")["WarmThroughput"] == {"CurrentMiBps": 64, "TargetMiBps": 64}
    assert server.channel()["ChannelStatus"] == "ACTIVE"
    server = one.again()
    server.pass_time(86_400)
    account = server.call("DescribeAccountSettings")["MinimumThroughputBillingCommitment"]
    assert account == {"Status": "DISABLED", "StartedAt": BEGIN, "EndedAt": BEGIN + 86_400}
    server.call("DeleteChannel", ChannelARN=channel)
    server.call("DeleteResourcePolicy", ResourceARN=server.arn("d"))
    server = one.again()
    assert server.call("ListChannels") == {"ChannelSummaries": []}
    assert server.call("GetResourcePolicy", ResourceARN=server.arn("d")) == {"Policy": "{}"}


def test_a_commitment_that_could_not_be_written_goes_with_the_next(life):
    one = life()
    server = one.begin()
    one.storage._database.execute("PRAGMA query_only = ON")
    with pytest.raises(sqlite3.OperationalError):
        server.set_commitment()
    one.storage._database.execute("PRAGMA query_only = OFF")
    server.create()
    assert one.again().call("DescribeAccountSettings")["MinimumThroughputBillingCommitment"]["Status"] == "ENABLED"


def test_a_file_of_an_earlier_version_has_no_channels_and_no_policies(life):
    one = life()
    server = one.begin().create()
    server.register()
    database = one.storage._database
    (text,) = database.execute("SELECT description FROM stream").fetchone()
    description = json.loads(text)
    for member in ("channels", "policy"):
        del description[member]
    for consumer in description["consumers"]:
        del consumer["policy"]
    database.execute("UPDATE stream SET description = ?", (json.dumps(description).encode(),))
    database.execute("DELETE FROM setting WHERE name = 'commitment'")
    server = one.again()
    assert server.summary()["ChannelCount"] == 0
    assert server.call("GetResourcePolicy", ResourceARN=server.arn()) == {"Policy": "{}"}
    assert server.set_commitment()["Status"] == "ENABLED"


def test_a_damaged_commitment_is_reported(life):
    one = life()
    one.begin()
    one.storage._database.execute("UPDATE setting SET value = X'5B5D' WHERE name = 'commitment'")
    one.storage.close()
    with pytest.raises(UsageError, match="is damaged"):
        one.begin()
