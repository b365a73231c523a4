"""Draws the states of the consumer's machines, from the tables that these machines check every change against."""

from collections.abc import Mapping
from enum import Enum

from pen import Picture, width_of

from shardline.core.consumer import lease_phases as holding
from shardline.core.consumer import reader

LEFT, STATE, GAP, HIGH, STEP = 20, 430, 60, 44, 58


def states(title: str, description: str, transitions: Mapping[Enum, frozenset[Enum]]) -> Picture:
    """Return a picture with a line for each state: its meaning, and the states that may follow."""
    order = list(transitions)
    picture = Picture(1000, 20 + STEP * len(order), title, description)
    for number, (state, following) in enumerate(transitions.items()):
        y = 16 + STEP * number
        picture.card(LEFT, y, STATE, HIGH, [state.name, str(state.value)], "green" if following else "plain", code=True)
        if not following:
            picture.text(LEFT + STATE + 16, y + HIGH / 2 + 4.5, "the end", look="faint")
            continue
        x = LEFT + STATE + GAP
        picture.arrow([(LEFT + STATE + 4, y + HIGH / 2), (x - 4, y + HIGH / 2)])
        for after in sorted(following, key=order.index):
            width = width_of(after.name) + 20
            picture.card(
                x, y + 7, width, HIGH - 14, [after.name], "green" if transitions[after] else "plain", code=True
            )
            x += width + 10
    return picture


def lease_phases() -> Picture:
    what = "The phases of a lease that a worker holds, and the phases that may follow each of them."
    return states("The phases of a held lease", what, holding.TRANSITIONS)


def reader_states() -> Picture:
    what = "The states of the reader of a shard, and the states that may follow each of them."
    return states("The states of a reader", what, reader.TRANSITIONS)
