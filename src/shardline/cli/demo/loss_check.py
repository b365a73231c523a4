"""Checks whether the demo lost any order.

This module compares four independent lists: the orders that have a receipt, the orders that the producers failed to
deliver, the orders that the independent reader found in the stream, and the workers' journals.

Invariants:

- An order that has a receipt is lost unless it is in the stream *and* was handled by a worker.
- An order that is handled again counts as one duplicate each time. The duplicate is a replay if the order was read
  from the same place in the stream. Otherwise, the order is stored twice.
- The verdict is good only if every order was put, no order was lost, every handled order is in the stream, and each
  customer's orders were first handled in the order in which they were put.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import final

import msgspec

from shardline.cli.demo.demo_worker import Handled
from shardline.cli.demo.independent_reader import Stored
from shardline.cli.quantities import counted


@final
class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The figures that result from comparing the four lists of orders."""

    put: int
    """The number of orders that have a receipt."""
    given_up: int
    """The number of orders that the producers reported as failed."""
    stored: int
    """The number of distinct orders that the independent reader found in the stream."""
    delivered: int
    """The number of distinct orders that workers have handled."""
    lost: int
    duplicates: int
    replayed: int
    """The number of duplicates that were read again from the same place, by the worker that took over the shard."""
    stored_twice: int
    """The number of duplicates that are stored in the stream, because a producer had to send an order again."""
    strangers: int
    """The number of orders that were handled but are not in the stream."""
    out_of_order: int
    """The number of orders that were first handled after a later order of the same customer."""
    missing: tuple[str, ...] = ()
    """The names of the first few lost orders."""

    @property
    def is_good(self) -> bool:
        return self.put > 0 and not (self.lost or self.given_up or self.strangers or self.out_of_order)


def judge(
    put: Iterable[str], given_up: int, stored: Sequence[Stored], handled: Mapping[str, Sequence[Handled]]
) -> Verdict:
    """Compare the lists and return the verdict.

    Args:
        put: the names of the orders that have a receipt.
        given_up: the number of orders without a receipt.
        stored: the orders in the stream.
        handled: the journal of every worker.
    """
    receipts = set(put)
    in_stream = {order.name for order in stored}
    entries = sorted((entry for journal in handled.values() for entry in journal), key=lambda entry: entry.at)
    first: dict[str, Handled] = {}
    for entry in entries:
        first.setdefault(entry.name, entry)
    lost = sorted(receipts - (in_stream & first.keys()))
    duplicates = len(entries) - len(first)
    replayed = len(entries) - len({entry.place for entry in entries})
    return Verdict(
        put=len(receipts),
        given_up=given_up,
        stored=len(in_stream),
        delivered=len(first),
        lost=len(lost),
        duplicates=duplicates,
        replayed=replayed,
        stored_twice=duplicates - replayed,
        strangers=len(first.keys() - in_stream),
        out_of_order=_out_of_order(first.values()),
        missing=tuple(lost[:3]),
    )


def _out_of_order(first: Iterable[Handled]) -> int:
    """Count the orders that were handled after a later order (one with a greater name) of the same customer."""
    latest: dict[str, str] = {}
    late = 0
    for entry in first:
        late += entry.name < latest.get(entry.customer, "")
        latest[entry.customer] = max(entry.name, latest.get(entry.customer, ""))
    return late


def headline(verdict: Verdict) -> str:
    """Return the main figures in one line."""
    return f"put {verdict.put}   delivered {verdict.delivered}   lost {verdict.lost}   duplicates {verdict.duplicates}"


def sentences(verdict: Verdict, killed: str | None) -> list[str]:
    """Return sentences that explain the figures, with the most serious one first."""
    names = ", ".join(verdict.missing) + (", ..." if verdict.lost > len(verdict.missing) else "")
    candidates = (
        (verdict.lost, f"LOST {verdict.lost}: {names} had a receipt but did not arrive."),
        (verdict.given_up, f"The producers reported {counted(verdict.given_up, 'order')} as failed."),
        (verdict.strangers, f"Handled without being in the stream: {counted(verdict.strangers, 'order')}."),
        (
            verdict.out_of_order,
            f"Handled after a later order of the same customer: {counted(verdict.out_of_order, 'order')}.",
        ),
        (verdict.is_good, "Nothing was lost, and every customer's orders came in order."),
        (
            verdict.replayed,
            (
                f"{counted(verdict.replayed, 'order')} handled twice: worker {killed} was killed between handling "
                "them and committing that. Delivery is at least once: the next owner gets them again."
            ),
        ),
        (
            verdict.stored_twice,
            (
                f"{counted(verdict.stored_twice, 'order')} stored twice: the shard was split while their aggregate "
                "was in flight, and it was sent again."
            ),
        ),
        (not verdict.duplicates, "No duplicates: what the killed worker had handled was committed."),
    )
    return [sentence for applies, sentence in candidates if applies]
