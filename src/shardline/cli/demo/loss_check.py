"""Was anything lost?

A pure count over four lists that know nothing of each other: what the producers have receipts for, what they gave up,
what somebody else finds in the stream, and what the workers wrote into their journals.

Invariants:

- An order that has a receipt is lost unless it lies in the stream *and* was handled by a worker.
- A duplicate is a handling too many. The same place in the stream again is a replay, another place an order that
  is stored twice.
- The verdict is good only if all was put, nothing was lost, nothing was handled that does not lie in the stream,
  and each customer's orders were first handled in the order in which they were put.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import final

import msgspec

from shardline.cli.demo.demo_worker import Handled
from shardline.cli.demo.independent_reader import Stored
from shardline.cli.quantities import counted


@final
class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The figures at the end."""

    put: int
    """Orders with a receipt."""
    given_up: int
    """Orders that the producers reported as failed."""
    stored: int
    """Different orders in the stream, by the independent reader."""
    delivered: int
    """Different orders that workers have handled."""
    lost: int
    duplicates: int
    replayed: int
    """Of the duplicates: read once more from the same place, by the worker that took over."""
    stored_twice: int
    """Of the duplicates: the producer had to send them again, and both copies lie in the stream."""
    strangers: int
    """Handled, but not in the stream."""
    out_of_order: int
    """First handled after a later order of the same customer."""
    missing: tuple[str, ...] = ()
    """The first few that were lost."""

    @property
    def is_good(self) -> bool:
        return self.put > 0 and not (self.lost or self.given_up or self.strangers or self.out_of_order)


def judge(
    put: Iterable[str], given_up: int, stored: Sequence[Stored], handled: Mapping[str, Sequence[Handled]]
) -> Verdict:
    """Count.

    Args:
        put: the names of the orders that have a receipt.
        given_up: how many orders have none.
        stored: what lies in the stream.
        handled: the journal of every worker.
    """
    receipts = set(put)
    in_stream = {one.name for one in stored}
    handlings = sorted((one for journal in handled.values() for one in journal), key=lambda one: one.at)
    first: dict[str, Handled] = {}
    for one in handlings:
        first.setdefault(one.name, one)
    lost = sorted(receipts - (in_stream & first.keys()))
    duplicates = len(handlings) - len(first)
    replayed = len(handlings) - len({one.place for one in handlings})
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
    """Names rise with every order of a customer."""
    latest: dict[str, str] = {}
    late = 0
    for one in first:
        late += one.name < latest.get(one.customer, "")
        latest[one.customer] = max(one.name, latest.get(one.customer, ""))
    return late


def headline(verdict: Verdict) -> str:
    """The figures, in one line."""
    return f"put {verdict.put}   delivered {verdict.delivered}   lost {verdict.lost}   duplicates {verdict.duplicates}"


def sentences(verdict: Verdict, killed: str | None) -> list[str]:
    """What the figures mean, the worst first."""
    shown = ", ".join(verdict.missing) + (", ..." if verdict.lost > len(verdict.missing) else "")
    told = (
        (verdict.lost, f"LOST {verdict.lost}: {shown} had a receipt, and did not come through."),
        (verdict.given_up, f"The producers gave up on {counted(verdict.given_up, 'order')}, and reported it."),
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
    return [sentence for is_so, sentence in told if is_so]
