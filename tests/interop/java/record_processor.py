"""What does the application of the Java KCL do with a record?

The KCL's daemon starts this program once a shard, and speaks to it over stdin and stdout, a JSON object a line. It writes
the journal of a drill's worker (tests/drills/worker.py), so that the same reader counts what both of them did. It commits
after every batch. With a limit, it handles so many records of its shard, goes on until it stands inside an aggregate,
commits there and then does nothing more: whoever takes over has to go on with the next record of that aggregate.

    python record_processor.py JOURNAL [LIMIT]
"""

import base64
import json
import os
import sys
import time


def name_of(data):
    """Return a record's name, as tests/drills/worker.py does for numbers: the drills with Java put nothing else."""
    return data.decode("ascii")


class Processor:
    def __init__(self, journal, limit):
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._limit = limit
        self._handled = 0
        self._shard = None

    def write(self, kind, *cells):
        line = "\t".join([kind, f"{time.monotonic():.6f}", *map(str, cells)])
        os.write(self._journal, line.encode() + b"\n")

    def checkpoint(self, record=None):
        """Commit this record, or all records so far."""
        number = None if record is None else record["sequenceNumber"]
        sub_sequence = None if record is None else record["subSequenceNumber"]
        say({"action": "checkpoint", "sequenceNumber": number, "subSequenceNumber": sub_sequence})
        error = hear().get("error")
        self.write(
            "E", "CheckpointFailed" if error else "Checkpointed", self._shard, error or f"{number} {sub_sequence}"
        )

    def process(self, records):
        for record, following in zip(records, [*records[1:], None], strict=True):
            name = name_of(base64.b64decode(record["data"]))
            place = (record["sequenceNumber"], record["subSequenceNumber"])
            self.write("R", self._shard, ascii(record["partitionKey"]), name, *place)
            self._handled += 1
            inside = following is not None and following["sequenceNumber"] == place[0] and place[1] > 0
            if self._limit is not None and self._handled >= self._limit and inside:
                self.checkpoint(record)
                self.write("E", "StoppedInside", self._shard, place)
                while True:  # until it is killed
                    time.sleep(60)
        if records:
            self.checkpoint(records[-1])

    def act(self, message):
        action = message["action"]
        if action == "initialize":
            self._shard = message["shardId"]
            self.write("E", "LeaseGained", self._shard, f"{message['sequenceNumber']} {message['subSequenceNumber']}")
        elif action == "processRecords":
            self.process(message["records"])
        elif action in ("shardEnded", "shutdownRequested"):
            self.checkpoint()
            self.write("E", action, self._shard, "")
        elif action == "leaseLost":
            self.write("E", "LeaseLost", self._shard, "")
        say({"action": "status", "responseFor": action})


def say(message):
    sys.stdout.write(f"\n{json.dumps(message)}\n")
    sys.stdout.flush()


def hear():
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)  # the daemon has ended
    return json.loads(line)


def main():
    processor = Processor(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
    while True:
        processor.act(hear())


if __name__ == "__main__":
    main()
