"""Draws what ``shardline demo`` prints.

``python docs/pictures/demo.py`` runs the demo and records its lines in demo.txt. The picture shows the lines that tell
the story, without the traffic of every two seconds and without the long explanations.
"""

import re
import subprocess
import sys
from pathlib import Path

from pen import Picture

RECORDING = Path(__file__).parent / "demo.txt"
MAX_LETTERS = 68
LETTER, LINE = 7.9, 20
INKS = (("throttled", "amber-ink"), ("kill -9", "red-ink"), ("took over", "green-ink"), ("is split", "violet-ink"))


def story() -> list[str]:
    """Return the lines of the recording that the picture shows."""
    lines = RECORDING.read_text().splitlines()
    return [line for line in lines if len(line) <= MAX_LETTERS and not re.search(r" in \d+/s ", line)]


def ink_of(line: str) -> str:
    return next((ink for words, ink in INKS if words in line), "")


def demo() -> Picture:
    lines = story()
    width, height = round(MAX_LETTERS * LETTER) + 40, (len(lines) + 2) * LINE + 34
    picture = Picture(
        width, height, "shardline demo", "Lines that the command shardline demo printed: " + "; ".join(lines)
    )
    picture.text(20, 32, "$ shardline demo", look="code bold")
    for number, line in enumerate(lines):
        y = 32 + (number + 1) * LINE
        time, _, words = line.partition(" s  ")
        if words:
            picture.text(20 + 6 * LETTER, y, f"{time.strip()} s", look="code faint", anchor="end")
            picture.text(20 + 8 * LETTER, y, words, look=f"code {ink_of(line)}".strip())
        else:
            y += LINE / 2
            picture.text(20, y, line, look="code bold green-ink")
    return picture


if __name__ == "__main__":
    command = [str(Path(sys.executable).parent / "shardline"), "demo", "--plain"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - our own command
    RECORDING.write_text(re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:4567", ended.stdout))
