"""Draws the retry table, from the rules in ``shardline.core.producer.verdicts``."""

from pen import Picture, width_of

from shardline.core.producer.verdicts import Action, Rule, Rules

TONES = {
    Action.DELIVER: "green",
    Action.RESEND: "amber",
    Action.REROUTE: "amber",
    Action.PARK: "violet",
    Action.BISECT: "violet",
    Action.FAIL: "red",
}
WIDTH, ROW, HEAD = 1110, 30, 62
WORDS, PILL, RATES, MAP = 24, 600, 980, 1055  # the left edge of each column, and the middle of each of the last two
LONGEST = 92


def shortened(text: str) -> str:
    """Return the text, shortened if it does not fit into its column."""
    return text if len(text) <= LONGEST else text.split(":", maxsplit=1)[0]


def draw_row(picture: Picture, y: float, rule: Rule) -> None:
    tone = TONES[rule.action]
    picture.text(WORDS, y + 19, shortened(rule.when), size=12)
    words = rule.action.value.split(";")[0]
    picture.box(PILL, y + 4, width_of(words, 12) + 20, 22, tone, round_by=11)
    picture.text(PILL + 10, y + 19, words, size=12)
    for at, holds in ((RATES, rule.throttled), (MAP, rule.stale_map)):
        if holds:
            picture.dot(at, y + 15, "amber" if at == RATES else "blue", 5)


def retry_table() -> Picture:
    height = HEAD + ROW * len(Rules.ALL) + 14
    picture = Picture(WIDTH, height, "The retry table", "The outcome of an entry, and what happens to its records.")
    picture.text(WORDS, 40, "outcome", look="bold")
    picture.text(PILL, 40, "its records are", look="bold")
    for at, above, below in ((RATES, "rates", "fall"), (MAP, "map read", "again")):
        picture.text(at, 32, above, look="bold", anchor="middle", size=12)
        picture.text(at, 48, below, look="bold", anchor="middle", size=12)
    for number, rule in enumerate(Rules.ALL):
        y = HEAD + number * ROW
        picture.line([(16, y), (WIDTH - 16, y)], width=0.4)
        draw_row(picture, y, rule)
    return picture
