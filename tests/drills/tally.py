"""Compares the records that were put with those that were handled.

This is the independent reader of a drill: it reads the journals of the workers (see worker.py) and the list of the
records that were put, and does not use the library. A record is identified by its name. The first time that it was
handled counts. If the same place in the stream is handled again, it is a duplicate; the same name at another place was
stored twice by the producer.

    python tests/drills/tally.py DIRECTORY
"""

import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple


class Handled(NamedTuple):
    at: float
    worker: str
    shard: str
    key: str
    name: str
    order: tuple


class Told(NamedTuple):
    """An event of a worker."""

    at: float
    worker: str
    event: str
    shard: str
    details: str


class Journal:
    """The journal of one worker."""

    def __init__(self, path):
        self.worker = path.stem
        self.handled, self.events, self.begun, self.cancelled = [], [], [], []
        self.ready_at = self.ended = None
        whole, _, _ = path.read_text().rpartition("\n")  # the last line may be incomplete
        for line in whole.splitlines():
            kind, at, *cells = line.split("\t")
            if kind == "R":
                shard, key, name, sequence, sub = cells
                self.handled.append(Handled(float(at), self.worker, shard, key, name, (int(sequence), int(sub))))
            elif kind == "E":
                self.events.append(Told(float(at), self.worker, *cells))
            elif kind in "SC":
                (self.begun if kind == "S" else self.cancelled).append((float(at), *cells))
            elif kind == "W":
                self.ready_at = float(at)
            else:
                self.ended = cells[0]


class Tally:
    """The count of a drill."""

    def __init__(self, directory):
        directory = Path(directory)
        self.put = {}  # name: (when it was confirmed, key, place in the order of the puts)
        lines = (directory / "put.tsv").read_text().splitlines() if (directory / "put.tsv").exists() else []
        for place, line in enumerate(lines):
            at, name, key = line.split("\t")
            self.put[name] = (float(at), key, place)
        self.journals = {path.stem: Journal(path) for path in sorted(directory.glob("*.journal"))}
        self.handled = sorted(one for journal in self.journals.values() for one in journal.handled)
        self.events = sorted(one for journal in self.journals.values() for one in journal.events)
        self.first = {}
        self.repeated = []  # the consumer's duplicates
        self.stored_twice = []
        self._excused = {}  # name: why no worker handled it
        places = set()
        for one in self.handled:
            place = (one.shard, one.order)
            if place in places:
                self.repeated.append(one)
            elif one.name in self.first:
                self.stored_twice.append(one)
            places.add(place)
            self.first.setdefault(one.name, one)

    def repeated_below(self, committed, *, since):
        """Return the records that came again after this time, although a checkpoint of that time was beyond them.

        ``committed`` maps a shard to the place of its checkpoint. A record that came again earlier says nothing: its
        shard may have been committed since.
        """
        return [one for one in self.repeated if one.at > since and (1, *one.order) <= committed[one.shard]]

    def excuse(self, names, why):
        """Exclude records that were not handled, and should not be."""
        self._excused |= dict.fromkeys(names, why)

    @property
    def lost(self):
        return sorted(self.put.keys() - self.first.keys() - self._excused.keys())

    @property
    def unknown(self):
        """The records that were handled, but never put."""
        return sorted(self.first.keys() - self.put.keys())

    @property
    def longest_gap(self):
        """The longest time between two successive records of a key, in seconds."""
        last, longest = {}, 0.0
        for one in self.first.values():
            if one.key in last:
                longest = max(longest, one.at - last[one.key])
            last[one.key] = one.at
        return longest

    @property
    def out_of_order(self):
        """The records that were first handled after a later record of their key."""
        latest, found = defaultdict(lambda: -1), []
        for one in self.first.values():
            place = self.put[one.name][2] if one.name in self.put else -1
            if place < latest[one.key]:
                found.append(one)
            latest[one.key] = max(latest[one.key], place)
        return found

    def before_parents(self, parents):
        """Return the records of a child that were handled before the last record of a parent. ``parents`` maps a shard
        to its parents.
        """
        last = defaultdict(float)
        for one in self.first.values():
            last[one.shard] = max(last[one.shard], one.at)
        return [
            one for one in self.first.values() if any(one.at < last[parent] for parent in parents.get(one.shard, ()))
        ]

    def gains(self, since, until=float("inf")):
        """Return how often each shard was gained by a worker in that time."""
        counts = defaultdict(int)
        for one in self.events:
            if one.event == "LeaseGained" and since <= one.at < until:
                counts[one.shard] += 1
        return dict(counts)

    def told(self, event, worker=None, since=0.0):
        return [
            one
            for one in self.events
            if one.event == event and one.at >= since and (worker is None or one.worker == worker)
        ]

    @property
    def notes(self):
        """Return the other counts, by name."""
        notes = Counter(self._excused.values())
        if self.stored_twice:
            notes["stored twice"] = len(self.stored_twice)
        return notes

    def __str__(self):
        notes = self.notes
        extra = f" ({', '.join(f'{why}: {count}' for why, count in notes.items())})" if notes else ""
        return (
            f"put {len(self.put)}{extra}, received {len(self.first)}, lost {len(self.lost)}, "
            f"duplicates {len(self.repeated)}, longest gap {self.longest_gap:.2f} s"
        )


if __name__ == "__main__":
    tally = Tally(sys.argv[1])
    sys.stdout.write(f"{tally}\n")
    sys.exit(bool(tally.lost))
