"""How does a producer of a drill put, and what does it leave behind?

A process of its own, which reads its settings from a JSON file. It puts numbered records, at a pace or as fast as it may, until
SIGTERM; then it waits for the rest. What was confirmed it writes to the list of what was put (tally.py), in the order of
putting, as it goes: it keeps only what is not confirmed. At its end it writes a report: how many, how long the longest
``put`` took, how many were undelivered at most.

    python tests/drills/putter.py SETTINGS.json
"""

import json
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path

from shardline import Credentials, ProducerConfig
from shardline.sync import Producer

KEYS = 60
EACH = 0.02  # seconds between two rounds of puts


class Putter:
    def __init__(self, settings):
        self._settings = settings
        self._stopping = threading.Event()
        self._waiting = deque()  # (delivery, name, key), in the order of the puts
        self._file = Path(settings["put"]).open("a")  # noqa: SIM115 - as long as the process
        self.longest = 0.0
        self.most = 0
        signal.signal(signal.SIGTERM, lambda *_: self._stopping.set())

    def run(self):
        settings = self._settings
        connection = {"endpoint_url": settings["url"], "region": settings["region"]}
        config = ProducerConfig(**settings["config"])
        keys = Credentials(*settings["keys"])
        with Producer(settings["stream"], config=config, credentials=keys, **connection) as producer:
            number = self._put_all(producer)
            producer.flush(timeout=120)
            self._settle(wait=60)
        report = {"put": number, "longest put": self.longest, "undelivered at most": self.most}
        Path(settings["report"]).write_text(json.dumps(report))

    def _put_all(self, producer):
        rate = self._settings.get("rate")
        stroke = 50 if rate is None else max(1, round(rate * EACH))
        number, next_at = 0, time.monotonic()
        while not self._stopping.is_set():
            for _ in range(stroke):
                key = f"key-{number % KEYS}"
                began_at = time.monotonic()
                self._waiting.append((producer.put(b"%d" % number, key=key), str(number), key))
                self.longest = max(self.longest, time.monotonic() - began_at)
                number += 1
            self.most = max(self.most, producer.stats().outstanding)
            self._settle()
            if rate is not None:
                next_at += EACH
                time.sleep(max(0.0, next_at - time.monotonic()))
        return number

    def _settle(self, wait=None):
        """Write the names of confirmed records to the list."""
        lines = []
        while self._waiting and (wait is not None or self._waiting[0][0].done):
            delivery, name, key = self._waiting.popleft()
            delivery.result(timeout=wait or 0.0)
            lines.append(f"{time.monotonic():.6f}\t{name}\t{key!a}\n")
        self._file.writelines(lines)
        self._file.flush()


if __name__ == "__main__":
    Putter(json.loads(Path(sys.argv[1]).read_bytes())).run()
