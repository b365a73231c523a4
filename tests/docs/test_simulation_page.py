"""Do the figures on the page of the simulation agree with its files?"""

import ast
import re

from tests.docs import pages

SIM = pages.ROOT / "tests" / "sim"
PAGE = pages.text_of("docs/tested/simulation.md")
HEAD, *ROWS = (SIM / "findings.tsv").read_text().splitlines()


def test_the_page_counts_the_states_that_must_be_reached():
    [states] = re.findall(r"lists (\d+) states", PAGE)
    tree = ast.parse((SIM / "fleet_reached.py").read_text())
    [listed] = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "STATES"]
    assert int(states) == len({text.value for text in ast.walk(listed) if isinstance(text, ast.Constant)})


def test_the_page_counts_the_findings_and_shows_some_of_them():
    [count] = re.findall(r"findings\.tsv` lists (\d+) ", PAGE)
    assert int(count) == len(ROWS)
    assert HEAD.split("\t") == ["world", "seed", "what went wrong", "where it was"]
    seeds = {row.split("\t")[1] for row in ROWS}
    assert {cell.partition(" (")[0] for cell, *_ in pages.table_of("docs/tested/simulation.md", "seed")} <= seeds


def test_every_finding_has_its_cells_and_its_world():
    for row in ROWS:
        world, seed, wrong, where = row.split("\t")
        assert world in {"fleet", "producer"}
        assert all((seed, wrong, where))


def test_the_files_that_the_page_names_exist():
    for name in re.findall(r"`(tests/[\w/]+\.\w+)`", PAGE + pages.text_of("docs/tested/simulation-oracles.md")):
        assert (pages.ROOT / name).is_file(), name
