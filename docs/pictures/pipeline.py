"""Draws the path of a record through the producer, from ``put`` to its receipt or its failure."""

from pen import Picture

LEFT, TOP, WIDTH, HEIGHT, GAP = 24, 92, 128, 74, 30
STAGES = [
    (["put", "checked; waits only", "for room"], "blue", True),
    (["hash", "MD5 of the key, or", "your hash key"], "blue", False),
    (["shard map", "which open shard", "has this hash"], "blue", False),
    (["collector", "one PutRecords", "over many lanes"], "violet", False),
    (["wire", "signed, up to 24", "under way"], "violet", False),
    (["verdict", "one for each entry", "of the response"], "amber", False),
]


def column(number: int) -> float:
    """Return the left edge of a stage. The lanes are between the third and the fourth stage."""
    return LEFT + number * (WIDTH + GAP) + (200 if number >= 3 else 0)


def draw_lanes(picture: Picture) -> float:
    """Draw three lanes, each with its sealed aggregates, its open aggregate and its tokens."""
    x = column(2) + WIDTH + GAP
    for number, (name, sealed) in enumerate([("shard 0", 2), ("shard 1", 0), ("shard 2", 1)]):
        y = 44 + number * 62
        picture.box(x, y, 168, 50, "green")
        picture.text(x + 10, y + 18, f"lane of {name}", look="bold", size=12)
        for place in range(sealed + 1):
            full = place < sealed
            picture.box(x + 10 + place * 30, y + 26, 25, 15, "green-ink" if full else "plain", round_by=3)
        picture.text(x + 158, y + 38, "tokens", look="faint", anchor="end", size=11)
    return x


def pipeline() -> Picture:
    picture = Picture(1160, 372, "The producer's pipeline", "The path of a record from put to its result.")
    middle = TOP + HEIGHT / 2
    for number, (lines, tone, code) in enumerate(STAGES):
        picture.card(column(number), TOP, WIDTH, HEIGHT, lines, tone, code=code)
    lanes = draw_lanes(picture)
    for number in (0, 1, 3, 4):
        picture.arrow([(column(number) + WIDTH, middle), (column(number + 1) - 3, middle)])
    for y in (69, 131, 193):
        picture.arrow([(column(2) + WIDTH, middle), (lanes - 3, y)])
        picture.arrow([(lanes + 168, y), (column(3) - 3, middle)])
    remark(picture, lanes + 84, 236, "a lane for each predicted shard: one open", "middle")
    remark(picture, lanes + 84, 252, "aggregate, a queue of sealed ones, its own rates", "middle")
    remark(picture, LEFT, 200, "per record: one object,", "start")
    remark(picture, LEFT, 216, "no task, no lock, no timer", "start")
    draw_endings(picture, middle)
    draw_ways_back(picture, lanes, middle)
    return picture


def remark(picture: Picture, x: float, y: float, words: str, anchor: str) -> None:
    picture.text(x, y, words, look="faint", anchor=anchor, size=11.5)


def draw_endings(picture: Picture, middle: float) -> None:
    x, right = column(5), column(5) + WIDTH
    picture.card(x, 214, WIDTH, 40, ["delivered", "a receipt"], "green")
    picture.card(x, 268, WIDTH, 40, ["failed", "with every attempt"], "red")
    picture.arrow([(x + WIDTH / 2, TOP + HEIGHT), (x + WIDTH / 2, 211)])
    picture.arrow([(right, middle + 12), (right + 14, middle + 12), (right + 14, 288), (right + 3, 288)])


def draw_ways_back(picture: Picture, lanes: float, middle: float) -> None:
    """Draw the two paths of a retry: an unchanged entry to its lane, or each record to a lane of the newer map."""
    x, into_lane, into_map = column(5), lanes + 84, column(2) + WIDTH / 2
    above = [(x + 30, TOP), (x + 30, 22), (into_lane, 22), (into_lane, 41)]
    low = middle + 22
    below = [(x, low), (x - 12, low), (x - 12, 336), (into_map, 336), (into_map, TOP + HEIGHT + 3)]
    for way in (above, below):
        picture.arrow(way, tone="amber", dashed=True)
    for at, y, words in (
        ((x + lanes) / 2 + 60, 16, "throttled, or failed on the way: sent again unchanged, after a pause"),
        ((x + into_map) / 2, 356, "landed out of range in a reshard: each record is sent again, by the newer map"),
    ):
        picture.text(at, y, words, look="amber-ink", anchor="middle", size=12)
