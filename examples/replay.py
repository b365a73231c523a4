"""Print the records since a time as JSON lines: ``python examples/replay.py STREAM 2026-01-31T12:00:00+00:00``."""

import json
import sys
from base64 import b64encode
from datetime import UTC, datetime

from shardline.sync import Consumer


def main(stream: str, since: datetime) -> int:
    with Consumer(stream, start=since, until="latest") as consumer:
        for record in consumer:
            arrived = datetime.fromtimestamp(record.arrived_at or 0.0, UTC)
            line = {"arrived": arrived.isoformat(), "key": record.key, "data": b64encode(record.data).decode()}
            print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], datetime.fromisoformat(sys.argv[2])))
