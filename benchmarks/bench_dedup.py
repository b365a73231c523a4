"""What does ``dedup`` cost? Prints the size of a stamp, the time and memory of the consumer's window, and the CPU time
of a producer's machine with and without stamps.

The times are CPU times, the best of several rounds, taken in turns.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from random import Random

from shardline.codec.aggregation import split_columns
from shardline.codec.shapes import RawRecord
from shardline.codec.stamps import ID_BITS, StampRun, id_of_bits
from shardline.core.consumer.deaggregator import Deaggregator
from shardline.core.consumer.dedup_window import DedupWindow, SeenStamps
from shardline.core.producer.aggregate import Aggregate, KeylessAddress, entries_of
from shardline.core.producer.producer_record import BufferedRecord
from shardline.core.producer.stamper import Stamper
from shardline.model.lease import Checkpoint
from shardline.model.position import SHARD_END
from shardline.model.record import Origin

RECORDS = 100
AGGREGATES = 200
ROUNDS = 7
ADDRESS = KeylessAddress(None, None)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def make_records() -> list[BufferedRecord]:
    return [BufferedRecord(b"x" * 100, f"key {number % 20}", None, 0.0) for number in range(RECORDS)]


def fill(records: list[BufferedRecord]) -> Aggregate:
    aggregate = Aggregate(0.0, ADDRESS)
    added = aggregate.add_all(records, 1 << 30)
    assert added == len(records)
    aggregate.seal()
    return aggregate


def best(*works: Callable[[], object]) -> list[float]:
    """Return the least CPU time of each work, in microseconds per record."""
    least = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for place, work in enumerate(works):
            began = time.process_time()
            work()
            least[place] = min(least[place], time.process_time() - began)
    return [seconds * 1e6 / (RECORDS * AGGREGATES) for seconds in least]


def send(stamper: Stamper | None) -> None:
    """Fill and encode aggregates, as a producer does."""
    for _ in range(AGGREGATES):
        records = make_records()
        if stamper is not None:
            stamper.stamp(records)
        entries_of([fill(records)])


def measure_sizes() -> None:
    for count in (1, 2, 5, RECORDS):
        plain, stamped = make_records()[:count], make_records()[:count]
        Stamper(Random(1)).stamp(stamped)
        size = fill(stamped).size - fill(plain).size
        say(f"stamps in an aggregate of {count:3} records: {size / count:5.2f} bytes per record")


def measure_window() -> None:
    """Measure the window alone, and the opening of pages with and without it."""
    stamper, raws = Stamper(Random(1)), list[RawRecord]()
    for number in range(AGGREGATES):
        records = make_records()
        stamper.stamp(records)
        raws.append(RawRecord(entries_of([fill(records)])[0].data, str(10**55 + number), "k", float(number)))
    measure_rounds(raws)


def measure_rounds(raws: list[RawRecord]) -> None:
    """Measure the window and the opening of these entries, in turns."""
    runs = [(int(raw.sequence_number), run) for raw in raws for run in (split_columns(raw.data) or ((),) * 5)[4]]
    singles = [
        (number, StampRun(run.place + at, run.producer, run.first + at, 1))
        for number, run in runs
        for at in range(run.length)
    ]

    def admit_runs() -> None:
        window = DedupWindow(SeenStamps())
        for number, run in runs:
            window.admit_run(number, run, 1.0)

    def admit_alone() -> None:
        window = DedupWindow(SeenStamps())
        for number, stamp in singles:
            window.admit_run(number, stamp, 1.0)

    def admit_each() -> None:
        window = DedupWindow(SeenStamps())
        for number, stamp in singles:
            window.admit(number, stamp, 1.0)

    def admit_and_commit() -> None:
        window = DedupWindow(SeenStamps())
        for number, stamp in singles:
            window.admit_run(number, stamp, 1.0)
        window.encode_through(Checkpoint(SHARD_END))

    def open_all(*, dedup: bool) -> None:
        Deaggregator("s", "a", window=DedupWindow(SeenStamps()) if dedup else None).open(raws, Origin())

    by_run, alone, one_by_one, committed, without, having = best(
        admit_runs,
        admit_alone,
        admit_each,
        admit_and_commit,
        lambda: open_all(dedup=False),
        lambda: open_all(dedup=True),
    )
    say(f"window: {by_run:.3f} us per record in runs of {RECORDS}")
    say(f"window: {alone:.3f} us per record alone in its aggregate, {committed:.3f} with its commit")
    say(f"window: {one_by_one:.3f} us per record of an aggregate of which some records are known")
    say(f"opening stamped aggregates: {without:.3f} us per record without dedup, {having:.3f} with")


def measure_worst_cases() -> None:
    """Measure the window when the records are alone in their aggregates, and do not simply follow each other."""
    count, chance = RECORDS * AGGREGATES, Random(1)
    ids = [id_of_bits(chance.getrandbits(ID_BITS)) for _ in range(200)]
    shuffled = [number + 100 * at for at in range(count // 100) for number in chance.sample(range(100), 100)]
    cases = {
        "of 100 producers in turn": [StampRun(0, ids[at % 100], at // 100, 1) for at in range(count)],
        "if each two records change places": [StampRun(0, ids[0], at ^ 1, 1) for at in range(count)],
        "if each 100 records are shuffled": [StampRun(0, ids[0], at, 1) for at in shuffled],
        "if every other number is missing": [StampRun(0, ids[0], 2 * at, 1) for at in range(count)],
        "of 100 producers with every other number": [
            StampRun(0, ids[at % 100], 2 * (at // 100), 1) for at in range(count)
        ],
        "of 200 producers in turn": [StampRun(0, ids[at % 200], at // 200, 1) for at in range(count)],
    }

    def admit(stamps: list[StampRun], *, is_committed: bool) -> int:
        window = DedupWindow(SeenStamps())
        for number, stamp in enumerate(stamps):
            window.admit_run(number, stamp, float(number))
        if is_committed:
            window.encode_through(Checkpoint(SHARD_END))
        return window.take_forgotten()

    for name, stamps in cases.items():
        admitted, committed = best(
            partial(admit, stamps, is_committed=False), partial(admit, stamps, is_committed=True)
        )
        overflow = ", and the window overflows" if admit(stamps, is_committed=False) else ""
        say(f"window: {admitted:.3f} us per record {name}, {committed:.3f} with its commit{overflow}")


def measure_memory() -> None:
    seen = SeenStamps()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(256):
        seen.add(b"abcdefghij", 2 * number, 2 * number + 1, 1.0)
    size = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    say(f"memory of a window with {len(seen)} ranges: {size / len(seen):.1f} bytes per range")
    window, raws = DedupWindow(SeenStamps()), [(10**55 + number, float(number)) for number in range(10_000)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for place, (number, arrived_at) in enumerate(raws):
        window.admit_run(number, StampRun(0, b"abcdefghij", place, 1), arrived_at)
    size = tracemalloc.get_traced_memory()[0] - before
    window.encode_through(Checkpoint(SHARD_END))
    left = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    say(
        f"memory of {len(raws)} records, each alone in its aggregate, in bytes per record: {size / len(raws):.1f} until"
    )
    say(f"    it is committed, {left / len(raws):.1f} afterwards")


def main() -> None:
    measure_sizes()
    measure_window()
    measure_worst_cases()
    measure_memory()
    plain, stamped = best(lambda: send(None), lambda: send(Stamper(Random(1))))
    say(f"filling and encoding: {plain:.3f} us per record, with stamps {stamped:.3f} ({stamped / plain:.1f} times)")


if __name__ == "__main__":
    main()
