"""Draws the pictures of docs/concepts.md. The pictures are narrow, so that a phone shows them in full size."""

from pen import Picture

WIDE = 350


def records(picture: Picture, x: float, y: float, tones: list[str]) -> None:
    """Draw a row of records, with the oldest on the left."""
    for number, tone in enumerate(tones):
        picture.box(x + number * 30, y, 24, 24, tone, round_by=4)


def stream_picture() -> Picture:
    """Return the picture of keys, their hashes, two shards and an aggregate."""
    picture = Picture(WIDE, 360, "A stream and its shards", "The hash of a key decides which shard stores a record.")
    picture.text(WIDE / 2, 24, "records with partition keys", look="faint", anchor="middle")
    keys = [("customer-1", "green", 62), ("customer-2", "violet", 245), ("customer-3", "green", 135)]
    for number, (key, tone, hashed_to) in enumerate(keys):
        x = 10 + number * 114
        picture.card(x, 36, 102, 32, [key], tone)
        picture.arrow([(x + 51, 70), (hashed_to, 114)], tone=tone)
    picture.text(WIDE / 2, 96, "MD5", look="code faint", anchor="middle", size=11.5)
    for x, name, tone in ((10, "shard 0", "green"), (180, "shard 1", "violet")):
        picture.card(x, 118, 160, 30, [name], tone)
    picture.text(10, 166, "0", look="code faint", size=11.5)
    picture.text(WIDE / 2, 166, "2^127", look="code faint", anchor="middle", size=11.5)
    picture.text(WIDE - 10, 166, "2^128 - 1", look="code faint", anchor="end", size=11.5)
    picture.text(10, 202, "shard 0", look="bold")
    records(picture, 80, 185, ["green"] * 8)
    picture.text(10, 242, "shard 1", look="bold")
    records(picture, 80, 225, ["violet"])
    picture.box(110, 225, 84, 24, "amber", round_by=4)
    for number in range(3):
        picture.box(115 + number * 26, 229, 20, 16, "violet", round_by=3)
    records(picture, 200, 225, ["violet"] * 3)
    picture.arrow([(80, 266), (330, 266)])
    picture.text(80, 284, "oldest", look="faint", size=11.5)
    picture.text(330, 284, "newest", look="faint", anchor="end", size=11.5)
    picture.arrow([(152, 312), (152, 252)], tone="amber")
    picture.text(10, 328, "An aggregate: one Kinesis record", size=12.5)
    picture.text(10, 346, "that contains several records of one shard", size=12.5)
    return picture


def group_picture() -> Picture:
    """Return the picture of two workers of a group with their leases and checkpoints, and of the lease store."""
    picture = Picture(WIDE, 372, "A group", "Each worker holds leases on some shards, and commits checkpoints.")
    for row, (worker, shards) in enumerate((("worker A", ("shard 0", "shard 1")), ("worker B", ("shard 2",)))):
        top = 14 + row * 112
        picture.box(10, top, 330, 30 + 34 * len(shards), "plain")
        picture.text(20, top + 20, worker, look="bold")
        for number, shard in enumerate(shards):
            y = top + 30 + number * 34
            done = 4 - row - number
            picture.text(20, y + 17, shard)
            records(picture, 80, y, ["green"] * done + ["amber"] + ["blue"] * (7 - done))
            at = 80 + done * 30 - 3
            picture.line([(at, y - 4), (at, y + 28)], tone="red", width=3)
    for number, (tone, words) in enumerate((("green", "acknowledged"), ("amber", "in hand"), ("blue", "not read yet"))):
        picture.box(10 + number * 116, 202, 16, 16, tone, round_by=4)
        picture.text(32 + number * 116, 215, words, size=12)
    picture.line([(18, 228), (18, 244)], tone="red", width=3)
    picture.text(32, 241, "checkpoint: the group continues here", size=12)
    picture.arrow([(WIDE / 2, 250), (WIDE / 2, 270)])
    picture.box(10, 273, 330, 88, "violet")
    picture.text(WIDE / 2, 292, "lease store", look="bold", anchor="middle")
    for number, words in enumerate(
        ("shard 0: worker A, checkpoint 4", "shard 1: worker A, checkpoint 3", "shard 2: worker B, checkpoint 3")
    ):
        picture.text(WIDE / 2, 311 + number * 18, words, look="code", anchor="middle", size=12)
    return picture


def split_picture() -> Picture:
    """Return the picture of a shard that is split into two."""
    picture = Picture(WIDE, 206, "A split", "The parent is read before its children.")
    picture.card(10, 40, 130, 110, ["shard 0", "is closed", "read first"], "blue")
    picture.card(200, 40, 140, 50, ["shard 1", "after shard 0"], "green")
    picture.card(200, 100, 140, 50, ["shard 2", "after shard 0"], "violet")
    picture.arrow([(143, 80), (197, 65)])
    picture.arrow([(143, 110), (197, 125)])
    picture.text(170, 26, "split", look="faint", anchor="middle")
    picture.arrow([(10, 170), (340, 170)])
    picture.text(340, 190, "time", look="faint", anchor="end", size=12)
    return picture
