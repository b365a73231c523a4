"""Is every chunk of seeds run once, and do the states that any of them reached count?"""

from threading import Thread

import pytest
from ledger import Ledger

MISSING = {0: ["a", "b"], 1: ["b", "c"], 2: ["b"]}


def test_missing_is_what_no_chunk_reached(tmp_path):
    assert Ledger(tmp_path, "x", MISSING.get).missing_after_all(range(3)) == ["b"]
    assert Ledger(tmp_path, "y", {0: ["a"], 1: ["b"]}.get).missing_after_all(range(2)) == []


def test_a_chunk_that_another_has_run_is_not_run_again(tmp_path):
    ran = []
    one, other = (Ledger(tmp_path, "x", lambda chunk: ran.append(chunk) or MISSING[chunk]) for _ in range(2))
    assert one.missing_after(1) == ["b", "c"]
    assert other.missing_after_all(range(3)) == ["b"]
    assert ran == [1, 0, 2]


def test_one_that_another_is_at_is_waited_for(tmp_path):
    found = []

    def run(chunk):
        other.start()
        other.join(0.1)
        found.append("here")
        return []

    other = Thread(target=lambda: found.append(Ledger(tmp_path, "x", pytest.fail).missing_after(0)))
    Ledger(tmp_path, "x", run).missing_after(0)
    other.join()
    assert found == ["here", []]


def test_one_that_failed_is_run_again(tmp_path):
    def fail(chunk):
        raise ValueError(f"seed {chunk}")

    for _ in range(2):
        with pytest.raises(ValueError, match="seed 7"):
            Ledger(tmp_path, "x", fail).missing_after(7)
    assert Ledger(tmp_path, "x", lambda _: ["a"]).missing_after(7) == ["a"]
