"""Does ``shardline consume`` run a command for every record, with the guarantees of a group?

The tests run the real command in a separate process, on our own Kinesis server. The commands that it runs are shell
scripts, which write their input to files.
"""

import contextlib
import json
import os
import signal
import sys
import time

import pytest

from shardline import sync

STORE = "sqlite:///leases.db"
KEEP = 'cat > "got.$SHARDLINE_SHARD_ID.$SHARDLINE_SEQUENCE_NUMBER.$SHARDLINE_SUB_SEQUENCE"'
APPEND = 'cat >> "out.$SHARDLINE_SHARD_ID"; echo >> "out.$SHARDLINE_SHARD_ID"'


@pytest.fixture
def put(kinesis):
    def put_all(*records):
        connection = {
            "endpoint_url": kinesis.endpoint_url,
            "region": kinesis.region,
            "credentials": kinesis.credentials,
        }
        with sync.Producer("orders", **connection) as producer:
            for delivery in producer.put_many(records):
                assert delivery.result(timeout=60)

    return put_all


@pytest.fixture
def arguments():
    def make(*options, group="billing"):
        return ("consume", "orders", "--group", group, "--store", STORE, *options)

    return make


@pytest.fixture
def consume(shardline, arguments):
    """Run a shell script for each record, up to the newest one."""

    def run(script, *options, code=0, group="billing"):
        return shardline(*arguments("--until", "latest", *options, group=group), "--", "sh", "-c", script, code=code)

    return run


def lines_of(directory):
    """Return the lines that the commands of each shard wrote, in order."""
    return {path.name.removeprefix("out."): path.read_text().splitlines() for path in sorted(directory.glob("out.*"))}


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ---- the input of the command


def test_the_data_arrives_byte_for_byte(consume, put, tmp_path):
    sent = [b"", b"\0", bytes(range(256)) * 2_000, "schlüssel 🗝\n".encode(), b"-n $(touch hacked) `id`"]
    put(*(("one key", data) for data in sent))
    assert consume(KEEP).stderr == "handled 5 records\n"
    assert sorted(path.read_bytes() for path in tmp_path.glob("got.*")) == sorted(sent)
    assert not (tmp_path / "hacked").exists()


def test_the_command_gets_the_headers(consume, put, tmp_path):
    headers = {"traceparent": "00-1", "odd": "é \x00 $(touch hacked)\n"}
    put(("k", b"1", headers), ("k", b"2"))
    consume('printf \'%s %s\\n\' "$(cat)" "${SHARDLINE_HEADERS-none}" >> got')
    assert (tmp_path / "got").read_text().splitlines()[1:] == ["2 none"]
    assert json.loads((tmp_path / "got").read_text().splitlines()[0].removeprefix("1 ")) == headers
    consume("cat >> lines", "--batch", "10", group="other")
    headed, plain = map(json.loads, (tmp_path / "lines").read_text().splitlines())
    assert (headed["headers"], "headers" in plain) == (headers, False)


def test_the_variables_describe_the_record(shardline, consume, put, tmp_path):
    key = "odd \"key\" 'é' 🗝 $(touch hacked)\n\t\\"
    put(("first", b"1"), (key, b"2", "17"))
    # The commands of two shards run at the same time: the lock keeps the lines of each together.
    program = "exec 9>>lock; flock 9; env -0 | grep -z ^SHARDLINE_ >> got; printf '\\0' >> got"
    printed = consume(program, "--from", "1h")
    found = [
        dict(line.split("=", 1) for line in record.split("\0") if line)
        for record in (tmp_path / "got").read_text().split("\0\0")
        if record
    ]
    assert printed.stdout == b""
    read = shardline("tail", "orders", "--from", "TRIM_HORIZON", "--until", "latest", "--output", "json").stdout
    expected = {record["key"]: record for record in map(json.loads, read.splitlines())}
    by_key = {one["SHARDLINE_KEY"]: one for one in found}
    assert by_key.keys() == expected.keys() == {"first", key}
    for name, record in expected.items():
        token = by_key[name].pop("SHARDLINE_LEASE_TOKEN")
        assert int(token) > 0
        assert by_key[name] == {
            "SHARDLINE_STREAM": "orders",
            "SHARDLINE_GROUP": "billing",
            "SHARDLINE_RECORD_COUNT": "1",
            "SHARDLINE_KEY": name,
            "SHARDLINE_SHARD_ID": record["shard_id"],
            "SHARDLINE_SEQUENCE_NUMBER": record["sequence_number"],
            "SHARDLINE_SUB_SEQUENCE": str(record["sub_sequence"]),
            "SHARDLINE_ARRIVED_AT": record["arrived_at"],
        } | ({"SHARDLINE_EXPLICIT_HASH_KEY": "17"} if name == key and "explicit_hash_key" in record else {})
    assert not (tmp_path / "hacked").exists()


def test_variables_of_an_outer_call_are_not_passed_on(shardline, arguments, put):
    """A command that itself runs ``consume`` sets variables that do not apply to the inner call."""
    put(("k", b"x"))
    printed = shardline(
        *arguments("--until", "latest", "--batch", "1"),
        "--",
        "sh",
        "-c",
        "echo ${SHARDLINE_KEY-unset}",
        SHARDLINE_KEY="x",
    )
    assert printed.stdout == b"unset\n"


def test_a_batch_is_lines_in_the_format_of_record_files(shardline, kinesis, arguments, put):
    sent = [(f"k{number}", bytes([number, 255])) for number in range(20)]
    put(*sent)
    kinesis.create_stream("copy")
    command = [sys.executable, "-m", "shardline", "put", "copy", "--records", "-"]
    ended = shardline(*arguments("--until", "latest", "--batch", "7", "--max-wait", "100ms"), "--", *command)
    assert ended.stderr.endswith("handled 20 records\n")
    copied = shardline("tail", "copy", "--from", "TRIM_HORIZON", "--until", "latest", "-o", "json").stdout
    assert sorted(json.loads(line)["key"] for line in copied.splitlines()) == sorted(key for key, _ in sent)


def test_a_key_that_no_variable_can_hold_stops_the_run_and_fits_into_a_batch(consume, put, tmp_path):
    put(("a\0b", b"x"))
    ended = consume("cat", "--attempts", "1", code=1)
    assert "the key has a NUL character, which an environment variable cannot hold: use --batch" in ended.stderr
    assert json.loads(consume("cat", "--batch", "5").stdout)["key"] == "a\0b"


def test_the_order_of_a_shard_is_kept(consume, put, tmp_path):
    put(*((f"k{number % 7}", b"%d" % number) for number in range(60)))
    consume(APPEND)
    found = lines_of(tmp_path)
    assert len(found) == 2
    assert all(lines == sorted(lines, key=int) for lines in found.values())
    assert sorted(int(line) for lines in found.values() for line in lines) == list(range(60))


def test_shards_are_handled_at_the_same_time(consume, put):
    """Each command ends only when that of the other shard has started."""
    put(("k0", b"x"), ("k1", b"x"), ("k2", b"x"), ("k3", b"x"), ("k4", b"x"))
    script = 'touch "at.$SHARDLINE_SHARD_ID"; until [ -e at.shardId-000000000000 ] && [ -e at.shardId-000000000001 ]; do sleep 0.05; done'
    assert consume(script).stderr == "handled 5 records\n"


# ---- failures


def test_a_failed_record_is_run_again_and_then_stops_the_shard(consume, put, tmp_path):
    put(*(("k", data) for data in (b"good", b"bad", b"after")))
    refuse = 'read -r line; echo "$line" >> tried; [ "$line" != bad ]'
    ended = consume(refuse, "--attempts", "2", code=1)
    assert (tmp_path / "tried").read_text().split() == ["good", "bad", "bad"]
    assert ended.stderr.count("the command failed with exit code 1 at record ") == 2
    error = ended.stderr.splitlines()[-1]
    assert error.startswith("Error: the command failed with exit code 1, after 2 attempts at record ")
    consume(APPEND)
    assert list(lines_of(tmp_path).values()) == [["bad", "after"]]


def test_dead_letters_are_set_aside_and_can_be_put_again(shardline, consume, put, tmp_path):
    put(*(("k", data) for data in (b"good", b"bad \xff", b"after")))
    refuse = f'{KEEP}; ! grep -q bad "got.$SHARDLINE_SHARD_ID.$SHARDLINE_SEQUENCE_NUMBER.$SHARDLINE_SUB_SEQUENCE"'
    ended = consume(refuse, "--attempts", "1", "--dead-letter", "dead.jsonl")
    assert ended.stderr.endswith("handled 2 records; wrote 1 dead letter to dead.jsonl\n")
    (letter,) = map(json.loads, (tmp_path / "dead.jsonl").read_text().splitlines())
    assert letter["message"] == "CommandFailed: the command failed with exit code 1"
    shardline("put", "orders", "--retry", "dead.jsonl")
    assert consume("cat").stdout == b"bad \xff"


def test_a_failed_batch_is_split_until_the_bad_record_is_alone(consume, put, tmp_path):
    put(*(("k", b"%d" % number) for number in range(8)))
    ended = consume('! grep -q \'"data":"5"\'', "--batch", "8", "--attempts", "1", "--dead-letter", "dead.jsonl")
    assert ended.stderr.endswith("handled 7 records; wrote 1 dead letter to dead.jsonl\n")
    assert json.loads((tmp_path / "dead.jsonl").read_text())["data"] == "5"


def test_a_killed_command_is_run_again(consume, put, tmp_path):
    put(("k", b"x"))
    ended = consume(f"if [ -e once ]; then {APPEND}; else touch once; kill -9 $$; fi")
    assert "the command was ended by SIGKILL at record " in ended.stderr
    assert list(lines_of(tmp_path).values()) == [["x"]]


@pytest.mark.parametrize("options", [(), ("--dead-letter", "dead.jsonl", "--attempts", "1")])
def test_a_command_that_cannot_be_started_commits_nothing(shardline, arguments, consume, put, tmp_path, options):
    put(("k", b"x"), ("k", b"y"))
    missing = shardline(*arguments("--until", "latest", *options), "--", "./missing", code=2)
    assert missing.stderr == (
        "Error: the command './missing' cannot be started: it does not exist, or is not executable\n"
    )
    broken = tmp_path / "broken"
    broken.write_bytes(b"\0 no program")
    broken.chmod(0o755)
    ended = shardline(*arguments("--until", "latest", *options), "--", "./broken", code=1)
    assert ended.stderr == "Error: the command could not be started: Exec format error; nothing was committed\n"
    assert not (tmp_path / "dead.jsonl").exists()
    consume(APPEND)
    assert list(lines_of(tmp_path).values()) == [["x", "y"]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--store", "memory:"), "the store memory: exists only inside the process"),
        (("--from", "yesterday"), "--from: neither TRIM_HORIZON, LATEST"),
        (("--from", "9" * 56), "start must be TRIM_HORIZON, LATEST or a time"),
        (("--dead-letter", "nowhere/dead.jsonl"), "--dead-letter: the directory of nowhere/dead.jsonl does not exist"),
        (("--batch", "0"), "Invalid value for '--batch'"),
    ],
)
def test_wrong_options_are_refused(shardline, arguments, options, words):
    ended = shardline(*arguments(*options), "--", "cat", code=2)
    assert words in ended.stderr


def test_the_command_and_the_stream_have_to_exist(shardline, arguments):
    assert "Missing argument" in shardline(*arguments(), code=2).stderr
    ended = shardline("consume", "nothing", "--group", "g", "--store", STORE, "--", "cat", code=1)
    assert "Stream nothing under account" in ended.stderr


# ---- the end


def test_an_empty_stream_ends_a_bounded_run(shardline, arguments, consume):
    assert consume("cat").stderr == "handled 0 records\n"
    ended = shardline(*arguments("--idle-timeout", "500ms"), "--", "cat")
    assert ended.stderr == "handled 0 records\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_running_command_finish(shardline, arguments, consume, put, eventually, tmp_path, number):
    put(*(("k", data) for data in (b"first", b"second")))
    script = f"touch started; sleep 1; {APPEND}"
    running = shardline.start(*arguments(), "--", "sh", "-c", script)
    eventually((tmp_path / "started").exists)
    running.interrupt(number)
    ended = running.wait()
    assert (ended.code, ended.stderr) == (0, "handled 1 record\n")
    assert list(lines_of(tmp_path).values()) == [["first"]]
    assert consume("cat").stdout == b"second"


def test_a_command_that_does_not_finish_in_time_is_terminated(shardline, arguments, consume, put, eventually, tmp_path):
    """The command ignores SIGTERM, and so does its child: both are killed."""
    put(("k", b"x"))
    script = "trap '' TERM; sleep 300 & echo $! > child; echo $$ > pid; wait; wait; sleep 300"
    running = shardline.start(*arguments("--grace", "300ms"), "--", "sh", "-c", script)
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    running.interrupt(signal.SIGTERM)
    ended = running.wait()
    assert ended.code == 143
    assert ended.stderr == ("handled 0 records\nterminated 1 command: the records will be delivered again\n")
    for name in ("pid", "child"):
        pid = int((tmp_path / name).read_text())
        eventually(lambda pid=pid: not is_running(pid))
    assert consume("cat").stdout == b"x"


def test_a_second_ctrl_c_terminates_at_once(shardline, arguments, consume, put, eventually, tmp_path):
    put(("k", b"x"))
    running = shardline.start(*arguments("--grace", "1h"), "--", "sh", "-c", "touch started; exec sleep 3600")
    eventually((tmp_path / "started").exists)
    running.interrupt()
    time.sleep(0.5)  # for the kernel, two signals at once are one
    running.interrupt()
    assert running.wait().code == 130
    assert consume("cat").stdout == b"x"


def test_a_signal_before_the_first_record(shardline, arguments, kinesis, eventually):
    running = shardline.start(*arguments(), "--", "cat")
    eventually(lambda: kinesis.requests.count("GetRecords") > 0)
    running.interrupt(signal.SIGTERM)
    ended = running.wait()
    assert (ended.code, ended.stderr) == (0, "handled 0 records\n")


def test_ctrl_c_on_the_terminal_does_not_reach_the_command(shardline, arguments, put):
    put(("k", b"x"))
    code = "import os; print(os.getpgrp() == os.getpid())"
    assert shardline(*arguments("--until", "latest"), "--", sys.executable, "-c", code).stdout == b"True\n"


def test_a_killed_consumer_commits_nothing_and_the_next_one_gets_the_whole_record(
    shardline, arguments, consume, put, eventually, tmp_path
):
    data = bytes(range(256)) * 3_000  # more than a pipe holds
    put(("k", data))
    script = "echo $$ > pid; sleep 2; cat > orphan; touch orphan.done"
    running = shardline.start(*arguments(), "--", "sh", "-c", script)
    eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    running.interrupt(signal.SIGKILL)
    running.wait()
    try:
        assert consume("cat").stdout == data
        eventually((tmp_path / "orphan.done").exists)
        # The command that was left behind has not seen a part of the record.
        assert (tmp_path / "orphan").read_bytes() == data
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_two_workers_share_the_shards(shardline, arguments, put, eventually, tmp_path):
    sent = []

    def put_more():
        batch = [(f"k{number}", b"%d" % (len(sent) + number)) for number in range(10)]
        sent.extend(data.decode() for _, data in batch)
        put(*batch)

    script = 'echo "$WORKER $SHARDLINE_SHARD_ID $(cat)" >> got'
    workers = [shardline.start(*arguments(), "--", "sh", "-c", script, WORKER=name) for name in ("one", "two")]

    def got():
        path = tmp_path / "got"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def both_work():
        put_more()
        return {worker for worker, _, _ in got()} == {"one", "two"}

    eventually(both_work)
    eventually(lambda: {data for _, _, data in got()} == set(sent))
    for worker in workers:
        worker.interrupt(signal.SIGTERM)
    assert [worker.wait().code for worker in workers] == [0, 0]
    assert sorted(data for _, _, data in got()) == sorted(sent)  # a hand-over delivers no record twice
