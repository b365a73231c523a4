"""Completion knows streams, groups, shards and positions, and stays silent if something is wrong.

The real command, as the shell calls it.
"""

import socket
import subprocess
import sys
import time

import anyio
import pytest

from shardline.adapters.leases.sqlite import SqliteLeases
from shardline.core.leases import CreateLease
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import at_sequence_number
from shardline.model.sequence import SequenceNumber

FIRST, SECOND = "shardId-000000000000", "shardId-000000000001"
NUMBER = "49590338271490256608559692538361571095921575989136588898"


@pytest.fixture
def complete(shardline, eventually):
    """Return the suggestions for the last word of a line.

    Completion gives up soon, and a busy machine may be slower: ``wanted`` is waited for.
    """

    def complete(line, wanted=None, **changes):
        def suggestions():
            ended = shardline(
                **changes, _SHARDLINE_COMPLETE="bash_complete", SHARDLINE_COMP_LINE=line, COMP_WORDS="", COMP_CWORD="0"
            )
            assert ended.stderr == ""
            return [item.partition(",")[2] for item in ended.lines if item]

        if wanted is not None:
            eventually(lambda: suggestions() == wanted, f"{line!r} never suggested {wanted}")
            return wanted
        return suggestions()

    return complete


@pytest.fixture
def store(tmp_path):
    """A store with two groups: billing reads orders, and audit reads orders and returns."""
    url = f"sqlite:///{tmp_path}/leases.db"
    position = Checkpoint(at_sequence_number(SequenceNumber.parse(NUMBER, 3)))

    async def fill():
        for group, stream in (("billing", "orders"), ("audit", "orders"), ("audit", "returns")):
            leases = SqliteLeases(tmp_path / "leases.db", group=group, stream=stream)
            await leases.open()
            await leases.apply(CreateLease(Lease(FIRST, checkpoint=position)))
            await leases.close()

    anyio.run(fill)
    return url


def test_groups_are_those_of_the_store(complete, store):
    complete(f"shardline groups describe --store {store} ", ["audit", "billing"])
    complete(f"shardline groups reset --store={store} bi", ["billing"])
    complete("shardline groups delete a", ["audit"], SHARDLINE_STORE=store)


def test_the_streams_of_a_group(complete, store):
    complete(f"shardline groups describe --store {store} audit ", ["orders", "returns"])
    complete(f"shardline groups describe --store {store} billing ", ["orders"])


def test_shards_of_a_stream(complete):
    complete("shardline tail orders --shard ", [FIRST, SECOND])
    complete(f"shardline tail orders --shard {FIRST} --shard s", [SECOND])
    complete("shardline tail orders --shard 1", ["1"])
    complete("shardline streams reshard orders --split ", [FIRST, SECOND])
    assert complete("shardline tail --shard ") == [], "no stream is on the line"


def test_only_open_shards_can_be_split(complete, kinesis):
    async def split():
        async with kinesis.client() as client:
            await client.split_shard("orders", FIRST, wait=True)

    anyio.run(split)
    complete("shardline streams reshard orders --merge shard", [SECOND, f"{FIRST[:-1]}2", f"{FIRST[:-1]}3"])


def test_registered_consumers_of_a_stream(complete, shardline):
    for name in ("billing", "backup"):
        shardline("streams", "consumers", "register", "orders", name)
    complete("shardline streams consumers deregister orders b", ["backup", "billing"])
    complete("shardline tail orders --fan-out bi", ["billing"])
    assert complete("shardline tail --fan-out bi") == [], "no stream is on the line"


def test_shards_of_a_group(complete, store):
    complete(f"shardline groups reset billing --store {store} --shard ", [FIRST, SECOND])
    complete(f"shardline groups reset audit orders --store {store} --shard ", [FIRST, SECOND])
    assert complete(f"shardline groups reset audit --store {store} --shard ") == [], "it reads two streams"


def test_positions(complete, kinesis, store):
    named = ["TRIM_HORIZON", "LATEST", "15m", "1h", "24h"]
    assert complete("shardline tail orders --from ") == named
    assert complete("shardline tail orders --from T") == ["TRIM_HORIZON"]
    assert complete("shardline tail orders --until ") == ["latest", "+30s", "+5m", "15m"]
    assert complete("shardline groups reset billing --to L") == ["LATEST"]
    start = str(kinesis.streams["orders"].shards[1].starting_sequence_number)
    complete("shardline tail orders --shard 1 --from ", [*named, start])
    complete(f"shardline groups reset billing --store {store} --shard {FIRST} --to ", [*named, f"{NUMBER}:3"])


def test_the_endpoint_on_the_line_counts(complete, kinesis):
    elsewhere = {"AWS_ENDPOINT_URL_KINESIS": "http://127.0.0.1:1"}
    complete(f"shardline tail --endpoint-url {kinesis.endpoint_url} ", ["orders"], **elsewhere)
    complete(f"shardline --endpoint-url={kinesis.endpoint_url} doctor or", ["orders"], **elsewhere)
    complete(f"shardline tail orders --endpoint-url {kinesis.endpoint_url} --shard ", [FIRST, SECOND], **elsewhere)
    assert complete("shardline tail ", **elsewhere) == []


def test_values_that_are_choices(complete):
    assert complete("shardline streams mode orders ") == ["provisioned", "on-demand"]
    assert complete("shardline doctor orders --for p") == ["producer"]


def test_nothing_is_suggested_if_nothing_can_be_found(complete, kinesis, tmp_path, free_port):
    assert complete("shardline groups describe ") == [], "no store"
    assert complete(f"shardline groups describe --store sqlite:///{tmp_path}/missing.db ") == []
    assert not (tmp_path / "missing.db").exists()
    assert complete("shardline groups describe --store nonsense:// ") == []
    assert complete("shardline groups describe --store memory: ") == []
    assert complete(f"shardline groups describe --store redis://127.0.0.1:{free_port}/0 ") == []
    kinesis.faults.error("AccessDeniedException", "no", operation="ListShards")
    assert complete("shardline tail orders --shard ") == []
    assert complete("shardline tail missing --shard ") == []


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_silent_server_is_given_up_soon(complete):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began_at = time.monotonic()
        assert complete(f"shardline groups describe --store redis://127.0.0.1:{port}/0 ") == []
        assert complete(f"shardline tail --endpoint-url http://127.0.0.1:{port} ") == []
        assert time.monotonic() - began_at < 30


def test_bash_completes_values_behind_urls(shardline, kinesis, tmp_path, eventually):
    """Bash splits words at colons; the script passes the whole line."""
    (tmp_path / "shardline").write_text(f'#!/bin/sh\nexec {sys.executable} -m shardline "$@"\n')
    (tmp_path / "shardline").chmod(0o755)
    program = """
        source <(shardline completion bash)
        COMP_LINE="shardline tail orders --endpoint-url $URL --shard sh" COMP_POINT=${#COMP_LINE}
        COMP_WORDS=(shardline tail orders --endpoint-url http : //127.0.0.1 : 4567 --shard sh) COMP_CWORD=10
        _shardline_completion shardline
        echo "${COMPREPLY[@]}"
    """
    program = program.replace('sh" COMP_POINT', 'sh"; COMP_POINT')
    environment = shardline.environment | {"AWS_ENDPOINT_URL_KINESIS": "http://127.0.0.1:1"}
    environment |= {"URL": kinesis.endpoint_url, "PATH": f"{tmp_path}:{environment['PATH']}"}

    def is_completed():
        ended = subprocess.run(
            ["bash", "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.stderr == ""
        return ended.stdout.split() == [FIRST, SECOND]

    eventually(is_completed)
