"""Are all inputs of the fuzz corpus, and a few seconds of random changes to them, handled in time and memory
proportional to the input?
"""

import time
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")
INPUTS = sorted(path for path in CORPUS.rglob("*") if path.is_file())
MEMORY_PER_BYTE = 400  # for example, a list of empty keys: an object of about 50 bytes for every two
MEMORY_FREE = 1 << 20
CPU_SECONDS = 2.0
VARIATIONS = 40


def mutated(rng, data):
    """Return the data with a few bytes changed, cut or repeated."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0:
                changed[at : at + 1] = rng.randbytes(rng.randint(0, 3))
            case 1:
                del changed[at : at + rng.randint(1, 8)]
            case 2:
                changed[at:at] = changed[at : at + rng.randint(1, 40)]
            case _:
                changed[at:at] = rng.choice(
                    [b"\x00", b"\xff" * 8, b"\x7f", b'"', b"[", b"{", b"\r\n", b"-1", b"9" * 20]
                )
    return bytes(changed)


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_interesting_once_does_no_harm(path):
    target, data = TARGETS[path.parent.name], path.read_bytes()
    target(data)  # imports and caches do not count
    began = time.process_time()
    tracemalloc.start()
    try:
        target(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < CPU_SECONDS
    assert peak < MEMORY_FREE + MEMORY_PER_BYTE * len(data)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_neither_does_anything_like_it(name):
    rng = Random(name)
    inputs = [path for path in INPUTS if path.parent.name == name]
    assert inputs, "every target has a corpus"
    for path in inputs:
        for _ in range(VARIATIONS):
            data = mutated(rng, path.read_bytes())
            try:
                TARGETS[name](data)
            except BaseException as error:
                error.add_note(f"{name}: {data[:300]!r}")
                raise
