"""Does ``shardline local`` serve, print how to connect, and end properly?

The tests run the real command in a separate process.
"""

import asyncio
import contextlib
import http.client
import json
import os
import pty
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import boto3
import pytest
import trustme
from botocore.exceptions import ClientError
from click.testing import CliRunner
from tests.programs import command_for

import shardline
from shardline import Client, Credentials
from shardline.cli.local.local_command import local
from shardline.cli.local.traffic_display import LocalDisplay
from shardline.server.model import inputs
from shardline.server.model.management import create_stream
from shardline.server.model.streams import ServerStream
from shardline.server.running_server import RunningServer
from shardline.testing import LocalKinesis

COMMAND = [sys.executable, "-m", "shardline"]
CLIENTS = Path(__file__).parents[2] / ".servers" / "clients" / "bin"
ROWS = ("shell", "AWS CLI", "boto3", "Shardline")


class Running:
    """The command, after it has printed how to connect."""

    def __init__(self, *options):
        self.began_at = time.perf_counter()
        self.process = subprocess.Popen(
            [*COMMAND, "local", "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.first = self.process.stdout.readline()
        self.started_in = time.perf_counter() - self.began_at
        found = re.match(r"A local Kinesis on (\S+), region (\S+)\.", self.first)
        assert found, self.first + self.process.communicate(timeout=5)[1]
        self.url, self.region = found.groups()
        assert self.process.stdout.readline() == "\n"
        self.rows = {}
        while (line := self.process.stdout.readline()) != "\n":
            name = next(one for one in ROWS if line.startswith(f"  {one} "))
            self.rows[name] = line[2:].removeprefix(name).strip()

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    def boto(self):
        return eval(self.rows["boto3"], {"boto3": boto3})

    def end(self, number=signal.SIGINT, within=10):
        """Return the rest of the output, after the signal."""
        began_at = time.perf_counter()
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=30)
        assert time.perf_counter() - began_at < within
        assert errors == ""
        assert self.process.returncode == 0
        assert output.splitlines()[-1] == "stopped"
        return output.splitlines()[:-1]


@pytest.fixture
def start():
    with contextlib.ExitStack() as stack:

        def begin(*options):
            one = Running(*options)
            stack.enter_context(one.process)
            stack.callback(one.process.kill)
            return one

        yield begin


def refused(*arguments):
    """Return the exit code and the last line of a command that is refused. It runs in this process, which is quicker."""
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    run = CliRunner().invoke(local, arguments)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert isinstance(run.exception, SystemExit)
    assert run.stdout == ""
    return run.exit_code, run.stderr.splitlines()[-1]


def refused_really(*arguments):
    """Return the whole output of a command that is refused, in a separate process."""
    run = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=20, check=False)
    assert run.stdout == ""
    return run.returncode, run.stderr.splitlines()


# ---- output


@pytest.mark.parametrize("options", [(), ("--tls",)], ids=["plain", "tls"])
def test_every_line_of_how_to_reach_it_works(start, options, tmp_path):
    running = start("--stream", "orders", "--region", "eu-west-1", *options)
    assert tuple(running.rows) == ROWS
    assert running.region == "eu-west-1"

    with contextlib.closing(running.boto()) as client:
        assert client.list_streams()["StreamNames"] == ["orders"]
        assert client.meta.region_name == "eu-west-1"

    async def ask():
        async with eval(running.rows["Shardline"], {"Client": Client, "Credentials": Credentials}) as client:
            return await client.list_streams()

    assert [one.name for one in asyncio.run(ask())] == ["orders"]

    code = "import boto3; print(boto3.client('kinesis').list_streams()['StreamNames'])"
    shell = f"{running.rows['shell']}\n{shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == "['orders']\n", done.stderr
    assert running.end()[-1].split("request")[1].split()[-7:] == ["3", "in", "all", "1", "stream", "0", "records"]


@pytest.mark.skipif(shutil.which("aws") is None, reason="the AWS CLI is not here")
def test_the_line_for_the_aws_cli_works(start):
    running = start("--stream", "orders", "--tls")
    done = subprocess.run(
        ["sh", "-c", running.rows["AWS CLI"]], capture_output=True, text=True, timeout=30, check=False
    )
    assert json.loads(done.stdout)["StreamNames"] == ["orders"], done.stderr
    running.end()


def test_the_line_for_the_aws_cli_names_what_the_others_do(start):
    running = start("--tls")
    words = shlex.split(running.rows["AWS CLI"])
    assert words[2:] == [
        *["aws", "--endpoint-url", running.url, "--region", "us-east-1"],
        *["--ca-bundle", re.search(r"verify='(.*)'", running.rows["boto3"])[1], "kinesis", "list-streams"],
    ]
    assert [one.partition("=")[0] for one in words[:2]] == ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    running.end()


def test_traffic_is_shown_in_plain_lines_where_there_is_no_terminal(start):
    running = start("--stream", "s")
    with contextlib.closing(running.boto()) as client:
        for _ in range(3):
            client.put_record(StreamName="s", Data=b"x", PartitionKey="a")
        assert running.process.stdout.readline().split()[-4:] == ["1", "stream", "3", "records"]
        client.put_record(StreamName="s", Data=b"x", PartitionKey="a")
        (last,) = running.end()
        assert last.split() == ["1", "request", "4", "in", "all", "1", "stream", "4", "records"]


def test_traffic_is_one_line_that_is_rewritten_on_a_terminal():
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, "local", "--port", "0"], stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while b"Shardline " not in shown:
            shown += os.read(ours, 65_536)
        port = re.search(rb"127\.0\.0\.1:(\d+)", shown)[1].decode()
        target = {"X-Amz-Target": "Kinesis_20131202.ListStreams", "Content-Type": "application/x-amz-json-1.1"}
        for total in (1, 2):
            url = urllib.request.Request(f"http://127.0.0.1:{port}/", b"{}", target)
            urllib.request.urlopen(url, timeout=5).close()
            while b"%d in all" % total not in shown:
                shown += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal is gone
            while chunk := os.read(ours, 65_536):
                shown += chunk
        assert process.wait(5) == 0
    os.close(ours)
    assert shown.count(b"\r\x1b[K") == 2
    assert shown.endswith(b"\r\nstopped\r\n")


def ask(port, operation, **members):
    """One call without an SDK: quick, and without retries."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    target = {"X-Amz-Target": f"Kinesis_20131202.{operation}", "Content-Type": "application/x-amz-json-1.1"}
    try:
        connection.request("POST", "/", json.dumps(members).encode(), target)
        return connection.getresponse().status
    finally:
        connection.close()


def test_streams_that_come_and_go_do_not_end_it(start):
    """The traffic line is computed every second, while streams vanish."""
    running = start("--no-limits")
    until = time.monotonic() + 3.5

    def come_and_go(number):
        for turn in range(1_000_000):
            if time.monotonic() > until:
                return
            name = f"s-{number}-{turn}"
            assert ask(running.port, "CreateStream", StreamName=name, ShardCount=1) == 200
            assert ask(running.port, "DeleteStream", StreamName=name) == 200

    threads = [threading.Thread(target=come_and_go, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert running.process.poll() is None
    lines = running.end()
    assert len(lines) >= 3
    assert lines[-1].endswith("0 streams  0 records")


def test_a_line_of_traffic_reads_no_stream(monkeypatch, capsys):
    """The cost of a line is counted, not timed: with 3,000 streams it reads none of them."""
    with LocalKinesis() as kinesis:
        for number in range(3_000):
            request = inputs.read_values("CreateStream", {"StreamName": f"s{number}", "ShardCount": 1})
            create_stream(kinesis._server.service.state, request)
        display = LocalDisplay(is_json=False)
        looked = []
        monkeypatch.setattr(RunningServer, "call", lambda *_: looked.append("asked the server's thread"))
        monkeypatch.setattr(ServerStream, "record_count", property(looked.append))
        assert ask(kinesis._server.port, "PutRecord", StreamName="s7", Data="eA==", PartitionKey="k") == 200
        display.show_traffic(lambda: kinesis.traffic)
        assert looked == []
    assert capsys.readouterr().out == "     1 request   1 in all  3,000 streams  1 record\n"


def test_the_output_can_be_json(start):
    process = subprocess.Popen(
        [*COMMAND, "local", "--port", "0", "--stream", "s", "-o", "json"], stdout=subprocess.PIPE, text=True
    )
    with process:
        started = json.loads(process.stdout.readline())
        port = int(started["endpoint_url"].rpartition(":")[2])
        assert ask(port, "PutRecord", StreamName="s", Data="eA==", PartitionKey="k") == 200
        traffic = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert json.loads(process.stdout.readline()) == {"event": "stopped"}
        assert process.wait(10) == 0
    assert started["health_url"] == f"{started['endpoint_url']}/_shardline/health"
    assert (started["event"], started["region"]) == ("started", "us-east-1")
    assert started["environment"]["AWS_ENDPOINT_URL_KINESIS"] == started["endpoint_url"]
    assert traffic == {"event": "traffic", "new_requests": 1, "requests": 1, "streams": 1, "records": 1}


@pytest.mark.parametrize("output", ["text", "json"])
def test_it_keeps_serving_when_its_output_is_not_read(output):
    ours, theirs = os.pipe()
    port = free_port()
    command = [*COMMAND, "local", "--port", str(port), "--output", output]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.close(theirs)
        os.read(ours, 10)
        os.close(ours)
        for _ in range(3):
            assert ask(port, "ListStreams") == 200
            time.sleep(1.1)  # a traffic line is due
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_it_serves_on_when_its_output_cannot_be_written():
    port = free_port()
    command = [*COMMAND, "local", "--port", str(port)]
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True) as it,
    ):
        warned = it.stderr.readline()
        assert ask(port, "ListStreams") == 200
        time.sleep(1.1)
        it.send_signal(signal.SIGTERM)
        _, errors = it.communicate(timeout=10)
    said = "Warning: the traffic cannot be shown (No space left on device); the server keeps serving\n"
    assert (it.returncode, warned, errors) == (0, said, "")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


# ---- options


@pytest.mark.clock
def test_it_starts_in_a_moment(start):
    """It takes half a second on an idle machine: ``make bench`` measures it."""
    runs = [start() for _ in range(2)]
    assert min(one.started_in for one in runs) < 2.5
    for one in runs:
        one.end()


def test_streams_shards_limits_and_faults_match_the_options(start, tmp_path):
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps([{"kind": "throttle", "operation": "PutRecord", "count": 1}]))
    options = ("--stream", "a", "--stream", "b", "--stream", "a", "--shards", "3", "--no-limits", "--faults", faults)
    running = start(*map(str, options))
    with contextlib.closing(running.boto()) as client:
        assert client.list_streams()["StreamNames"] == ["a", "b"]
        assert len(client.list_shards(StreamName="b")["Shards"]) == 3
        client.put_record(StreamName="a", Data=b"x", PartitionKey="a")  # boto3 retries
        entries = [{"Data": b"x", "PartitionKey": "a"}] * 500
        assert [client.put_records(StreamName="a", Records=entries)["FailedRecordCount"] for _ in range(3)] == [0] * 3
    with urllib.request.urlopen(f"{running.url}/_shardline/requests?operation=PutRecord", timeout=5) as answer:
        assert [one["status"] for one in json.load(answer)["requests"]] == [400, 200]
    running.end()


def test_limits_are_on_by_default(start):
    running = start("--stream", "s")
    entries = [{"Data": b"x", "PartitionKey": "a"}] * 500
    with contextlib.closing(running.boto()) as client:
        assert sum(client.put_records(StreamName="s", Records=entries)["FailedRecordCount"] for _ in range(4)) > 0
    running.end()


def test_data_outlives_the_command(start, tmp_path):
    for count in range(2):
        running = start("--data", str(tmp_path / "data"), "--stream", "s")
        with contextlib.closing(running.boto()) as client:
            wanted = {"StreamName": "s", "ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
            page = client.get_records(ShardIterator=client.get_shard_iterator(**wanted)["ShardIterator"])
            assert len(page["Records"]) == count
            client.put_record(StreamName="s", Data=b"x", PartitionKey="a")
        running.end(signal.SIGTERM)


@pytest.mark.parametrize("kind", ["plain", "HTTP/2", "tls", "HTTP/2 tls", "signed", "faulty"])
def test_health_is_answered_however_it_is_served(kind):
    import httpcore2

    settings = {"tls": kind.endswith("tls"), "verify_signatures": kind == "signed"}
    with LocalKinesis(stream="s", **settings) as kinesis:
        if kind == "faulty":
            kinesis.faults.error("InternalFailure")
        context = None if kinesis.ca_path is None else ssl.create_default_context(cafile=kinesis.ca_path)
        over_2 = kind.startswith("HTTP/2")
        with httpcore2.ConnectionPool(ssl_context=context, http1=not over_2, http2=over_2) as pool:
            answers = [pool.request(method, f"{kinesis.endpoint_url}/_shardline/health") for method in ("GET", "HEAD")]
        assert [(answer.status, answer.content.replace(b" ", b"")) for answer in answers] == [
            (200, b'{"status":"ok","streams":1,"records":0}'),
            (200, b""),
        ]
        assert answers[0].extensions["http_version"] == (b"HTTP/2" if over_2 else b"HTTP/1.1")
        assert kinesis.requests.total == 0


# ---- the end


@pytest.mark.clock
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_also_with_connections_and_requests_open(start, number, tmp_path):
    faults = tmp_path / "faults.json"
    faults.write_text('[{"kind": "latency", "seconds": 60, "operation": "ListShards"}]')
    running = start("--stream", "s", "--faults", str(faults))
    client = running.boto()
    consumer = client.register_stream_consumer(
        StreamARN="arn:aws:kinesis:us-east-1:000000000000:stream/s", ConsumerName="c"
    )["Consumer"]["ConsumerARN"]
    position = {"Type": "TRIM_HORIZON"}
    events = client.subscribe_to_shard(ConsumerARN=consumer, ShardId="shardId-000000000000", StartingPosition=position)[
        "EventStream"
    ]
    next(iter(events))
    idle = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)
    idle.request("GET", "/_shardline/clock")
    idle.getresponse().read()
    late = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)
    target = {"X-Amz-Target": "Kinesis_20131202.ListShards", "Content-Type": "application/x-amz-json-1.1"}
    late.request("POST", "/", b'{"StreamName": "s"}', target)
    time.sleep(0.05)
    running.end(number, within=2)
    for one in (idle, late, client):
        one.close()
    events.close()


def test_signals_that_keep_coming_change_nothing(start):
    running = start()
    stop = threading.Event()

    def pester():
        while not stop.wait(0.001):
            running.process.send_signal(signal.SIGINT)

    thread = threading.Thread(target=pester)
    thread.start()
    time.sleep(0.3)
    stop.set()
    thread.join()
    output, errors = running.process.communicate(timeout=5)
    assert (running.process.returncode, output, errors) == (0, "stopped\n", "")


def test_ctrl_c_before_it_has_begun_is_no_traceback():
    program = """
from shardline.cli import main
def interrupted():
    raise KeyboardInterrupt
main._run = interrupted
main.main()
"""
    done = subprocess.run(command_for(program), capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# ---- wrong usage


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "Error: Invalid value for '--port': 70000 is not in the range 0<=x<=65535."),
        (["--port", "http"], "Error: Invalid value for '--port': 'http' is not a valid integer range."),
        (["--shards", "0"], "Error: Invalid value for '--shards': 0 is not in the range 1<=x<=10000."),
        (["--region", "Europe"], "Error: region must be a region name such as 'us-east-1', not 'Europe'"),
        (["--host", ""], "Error: host must be a name or an address such as '127.0.0.1', not ''"),
        (["--nothing"], "Error: No such option '--nothing'."),
        (["more"], "Error: Got unexpected extra argument (more)"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_a_sentence(arguments, said):
    assert refused(*arguments) == (2, said)


def test_a_stream_that_cannot_be_is_wrong_usage():
    code, said = refused("--port", "0", "--stream", "no spaces")
    assert code == 2
    assert said.startswith("Error: Invalid value for --stream: a stream's name must be 1 to 128 of the characters")


def test_an_unknown_command_is_wrong_usage():
    code, lines = refused_really("remote")
    assert (code, lines[-1]) == (2, "Error: No such command 'remote'.")
    code, lines = refused_really("local", "--port", "70000")
    assert (code, lines[0]) == (2, "Usage: shardline local [OPTIONS]")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"\xff\xfe\xfa", "can't decode"),
        (b'{"kind": "throttle"}', "a file of faults is a JSON list of objects"),
        (b"[1]", "a file of faults is a JSON list of objects"),
        (b'[{"kind": "thunder"}]', "a fault's kind must be one of"),
        (b'[{"kind": "throttle", "count": 0}]', "a throttle fault: "),
    ],
)
def test_a_file_of_faults_that_is_wrong_is_named(tmp_path, content, said):
    path = tmp_path / "faults.json"
    path.write_bytes(content)
    code, line = refused("--port", "0", "--faults", str(path))
    assert code == 2
    assert line.startswith(f"Error: Invalid value for --faults: {path}: ")
    assert said in line


def test_a_file_of_faults_that_is_not_there_is_wrong_usage(tmp_path):
    code, line = refused("--faults", str(tmp_path / "none.json"))
    assert (code, line) == (2, f"Error: Invalid value for '--faults': File '{tmp_path}/none.json' does not exist.")


def test_a_port_that_is_taken_is_one_sentence_and_exit_code_1():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, (line,) = refused_really("local", "--port", str(port))
    assert code == 1
    assert line.startswith(f"Error: cannot serve on 127.0.0.1 port {port}: ")


def test_an_invalid_data_file_is_one_sentence_and_exit_code_1(tmp_path):
    path = tmp_path / "notes"
    path.write_text("nothing of ours " * 200)
    said = f"Error: {path} is not a data file of Shardline's local server"
    assert refused("--port", "0", "--data", str(path)) == (1, said)


def test_without_click_the_extra_is_named():
    code = "import sys; sys.modules['click'] = None; import runpy; runpy.run_module('shardline', run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert run.returncode == 1
    assert run.stderr == "the command line needs an extra: pip install 'shardline[cli]'\n"


def test_version_and_help():
    run = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, timeout=20, check=True)
    assert run.stdout == f"shardline, version {shardline.__version__}\n"
    run = CliRunner().invoke(local, ["--help"])
    for option in (
        "port",
        "host",
        "shards",
        "stream",
        "data",
        "no-limits",
        "tls",
        "region",
        "faults",
        "allow-host",
        "token",
    ):
        assert f"--{option}" in run.stdout


# ---- access


def health_of(running, host):
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=5)
    try:
        connection.request("GET", "/_shardline/health", headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


def test_names_are_served_that_were_allowed(start):
    running = start("--allow-host", "kinesis", "--allow-host", "*.example.com")
    hosts = ["kinesis:4567", "a.example.com", "localhost", "127.0.0.1", "[::1]:1", "example.com", "evil.example"]
    assert [health_of(running, host) for host in hosts] == [200] * 5 + [403] * 2
    running.end()


@pytest.mark.parametrize("place", ["option", "variable", "file"])
def test_a_token_is_needed_by_all_and_shown_nowhere(place, tmp_path, monkeypatch):
    token = "0123456789abcdef0123456789abcdef"
    path = tmp_path / "token"
    path.write_text(f"{token}\n")
    options = {"option": ["--token", token], "variable": [], "file": ["--token-file", str(path)]}[place]
    if place == "variable":
        monkeypatch.setenv("SHARDLINE_LOCAL_TOKEN", token)
    running = Running("--stream", "orders", *options)
    with running.process:
        try:
            monkeypatch.setenv("SHARDLINE_LOCAL_TOKEN", token)
            scope = {"boto3": boto3, "os": os}
            with contextlib.closing(eval(running.rows["boto3"], scope)) as client:
                assert client.list_streams()["StreamNames"] == ["orders"]

            async def ask():
                scope = {"Client": Client, "Credentials": Credentials, "os": os}
                async with eval(running.rows["Shardline"], scope) as client:
                    return await client.list_streams()

            assert [one.name for one in asyncio.run(ask())] == ["orders"]
            code = "import boto3; print(boto3.client('kinesis').list_streams()['StreamNames'])"
            shell = f"{running.rows['shell']}\n{shlex.quote(sys.executable)} -c {shlex.quote(code)}"
            done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=20, check=False)
            assert done.stdout == "['orders']\n", done.stderr

            monkeypatch.setenv("SHARDLINE_LOCAL_TOKEN", "another, and a wrong one")
            with pytest.raises(ClientError, match="InvalidSignatureException"):
                eval(running.rows["boto3"], scope).list_streams()
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"{running.url}/_shardline/clock", timeout=5)
            bearer = {"Authorization": f"Bearer {token}"}
            request = urllib.request.Request(f"{running.url}/_shardline/clock", headers=bearer)
            with urllib.request.urlopen(request, timeout=5) as answer:
                assert answer.status == 200
            with urllib.request.urlopen(f"{running.url}/_shardline/health", timeout=5) as answer:
                assert answer.status == 200
            seen = "\n".join([running.first, *running.rows.values(), *running.end()])
            assert "The token is the secret key." in running.first
            assert token not in seen
        finally:
            running.process.kill()


def test_the_token_is_not_in_the_json_that_is_printed():
    command = [*COMMAND, "local", "--port", "0", "--output", "json"]
    environment = os.environ | {"SHARDLINE_LOCAL_TOKEN": "0123456789abcdef0123456789abcdef"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        started = json.loads(process.stdout.readline())
        process.terminate()
    assert started["environment"]["AWS_ACCESS_KEY_ID"]
    assert "AWS_SECRET_ACCESS_KEY" not in started["environment"]
    assert "0123456789abcdef" not in json.dumps(started)


def test_wrong_hosts_and_tokens_are_one_sentence_and_exit_code_2(tmp_path, monkeypatch):
    monkeypatch.delenv("SHARDLINE_LOCAL_TOKEN", raising=False)
    path, odd = tmp_path / "token", tmp_path / "odd"
    path.write_text("x" * 20)
    odd.write_bytes(b"\xff" * 20)
    code, line = refused("--allow-host", "http://kinesis")
    assert (code, line.partition(", without")[0]) == (
        2,
        "Error: an allowed host must be a name such as 'kinesis' or '*.example.com'",
    )
    for token in ("short-secret", "sixteen and more, with spaces"):
        code, line = refused("--token", token)
        assert (code, token in line) == (2, False)
    assert refused("--token", "x" * 20, "--token-file", str(path)) == (
        2,
        "Error: give --token or --token-file, not both",
    )
    assert refused("--token-file", str(odd))[0] == 2
    assert refused("--token-file", str(tmp_path / "none"))[0] == 2


# ---- start

TELL_AT_EXIT = """
import atexit, json, os, sys

def tell():
    import aiohttp.connector
    needless = [name for name in ("rich", "botocore", "boto3", "h2", "xml.sax", "trio") if name in sys.modules]
    certificates = aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509"]
    print(json.dumps([needless, certificates, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")]))

atexit.register(tell)
from shardline.cli.main import main
main()
"""


def test_a_start_imports_and_loads_nothing_that_the_server_does_not_need(certificate_file):
    """It should start within 0.35 s (bench_server.py): root certificates alone are a third of the CPU time, rich a
    tenth.
    """
    environment = {name: value for name, value in os.environ.items() if name != "SSL_CERT_DIR"}
    process = subprocess.Popen(
        [sys.executable, "-c", TELL_AT_EXIT, "local", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"SSL_CERT_FILE": certificate_file},
    )
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert (errors, process.returncode) == ("", 0)
    assert json.loads(output.splitlines()[-1]) == [[], 0, certificate_file, None]


@pytest.fixture
def certificate_file(tmp_path):
    """A file of root certificates, which OpenSSL would load."""
    path = tmp_path / "roots.pem"
    trustme.CA().cert_pem.write_to_path(str(path))
    context = ssl.create_default_context(cafile=str(path))
    assert context.cert_store_stats()["x509"] == 1
    return str(path)
