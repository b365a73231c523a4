"""Does the application of the Java KCL do what the drills rely on? This test acts as the daemon; the KCL itself is not
run.
"""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("record_processor.py")


def message_of(number, sequence, sub):
    data = base64.b64encode(b"%d" % number).decode()
    return {"data": data, "partitionKey": "k", "sequenceNumber": str(sequence), "subSequenceNumber": sub}


class Daemon:
    def __init__(self, journal, *limit):
        command = [sys.executable, str(PROGRAM), str(journal), *limit]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, **message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def hear(self):
        while not (line := self.process.stdout.readline()).strip():
            assert line, "it has ended"
        return json.loads(line)

    def initialize(self):
        self.say(action="initialize", shardId="shard-1", sequenceNumber="TRIM_HORIZON", subSequenceNumber=0)
        assert self.hear() == {"action": "status", "responseFor": "initialize"}


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "java.journal"


@pytest.fixture
def start(journal):
    started = []

    def start(*limit):
        daemon = Daemon(journal, *limit)
        started.append(daemon.process)
        daemon.initialize()
        return daemon

    yield start
    for process in started:
        process.kill()
        process.communicate()


def lines_of(journal):
    return [line.split("\t") for line in journal.read_text().splitlines()]


def test_it_writes_down_every_record_and_commits_the_last(start, journal):
    daemon = start()
    daemon.say(action="processRecords", records=[message_of(7, 100, 0), message_of(8, 100, 1), message_of(9, 101, 0)])
    assert daemon.hear() == {"action": "checkpoint", "sequenceNumber": "101", "subSequenceNumber": 0}
    daemon.say(action="checkpoint", sequenceNumber="101", subSequenceNumber=0)
    assert daemon.hear() == {"action": "status", "responseFor": "processRecords"}
    rows = [[kind, *cells] for kind, _, *cells in lines_of(journal)]
    assert rows == [
        ["E", "LeaseGained", "shard-1", "TRIM_HORIZON 0"],
        ["R", "shard-1", "'k'", "7", "100", "0"],
        ["R", "shard-1", "'k'", "8", "100", "1"],
        ["R", "shard-1", "'k'", "9", "101", "0"],
        ["E", "Checkpointed", "shard-1", "101 0"],
    ]


def test_at_the_end_of_a_shard_it_commits_all(start, journal):
    daemon = start()
    daemon.say(action="shardEnded")
    assert daemon.hear() == {"action": "checkpoint", "sequenceNumber": None, "subSequenceNumber": None}
    daemon.say(action="checkpoint", error="ThrottlingException")
    assert daemon.hear() == {"action": "status", "responseFor": "shardEnded"}
    assert [cells[2] for cells in lines_of(journal)] == ["LeaseGained", "CheckpointFailed", "shardEnded"]


def test_with_a_limit_it_stops_inside_an_aggregate(start, journal):
    daemon = start("2")
    records = [message_of(0, 100, 0), message_of(1, 101, 0), *(message_of(2 + sub, 102, sub) for sub in range(4))]
    daemon.say(action="processRecords", records=records)
    assert daemon.hear() == {"action": "checkpoint", "sequenceNumber": "102", "subSequenceNumber": 1}
    daemon.say(action="checkpoint", sequenceNumber="102", subSequenceNumber=1)
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(0.5)
    assert [cells[4] for cells in lines_of(journal) if cells[0] == "R"] == ["0", "1", "2", "3"]


def test_it_ends_with_its_daemon(start):
    daemon = start()
    daemon.process.stdin.close()
    assert daemon.process.wait(30) == 0
    daemon.process.stdin = None
