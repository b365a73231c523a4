"""The two forms of our package, with and without the C extension, and the limits that each form must keep.

A benchmark starts each of our clients twice: as a process that uses the extension, and as one that does not
(``SHARDLINE_PURE=1``). Both take turns with the peers in one run, so that their figures can be compared. The name of a
client without the extension ends with ``PURE``. Where the extension is not installed, only the pure form is measured.

``TABLE`` is the table of targets of docs/tested/benchmarks.md. Limits that are not in the table only lead to a verdict.
"""

import importlib.util
import os
from dataclasses import dataclass

from results import Cost, note_row, verdict

PURE = " (pure)"  # at the end of the name of a client, a ratio or a series without the C extension


def has_extension() -> bool:
    return importlib.util.find_spec("shardline._speedups._native") is not None


def suffixes() -> tuple[str, ...]:
    """Return the ends of the names of the forms that this environment can run."""
    return ("", PURE) if has_extension() else (PURE,)


def form_of(name: str) -> str:
    return "pure" if name.endswith(PURE) else "native"


def environment_of(name: str) -> dict[str, str]:
    """Return the environment of a client's process, which makes it use the form that its name says."""
    return os.environ | {"SHARDLINE_PURE": "1" if name.endswith(PURE) else "0"}


def check_form(name: str, found: object) -> None:
    """Raise SystemExit if a process of ours says that it uses another form than its name says."""
    if found != form_of(name):
        raise SystemExit(f"{name or 'shardline'} must use the {form_of(name)} form, but it uses {found} (make native)")


@dataclass(frozen=True)
class Limits:
    """What a figure must reach in each form. None: the figure is only reported."""

    pure: float | None
    native: float | None
    at_most: bool = False
    row: str = ""  # the name in the table of docs/tested/benchmarks.md; several figures with the same name share a row

    def of(self, form: str) -> float | None:
        return self.pure if form == "pure" else self.native

    def wording(self, form: str) -> str:
        limit = self.of(form)
        return "" if limit is None else f"at {'most' if self.at_most else 'least'} {limit:g}"

    def worst(self, figures: list[Cost]) -> Cost:
        """Return the figure of several that is furthest from the limit."""
        return (max if self.at_most else min)(figures, key=max if self.at_most else min)

    def holds(self, form: str, figure: float) -> bool:
        limit = self.of(form)
        return limit is None or (figure <= limit if self.at_most else figure >= limit)


PUT = Limits(2.9, 11, row="`await put`, uuid keys: boto3 / ours")
PUT_AIOKPL = Limits(38, 130, row="`await put`, uuid keys: aiokpl / ours")
PUT_MANY = Limits(3.2, 12, row="`put_many`, uuid keys: boto3 / ours")
PUT_1_KIB = Limits(2.3, 4.5, row="`await put`, 1 KiB: boto3 / ours")
NOT_AGGREGATED = Limits(3.2, 5, row="`await put`, not aggregated: aiobotocore / ours")
THREADS = Limits(1.3, 1.2, at_most=True, row="blocking `put`: 4 threads / 1 thread")
READ_PLAIN = Limits(9, 20, row="consumer, no deserializer: async-kinesis / ours")
READ_AGGREGATED = Limits(5, 14, row="the same, aggregated records: async-kinesis / ours")
BUILD = Limits(4.5, 15, row="build aggregates: aws_kinesis_agg / ours (lowest of 3)")
OPEN = Limits(3.3, 12, row="open aggregates: aws_kinesis_agg / ours (lowest of 6)")
GROWTH = Limits(1.7, 1.7, at_most=True, row="producer: 1,024 shards / 1 shard")
MEMORY = Limits(450, 360, at_most=True, row="memory of a waiting record of 100 B, in bytes")
KPL = Limits(None, 3, row="`await put` over TLS: KPL (JVM and daemon) / ours")
TABLE = (
    PUT,
    PUT_AIOKPL,
    PUT_MANY,
    PUT_1_KIB,
    NOT_AGGREGATED,
    THREADS,
    READ_PLAIN,
    READ_AGGREGATED,
    BUILD,
    OPEN,
    KPL,
    GROWTH,
    MEMORY,
)


def in_both(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of both forms."""
    return tuple(name + suffix for suffix in ("", PURE) for name in names)


def judge(limits: Limits, what: str, name: str, figure: Cost, *, of: str = "", width: int = 67) -> bool:
    """Print and collect the verdict on the figure of a client with this name; return whether it keeps its limit.

    The best and the median figure must both keep it.
    """
    form = form_of(name)
    fine = [limits.holds(form, one) for one in figure]
    if limits.row:
        note_row(limits.row, form, figure)
    if limits.of(form) is None:
        return True
    return verdict(what, limits.wording(form), met=all(fine), partly=any(fine), of=of, width=width)
