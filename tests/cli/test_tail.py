"""Does ``shardline tail`` print the records of a stream, follow new ones, and end properly?

The tests run the real command in a separate process.
"""

import base64
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import anyio
import pytest

from shardline import Producer, ProducerConfig, aggregate

OLDEST = ("--from", "TRIM_HORIZON")
ALL = (*OLDEST, "--until", "latest")


@pytest.fixture
def put(kinesis):
    """Puts records of one key, without aggregation by default."""

    def put_all(*data, key="k", aggregation=False):
        async def main():
            config = ProducerConfig(linger=0, aggregation=aggregation, ordered=True)
            async with kinesis.client() as client, Producer("orders", client=client, config=config) as producer:
                await producer.put_many([(key, one) for one in data])

        anyio.run(main)

    return put_all


@pytest.fixture
def ask(kinesis):
    """Call something with a client."""

    def work(call, *arguments, **settings):
        async def main():
            async with kinesis.client() as client:
                return await getattr(client, call)(*arguments, **settings)

        return anyio.run(main)

    return work


@pytest.fixture
def following(shardline, kinesis, eventually):
    """Start the command. Return when it reads every shard."""

    def start(*arguments, shards=2, **settings):
        asked = kinesis.requests.count("GetRecords")
        running = shardline.start("tail", "orders", *arguments, **settings)
        eventually(lambda: kinesis.requests.count("GetRecords") >= asked + shards)
        return running

    return start


# ---- output


def test_everything_there_is_in_order(shardline, put):
    put(*[b"%d" % number for number in range(3000)])
    ended = shardline("tail", "orders", *ALL)
    assert ended.stdout == b"".join(b"%d\n" % number for number in range(3000))
    assert ended.stderr == ""


def test_hostile_data_comes_out_byte_for_byte(shardline, put):
    hostile = [b"", b"\x00\xff\n\r\x1b[31m", "🗝".encode(), b"x" * 1_000_000]
    put(*hostile)
    assert shardline("tail", "orders", *ALL, "-d", "").stdout == b"".join(hostile)
    printed = shardline("tail", "orders", *ALL, "--format", "base64").stdout
    assert [base64.b64decode(line) for line in printed.split(b"\n")[:-1]] == hostile
    records = [json.loads(line) for line in shardline("tail", "orders", *ALL, "--output", "json").lines]
    assert [one.get("data", "").encode() or base64.b64decode(one.get("data_base64", "")) for one in records] == hostile
    assert {one["key"] for one in records} == {"k"}


def test_on_a_terminal_nothing_of_it_acts(on_terminal, put):
    put(b"red \x1b[31m \xff \x07", b"plain")
    shown, code = on_terminal("tail", "orders", *ALL)
    assert code == 0
    first, second, summary = shown.splitlines()
    assert (first, second) == (r"red \x1b[31m \xff \x07", "plain")
    assert re.fullmatch(r"2 records, 18 B, [\d.]+ s", summary)


def test_a_template_and_its_shortcuts(shardline, put, kinesis):
    put(b"one", b"two", key="Schlüssel")
    record = kinesis.streams["orders"].records[0]
    form = r"{shard}\t{sequence}.{sub_sequence} {key:>10} {size:03} {data}{{}} {stream} {base64}"
    first, _ = shardline("tail", "orders", *ALL, "--format", form).lines
    assert first == f"{record.shard_id}\t{record.sequence_number}.0  Schlüssel 003 one{{}} orders b25l"
    first, _ = shardline("tail", "orders", *ALL, "-k", "-t").lines
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\tSchlüssel\tone", first)


def test_aggregates_are_opened_or_not(shardline, ask, put):
    put(b"1", b"2", b"3", aggregation=True)
    records = [json.loads(line) for line in shardline("tail", "orders", *ALL, "--output", "json").lines]
    assert [(one["data"], one["sub_sequence"]) for one in records] == [("1", 0), ("2", 1), ("3", 2)]
    (entry,) = shardline("tail", "orders", *ALL, "--no-deaggregate", "--format", "base64").lines
    assert base64.b64decode(entry) == aggregate([("k", b"1"), ("k", b"2"), ("k", b"3")])


def test_keys_are_picked(shardline, put):
    put(b"1", b"2", key="a")
    put(b"3", key="b")
    put(b"4", key="c")
    assert sorted(shardline("tail", "orders", *ALL, "--key", "a", "--key", "c").lines) == ["1", "2", "4"]


# ---- start and end positions


def test_a_number_of_records_and_no_more(shardline, put):
    put(*[b"%d" % number for number in range(100)])
    assert shardline("tail", "orders", *OLDEST, "-n", "3").lines == ["0", "1", "2"]


def test_one_shard_from_a_sequence_number(shardline, put, kinesis):
    put(*[b"%d" % number for number in range(10)])
    record = kinesis.streams["orders"].records[7]
    number = int(record.shard_id[-3:])
    ended = shardline("tail", "orders", "--shard", number, "--from", record.sequence_number, "--until", "latest")
    assert ended.lines == ["7", "8", "9"]
    assert shardline("tail", "orders", "--shard", 1 - number, *ALL).lines == []
    both = shardline("tail", "orders", "--shard", "0", "--shard", "shardId-000000000001", *ALL)
    assert len(both.lines) == 10


def test_times(shardline, put, kinesis):
    put(b"old")
    time.sleep(2.5)
    put(b"new")
    old, new = (
        record.arrived_at for record in sorted(kinesis.streams["orders"].records, key=lambda one: one.arrived_at)
    )
    between = (old + new) / 2
    assert shardline("tail", "orders", "--from", f"{between:.3f}", "--until", "latest").lines == ["new"]
    assert shardline("tail", "orders", *OLDEST, "--until", f"{between:.3f}").lines == ["old"]
    assert shardline("tail", "orders", "--from", "1h", "--until", "latest").lines == ["old", "new"]
    assert shardline("tail", "orders", *OLDEST, "--until", "1h").lines == []


def test_a_time_ahead(following, put):
    running = following("--until", "+15s")
    put(b"x")
    ended = running.wait()
    assert (ended.code, ended.stdout) == (0, b"x\n")


def test_what_cannot_be_read(shardline):
    for arguments, said in [
        (["--from", "yesterday"], "--from: neither TRIM_HORIZON, LATEST, a time"),
        (["--from", "9" * 56], "--from with a sequence number needs one --shard"),
        (["--until", "never"], "--until: neither a time"),
        (["--format", "{nothing}"], "--format: a template's fields are data, base64, key"),
        (["--format", "xml"], "--format: a format is raw, json, base64, or a template"),
        (["--shard", "7"], "the stream orders has no shard shardId-000000000007"),
    ]:
        ended = shardline("tail", "orders", *arguments, code=2)
        assert ended.stderr.startswith(f"Error: {said}")
        assert ended.stdout == b""


# ---- following


def test_latest_shows_what_comes_and_nothing_that_was_there(following, put, kinesis):
    put(b"old")
    running = following("-n", "2")
    put(b"new")
    assert running.process.stdout.readline() == b"new\n", "it waits in no buffer"
    put(b"newer")
    assert running.wait().stdout == b"newer\n"
    assert kinesis.requests.count("RegisterStreamConsumer") == 0


def test_a_reshard_is_followed_in_order(following, put, ask):
    running = following("-n", "5")
    put(b"0")
    ask("split_shard", "orders", "shardId-000000000000", wait=True)
    ask("split_shard", "orders", "shardId-000000000001", wait=True)
    put(b"1", b"2")
    ask("merge_shards", "orders", "shardId-000000000003", "shardId-000000000004", wait=True)
    ask("update_shard_count", "orders", 2, wait=True)
    put(b"3", b"4")
    ended = running.wait()
    assert ended.stdout.split() == [b"0", b"1", b"2", b"3", b"4"]


def test_the_past_of_a_stream_that_was_resharded(shardline, put, ask):
    put(b"0", b"1")
    ask("update_shard_count", "orders", 4, wait=True)
    put(b"2", b"3")
    ask("update_shard_count", "orders", 2, wait=True)
    put(b"4")
    assert shardline("tail", "orders", *ALL).lines == ["0", "1", "2", "3", "4"]
    assert shardline("tail", "orders", "--from", "1h", "--until", "latest").lines == ["0", "1", "2", "3", "4"]


def test_throttling_and_failures_that_pass_are_waited_out(shardline, put, kinesis):
    put(b"1", b"2")
    kinesis.faults.throttle(operation="GetRecords", count=2)
    kinesis.faults.reset("before", operation="GetShardIterator", count=1)
    kinesis.faults.expired_iterator(operation="GetRecords", after=2, count=1)
    assert shardline("tail", "orders", *ALL).lines == ["1", "2"]


def test_a_server_that_dies_is_reported_after_a_while(following, put, kinesis):
    running = following("--give-up-after", "1s")
    kinesis.stop()
    ended = running.wait()
    assert ended.code == 1
    assert re.fullmatch(r"Error: GetRecords: no connection to 127\.0\.0\.1:\d+ .*\n", ended.stderr)


def test_a_stream_that_is_deleted_ends_it(following, ask):
    running = following()
    ask("delete_stream", "orders", wait=True)
    ended = running.wait()
    assert ended.code == 1
    assert "stream orders under account" in ended.stderr.lower()
    # AWS has one sentence for GetShardIterator, and one for all other calls.
    assert "does not exist" in ended.stderr or "not found" in ended.stderr


@pytest.mark.parametrize("options", [["-f"], ["--follow"], []])
def test_it_follows_with_and_without_f(shardline, put, kinesis, options):
    put(b"before")
    running = shardline.start("tail", *options, "orders", *OLDEST)
    assert running.process.stdout.readline() == b"before\n"
    put(b"later")
    assert running.process.stdout.readline() == b"later\n"
    running.interrupt()
    assert running.wait().code == 0


def test_what_ends_the_reading_does_not_go_with_f(shardline):
    assert "-f cannot be combined with --until" in shardline("tail", "-f", "orders", "--until", "latest", code=2).stderr
    assert "-f cannot be combined with -n" in shardline("tail", "-fn", "10", "orders", code=2).stderr


def test_the_format_has_a_letter_of_its_own(shardline, put):
    put(b"x")
    assert shardline("tail", "orders", *OLDEST, "-n", "1", "-p", "<{data}>").stdout == b"<x>\n"


# ---- the end


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_order(following, number, code):
    running = following()
    began_at = time.monotonic()
    running.interrupt(number)
    ended = running.wait()
    assert (ended.code, ended.stdout, ended.stderr) == (code, b"", "")
    assert time.monotonic() - began_at < 30


def test_ctrl_c_ends_it_while_its_output_is_not_read(following, put, shardline, kinesis, eventually):
    put(*[b"x" * 900_000] * 3)
    read_end, write_end = os.pipe()
    running = shardline.start("tail", "orders", *OLDEST, stdout=write_end)
    os.close(write_end)
    eventually(lambda: kinesis.requests.count("GetRecords") >= 2)
    time.sleep(0.5)  # the pipe is full
    running.interrupt()
    assert running.process.wait(30) == 0
    os.close(read_end)


def test_the_end_of_a_pipe_ends_it(shardline, put):
    put(*[b"%d" % number for number in range(50_000)], aggregation=True)
    command = f"{shlex.quote(sys.executable)} -m shardline tail orders --from TRIM_HORIZON | head -n 2"
    ended = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        env=shardline.environment,
        capture_output=True,
        timeout=90,
        check=True,
    )
    assert ended.stdout == b"0\n1\n0\n"
    assert ended.stderr == b""


def test_the_end_of_a_pipe_is_noticed_while_nothing_comes(following):
    running = following()
    running.process.stdout.close()
    assert running.process.wait(30) == 0
    assert running.process.stderr.read() == b""


def test_records_go_from_one_stream_to_another(shardline, put, kinesis):
    hostile = [b"\x00\xff", b"two\nlines", b"{}"]
    put(*hostile, key="kept")
    kinesis.create_stream("copy")
    printed = shardline("tail", "orders", *ALL, "--output", "json").stdout
    shardline("put", "copy", "--records", "-", "--no-aggregate", "--ordered", stdin=printed)
    assert [(record.key, record.data) for record in kinesis.streams["copy"].records] == [
        ("kept", data) for data in hostile
    ]


def test_headers_are_printed_if_asked_for(shardline, kinesis):
    shardline("put", "orders", "headed", "--key", "k", "--header", "a=1")
    shardline("put", "orders", "plain", "--key", "k")
    assert shardline("tail", "orders", *ALL).lines == ["headed", "plain"]
    assert shardline("tail", "orders", *ALL, "--headers", "-k").lines == ['k\t{"a":"1"}\theaded', "k\t{}\tplain"]
    headed, plain = map(json.loads, shardline("tail", "orders", *ALL, "--output", "json").lines)
    assert (headed["headers"], "headers" in plain) == ({"a": "1"}, False)


# ---- enhanced fan-out


@pytest.fixture
def registered(ask):
    return ask("register_stream_consumer", "orders", "debugging", wait=True)


@pytest.fixture
def subscribed(shardline, kinesis, eventually):
    """Starts the command with fan-out; returns when it has subscribed to every shard."""

    def start(*arguments, shards=2):
        asked = kinesis.requests.count("SubscribeToShard")
        running = shardline.start("tail", "orders", "--fan-out", "debugging", *arguments)
        eventually(lambda: kinesis.requests.count("SubscribeToShard") >= asked + shards)
        return running

    return start


@pytest.mark.parametrize("by", ["name", "arn"])
def test_fan_out_prints_the_same_records_without_polling(shardline, put, registered, kinesis, by):
    put(*map(b"%d".__mod__, range(50)), aggregation=True)
    ended = shardline("tail", "orders", *ALL, "--fan-out", getattr(registered, by))
    assert ended.lines == [str(number) for number in range(50)]
    assert kinesis.requests.count("GetRecords") == kinesis.requests.count("GetShardIterator") == 0


def test_fan_out_from_latest_shows_what_comes(subscribed, put, registered):
    put(b"old")
    running = subscribed("-n", "2")
    put(b"new")
    assert running.process.stdout.readline() == b"new\n"
    put(b"newer")
    assert running.wait().stdout == b"newer\n"


def test_fan_out_follows_a_reshard(subscribed, put, ask, registered):
    running = subscribed("-n", "4")
    put(b"0")
    ask("split_shard", "orders", "shardId-000000000000", wait=True)
    ask("split_shard", "orders", "shardId-000000000001", wait=True)
    put(b"1", b"2", b"3")
    assert running.wait().stdout.split() == [b"0", b"1", b"2", b"3"]


def test_fan_out_continues_after_subscriptions_that_end_and_break(subscribed, put, registered, kinesis):
    kinesis.faults.fan_out_end(after=1, count=1)
    kinesis.faults.fan_out_exception("InternalFailureException", after=3, count=1)
    running = subscribed("-n", "40", "--from", "TRIM_HORIZON")
    for start in range(0, 40, 4):
        put(*map(b"%d".__mod__, range(start, start + 4)))
    assert running.wait().stdout.split() == [b"%d" % number for number in range(40)]


def test_fan_out_gives_up_like_polling(subscribed, registered, kinesis):
    running = subscribed("--give-up-after", "1s")
    kinesis.stop()
    ended = running.wait()
    assert ended.code == 1
    assert ended.stderr.startswith("Error: SubscribeToShard: ")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nothing", 1, "orders has no registered consumer nothing: `shardline streams consumers register orders not"),
        ("a/b", 2, "--fan-out takes the name of a registered consumer"),
        (
            "arn:aws:kinesis:us-east-1:000000000000:stream/other/consumer/c:1",
            2,
            "--fan-out names a consumer of the stream arn:aws:kinesis:us-east-1:000000000000:stream/other, but the",
        ),
        ("arn:aws:kinesis:us-east-1:000000000000:stream/orders/consumer/c:1", 1, "not found"),
    ],
)
def test_a_consumer_that_tail_cannot_use(shardline, name, code, words):
    assert words in shardline("tail", "orders", "--fan-out", name, code=code).stderr
