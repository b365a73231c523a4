"""Does the page show the results of drills correctly, and list all drills?"""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from report import Line, catalogue, results, write_part
from tally import Tally

from drills import DRILLS, LONG

PAGE = Path(__file__).parents[2] / "docs" / "tested" / "drills.md"


@pytest.fixture
def tally(tmp_path):
    (tmp_path / "put.tsv").write_text("0.0\t1\t'k'\n0.0\t2\t'k'\n0.0\t3\t'k'\n")
    rows = [(1.0, "1", 1), (2.5, "2", 2), (3.0, "2", 2)]
    (tmp_path / "a.journal").write_text("".join(f"R\t{at}\ts\t'k'\t{name}\t{place}\t0\n" for at, name, place in rows))
    return Tally(tmp_path)


def test_the_page_lists_the_drills_that_there_are():
    assert catalogue(DRILLS | LONG) in (PAGE.parent / "drill-list.md").read_text()


def test_the_page_sums_up_the_results():
    rows = re.findall(r"^\| \[.+?\]\(([\w-]+\.md)\) \| (\d+) \| ([\d,]+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == 4
    for name, runs, put, lost in rows:
        found = re.findall(
            r"^\| \*\*(\d+) runs?\*\* \| \| ([\d,]+) \| [\d,]+ \| (\d+) \|",
            (PAGE.parent / name).read_text(),
            re.MULTILINE,
        )
        sums = [sum(int(value.replace(",", "")) for value in column) for column in zip(*found, strict=True)]
        assert [int(runs), int(put.replace(",", "")), int(lost)] == sums, name


def test_every_drill_says_what_it_is_about_and_where_it_runs():
    for drill, stores in (DRILLS | LONG).values():
        assert drill.__doc__
        assert set(stores) <= {"sqlite", "redis", "dynamodb", "postgres"}
        assert stores


def test_a_result_has_its_counts_and_its_facts(tally):
    tally.excuse(["3"], "dead letters")
    line = Line("poison", "sqlite", 4.0, {"all owned after": 1.25, "shards": 2, "tally": tally}, None)
    assert line.row == (
        "| poison | sqlite | 3 | 2 | 0 | 1 | 1.50 s | all owned after 1.25 s; shards 2; dead letters 1 |"
    )
    assert "put 3 (dead letters: 1), received 2, lost 0, duplicates 1, longest gap 1.50 s" in str(line)


def test_what_is_not_excused_is_lost(tally):
    assert tally.lost == ["3"]
    tally.excuse(["3"], "trimmed")
    assert tally.lost == []


def test_the_page_reports_a_failure(tally):
    line = Line("pause", "redis", 4.0, {}, "lost 1 records\nand more")
    assert line.row == "| pause | redis | | | | | | **failed**: lost 1 records |"
    assert "FAILED" in str(line)


def test_a_table_replaces_the_one_before(tmp_path, tally):
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- results: a -->\n<!-- end of results -->\nafter\n<!-- results: b -->\n<!-- end of results -->\n"
    )
    line = Line("pause", "sqlite", 1.0, {"tally": tally}, None)
    for _ in range(2):
        write_part(page, "a", results([line]))
    text = page.read_text()
    assert text.count("| pause |") == 1
    assert text.startswith("before\n<!-- results: a -->\n| drill |")
    assert text.endswith("<!-- end of results -->\nafter\n<!-- results: b -->\n<!-- end of results -->\n")
    with pytest.raises(ValueError, match="no mark"):
        write_part(page, "c", "")
