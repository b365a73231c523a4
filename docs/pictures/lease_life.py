"""The picture of a lease's life. ``CHANGES`` is what it shows; the tests hold it against ``shardline.core.leases``."""

from typing import NamedTuple

from pen import Picture


class Change(NamedTuple):
    """Who writes what, and into which state the row gets by it."""

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
    "no row": (28, 36, "plain", ["no row", "nobody knows the shard"]),
    "free": (28, 220, "blue", ["free", "no owner: anyone may take it"]),
    "held": (420, 220, "green", ["held", "one worker reads and commits"]),
    "handing over": (836, 220, "violet", ["handing over", "the old owner commits, then goes"]),
    "finished": (420, 36, "plain", ["finished", "SHARD_END: nobody's any more"]),
}
WIDE, HIGH = 230, 62


def edge(state: str, side: str, shift: float = 0) -> tuple[float, float]:
    """A point on the rim of a state."""
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
    tell(picture, 339, 288, "ReleaseLease", "on exit: nobody waits")
    picture.arrow([edge("held", "right", -14), edge("handing over", "left", -14)], tone="violet")
    tell(picture, 743, 200, "AskHandOver", "another wants a share")
    picture.arrow([edge("handing over", "left", 14), edge("held", "right", 14)], tone="violet")
    tell(picture, 743, 288, "FinishHandOver", "committed: begin here")
    tell(picture, 743, 326, "CancelHandOver", "who asked leaves")
    picture.arrow([edge("held", "top"), edge("finished", "bottom")])
    tell(picture, 546, 148, "WriteChildren, CommitCheckpoint", "children's rows first, SHARD_END last", anchor="start")
    picture.arrow([edge("finished", "left"), edge("no row", "right")])
    tell(picture, 339, 58, "DeleteLease")
    picture.text(339, 84, "when its children go on", look="faint", anchor="middle", size=11.5)
    draw_loops(picture)
    return picture


def draw_loops(picture: Picture) -> None:
    """What leaves the state as it is, and what a death leads to."""
    x, y = edge("held", "bottom", -70)
    picture.arrow([(x, y), (x, y + 36), (x + 50, y + 36), (x + 50, y + 3)], tone="green")
    tell(picture, x + 25, y + 56, "RenewLease, CommitCheckpoint", "each adds 1 to the counter")
    back, y = edge("held", "bottom", 60)
    away, far = back + 36, edge("handing over", "bottom")[0]
    picture.arrow([(far, y), (far, 392), (back, 392), (back, y + 3)], tone="red", dashed=True)
    picture.line([(away, y), (away, 392)], tone="red")
    why = "the counter stood still for lease_duration: its owner is dead, another takes it"
    tell(picture, (far + back) / 2, 412, "TakeLease", why)
