"""Draws the life of a lease. The picture shows ``CHANGES``, which the tests compare with ``shardline.core.leases``."""

from typing import NamedTuple

from pen import Picture


class Change(NamedTuple):
    """A change of a lease: the operation, and the states of the row before and after it."""

    operation: str
    before: str
    after: str


CHANGES = [
    Change("CreateLease", "no row", "free"),
    Change("TakeLease", "free", "held"),
    Change("RenewLease", "held", "held"),
    Change("CommitCheckpoint", "held", "held"),
    Change("WriteChildren", "held", "held"),
    Change("AskHandOver", "held", "handing over"),
    Change("CommitCheckpoint", "handing over", "handing over"),
    Change("FinishHandOver", "handing over", "held"),
    Change("CancelHandOver", "handing over", "held"),
    Change("TakeLease", "held", "held"),
    Change("TakeLease", "handing over", "held"),
    Change("ReleaseLease", "held", "free"),
    Change("CommitCheckpoint", "held", "finished"),
    Change("DeleteLease", "finished", "no row"),
]
STATES = {
    "no row": (28, 36, "plain", ["no row", "the group does not know the shard"]),
    "free": (28, 220, "blue", ["free", "no owner: any worker may take it"]),
    "held": (420, 220, "green", ["held", "one worker reads and commits"]),
    "handing over": (836, 220, "violet", ["handing over", "the owner commits, then releases"]),
    "finished": (420, 36, "plain", ["finished", "SHARD_END: no owner any more"]),
}
WIDE, HIGH = 230, 62


def edge(state: str, side: str, shift: float = 0) -> tuple[float, float]:
    """Return a point on the edge of a state's box."""
    x, y, _, _ = STATES[state]
    return {
        "left": (x - 3, y + HIGH / 2 + shift),
        "right": (x + WIDE + 3, y + HIGH / 2 + shift),
        "top": (x + WIDE / 2 + shift, y - 3),
        "bottom": (x + WIDE / 2 + shift, y + HIGH + 3),
    }[side]


def tell(picture: Picture, x: float, y: float, operation: str, why: str = "", *, anchor: str = "middle") -> None:
    picture.text(x, y, operation, look="code bold", anchor=anchor, size=12)
    if why:
        picture.text(x, y + 16, why, look="faint", anchor=anchor, size=11.5)


def lease_life() -> Picture:
    picture = Picture(1094, 452, "The life of a lease", "Its states, and the writes that lead from one to another.")
    for x, y, tone, lines in STATES.values():
        picture.card(x, y, WIDE, HIGH, lines, tone)
    picture.arrow([edge("no row", "bottom"), edge("free", "top")])
    tell(picture, 155, 154, "CreateLease", "a shard that may be read", anchor="start")
    picture.arrow([edge("free", "right", -14), edge("held", "left", -14)])
    tell(picture, 339, 212, "TakeLease")
    picture.arrow([edge("held", "left", 14), edge("free", "right", 14)])
    tell(picture, 339, 288, "ReleaseLease", "on exit: no wait for expiry")
    picture.arrow([edge("held", "right", -14), edge("handing over", "left", -14)], tone="violet")
    tell(picture, 743, 200, "AskHandOver", "another worker asks")
    picture.arrow([edge("handing over", "left", 14), edge("held", "right", 14)], tone="violet")
    tell(picture, 743, 288, "FinishHandOver", "committed, next owner begins")
    tell(picture, 743, 326, "CancelHandOver", "the asking worker leaves")
    picture.arrow([edge("held", "top"), edge("finished", "bottom")])
    tell(picture, 546, 148, "WriteChildren, CommitCheckpoint", "children's rows first, SHARD_END last", anchor="start")
    picture.arrow([edge("finished", "left"), edge("no row", "right")])
    tell(picture, 339, 58, "DeleteLease")
    picture.text(339, 84, "when the children begin", look="faint", anchor="middle", size=11.5)
    draw_loops(picture)
    return picture


def draw_loops(picture: Picture) -> None:
    """Draw the operations that do not change the state, and the change that a dead worker leads to."""
    x, y = edge("held", "bottom", -70)
    picture.arrow([(x, y), (x, y + 36), (x + 50, y + 36), (x + 50, y + 3)], tone="green")
    tell(picture, x + 25, y + 56, "RenewLease, CommitCheckpoint", "each adds 1 to the counter")
    back, y = edge("held", "bottom", 60)
    away, far = back + 36, edge("handing over", "bottom")[0]
    picture.arrow([(far, y), (far, 392), (back, 392), (back, y + 3)], tone="red", dashed=True)
    picture.line([(away, y), (away, 392)], tone="red")
    why = "no change of the counter for lease_duration: the owner is dead, another worker takes the lease"
    tell(picture, (far + back) / 2, 412, "TakeLease", why)
