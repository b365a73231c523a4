"""Are the pictures up to date, and do they show what the code does?"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from typing import get_args
from xml.etree import ElementTree as ET

import pytest
from tests.docs import test_cli_page

from shardline.core import leases
from shardline.core.consumer import lease_phases as holding
from shardline.core.consumer import reader
from shardline.core.leases import Refused, apply
from shardline.core.producer.verdicts import Rules
from shardline.model.lease import Checkpoint, Lease
from shardline.model.position import SHARD_END, at_sequence_number
from shardline.model.sequence import SequenceNumber

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn():
    """Return the output of ``draw.py``, without leaving its neighbours among the modules."""
    path, modules = list(sys.path), set(sys.modules)
    try:
        yield run_path(str(PICTURES / "draw.py"))["drawn"]()
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if getattr(sys.modules[name], "__file__", None) and PICTURES in Path(sys.modules[name].__file__).parents:
                del sys.modules[name]


def test_every_picture_is_the_one_that_would_be_drawn(drawn):
    assert {path.name for path in PICTURES.glob("*.svg")} == drawn.keys()
    for name, svg in drawn.items():
        assert (PICTURES / name).read_text() == svg, "run: python docs/pictures/draw.py"


def test_every_picture_is_shown_on_a_page(drawn):
    pages = "".join(page.read_text() for page in PICTURES.parent.rglob("*.md"))
    assert [name for name in drawn if not re.search(rf"\]\((\.\./)*pictures/{name}\)", pages)] == []


def test_the_recording_of_the_demo_is_what_the_demo_prints():
    """``test_cli_page.py`` runs the demo and compares it with the same block of the page."""
    [(_, block)] = test_cli_page.BLOCK.findall(test_cli_page.PAGES["demo"])
    [(_, expected)] = test_cli_page.commands_of(f"```console\n{block}```")
    assert test_cli_page.as_written(expected, (PICTURES / "demo.txt").read_text())


def test_every_picture_is_well_formed_says_what_it_is_and_has_a_dark_side(drawn):
    for svg in drawn.values():
        picture = ET.fromstring(svg)
        assert picture.find(f"{SVG}title").text
        assert picture.find(f"{SVG}desc").text
        assert "prefers-color-scheme:dark" in picture.find(f"{SVG}style").text


def test_every_text_begins_and_ends_on_its_sheet(drawn):
    for name, svg in drawn.items():
        picture = ET.fromstring(svg)
        for text in picture.iter(f"{SVG}text"):
            size = float(text.get("style", "font-size:13px").removeprefix("font-size:").removesuffix("px"))
            width = len(text.text) * size * 0.52  # about
            begins = float(text.get("x")) - width * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")]
            assert begins >= -2, (name, text.text)
            assert begins + width <= float(picture.get("width")) + 2, (name, text.text)


def test_the_retry_table_has_every_rule(drawn):
    words = {text.text for text in ET.fromstring(drawn["retries.svg"]).iter(f"{SVG}text")}
    for rule in Rules.ALL:
        assert any(rule.when.startswith(word) for word in words), rule
        assert rule.action.value.partition(";")[0] in words


def test_the_plots_show_the_figures(drawn):
    figures = json.loads((PICTURES / "tuning.json").read_text())
    assert len(figures["linger"]) > 5 < len(figures["aggregate_max_bytes"])
    for row in figures["linger"]:
        assert f">{row['linger_ms']:g} ms<" in drawn["tuning_linger.svg"]
    for row in figures["aggregate_max_bytes"]:
        assert f">{row['aggregate_max_bytes']:,}<" in drawn["tuning_aggregate.svg"] or not row["aggregate_max_bytes"]


@pytest.mark.parametrize(("name", "table"), [("phases.svg", holding.TRANSITIONS), ("reader.svg", reader.TRANSITIONS)])
def test_the_pictures_of_states_show_every_change_in_the_tables(drawn, name, table):
    """The names on one line of the picture are a state and its possible successors."""
    lines = {}
    for text in ET.fromstring(drawn[name]).iter(f"{SVG}text"):
        if text.get("class") == "bold code":
            lines.setdefault(round((float(text.get("y")) - 16) // 58), []).append(text.text)
    shown = {names[0]: set(names[1:]) for names in lines.values()}
    assert shown == {state.name: {after.name for after in following} for state, following in table.items()}


# ---- the life of a lease

SHARD = "shardId-000000000000"
ENDED = Checkpoint(SHARD_END)
ROWS = {
    "no row": None,
    "free": Lease(SHARD, counter=3),
    "held": Lease(SHARD, counter=3, owner="a"),
    "handing over": Lease(SHARD, counter=3, owner="b", checkpoint_owner="a"),
    "finished": Lease(SHARD, counter=3, checkpoint=ENDED),
}


def state_of(row):
    if row is None:
        return "no row"
    if row.checkpoint.is_finished:
        return "finished"
    return "free" if row.owner is None else "held" if row.checkpoint_owner is None else "handing over"


def operation_of(change, row):
    """Return the write that the picture names, sent by a worker that saw the row."""
    somewhere = Checkpoint(at_sequence_number(SequenceNumber(5)))
    made = {
        "CreateLease": lambda: leases.CreateLease(Lease(SHARD)),
        "TakeLease": lambda: leases.TakeLease(SHARD, "c", row.fence),
        "RenewLease": lambda: leases.RenewLease(SHARD, "a", row.counter),
        "CommitCheckpoint": lambda: leases.CommitCheckpoint(
            SHARD, "a", row.counter, ENDED if change.after == "finished" else somewhere
        ),
        "WriteChildren": lambda: leases.WriteChildren(SHARD, frozenset({"shardId-000000000001"})),
        "AskHandOver": lambda: leases.AskHandOver(SHARD, "b", "a"),
        "CancelHandOver": lambda: leases.CancelHandOver(SHARD, "b", "a"),
        "FinishHandOver": lambda: leases.FinishHandOver(SHARD, "a", row.counter),
        "ReleaseLease": lambda: leases.ReleaseLease(SHARD, "a", row.counter),
        "DeleteLease": lambda: leases.DeleteLease(SHARD, row.counter),
    }
    return made[change.operation]()


@pytest.fixture(scope="module")
def changes(drawn):
    names = run_path(str(PICTURES / "lease_life.py"))
    return names["CHANGES"]


def test_the_lease_goes_the_ways_that_are_drawn(changes):
    for change in changes:
        row = ROWS[change.before]
        after = apply(row, operation_of(change, row))
        assert not isinstance(after, Refused), change
        assert state_of(after) == change.after, change


def test_the_picture_of_the_lease_has_every_write(changes, drawn):
    known = {kind.__name__ for kind in get_args(leases.LeaseOperation)}
    named = {change.operation for change in changes}
    assert [name for name in sorted(named) if name not in drawn["lease.svg"]] == []
    assert known - named <= {"ResetLease"}, "which is an operator's, and no part of its life"


def test_a_zombie_goes_none_of_these_ways():
    row = replace(ROWS["held"], owner="b", counter=4)  # another worker took it meanwhile
    for kind in (leases.RenewLease, leases.FinishHandOver, leases.ReleaseLease):
        assert isinstance(apply(row, kind(SHARD, "a", 3)), Refused)
