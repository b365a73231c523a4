"""Does ``shardline put`` put every record that it is given, and report each one that it cannot put?

The real command, as a process of its own.
"""

import base64
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from shardline import deaggregate
from shardline.testing import LocalKinesis

HOSTILE = [b"\x00\x01\x02", b"\xff\xfe\xfa", "schlüssel 🗝".encode(), b" blanks ", b"\r", b'"quoted"', b"a\x00b\xc3"]


def stored(kinesis, stream="orders"):
    return deaggregate(kinesis.streams[stream].records)


def data_of(kinesis):
    return sorted(record.data for record in stored(kinesis))


def lines_of(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# ---- headers


def test_headers_go_with_every_record(shardline, kinesis):
    shardline("put", "orders", "alone", "--key", "k", "--header", "content-type=text/plain", "--header", "odd=a=b é")
    shardline("put", "orders", "--header", "a=", stdin=b"one\n\ntwo\n")
    shardline("put", "orders", "--whole", "--header", "a=1", stdin=b"whole")
    shardline("put", "orders", "--key-field", "k", "--header", "a=2", stdin=b'{"k": "x"}\n')
    shardline("put", "orders", "--records", "-", "--header", "a=3", stdin=b'{"data":"r","headers":{"a":"0","b":"4"}}\n')
    assert {record.data: record.headers for record in stored(kinesis)} == {
        b"alone": {"content-type": "text/plain", "odd": "a=b é"},
        b"one": {"a": ""},
        b"two": {"a": ""},
        b"whole": {"a": "1"},
        b'{"k": "x"}': {"a": "2"},
        b"r": {"a": "3", "b": "4"},
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--header", "a"], "--header takes NAME=VALUE, not 'a'"),
        (["--header", "a b=1"], "--header: a header's name has 1 to 128"),
        (["--header", "=1"], "--header: a header's name has 1 to 128"),
        (["--header", ":=1"], "--header: a header's name has 1 to 128"),
        (["--header", "a=\udcff"], "b'a=\\xff' is not valid UTF-8"),
        (["--header", f"a={'x' * 16_384}"], "--header: the headers of a record take at most 16384 bytes"),
        (["--header", "a=1", "--header", "a=2"], "--header a is given twice"),
        (["--header", "a=1", "--no-aggregate"], "--header cannot be combined with --no-aggregate"),
    ],
)
def test_wrong_headers_are_refused_before_anything_is_put(shardline, kinesis, options, said):
    assert said in shardline("put", "orders", "x", *options, code=2).stderr
    assert kinesis.streams["orders"].record_count == 0


def test_a_line_with_hostile_headers_fails_and_the_others_are_put(shardline, kinesis, tmp_path):
    bad = ['["a"]', '{"a":1}', '{"a":null}', r'{"a":"\ud800"}', '{"":"1"}', '{":":"1"}', '{"a\\u0000":"1"}', "1"]
    bad += [json.dumps({"a": "x" * 20_000}), json.dumps({f"h{number}": "" for number in range(65)})]
    lines = [f'{{"data":"bad","headers":{headers}}}' for headers in bad]
    good = ['{"data":"nul","headers":{"a":"\\u0000"}}', '{"data":"twice","headers":{"a":"1","a":"2","A":"3"}}']
    given = "\n".join([good[0], *lines, good[1]]).encode()
    shardline("put", "orders", "--records", "-", "--failed", "failed.jsonl", "-q", stdin=given, code=1)
    found = {record.data: record.headers for record in stored(kinesis)}
    assert found == {b"nul": {"a": "\x00"}, b"twice": {"a": "2", "A": "3"}}
    assert len(lines_of(tmp_path / "failed.jsonl")) == len(bad)


def test_failed_records_keep_their_headers_and_are_put_again_with_them(shardline, kinesis, tmp_path):
    kinesis.faults.throttle(operation="PutRecords")
    options = ("--header", "a=1", "--failed", "failed.jsonl", "--give-up-after", "500ms", "-q")
    shardline("put", "orders", *options, stdin=b"1\n2\n", code=1)
    assert [(line["version"], line["headers"]) for line in lines_of(tmp_path / "failed.jsonl")] == [(2, {"a": "1"})] * 2
    kinesis.faults.clear()
    shardline("put", "orders", "--retry", "failed.jsonl")
    assert {record.data: record.headers for record in stored(kinesis)} == {b"1": {"a": "1"}, b"2": {"a": "1"}}


def test_records_with_headers_for_a_stream_without_aggregates_fail_and_are_kept(shardline, kinesis, tmp_path):
    lines = b'{"data":"plain"}\n{"data":"headed","headers":{"a":"1"}}\n'
    shardline("put", "orders", "--no-aggregate", "--records", "-", "--failed", "failed.jsonl", stdin=lines, code=1)
    (kept,) = lines_of(tmp_path / "failed.jsonl")
    assert (kept["data"], kept["headers"], kept["error"]) == ("headed", {"a": "1"}, "Refused")
    assert "aggregation=False" in kept["message"]
    assert data_of(kinesis) == [b"plain"]


# ---- sources of records


def test_the_shard_and_number_of_a_single_record_are_printed(shardline, kinesis):
    ended = shardline("put", "orders", "hello", "--key", "customer-7")
    (record,) = kinesis.streams["orders"].records
    assert ended.lines == [f"{record.shard_id} {record.sequence_number}"]
    assert ended.stderr == ""
    assert (record.key, record.data) == ("customer-7", b"hello")
    told = json.loads(shardline("put", "orders", b"caf\xe9".decode("latin-1"), "--output", "json").stdout)
    assert (told["put"], told["failed"], told["interrupted"]) == (1, 0, False)
    assert told["sequence_number"] in {record.sequence_number for record in kinesis.streams["orders"].records}
    assert data_of(kinesis) == ["café".encode(), b"hello"]


def test_lines_of_a_pipe_whatever_they_hold(shardline, kinesis):
    ended = shardline("put", "orders", stdin=b"\n".join([*HOSTILE, b"", b"", b"last"]))
    assert ended.stdout == b""
    assert re.fullmatch(r"put 8 records, \d+ B, [\d.]+ s, [\d,]+/s, 2 empty lines skipped\n", ended.stderr)
    assert data_of(kinesis) == sorted([*HOSTILE, b"last"])


def test_lines_of_a_file_with_one_key_in_order(shardline, kinesis, tmp_path):
    (tmp_path / "lines").write_bytes(b"".join(b"%d\n" % number for number in range(20_000)))
    told = shardline("put", "orders", "--file", "lines", "--key", "k", "--ordered", "--output", "json", "-q")
    assert json.loads(told.stdout)["put"] == 20_000
    assert told.stderr == ""
    assert [int(record.data) for record in stored(kinesis)] == list(range(20_000))
    assert {record.key for record in stored(kinesis)} == {"k"}


def test_a_whole_file_is_one_record(shardline, kinesis, tmp_path):
    (tmp_path / "page").write_bytes(b"one\ntwo\n")
    shardline("put", "orders", "--file", "page", "--whole")
    shardline("put", "orders", "--whole", stdin=b"")
    assert data_of(kinesis) == [b"", b"one\ntwo\n"]
    ended = shardline("put", "orders", "--whole", stdin=b"x" * (10 * 1024 * 1024 + 1), code=2)
    assert ended.stderr.startswith("Error: the input is longer than 10485760 bytes")


def test_nothing_is_nothing(shardline, kinesis):
    ended = shardline("put", "orders", stdin=b"")
    assert ended.stderr.startswith("put 0 records")
    assert data_of(kinesis) == []


def test_on_a_terminal_something_has_to_be_said(on_terminal):
    shown, code = on_terminal("put", "orders")
    assert (code, shown) == (2, "Error: nothing to put: give DATA or --file, pipe lines in, or pass - to type them\n")


def test_aggregates_or_not(shardline, kinesis):
    shardline("put", "orders", "--key", "k", stdin=b"1\n2\n3\n")
    assert len(kinesis.streams["orders"].records) == 1
    shardline("put", "orders", "--key", "k", "--no-aggregate", stdin=b"4\n5\n6\n")
    assert len(kinesis.streams["orders"].records) == 4
    assert data_of(kinesis) == [b"%d" % number for number in range(1, 7)]


# ---- keys from JSON, and lines that fail


def test_keys_from_json_and_a_file_of_what_failed_that_can_be_put_again(shardline, kinesis, tmp_path):
    good = [b'{"customer": {"id": "c1"}}', b'{"customer": {"id": 17}, "more": [1, {"x": null}]}']
    bad = [b'{"customer": {}}', b"no JSON \xff", b'{"customer": {"id": ["x"]}}', b'{"customer": {"id": ""}}']
    ended = shardline(
        *["put", "orders", "--key-field", "customer.id", "--failed", "failed.jsonl"],
        stdin=b"\n".join([good[0], *bad, good[1]]),
        code=1,
    )
    assert [(record.key, record.data) for record in sorted(stored(kinesis), key=lambda record: record.key)] == [
        ("17", good[1]),
        ("c1", good[0]),
    ]
    told = ended.stderr.splitlines()
    assert told[0] == "line 2: there is no field customer.id"
    assert told[1].startswith("line 3: not JSON: ")
    assert told[2].startswith("line 4: the field customer.id is neither a text nor a number: ")
    assert told[3].startswith("line 5: ")
    assert told[-1] == "4 records failed, in failed.jsonl (3 NoKey; 1 Refused)"
    failed = lines_of(tmp_path / "failed.jsonl")
    assert sorted(one["line"] for one in failed) == [2, 3, 4, 5]
    no_json = next(one for one in failed if one["line"] == 3)
    assert base64.b64decode(no_json["data_base64"]) == bad[1]

    ended = shardline("put", "orders", "--records", "failed.jsonl", code=1)
    assert "it failed because it has no key: add a key to the line, or pass --key or --key-field" in ended.stderr
    assert len(stored(kinesis)) == 2, "nothing goes without a key that was to have one"
    # The record with an empty key has it in the file: it is refused again, with the file's own line number.
    ended = shardline("put", "orders", "--retry", "failed.jsonl", "--key", "found", "--failed", "again.jsonl", code=1)
    assert [one["line"] for one in lines_of(tmp_path / "again.jsonl")] == [failed.index(failed[-1]) + 1]
    assert sorted(record.data for record in stored(kinesis) if record.key == "found") == sorted(bad[:3])


def test_invalid_records_are_handed_back_unchanged(shardline, kinesis, tmp_path):
    lines = [b'{"key": "k", "data": "good"}', b"{", b'{"key": 7, "data": "x"}', b'{"data_base64": "?"}', b"{}"]
    ended = shardline("put", "orders", "--records", "-", "--failed", "f", stdin=b"\n".join(lines), code=1)
    assert "4 records failed, in f (4 NotARecord)" in ended.stderr
    assert (tmp_path / "f").read_bytes().splitlines() == lines[1:]
    assert data_of(kinesis) == [b"good"]


def test_a_line_that_is_too_long_for_the_stream_stops_no_other(shardline, kinesis, tmp_path):
    large = b"x" * (2 * 1024 * 1024)
    endless = b"y" * (11 * 1024 * 1024)
    ended = shardline("put", "orders", "--failed", "f", stdin=b"\n".join([b"1", large, b"2", endless, b"3"]), code=1)
    assert data_of(kinesis) == [b"1", b"2", b"3"]
    assert (
        "line 2: a record of this stream takes at most 1048576 bytes with its key, this one has 2097162" in ended.stderr
    )
    assert "line 4: longer than 10485760 bytes" in ended.stderr
    first, second = sorted(lines_of(tmp_path / "f"), key=lambda one: one["line"])
    assert (first["data"].encode(), first["error"]) == (large, "Refused")
    assert second == {"version": 1, "line": 4, "error": "TooLong", "message": second["message"]}


def test_a_file_of_failures_is_added_to_and_is_not_left_behind(shardline, tmp_path):
    (tmp_path / "f").write_bytes(b"what was there\n")
    shardline("put", "orders", "--failed", "f", stdin=b"x\n")
    shardline("put", "orders", "--failed", "new", stdin=b"x\n")
    assert not (tmp_path / "new").exists()
    ended = shardline("put", "orders", "--key-field", "id", "--failed", "f", stdin=b"x\n", code=1)
    assert "1 record failed, in f (1 NoKey)" in ended.stderr
    assert (tmp_path / "f").read_bytes().startswith(b'what was there\n{"version":1,"key":null,"data":"x","line":1,')


def test_what_cannot_be_put(shardline, tmp_path):
    (tmp_path / "f").write_bytes(b"{}\n")
    for arguments, code, said in [
        (["--file", "nothing"], 2, "File 'nothing' does not exist."),
        (["--failed", "no/such/directory"], 1, "--failed: no/such/directory cannot be written: No such file"),
        (["--records", "f", "--failed", "f"], 2, "--failed names the file that is being read: give another file"),
        (["x", "--file", "f"], 2, "give only one of DATA, --file and --records"),
        (["x", "--key", "a", "--key-field", "b"], 2, "--key cannot be combined with --key-field"),
        (["x", "--key-field", "a..b"], 2, "--key-field: a field is named as in id or customer.id, not 'a..b'"),
        (["x", "--key", ""], 2, "partition key"),
    ]:
        assert said in shardline("put", "orders", *arguments, code=code).stderr


# ---- failures


def test_throttling_is_waited_out(shardline, kinesis):
    kinesis.faults.throttle(operation="PutRecords", count=3)
    ended = shardline("put", "orders", stdin=b"".join(b"%d\n" % number for number in range(1000)))
    assert re.search(r"put 1,000 records, .*, [\d,]+ retried", ended.stderr)
    assert data_of(kinesis) == sorted(b"%d" % number for number in range(1000))


def test_what_is_given_up_is_kept(shardline, kinesis, tmp_path):
    kinesis.faults.throttle(operation="PutRecords")
    lines = [b"%d" % number for number in range(50)]
    ended = shardline(
        "put", "orders", "--key", "k", "--give-up-after", "1s", "--failed", "f", stdin=b"\n".join(lines), code=1
    )
    assert "50 records failed, in f (50 Expired: not delivered within --give-up-after (1 s)" in ended.stderr
    kinesis.faults.clear()
    failed = lines_of(tmp_path / "f")
    assert {one["key"] for one in failed} == {"k"}
    assert {one["maybe_stored"] for one in failed} == {False}
    shardline("put", "orders", "--retry", "f")
    assert data_of(kinesis) == sorted(lines)
    assert {record.key for record in stored(kinesis)} == {"k"}


def test_a_single_record_that_is_given_up_is_a_sentence(shardline, kinesis):
    kinesis.faults.error("KMSDisabledException", "the key is disabled", operation="PutRecords")
    ended = shardline("put", "orders", "x", code=1)
    assert ended.stderr.splitlines()[-1].startswith("Error: not delivered after 1 attempt: ")
    assert "KMSDisabledException" in ended.stderr


def test_a_server_that_dies_in_the_middle(shardline, kinesis, tmp_path, eventually):
    running = shardline.start(
        "put", "orders", "-", "--no-aggregate", "--give-up-after", "2s", "--failed", "f", stdin=subprocess.PIPE
    )
    running.process.stdin.write(b"".join(b"before %d\n" % number for number in range(100)))
    running.process.stdin.flush()
    eventually(lambda: kinesis.streams["orders"].record_count == 100)
    kinesis.stop()
    running.process.stdin.write(b"".join(b"after %d\n" % number for number in range(100)))
    ended = running.wait()
    assert ended.code == 1
    assert {one["data"] for one in lines_of(tmp_path / "f")} == {f"after {number}" for number in range(100)}
    assert "put 100 records" in ended.stderr
    assert "100 records failed, in f" in ended.stderr


def test_a_stream_that_may_not_be_described_can_be_put_to(shardline, kinesis):
    kinesis.faults.error("AccessDeniedException", "no", operation="DescribeStreamSummary")
    shardline("put", "orders", stdin=b"x\n")
    assert data_of(kinesis) == [b"x"]


# ---- Ctrl-C


def test_ctrl_c_before_it_has_begun_breaks_it_off(shardline, kinesis, eventually):
    fault = kinesis.faults.latency(300, operation="DescribeStreamSummary")
    running = shardline.start("put", "orders", "x", "--failed", "f")
    eventually(lambda: fault.hits == 1)
    running.interrupt()
    ended = running.wait()
    assert (ended.code, ended.stdout, ended.stderr.strip()) == (130, b"", "")
    assert not (shardline.directory / "f").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_it_waits_for_input_drains_what_it_has(shardline, kinesis, number, code):
    running = shardline.start("put", "orders", "-", "--linger", "1h", "--give-up-after", "2h", stdin=subprocess.PIPE)
    running.process.stdin.write(b"one\ntwo\nhalf a li")
    running.process.stdin.flush()
    # Both have been read: the progress shows it now and then.
    while b" 2 in flight" not in running.process.stderr.readline():
        assert running.process.poll() is None
    running.interrupt(number)
    stderr = running.process.stderr.read().decode()  # and the input stays open
    assert running.process.wait(90) == code
    assert data_of(kinesis) == [b"one", b"two"]
    assert "interrupted: put 2 records" in stderr
    assert "the last line is incomplete and was not put (9 bytes read)" in stderr


def test_ctrl_c_in_the_middle_loses_nothing(shardline, kinesis, tmp_path, eventually):
    """Slow shards, a full buffer, endless input: every record that was read is in the stream or in the file."""
    running = shardline.start(
        *["put", "orders", "-", "--key", "k", "--no-aggregate", "--drain", "1s", "--failed", "f"],
        stdin=subprocess.PIPE,
    )

    def feed():
        with contextlib.suppress(OSError):  # it has ended
            for number in itertools.count():
                running.process.stdin.write(b"%d\n" % number)

    feeding = threading.Thread(target=feed, daemon=True)
    feeding.start()
    eventually(lambda: kinesis.streams["orders"].record_count > 1000)
    running.interrupt()
    stderr = running.process.stderr.read().decode()
    assert running.process.wait(90) == 130
    feeding.join(30)
    in_stream = [int(record.data) for record in stored(kinesis)]
    in_file = [int(one["data"]) for one in lines_of(tmp_path / "f")]
    maybe = {int(one["data"]) for one in lines_of(tmp_path / "f") if one.get("maybe_stored")}
    assert len(in_file) > 1000
    found = set(in_stream) | set(in_file)
    assert found == set(range(len(found))), "every line up to the last that was read"
    assert set(in_stream) & set(in_file) <= maybe
    assert f"{len(in_file):,} records failed, in f" in stderr


def test_ctrl_c_twice_does_not_wait(shardline, kinesis, tmp_path, eventually):
    kinesis.faults.throttle(operation="PutRecords")
    running = shardline.start("put", "orders", "-", "--drain", "1h", "--failed", "f", stdin=subprocess.PIPE)
    running.process.stdin.write(b"one\ntwo\n")
    running.process.stdin.flush()
    eventually(lambda: kinesis.requests.count("PutRecords") >= 1)
    running.interrupt()
    with pytest.raises(subprocess.TimeoutExpired):
        running.process.wait(1)

    def is_over():
        running.interrupt()  # two signals that come together are one
        return running.process.poll() is not None

    eventually(is_over)
    assert running.process.returncode == 130
    assert sorted(one["data"] for one in lines_of(tmp_path / "f")) == ["one", "two"]


# ---- long input


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(on_terminal, shardline, tmp_path):
    (tmp_path / "lines").write_bytes(b"x" * 99 + b"\n")
    with (tmp_path / "lines").open("ab") as file:
        for _ in range(7):
            file.write((b"x" * 1000 + b"\n") * 1000)
    with LocalKinesis(stream="slow") as slow:  # one shard: a MiB a second
        shown, code = on_terminal("put", "slow", "--file", "lines", **slow.environment)
        assert code == 0
        assert re.search(r"\d+% [\d,]+ put, [\d,]+/s, [\d,]+ in flight", shown)
        assert shown.splitlines()[-1].startswith("put 7,001 records, 6.7 MiB")
        ended = shardline("put", "slow", "--file", "lines", **slow.environment)
    first, *_, last = ended.stderr.splitlines()
    assert re.match(r"[\d,]+ put, [\d,]+/s, [\d,]+ in flight", first)
    assert last.startswith("put 7,001 records")


def test_long_input_takes_little_memory(shardline, kinesis, tmp_path):
    """The input is a hundred megabytes, most of it in lines that are refused at once, so that the test is short."""
    running = shardline.start("put", "orders", "--key-field", "id", stdin=subprocess.PIPE)
    peak = 0
    line = b"x" * 1023 + b"\n"
    for _ in range(100):
        running.process.stdin.write(line * 1024)
        peak = max(peak, resident_bytes(running.process.pid))
    running.process.stdin.close()
    running.process.stdin = None
    ended = running.wait()
    assert ended.code == 1
    assert "102,400 records failed, discarded; use --failed FILE to keep them (102,400 NoKey)" in ended.stderr
    assert ended.stderr.count("\nline ") == 4, "a few of them are told, then no more"
    assert peak < 110 * 1024 * 1024


def resident_bytes(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
