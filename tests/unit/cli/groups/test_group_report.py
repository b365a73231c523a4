"""How are leases displayed?"""

import pytest
from rich.console import Console

from shardline.cli.groups import group_report
from shardline.cli.groups.apply_reset import Outcome
from shardline.cli.groups.group_lag import Lag
from shardline.cli.groups.group_report import (
    group_object,
    print_groups,
    print_shards,
    print_steps,
    shard_objects,
    shown_behind,
    shown_checkpoint,
    step_objects,
)
from shardline.cli.groups.group_store import Watch
from shardline.cli.groups.reset_plan import Action, Step
from shardline.model.hashing import HashRange
from shardline.model.lease import Checkpoint, Incarnation, Lease
from shardline.model.position import LATEST, SHARD_END, TRIM_HORIZON, at_sequence_number, at_timestamp
from shardline.model.sequence import SequenceNumber
from shardline.model.shard import Shard
from shardline.ports import GroupOnStream

NUMBER = "49680263544742601182696911339629260556338881839417524242"


def lease(position, **fields):
    return Lease("s0", checkpoint=Checkpoint(position), **fields)


PLACES = {
    "TRIM_HORIZON": (lease(TRIM_HORIZON), "TRIM_HORIZON", "TRIM_HORIZON"),
    "LATEST of a KCL": (lease(LATEST), "LATEST", "LATEST"),
    "LATEST": (lease(LATEST, latest_at=1.7e9), "LATEST 2023-11-14T22:13:20.000Z", "LATEST"),
    "a time": (lease(at_timestamp(1.7e9)), "at 2023-11-14T22:13:20.000Z", "11-14 22:13Z"),
    "a record": (lease(at_sequence_number(NUMBER)), NUMBER, f"..{NUMBER[-10:]}"),
    "inside": (lease(at_sequence_number(SequenceNumber(7, 2))), "7:2", "7:2"),
    "the end": (lease(SHARD_END), "finished", "finished"),
    "no row": (None, "no row", "no row"),
}


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(group_report, "console", lambda: Console(width=80, force_terminal=True))


@pytest.mark.parametrize("case", PLACES)
def test_in_a_pipe_a_position_is_printed_in_full(case):
    row, whole, _ = PLACES[case]
    assert shown_checkpoint(row) == whole


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("case", PLACES)
def test_on_a_narrow_terminal_it_is_short(case):
    row, _, short = PLACES[case]
    assert shown_checkpoint(row) == short
    assert len(short) <= 14


@pytest.mark.parametrize(
    ("millis", "words"),
    [
        (0, "0.0 s"),
        (59_900, "59.9 s"),
        (60_000, "1 min"),
        (7_140_000, "119 min"),
        (7_200_000, "2 h"),
        (172_000_000, "48 h"),
        (864_000_000, "10 d"),
    ],
)
def test_a_lag_has_the_unit_that_fits(millis, words):
    assert shown_behind(millis) == words


SHARD = Shard("s0", HashRange(0, 9), SequenceNumber(1))
HELD = Lease("s0", owner="next", checkpoint_owner="old", counter=4)


def test_what_is_not_known_is_null():
    (told,) = shard_objects(Watch({"s0": HELD}), None, None)
    assert (told["state"], told["lag_ms"], told["owner_alive"]) == (None, None, None)
    assert (told["owner"], told["next_owner"]) == ("old", "next")
    group = group_object(GroupOnStream(None, None), Watch({"s0": HELD}))
    assert (group["group"], group["alive"]) == (None, None)


def test_to_people_it_is_a_question_mark(capsys):
    print_shards(Watch({"s0": HELD}), {"s0": SHARD}, {"s0": Lag(problem="denied")})
    print_groups([(GroupOnStream(None, None), Watch({"s0": HELD}))])
    shards, groups = (line.split() for line in capsys.readouterr().out.splitlines()[1::2])
    assert shards == ["s0", "open", "TRIM_HORIZON", "?", "old", "?", "4"]
    assert groups[:2] == ["?", "?"]


@pytest.mark.parametrize(
    ("holder", "read_by", "shown"),
    [("a", "fan-out", "fan-out"), ("a", "polling", "polling"), ("b", None, "?"), (None, None, "-")],
)
def test_a_shard_is_read_as_its_holder_says_and_not_as_an_earlier_owner_did(holder, read_by, shown, capsys):
    row = Lease("s0", owner=holder, counter=4, incarnation=Incarnation("a", "x", 10.0, read_by or "fan-out"))
    (described,) = shard_objects(Watch({"s0": row}), None, None)
    assert described["read_by"] == read_by
    print_shards(Watch({"s0": row}), None, None)
    assert capsys.readouterr().out.split()[-2:] == [shown, "4"]


def test_steps_that_were_not_taken_stand_out(capsys):
    steps = [Step("s0", Action.RESET, HELD, lease(LATEST)), Step("s1", Action.DELETE, lease(SHARD_END), None)]
    print_steps(steps, Outcome(done=["s0"], stopped_by="interrupted", interrupted_by=2))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [["s0", "reset", "TRIM_HORIZON", "LATEST"], ["s1", "NOT", "DONE", "finished", "-"]]
    told = step_objects(steps, Outcome(done=["s0"]))
    assert [one["done"] for one in told] == [True, False]
    assert (told[1]["before"]["kind"], told[1]["after"]) == ("SHARD_END", None)
