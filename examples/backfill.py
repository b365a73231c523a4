"""Load a file of JSON lines into a stream: ``python examples/backfill.py STREAM FILE [FIELD]``.

The partition key is taken from the field FIELD; without it, records go to the least busy shard. Failed records are
written to FILE.failed, one JSON line each with the reason and the record. The exit code is 0 if no record failed.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import TextIO

from shardline import ProducerConfig, Undelivered, UsageError
from shardline.sync import Delivery, Producer

CONFIG = ProducerConfig(record_ttl=86_400)  # records of a long file may wait long for the rate limits of the shards


class Report:
    """Writes failed records to a file, and counts the reasons. The main thread and the producer's thread both add."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = Lock()
        self.reasons: Counter[str] = Counter()

    def add(self, data: bytes, code: str, message: str) -> None:
        line = {"code": code, "message": message, "data": data.decode(errors="replace")}
        with self._lock:
            self.reasons[code] += 1
            self._file.write(json.dumps(line) + "\n")

    def on_failure(self, delivery: Delivery) -> None:
        reason = delivery.outcome()
        assert isinstance(reason, Undelivered)
        self.add(delivery.data or b"", reason.code, reason.message)


def lines_of(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield line.rstrip(b"\r\n")


def backfill(stream: str, path: Path, field: str | None) -> int:
    count = 0
    with path.with_name(f"{path.name}.failed").open("w") as file:
        report = Report(file)
        with Producer(stream, config=CONFIG, on_failure=report.on_failure) as producer:
            for line in lines_of(path):
                count += 1
                try:
                    key = None if field is None else str(json.loads(line)[field])
                    producer.put(line, key=key)
                except (UsageError, ValueError, KeyError, TypeError) as error:
                    report.add(line, type(error).__name__, str(error))
            producer.flush()  # waits without a time limit
    failed = report.reasons.total()
    print(f"{count} lines, {count - failed} delivered, {failed} failed")
    for code, times in report.reasons.most_common():
        print(f"  {code}: {times}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(backfill(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))  # noqa: PLR2004
