"""Does a run on AWS leave nothing behind, whatever happens to it, and resume where it was interrupted?

There is no account for these tests: AWS is a stand-in (``stand_in.py``) under its own name, with TLS, an HTTPS proxy,
signature checks, and credentials from a profile. The program is the real one, in a separate process.
"""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.conformance.recording import against, load
from tests.conformance.scenario import Scenario
from tests.conformance.stand_in import ACCESS_KEY, ACCOUNT, NAME, REGION, SECRET_KEY, SESSION_TOKEN, stand_in
from tests.conformance.table import SCENARIOS

ROOT = Path(__file__).parents[2]
PREFIX = "shardline-conformance-"
FAST = ("--only", "put-record", "--only", "stream-by-arn", "--only", "stream-missing")
LIMIT = 120.0


@pytest.fixture
def aws(tmp_path):
    with stand_in(tmp_path) as made:
        yield made


@pytest.fixture
def state(tmp_path):
    return tmp_path / "state.json"


def command(state, *arguments, yes=True):
    base = [sys.executable, "-m", "tests.conformance", "--aws", "--state", str(state)]
    return [*base, *(("--yes",) if yes else ()), *arguments]


def run(aws, state, *arguments, yes=True, **environment):
    return subprocess.run(
        command(state, *arguments, yes=yes),
        cwd=ROOT,
        env=aws.environment(**environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )


class Started:
    """A run in the background, whose output can be waited for."""

    def __init__(self, aws, state, *arguments):
        self.process = subprocess.Popen(
            command(state, *arguments),
            cwd=ROOT,
            env=aws.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def until(self, holds):
        give_up_at = time.monotonic() + LIMIT
        while not holds():
            assert time.monotonic() < give_up_at, self.output
            assert self.process.poll() is None, self.output
            time.sleep(0.02)

    def end(self):
        code = self.process.wait(timeout=LIMIT)
        self._reader.join()
        self.process.stdout.close()
        return code

    @property
    def output(self):
        return "".join(self.lines)


def requests(aws, operation):
    return aws.server.requests.find(operation)


def played(output):
    return set(re.findall(r"^ok\s+(\S+) \(", output, re.MULTILINE))


def test_a_run_from_beginning_to_end(aws, state, tmp_path):
    recorded = tmp_path / "recordings" / "aws.json"
    ended = run(aws, state, *FAST, "--only", "client-json", "--record", str(recorded))
    assert ended.returncode == 0, ended.stdout
    assert played(ended.stdout) == {"put-record", "stream-by-arn", "stream-missing", "client-json"}
    # The output first states what is created and what it costs, and in the end that nothing is left.
    assert re.search(rf"Endpoint https://{NAME}, region {REGION}, account {ACCOUNT}", ended.stdout)
    assert re.search(r"3 streams with 4 shards.*at most 0\.0\d US dollars", ended.stdout), ended.stdout
    assert "no stream is left" in ended.stdout
    assert aws.streams == []
    assert not state.exists()
    made = requests(aws, "CreateStream")
    assert len(made) == 3
    assert all(one.stream.startswith(PREFIX) for one in made)
    # CI compares with the recording: it has no account and no key, and the embedded server agrees with it.
    text = recorded.read_text()
    assert not [secret for secret in (ACCOUNT, ACCESS_KEY, SECRET_KEY, SESSION_TOKEN, NAME) if secret in text]
    kept = load(recorded)
    assert list(kept["scenarios"]) == [name for name in SCENARIOS if name in played(ended.stdout)]
    for name in kept["scenarios"]:
        assert disagreements(kept, SCENARIOS[name]) == []


def disagreements(kept, scenario: Scenario):
    from tests.conformance import sites
    from tests.conformance.player import Player, Run

    with sites.embedded() as site:
        return against(kept, scenario, Player(site, scenario, Run("again")).play())


def test_the_endpoint_comes_from_the_region_if_nothing_else_is_set(aws, state):
    played_here = ("--only", "headers", "--only", "client-by-arn", "--only", "fan-out-http2")
    ended = run(aws, state, *played_here, AWS_ENDPOINT_URL_KINESIS="")
    assert f"https://kinesis.{REGION}.amazonaws.com" in ended.stdout
    assert ended.returncode == 0, ended.stdout
    assert aws.streams == []
    # With an ARN, the rules of the SDKs select an endpoint of the account.
    assert {f"kinesis.{REGION}.amazonaws.com", f"{ACCOUNT}.data-kinesis.{REGION}.amazonaws.com"} <= aws.proxy.names
    assert "h2" in aws.proxy.protocols


def test_a_run_that_is_killed_goes_on_and_leaves_nothing(aws, state):
    victim = Started(aws, state, *FAST, "--only", "split-and-merge", "--only", "throttled-writes", "--jobs", "2")
    victim.until(lambda: {"put-record", "stream-by-arn"} <= played(victim.output) or len(played(victim.output)) >= 2)
    victim.until(lambda: len(aws.streams) >= 1)
    victim.process.kill()
    assert victim.end() == -signal.SIGKILL
    done = played(victim.output)
    assert aws.streams, "the run was killed too late to leave anything"
    assert set(aws.streams) <= set(json.loads(state.read_text())["streams"])

    refused = run(aws, state, *FAST)
    assert refused.returncode == 2
    assert "--resume" in refused.stdout

    resumed = run(aws, state, *FAST, "--only", "split-and-merge", "--only", "throttled-writes", "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert "5 scenarios of 5 played" in resumed.stdout
    assert not (played(resumed.stdout) & done)
    assert aws.streams == []
    assert not state.exists()


def test_a_run_that_was_killed_is_cleaned_up_also_without_its_state(aws, state):
    victim = Started(aws, state, "--only", "iterator-expired")
    victim.until(lambda: aws.streams)
    victim.process.kill()
    victim.end()
    state.unlink()
    cleaned = run(aws, state, "--clean")
    assert cleaned.returncode == 0, cleaned.stdout
    assert "1 stream deleted; none is left" in cleaned.stdout
    assert aws.streams == []


def test_fresh_deletes_what_is_left_and_starts_afresh(aws, state):
    victim = Started(aws, state, "--only", "iterator-expired", "--only", "put-record")
    victim.until(lambda: "put-record" in played(victim.output))
    victim.process.kill()
    victim.end()
    fresh = run(aws, state, "--only", "put-record", "--fresh")
    assert fresh.returncode == 0, fresh.stdout
    assert played(fresh.stdout) == {"put-record"}
    assert aws.streams == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_deletes_its_streams_and_can_be_resumed(aws, state, number):
    victim = Started(aws, state, "--only", "iterator-expired", "--only", "put-record")
    victim.until(lambda: "put-record" in played(victim.output) and aws.streams)
    victim.process.send_signal(number)
    assert victim.end() == 128 + number, victim.output
    assert "no stream is left" in victim.output
    assert aws.streams == []
    resumed = run(aws, state, "--only", "put-record", "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert played(resumed.stdout) == set()  # the scenario was finished
    assert "1 scenario of 1 played" in resumed.stdout


def test_credentials_that_expire_in_the_middle_end_the_run_and_new_ones_resume_it(aws, state):
    victim = Started(
        aws, state, "--only", "iterator-expired", "--only", "put-record", "--only", "split-and-merge", "--jobs", "2"
    )
    victim.until(lambda: aws.streams)
    aws.signatures.expired = SESSION_TOKEN
    assert victim.end() == 3, victim.output
    assert "the credentials have expired" in victim.output
    assert "streams are left, which cost money" in victim.output
    assert aws.streams

    aws.signatures.rotate({ACCESS_KEY: (SECRET_KEY, "another-token")})
    aws.write_profile("another-token")
    resumed = run(aws, state, "--only", "put-record", "--resume")
    assert resumed.returncode == 0, resumed.stdout
    assert aws.streams == []


def test_credentials_that_are_renewed_in_time_are_found(aws, state):
    going_on = Started(aws, state, *FAST, "--only", "split-and-merge", "--jobs", "3")
    going_on.until(lambda: aws.streams)
    aws.write_profile("another-token")
    aws.signatures.rotate({ACCESS_KEY: (SECRET_KEY, "another-token")})
    assert going_on.end() == 0, going_on.output
    assert aws.streams == []


def test_what_is_denied_is_not_run_and_never_passed(aws, state):
    denied = "User: arn:aws:iam::424242424242:user/u is not authorized to perform: kinesis:SplitShard"
    aws.server.faults.error("AccessDeniedException", denied, operation="SplitShard")
    ended = run(aws, state, "--only", "split-and-merge", "--only", "put-record")
    assert ended.returncode == 3, ended.stdout
    assert played(ended.stdout) == {"put-record"}
    assert "NOT RUN aws | split-and-merge | SplitShard is denied" in ended.stdout
    assert "1 scenario of 2 played" in ended.stdout
    assert aws.streams == []


def test_nothing_is_made_if_it_could_not_be_deleted(aws, state):
    denied = "User: arn:aws:iam::424242424242:user/u is not authorized to perform: kinesis:DeleteStream"
    aws.server.faults.error("AccessDeniedException", denied, operation="DeleteStream")
    ended = run(aws, state, *FAST)
    assert ended.returncode == 2
    assert "so none is made" in ended.stdout
    assert requests(aws, "CreateStream") == []


def test_throttling_is_waited_out(aws, state):
    aws.server.faults.throttle(operation="CreateStream", count=2)
    aws.server.faults.throttle(operation="DescribeStreamSummary", count=2)
    aws.server.faults.throttle(operation="DeleteStream", after=1, count=2)
    ended = run(aws, state, "--only", "put-record")
    assert ended.returncode == 0, ended.stdout
    assert aws.streams == []


def test_streams_of_others_are_never_touched(aws, state):
    def make(name, tags):
        from shardline.server.model import inputs
        from shardline.server.model.management import create_stream

        service = aws.server.service
        service.state.advance(time.time())
        create_stream(
            service.state, inputs.read_values("CreateStream", {"StreamName": name, "ShardCount": 1, "Tags": tags})
        )

    for name, tags in {
        "orders": {"shardline-conformance": "x"},
        f"{PREFIX}mine": {"owner": "you"},
        f"{PREFIX}a-by-hand": {"owner": "me"},
        "shardline-conformancf": {"shardline-conformance": "x"},
    }.items():
        aws.server.call(lambda name=name, tags=tags: make(name, tags))
    before = aws.streams
    assert run(aws, state, "--only", "put-record").returncode == 0
    cleaned = run(aws, state, "--clean")
    assert "no stream of this program is left" in cleaned.stdout, cleaned.stdout
    assert aws.streams == before


def test_nothing_is_created_without_confirmation(aws, state):
    ended = run(aws, state, *FAST, yes=False)
    assert ended.returncode == 2
    assert "not a terminal: pass --yes" in ended.stdout
    assert requests(aws, "CreateStream") == []
    assert "US dollars" in ended.stdout


@pytest.mark.parametrize(("word", "code"), [("n\n", 2), ("y\n", 0)])
def test_the_terminal_is_asked(aws, state, word, code):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(state, "--only", "headers", yes=False), cwd=ROOT, env=aws.environment(), stdin=theirs,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, word.encode())
    output = process.communicate(timeout=LIMIT)[0]
    os.close(ours)
    assert process.returncode == code, output
    assert "Start? [y/N]" in output


def test_ctrl_c_at_the_question_ends_it_at_once(aws, state):
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(state, "--only", "headers", yes=False), cwd=ROOT, env=aws.environment(), stdin=theirs,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        seen = b""
        while b"Start?" not in seen:
            seen += os.read(process.stdout.fileno(), 1000)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    os.close(theirs)
    os.close(ours)
    assert process.returncode == 128 + signal.SIGINT
    assert b"nothing was made" in rest


def test_the_state_of_another_region_is_not_forgotten(aws, state):
    victim = Started(aws, state, "--only", "iterator-expired")
    victim.until(lambda: aws.streams)
    victim.process.kill()
    victim.end()
    kept = json.loads(state.read_text())
    state.write_text(json.dumps(kept | {"endpoint": "https://kinesis.us-east-1.amazonaws.com us-east-1 account 1"}))
    ended = run(aws, state, "--only", "headers", "--fresh")
    assert ended.returncode == 2
    assert "finish that run with its own region" in ended.stdout
    assert aws.streams
