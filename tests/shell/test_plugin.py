"""Do the fixtures work in a user's tests of every kind?

pytest runs in a separate process, in its own directory, as a user's would.
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

SETTINGS = "[pytest]\nfilterwarnings =\n    error\n    ignore:assertions not in test modules:pytest.PytestConfigWarning\naddopts = -p no:cacheprovider -p anyio\n"
# pytest loads every plugin that is installed, which takes longer than the tests
QUICK = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
OPTED_IN = 'pytest_plugins = ["shardline.testing.plugin"]\n'


@pytest.fixture
def run(tmp_path):
    """Run these tests. Return the exit code, the counts of outcomes and the output."""

    def begin(tests, *options, conftest=OPTED_IN):
        (tmp_path / "pytest.ini").write_text(SETTINGS)
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "test_mine.py").write_text(tests)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *options],
            cwd=tmp_path,
            env=QUICK,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        counts = {name: int(count) for count, name in re.findall(r"(\d+) (passed|failed|errors?)", done.stdout)}
        return done.returncode, counts, done.stdout + done.stderr

    return begin


EVERY_KIND = """
import asyncio
import time

import anyio
import boto3
import pytest
from aiobotocore.session import get_session


def test_boto3(kinesis, kinesis_stream):
    client = boto3.client("kinesis", **kinesis.boto3_arguments)
    client.put_record(StreamName=kinesis_stream.name, Data=b"x", PartitionKey="a")
    assert [record.data for record in kinesis_stream.records] == [b"x"]
    client.close()


def test_each_test_has_a_fresh_one(kinesis):
    assert list(kinesis.streams) == []
    assert kinesis.requests.total == 0


def test_asyncio_by_hand(kinesis, kinesis_stream):
    async def main():
        async with kinesis.client() as client:
            await client.put_record(kinesis_stream.name, b"x", "a")

    asyncio.run(main())
    assert kinesis_stream.record_count == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", ("asyncio", {"use_uvloop": True}), "trio"])
async def test_anyio(kinesis, kinesis_stream):
    async with kinesis.client() as client:
        await client.put_record(kinesis_stream.name, b"x", "a")
    assert kinesis_stream.record_count == 1


def test_aiobotocore(kinesis, kinesis_stream):
    async def main():
        async with get_session().create_client("kinesis", **kinesis.boto3_arguments) as client:
            await client.put_record(StreamName=kinesis_stream.name, Data=b"x", PartitionKey="a")

    asyncio.run(main())
    assert kinesis_stream.record_count == 1


@pytest.mark.parametrize("odd", ["a/b c", "ä" * 200])
def test_streams_are_named_after_tests(kinesis_stream, odd):
    assert kinesis_stream.name.startswith("test_streams_are_named_after_tests-")
    assert kinesis_stream.status == "ACTIVE"


def test_a_start_takes_no_time(request):
    began_at = time.process_time()  # of the CPU: the machine may have other things to do
    request.getfixturevalue("kinesis_stream")
    assert time.process_time() - began_at < 1.0
"""


def test_the_fixtures_serve_tests_of_every_kind(run):
    code, counts, output = run(EVERY_KIND)
    assert (code, counts) == (0, {"passed": 10}), output


SETTINGS_OF_THE_USER = """
import pytest


@pytest.fixture
def kinesis_settings():
    return {"shards": 3, "region": "eu-west-1", "limits": False, "stream": "orders"}


def test_my_settings(kinesis, kinesis_stream):
    assert kinesis.region == "eu-west-1"
    assert len(kinesis.streams["orders"].shards) == 3
    assert len(kinesis_stream.shards) == 3


class TestOthers:
    @pytest.fixture
    def kinesis_settings(self, kinesis_settings):
        return kinesis_settings | {"shards": 5}

    def test_my_settings_changed(self, kinesis, kinesis_stream):
        assert kinesis.region == "eu-west-1"
        assert len(kinesis_stream.shards) == 5


class TestWrong:
    @pytest.fixture
    def kinesis_settings(self, request):
        return request.param

    @pytest.mark.parametrize("kinesis_settings", [{"shard": 5}, {"shards": 0}, 7], indirect=True)
    def test_wrong(self, kinesis):
        pass
"""


def test_users_choose_the_settings_with_a_fixture_of_theirs(run):
    _, counts, output = run(SETTINGS_OF_THE_USER)
    assert counts == {"passed": 2, "errors": 3}, output
    said = "UsageError: the fixture kinesis_settings must return arguments of LocalKinesis: "
    assert f"{said}LocalKinesis.__init__() got an unexpected keyword argument 'shard'" in output
    assert "UsageError: shards must be a whole number from 1 to 10000, not 0" in output
    assert output.count(said) >= 2


def test_nothing_is_there_unless_asked_for(run):
    code, counts, output = run("def test_mine(kinesis): pass\n", conftest="")
    assert (code, counts) == (1, {"error": 1}), output
    assert "fixture 'kinesis' not found" in output


def test_the_command_line_can_ask_for_it(run):
    code, counts, output = run("def test_mine(kinesis): pass\n", "-p", "shardline.testing.plugin", conftest="")
    assert (code, counts) == (0, {"passed": 1}), output


def test_a_suite_that_asks_but_does_not_use_it_loads_no_server(run):
    tests = 'import sys\ndef test_mine(): assert "shardline.server" not in sys.modules\n'
    code, counts, output = run(tests)
    assert (code, counts) == (0, {"passed": 1}), output


def test_ctrl_c_inside_a_test_ends_pytest(tmp_path):
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    (tmp_path / "conftest.py").write_text(OPTED_IN)
    (tmp_path / "test_mine.py").write_text(
        'import time\ndef test_mine(kinesis_stream):\n    print("inside", flush=True)\n    time.sleep(60)\n'
    )
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-qs"], cwd=tmp_path, env=QUICK, stdout=subprocess.PIPE, text=True
    ) as process:
        while "inside" not in process.stdout.readline():
            pass
        began_at = time.perf_counter()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=50)
    assert time.perf_counter() - began_at < 10
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in output
