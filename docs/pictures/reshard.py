"""Draws a reshard: a split, a merge, and the order in which a group reads the shards."""

from typing import NamedTuple

from pen import Picture


class Life(NamedTuple):
    """A shard of the picture: its range of hash keys, its lifetime, and its place in the order of reading."""

    name: str
    low: float
    high: float
    begins: float
    ends: float
    tone: str
    note: str


LEFT, TOP, WIDE, HIGH = 120, 66, 800, 280
SHARDS = [
    Life("shard 0", 0, 0.5, 0, 0.34, "blue", "read first"),
    Life("shard 1", 0.5, 1, 0, 0.64, "blue", "read first"),
    Life("shard 2", 0, 0.25, 0.36, 1, "green", "after shard 0"),
    Life("shard 3", 0.25, 0.5, 0.36, 0.64, "green", "after shard 0"),
    Life("shard 4", 0.25, 1, 0.66, 1, "violet", "after shard 1 and shard 3"),
]
STEPS = [
    "1  A page of the parent says that it has ended, and names its children.",
    "2  The rows of the children are written to the lease store, so that no worker can forget the children.",
    "3  The parent's last record is done: SHARD_END is committed. This write comes last.",
    "4  Only now may a worker take a child, once all its parents are finished. It reads the child from its beginning.",
]


def place(hash_part: float) -> float:
    return TOP + hash_part * HIGH


def draw_shard(picture: Picture, shard: Life) -> None:
    x, y = LEFT + shard.begins * WIDE, place(shard.low) + 3
    width, height = (shard.ends - shard.begins) * WIDE, (shard.high - shard.low) * HIGH - 6
    picture.box(x, y, width, height, shard.tone)
    picture.text(x + 14, y + height / 2, shard.name, look="bold")
    picture.text(x + 14, y + height / 2 + 17, shard.note, look="faint", size=11.5)


def reshard() -> Picture:
    picture = Picture(980, 492, "A reshard", "Shards split and merge; parents are read before their children.")
    picture.text(LEFT, 34, "a split of shard 0, then a merge of shards 3 and 1", look="bold", size=14)
    for at, words, low, high in ((0.35, "split", 0, 0.5), (0.65, "merge", 0.25, 1)):
        x = LEFT + at * WIDE
        picture.line([(x, place(low)), (x, place(high))], width=0.8)
        picture.text(x, TOP - 14, words, look="faint", anchor="middle", size=11.5)
    for shard in SHARDS:
        draw_shard(picture, shard)
    for part, words in ((0.0, "0"), (0.25, "2^126"), (0.5, "2^127"), (1.0, "2^128 - 1")):
        picture.text(LEFT - 12, place(part) + 4, words, look="faint code", anchor="end", size=11)
    picture.arrow([(LEFT, TOP + HIGH + 18), (LEFT + WIDE, TOP + HIGH + 18)])
    picture.text(LEFT + WIDE, TOP + HIGH + 36, "when the records were put", look="faint", anchor="end", size=11.5)
    for number, words in enumerate(STEPS):
        picture.text(LEFT, 408 + number * 22, words, size=12.5)
    return picture
