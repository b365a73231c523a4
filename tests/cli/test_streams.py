"""Does ``shardline streams`` list, create, show, delete and reshard streams?

The tests run the real command in a separate process.
"""

import json
import re

import anyio
import pytest

from shardline.testing import Delays, LocalKinesis

# ---- list


def test_a_list_is_a_table(shardline, kinesis):
    kinesis.create_stream("a-stream-with-a-long-name-" + "x" * 90, shards=3)
    assert shardline("streams", "create", "free", "--on-demand").code == 0
    heading, *rows = shardline("streams", "list").lines
    assert heading.split() == ["NAME", "STATUS", "MODE", "SHARDS", "RETENTION"]
    assert [row.split() for row in rows] == [
        ["a-stream-with-a-long-name-" + "x" * 90, "ACTIVE", "provisioned", "3", "24", "h"],
        ["free", "ACTIVE", "on", "demand", "4", "24", "h"],
        ["orders", "ACTIVE", "provisioned", "2", "24", "h"],
    ]


def test_a_list_for_machines(shardline):
    (one,) = json.loads(shardline("streams", "list", "--output", "json").stdout)
    assert (one["name"], one["status"], one["mode"], one["open_shards"]) == ("orders", "ACTIVE", "PROVISIONED", 2)
    assert shardline("streams", "list", "--names").lines == ["orders"]
    assert json.loads(shardline("streams", "list", "--names", "--output", "json").stdout) == ["orders"]


def test_a_list_of_many_pages_is_whole_and_keeps_the_rates_of_the_service(shardline, kinesis):
    names = [f"s{number:03}" for number in range(130)]
    for name in names:
        kinesis.create_stream(name)
    assert shardline("streams", "list", "-q").lines == ["orders", *names]
    assert kinesis.requests.count("ListStreams") > 1
    listed = json.loads(shardline("streams", "list", "--output", "json").stdout)
    assert [one["name"] for one in listed] == ["orders", *names]


def test_an_empty_list_is_no_error(shardline, kinesis):
    shardline("streams", "delete", "orders", "--yes")
    ended = shardline("streams", "list")
    assert (ended.stdout, ended.stderr) == (b"", f"there are no streams in us-east-1 at {kinesis.endpoint_url}\n")
    assert shardline("streams", "list", "--output", "json").stdout == b"[]\n"


def test_a_list_that_is_throttled_is_asked_again(shardline, kinesis):
    kinesis.faults.throttle(operation="DescribeStreamSummary", count=3)
    kinesis.faults.error("LimitExceededException", "Rate exceeded", operation="ListStreams", count=1)
    assert len(shardline("streams", "list").lines) == 2


def test_a_stream_that_goes_away_while_it_is_listed_is_left_out(shardline, kinesis):
    kinesis.create_stream("other")
    kinesis.faults.error(
        "ResourceNotFoundException", "gone", operation="DescribeStreamSummary", stream="other", count=1
    )
    assert [row.split()[0] for row in shardline("streams", "list").lines[1:]] == ["orders"]


def test_a_stream_that_may_not_be_described_does_not_hide_the_others(shardline, kinesis):
    kinesis.create_stream("secret")
    kinesis.faults.error("AccessDeniedException", "not you", operation="DescribeStreamSummary", stream="secret")
    listed = shardline("streams", "list")
    assert [row.split() for row in listed.lines[1:]] == [
        ["orders", "ACTIVE", "provisioned", "2", "24", "h"],
        ["secret", "ACTIVE", "-", "-", "-"],
    ]
    assert listed.stderr.startswith("secret: ")
    assert "AccessDeniedException: not you" in listed.stderr
    orders, secret = json.loads(shardline("streams", "list", "--output", "json").stdout)
    assert (orders["open_shards"], orders["problem"]) == (2, None)
    assert (secret["name"], secret["status"], secret["open_shards"]) == ("secret", "ACTIVE", None)
    assert secret.keys() == orders.keys()
    assert "not you" in secret["problem"]


def test_another_failure_of_a_description_fails_the_list(shardline, kinesis):
    kinesis.faults.error("ValidationException", "what?", operation="DescribeStreamSummary")
    assert "what?" in shardline("streams", "list", code=1).stderr


# ---- describe


@pytest.fixture
def resharded(kinesis):
    """Shards 0 and 1; 0 is split into 2 and 3; 3 and 1 are merged into 4; 4 is split into 5 and 6."""

    async def work(client):
        await client.split_shard("orders", "shardId-000000000000", wait=True)
        await client.merge_shards("orders", "shardId-000000000003", "shardId-000000000001", wait=True)
        await client.split_shard("orders", "shardId-000000000004", 3 * 2**126, wait=True)

    in_client(kinesis, work)


def in_client(kinesis, work):
    async def main():
        async with kinesis.client() as client:
            await work(client)

    anyio.run(main)


def test_a_stream_is_shown_with_the_lineage_of_its_shards(shardline, resharded):
    shown = shardline("streams", "describe", "orders").stdout.decode()
    facts, _, tree = shown.partition("\n\n")
    assert re.sub(r"created +\S+\n", "", facts).splitlines() == [
        "stream        orders",
        "ARN           arn:aws:kinesis:us-east-1:000000000000:stream/orders",
        "status        ACTIVE",
        "mode          provisioned",
        "retention     24 h (1 d)",
        "encryption    none",
        "record limit  1.0 MiB with its key",
        "consumers     none",
        "shards        3 open, 4 closed",
    ]
    assert tree.splitlines() == [
        "shardId-000000000000           closed   50.00%  split",
        "├─ shardId-000000000002        open     25.00%",
        "└─ shardId-000000000003        closed   25.00%  merged",
        "   └─ shardId-000000000004     closed   75.00%  of 3 and 1; split",
        "      ├─ shardId-000000000005  open     50.00%",
        "      └─ shardId-000000000006  open     25.00%",
        "shardId-000000000001           closed   50.00%  merged into 4",
    ]


def test_open_shards_alone(shardline, resharded):
    shown = shardline("streams", "describe", "orders", "--open").stdout.decode()
    assert [line.split()[0][-1] for line in shown.partition("\n\n")[2].splitlines()] == ["2", "5", "6"]


def test_the_tree_is_drawn_in_ascii_where_nothing_else_can_be_shown(shardline, resharded):
    shown = shardline("streams", "describe", "orders", LANG="C", PYTHONUTF8="0", PYTHONIOENCODING="ascii").stdout
    assert b"|- shardId-000000000002" in shown


def test_everything_for_machines(shardline, kinesis, resharded):

    async def register(client):
        await client.register_stream_consumer("orders", "push", wait=True)

    in_client(kinesis, register)
    shown = json.loads(shardline("streams", "describe", "orders", "--output", "json").stdout)
    assert (shown["open_shards"], shown["closed_shards"], shown["retention_hours"]) == (3, 4, 24)
    assert (shown["encryption"], shown["max_record_bytes"]) == ("NONE", 1_048_576)
    assert [(one["name"], one["status"]) for one in shown["consumers"]] == [("push", "ACTIVE")]
    shards = {one["shard_id"][-1]: one for one in shown["shards"]}
    assert [one["state"] for one in shards.values()] == ["closed", "closed", "open", "closed", "closed", "open", "open"]
    assert [parent[-1] for parent in shards["4"]["parents"]] == ["3", "1"]
    assert [child[-1] for child in shards["1"]["children"]] == ["4"]
    assert shards["4"]["share"] == 0.75
    assert shards["4"]["ending_sequence_number"] is not None
    assert int(shards["6"]["ending_hash_key"]) == 2**128 - 1
    text = shardline("streams", "describe", "orders").stdout.decode()
    assert "consumers     1: push (ACTIVE)" in text


def test_who_may_not_list_consumers_sees_the_rest(shardline, kinesis):
    kinesis.faults.error("AccessDeniedException", "no", operation="ListStreamConsumers")
    assert "consumers     0" in shardline("streams", "describe", "orders").stdout.decode()
    assert json.loads(shardline("streams", "describe", "orders", "--output", "json").stdout)["consumers"] is None


def test_colour_is_for_terminals_that_want_it(on_terminal, shardline):
    assert b"\x1b" not in shardline("streams", "describe", "orders").stdout
    shown, code = on_terminal("streams", "describe", "orders")
    assert code == 0
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "shardId-000000000001  open     50.00%" in shown


# ---- create


def test_streams_are_created(shardline, kinesis):
    assert shardline("streams", "create", "plain").lines == ["created plain: ACTIVE, provisioned, 1 shard"]
    assert shardline("streams", "create", "four", "--shards", "4").lines == [
        "created four: ACTIVE, provisioned, 4 shards"
    ]
    told = json.loads(shardline("streams", "create", "free", "--on-demand", "--output", "json").stdout)
    assert (told["name"], told["mode"], told["created"]) == ("free", "ON_DEMAND", True)
    shardline("streams", "create", "tagged", "--tag", "team=billing", "--tag", "note=a=b")

    async def look(client):
        assert await client.list_tags_for_stream("tagged") == {"team": "billing", "note": "a=b"}

    in_client(kinesis, look)


def test_a_stream_that_is_there_already(shardline):
    ended = shardline("streams", "create", "orders", code=1)
    assert ended.stderr == (
        "Error: CreateStream: Stream orders under account 000000000000 already exists (ResourceInUseException)\n"
    )
    ended = shardline("streams", "create", "orders", "--shards", "9", "--exist-ok")
    assert ended.lines == ["orders already exists: ACTIVE, provisioned, 2 shards"]
    assert (
        json.loads(shardline("streams", "create", "orders", "--exist-ok", "--output=json").stdout)["created"] is False
    )


def test_what_cannot_be_created(shardline):
    for arguments in (["--shards", "2", "--on-demand"], ["--tag", "nothing"], ["--timeout", "soon"]):
        ended = shardline("streams", "create", "new", *arguments, code=2)
        assert ended.stderr.splitlines()[-1].startswith("Error: ")


def test_waiting_for_a_stream_and_not(tmp_path, kinesis, shardline):
    with LocalKinesis(delays=Delays(create=8.0)) as slow:
        settings = dict(slow.environment)
        assert shardline("streams", "create", "a", "--no-wait", **settings).lines[0].startswith("created a: CREATING")
        ended = shardline("streams", "create", "b", **settings)
        assert ended.lines[0].startswith("created b: ACTIVE")
        assert ended.stderr == "waiting until b is ACTIVE ...\n", "it takes long, and is told"
        assert "shards" in shardline("streams", "describe", "a", **settings).stdout.decode()
        ended = shardline("streams", "create", "c", "--timeout", "200ms", code=1, **settings)
        assert ended.stderr == "Error: the stream c is not ACTIVE after 0.2 s: it is CREATING\n"


def test_ctrl_c_while_it_waits_breaks_it_off(shardline, eventually):
    with LocalKinesis(delays=Delays(create=1000.0)) as slow:
        running = shardline.start("streams", "create", "a", **slow.environment)
        eventually(lambda: slow.requests.count("DescribeStreamSummary") > 0)
        running.interrupt()
        ended = running.wait()
    assert (ended.code, ended.stdout) == (130, b"")
    assert "Traceback" not in ended.stderr


# ---- delete


def test_nothing_is_deleted_without_a_yes(shardline, kinesis):
    ended = shardline("streams", "delete", "orders", stdin=b"y\n", code=2)
    assert ended.stderr == "Error: not a terminal: pass --yes to confirm that orders is deleted\n"
    assert "orders" in kinesis.streams
    assert shardline("streams", "delete", "orders", "--yes").lines == ["deleted orders"]
    assert "orders" not in kinesis.streams


def test_on_a_terminal_it_asks(on_terminal, kinesis):
    shown, code = on_terminal("streams", "delete", "orders", typed=b"n\n")
    assert code == 1
    assert "Delete the stream orders in us-east-1 at " in shown
    assert "nothing was deleted" in shown
    assert "orders" in kinesis.streams
    shown, code = on_terminal("streams", "delete", "orders", typed=b"y\n")
    assert code == 0
    assert shown.splitlines()[-1].endswith("deleted orders")
    assert "orders" not in kinesis.streams


def test_ctrl_c_at_the_question_deletes_nothing(on_terminal, kinesis):
    shown, code = on_terminal("streams", "delete", "orders", typed=b"\x03")
    assert "Traceback" not in shown
    assert code == 130
    assert "orders" in kinesis.streams


def test_a_stream_with_consumers(shardline, kinesis):
    async def register(client):
        await client.register_stream_consumer("orders", "push", wait=True)

    in_client(kinesis, register)
    assert "ResourceInUseException" in shardline("streams", "delete", "orders", "--yes", code=1).stderr
    told = shardline("streams", "delete", "orders", "--yes", "--with-consumers", "--output", "json").stdout
    assert json.loads(told) == {"name": "orders", "deleted": True}


# ---- reshard


def open_shards(kinesis):
    return sum(shard.is_open for shard in kinesis.streams["orders"].shards)


def test_many_shards_in_steps(shardline, kinesis):
    plan = shardline("streams", "reshard", "orders", "--shards", "9", "--dry-run")
    assert plan.lines == ["would change 2 -> 4 -> 8 -> 9 shards"]
    assert open_shards(kinesis) == 2
    ended = shardline("streams", "reshard", "orders", "--shards", "9")
    assert ended.lines == ["orders has 9 shards"]
    assert ended.stderr == "the service at most doubles or halves the shards at a time: 2 -> 4 -> 8 -> 9 shards\n"
    assert open_shards(kinesis) == 9
    told = json.loads(shardline("streams", "reshard", "orders", "--shards", "2", "--output", "json").stdout)
    assert told == {"name": "orders", "before": 9, "after": 2, "steps": [5, 3, 2], "dry_run": False}
    assert open_shards(kinesis) == 2
    assert shardline("streams", "reshard", "orders", "--shards", "2").lines == ["the stream already has 2 shards"]


def test_a_split_and_a_merge(shardline, kinesis):
    plan = shardline("streams", "reshard", "orders", "--split", "1", "--dry-run")
    assert plan.lines == ["would split shardId-000000000001 (50.00%) -> 25.00% and 25.00%"]
    assert open_shards(kinesis) == 2
    told = json.loads(shardline("streams", "reshard", "orders", "--merge", "1", "0", "--output", "json").stdout)
    assert (told["change"], told["shards"]) == ("merge", ["shardId-000000000000", "shardId-000000000001"])
    assert open_shards(kinesis) == 1


def test_what_cannot_be_resharded(shardline, kinesis, resharded):
    for arguments, said in [
        ([], "give one of --shards N, --split SHARD and --merge SHARD SHARD"),
        (["--split", "0"], "shardId-000000000000 is closed: only open shards can be split or merged"),
        (["--merge", "2", "6"], "shardId-000000000002 and shardId-000000000006 cannot be merged: their hash ranges"),
        (["--shards", "30", "--no-wait"], "that takes 4 steps, and each must complete before the next"),
    ]:
        assert f"Error: {said}" in shardline("streams", "reshard", "orders", *arguments, code=2).stderr

    async def create(client):
        await client.create_stream("free", mode="ON_DEMAND", wait=True)

    in_client(kinesis, create)
    ended = shardline("streams", "reshard", "free", "--shards", "8", code=2)
    assert ended.stderr == "Error: free is on demand: the service decides how many shards it has\n"


def test_a_reader_that_closes_the_pipe_ends_it_silently(shardline, kinesis):
    for number in range(400):
        kinesis.create_stream(f"a-name-that-fills-the-pipe-of-a-list-{number:060}")
    process = shardline.start("streams", "list", "-q").process
    assert process.stdout.readline() == b"a-name-that-fills-the-pipe-of-a-list-%060d\n" % 0
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) in {0, 1}
