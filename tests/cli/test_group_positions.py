"""Are the positions of a group exported and imported unchanged, and is a group that is behind noticed?

The tests run the real command in a separate process, on our own Kinesis server. ``test_groups`` imports across stores.
"""

import json
import os
import pty
import re
import select
import signal
import time

import pytest

from shardline import sync

STORE = "sqlite:///leases.db"
FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"


class Group:
    """A group of consumers, and the command."""

    def __init__(self, kinesis, shardline):
        self.kinesis, self.shardline = kinesis, shardline
        self.connection = {
            "endpoint_url": kinesis.endpoint_url,
            "region": kinesis.region,
            "credentials": kinesis.credentials,
        }
        shardline.environment["SHARDLINE_STORE"] = STORE
        shardline.environment["COLUMNS"] = "80"

    def put(self, *names):
        with sync.Producer("orders", **self.connection) as producer:
            for delivery in producer.put_many([(name, name.encode()) for name in names]):
                assert delivery.result(timeout=60)

    def read(self, group="billing", store="leases.db", **settings):
        url = f"sqlite:///{self.shardline.directory}/{store}"
        with sync.Consumer("orders", group=group, store=url, until="latest", **settings, **self.connection) as consumer:
            return sorted(record.data.decode() for record in consumer)

    def run(self, *arguments, code=0, **more):
        return self.shardline("groups", *arguments, code=code, **more)

    def json(self, *arguments, code=0):
        return json.loads(self.run(*arguments, "--output", "json", code=code).stdout)

    def file(self, name="positions.json"):
        return self.shardline.directory / name


@pytest.fixture
def group(kinesis, shardline):
    return Group(kinesis, shardline)


NAMES = [f"old-{number}" for number in range(12)]


# ---- export and import


def test_an_import_leads_back_to_the_exported_positions(group):
    group.put(*NAMES)
    assert group.read() == sorted(NAMES)
    ended = group.run("export", "billing", "--file", "positions.json")
    assert (ended.stdout, ended.stderr) == (b"", "exported the positions of billing on orders: 2 shards\n")
    exported = json.loads(group.file().read_bytes())
    assert exported == json.loads(group.run("export", "billing", "orders").stdout) | {
        "exported_at": exported["exported_at"]
    }
    assert max(shard["sub_sequence"] for shard in exported["shards"]) > 0  # inside an aggregate
    group.put("new-1", "new-2")
    assert group.read() == ["new-1", "new-2"]
    group.run("import", "billing", "--file", "positions.json")
    assert group.read() == ["new-1", "new-2"]
    assert [path.name for path in group.shardline.directory.glob(".*positions*")] == []


def test_a_copy_of_a_group_starts_where_the_group_is(group):
    group.put(*NAMES)
    group.read()
    positions = group.run("export", "billing").stdout
    group.put("new")
    ended = group.run("import", "copy", "--file", "-", "--store", "sqlite:///other.db", stdin=positions)
    assert ended.stdout.decode().count("created") == 2
    assert group.read("copy", "other.db") == ["new"]
    assert group.read() == ["new"]


def test_a_dry_run_shows_what_would_be_replayed_or_skipped(group):
    group.put(*NAMES)
    group.read()
    group.run("export", "billing", "--file", "before")
    group.kinesis.clock.advance(600)
    group.put(*(f"new-{number}" for number in range(12)))
    group.read()
    before = group.json("describe", "billing")["shards"]
    planned = group.json("import", "billing", "--file", "before", "--dry-run")
    assert (planned["dry_run"], planned["complete"]) == (True, False)
    assert [(shard["action"], shard["effect"]) for shard in planned["shards"]] == [("reset", "replay")] * 2
    assert all(595_000 < shard["effect_ms"] < 700_000 for shard in planned["shards"])
    printed = group.run("import", "billing", "--file", "before", "--dry-run")
    assert printed.stdout.decode().count("replays 10 min") == 2
    assert printed.stderr == "dry run: nothing was written; 0 leases with an owner\n"
    assert group.json("describe", "billing")["shards"] == before
    group.run("export", "billing", "--file", "after")
    group.run("reset", "billing", "--to", "TRIM_HORIZON")
    skipping = group.run("import", "billing", "--file", "after", "--dry-run").stdout.decode()
    assert [line.split()[-1] for line in skipping.splitlines()] == ["EFFECT", "skips", "skips"]
    fresh = group.json("import", "other", "--file", "after", "--dry-run", "--store", "sqlite:///missing.db")
    assert [(shard["action"], shard["effect"]) for shard in fresh["shards"]] == [("create", "start")] * 2
    assert not group.file("missing.db").exists()


def test_an_import_from_before_a_reshard_reads_the_children_again(group):
    group.put(*NAMES)
    group.read()
    group.run("export", "billing", "--file", "positions.json")
    group.shardline("streams", "reshard", "orders", "--shards", "4")
    group.put(*(f"new-{number}" for number in range(12)))
    new = group.read()
    assert len(new) == 12
    planned = group.json("import", "billing", "--file", "positions.json")
    assert planned["complete"]
    assert {shard["action"] for shard in planned["shards"]} == {"reset", "delete"}
    assert group.read() == new


def test_a_live_group_is_refused_and_forced(group):
    group.put(*NAMES)
    group.read()
    group.run("export", "billing", "--file", "positions.json")
    url = f"sqlite:///{group.shardline.directory}/leases.db"
    with sync.Consumer("orders", group="billing", store=url, worker_id="the-worker", **group.connection) as consumer:
        consumer.wait_ready(60)
        ended = group.run("import", "billing", "--file", "positions.json", code=1)
        assert "the group is alive: the-worker wrote to its leases" in ended.stderr
        assert group.json("import", "billing", "--file", "positions.json", "--force")["complete"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda _: "{", 2, "not the positions of a group as JSON"),
        (lambda file: file | {"version": 7}, 2, "positions.json: the positions are in version 7 of the format"),
        (lambda file: file | {"shards": file["shards"][:1]}, 1, f"the file has no position for {SECOND}"),
        (lambda file: file | {"stream": "nothing"}, 1, "Stream nothing under account"),
        (
            lambda file: file | {"shards": [file["shards"][0] | {"position": "SHARD_END"}, file["shards"][1]]},
            2,
            f"the position of {FIRST} is invalid: SHARD_END takes no sequence_number",
        ),
        (
            lambda file: (
                file
                | {
                    "shards": [
                        one | {"sequence_number": file["shards"][1]["sequence_number"]} for one in file["shards"]
                    ]
                }
            ),
            1,
            f"{FIRST} has no position ",
        ),
    ],
    ids=["no JSON", "version", "a shard is missing", "no such stream", "contradiction", "of another shard"],
)
def test_a_file_that_does_not_fit_changes_nothing(group, change, code, words):
    group.put(*NAMES)
    group.read()
    changed = change(json.loads(group.run("export", "billing").stdout))
    group.file().write_text(changed if isinstance(changed, str) else json.dumps(changed))
    ended = group.run("import", "new", "--file", "positions.json", "--store", "sqlite:///new.db", code=code)
    assert words in ended.stderr
    assert ended.stdout == b""
    assert not group.file("new.db").exists()


def test_files_that_cannot_be_used_are_one_sentence(group):
    group.put("a")
    group.read()
    ended = group.run("import", "billing", "--file", "missing.json", code=2)
    assert ended.stderr == "Error: missing.json: No such file or directory\n"
    ended = group.run("export", "billing", "--file", "nowhere/positions.json", code=1)
    assert ended.stderr == "Error: nowhere/positions.json: No such file or directory\n"
    assert "there is no group 'nothing'" in group.run("export", "nothing", code=1).stderr


# ---- behind


def test_a_group_that_is_behind_fails(group):
    group.put(*NAMES)
    group.read()
    assert group.run("describe", "billing", "--fail-if-behind", "5m").code == 0
    group.put("late")
    group.kinesis.clock.advance(600)
    ended = group.run("describe", "billing", "--fail-if-behind", "5m", code=1)
    assert re.search(
        r"^Error: billing on orders: shardId-\d+ is behind by 10 min, more than 5 min$", ended.stderr, re.MULTILINE
    )
    assert b"10 min" in ended.stdout
    ended = group.run("describe", "billing", "--fail-if-behind", "5m", "--output", "json", code=1)
    assert max(shard["lag_ms"] for shard in json.loads(ended.stdout)["shards"]) >= 600_000
    assert "is behind by 10 min" in json.loads(ended.stderr)["error"]["message"]
    assert group.run("describe", "billing", "--fail-if-behind", "1h").code == 0


def test_a_group_that_stopped_before_a_reshard_is_behind(group):
    group.put(*NAMES)
    group.read()
    group.shardline("streams", "reshard", "orders", "--shards", "4")
    group.put(*(f"new-{number}" for number in range(20)))
    group.kinesis.clock.advance(600)
    assert "is behind by 10 min" in group.run("describe", "billing", "--fail-if-behind", "5m", code=1).stderr
    lags = {shard["shard_id"]: shard["lag_ms"] for shard in group.json("describe", "billing")["shards"]}
    assert max(lags["shardId-000000000002"], lags["shardId-000000000003"]) >= 600_000


def test_an_unknown_lag_fails(group):
    group.put(*NAMES)
    group.read()
    group.kinesis.faults.error("AccessDeniedException", "not authorized", operation="GetRecords", shard=SECOND)
    ended = group.run("describe", "billing", "--fail-if-behind", "5m", code=1)
    assert ended.stderr.endswith(
        f"Error: billing on orders: the lag of {SECOND} is unknown: GetRecords: not authorized\n"
    )
    ended = group.run("describe", "billing", "--fail-if-behind", "5m", "--no-lag", code=2)
    assert ended.stderr == "Error: --fail-if-behind needs the lag: leave out --no-lag\n"


# ---- watch


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_watch_in_a_pipe_appends_until_a_signal(group, number, code):
    group.put("a")
    group.read()
    running = group.shardline.start("groups", "describe", "billing", "--watch", "--interval", "100ms", "-o", "json")
    seen = [json.loads(running.process.stdout.readline()) for _ in range(3)]
    assert [len(one["shards"]) for one in seen] == [2, 2, 2]
    assert sorted({one["described_at"] for one in seen}) == [one["described_at"] for one in seen]
    running.interrupt(number)
    ended = running.wait()
    assert (ended.code, ended.stderr) == (code, "")


def test_a_watch_as_text_repeats_the_table(group):
    group.put("a")
    group.read()
    running = group.shardline.start("groups", "describe", "billing", "--watch", "--interval", "100ms")
    lines = [running.process.stdout.readline().decode() for _ in range(8)]
    assert [line.split()[0] for line in lines[1:4]] == ["SHARD", FIRST, SECOND]
    assert [line.split()[0] for line in lines[5:8]] == ["SHARD", FIRST, SECOND]
    assert all(re.match(r"\d{4}-.*Z billing on orders: no owner$", line) for line in (lines[0], lines[4]))
    running.interrupt()
    assert running.wait().code == 0


def test_a_watch_ends_when_the_group_is_behind(group):
    group.put("a")
    group.read()
    running = group.shardline.start(
        "groups", "describe", "billing", "--watch", "--interval", "100ms", "--fail-if-behind", "5m"
    )
    running.process.stdout.readline()
    group.put("late")
    group.kinesis.clock.advance(600)
    ended = running.wait()
    assert ended.code == 1
    assert "is behind by 10 min, more than 5 min" in ended.stderr


def test_a_watch_on_a_terminal_redraws_one_picture(group):
    group.put("a")
    group.read()
    ours, theirs = pty.openpty()
    running = group.shardline.start(
        "groups", "describe", "billing", "--watch", "--interval", "100ms", stdout=theirs, TERM="xterm", NO_COLOR="1"
    )
    os.close(theirs)
    shown, give_up_at = b"", time.monotonic() + 60
    while shown.count(FIRST.encode()) < 3 and time.monotonic() < give_up_at:
        if select.select([ours], [], [], 1.0)[0]:
            shown += os.read(ours, 65_536)
    running.interrupt()
    assert running.wait().code == 0
    os.close(ours)
    assert shown.count(FIRST.encode()) >= 3
    moves_up = re.findall(rb"\x1b\[1A", shown)
    assert len(moves_up) >= 2 * 3  # a title, a header and two rows: the cursor moves up before each new picture
