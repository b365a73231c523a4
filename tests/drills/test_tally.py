"""Does the independent reader find losses, duplicates and wrong order?"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tally import Tally

PARENT, CHILD = "shardId-0", "shardId-1"


@pytest.fixture
def count(tmp_path):
    def count(put, **journals):
        (tmp_path / "put.tsv").write_text("".join(f"0.0\t{name}\t'k'\n" for name in put))
        for worker, rows in journals.items():
            lines = [f"R\t{at}\t{shard}\t'k'\t{name}\t{place}\t0\n" for at, shard, name, place in rows]
            (tmp_path / f"{worker}.journal").write_text("".join(lines))
        return Tally(tmp_path)

    return count


def test_an_unhandled_record_is_lost(count):
    tally = count("123", a=[(1.0, PARENT, "1", 1)], b=[(2.0, PARENT, "3", 3)])
    assert tally.lost == ["2"]
    assert "lost 1" in str(tally)


def test_what_was_never_put_is_unknown(count):
    assert count("1", a=[(1.0, PARENT, "1", 1), (1.0, PARENT, "9", 9)]).unknown == ["9"]


def test_a_record_that_two_workers_handled_is_a_duplicate(count):
    tally = count("1", a=[(1.0, PARENT, "1", 1)], b=[(2.5, PARENT, "1", 1)])
    assert [one.worker for one in tally.repeated] == ["b"]
    assert not tally.stored_twice


def test_only_what_comes_again_after_a_checkpoint_breaks_its_promise(count):
    rows = [(1.0, PARENT, "1", 1), (1.1, PARENT, "2", 2), (1.2, PARENT, "3", 3)]
    again = [(2.0, PARENT, "1", 1), (4.0, PARENT, "2", 2), (4.1, PARENT, "3", 3)]
    tally = count("123", a=rows, b=again)
    assert [one.name for one in tally.repeated] == ["1", "2", "3"]
    assert [one.name for one in tally.repeated_below({PARENT: (1, 2, 0)}, since=3.0)] == ["2"]
    assert [one.name for one in tally.repeated_below({PARENT: (1, 2, 0)}, since=0.0)] == ["1", "2"]
    assert not tally.repeated_below({PARENT: (0, 0, 0)}, since=0.0)


def test_a_record_that_was_stored_twice_is_no_duplicate_of_the_consumer(count):
    tally = count("1", a=[(1.0, PARENT, "1", 1), (2.0, CHILD, "1", 7)])
    assert not tally.repeated
    assert len(tally.stored_twice) == 1


def test_a_later_record_of_a_key_that_came_first_is_out_of_order(count):
    tally = count("12", a=[(2.0, PARENT, "1", 1)], b=[(1.0, PARENT, "2", 2)])
    assert [one.name for one in tally.out_of_order] == ["1"]


def test_a_replay_is_not_out_of_order(count):
    rows = [(1.0, PARENT, "1", 1), (2.0, PARENT, "2", 2), (3.0, PARENT, "1", 1), (4.0, PARENT, "2", 2)]
    assert not count("12", a=rows).out_of_order


def test_a_child_before_the_end_of_its_parent_is_seen(count):
    tally = count("123", a=[(1.0, PARENT, "1", 1), (3.0, PARENT, "2", 2)], b=[(2.0, CHILD, "3", 3)])
    assert [one.name for one in tally.before_parents({CHILD: [PARENT]})] == ["3"]


def test_the_longest_gap_is_between_two_records_of_a_key(count):
    tally = count("123", a=[(1.0, PARENT, "1", 1), (1.5, PARENT, "2", 2), (4.0, PARENT, "3", 3)])
    assert tally.longest_gap == pytest.approx(2.5)


def test_leases_that_were_gained_are_counted(tmp_path, count):
    (tmp_path / "a.journal").write_text(f"E\t1.0\tLeaseGained\t{PARENT}\t\nE\t2.0\tLeaseGained\t{PARENT}\t\n")
    tally = count("")
    assert tally.gains(0.0) == {PARENT: 2}
    assert tally.gains(1.5) == {PARENT: 1}


def test_a_line_that_is_still_being_written_is_left_for_later(tmp_path, count):
    (tmp_path / "a.journal").write_text(f"R\t1.0\t{PARENT}\t'k'\t1\t1\t0\nR\t2.0\t{PARENT}\t'k'\t2")
    assert count("12").lost == ["2"]
