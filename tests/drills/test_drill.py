"""Does the command of the drills reject impossible requests early, continue after a failure, and clean up when it is
ended?
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import drill
from fleet import BrokenPromiseError, DrillError, listed
from standstill import Standstill

from shardline.core.error_codes import Failure, FailureKind

HERE = Path(__file__).resolve().parent
PAGE = "".join(f"<!-- results: {part} -->\n<!-- end of results -->\n" for part in ("catalogue", "drills"))
# A drill that has something to clean up, and never ends by itself.
ENDLESS = """
import signal, sys, time
sys.path.insert(0, sys.argv.pop(1))
import drill
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs in the background may have been told to ignore it

def endless(directory, store, *, full):
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        print("cleared up", flush=True)
        raise OSError("in the wake of it")

drill.ALL["endless"] = drill.ALL["next"] = (endless, ("sqlite",))
sys.exit(drill.command())
"""


@pytest.fixture
def ran(monkeypatch):
    """The drills that were run, of which the second fails with an unexpected error."""
    names = []

    def fine(directory, store, *, full):
        names.append("fine")
        raise DrillError("lost 1 record")

    def broken(directory, store, *, full):
        names.append("broken")
        return {}["tally"]

    monkeypatch.setattr(drill, "ALL", {"broken": (broken, ("sqlite",)), "fine": (fine, ("sqlite",))})
    return names


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("DRILL_SEED", "abc", "DRILL_SEED is a whole number, not 'abc'"),
        ("SOAK_SECONDS", "x", "SOAK_SECONDS is seconds, more than 0, not 'x'"),
        ("SOAK_SECONDS", "-1", "SOAK_SECONDS is seconds, more than 0, not '-1'"),
        ("SOAK_SECONDS", "nan", "SOAK_SECONDS is seconds, more than 0, not 'nan'"),
    ],
)
def test_a_setting_is_looked_at_before_the_first_drill(name, value, problem, ran, monkeypatch, capsys):
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as error:
        drill.main(["fine"])
    assert (error.value.code, ran) == (2, [])
    assert problem in capsys.readouterr().err


def test_so_is_the_page_for_the_results(ran, tmp_path, capsys):
    page = tmp_path / "page.md"
    for text, part in [(None, "drills"), (PAGE, "unknown"), (PAGE.replace("<!-- end of results -->", ""), "drills")]:
        if text is not None:
            page.write_text(text)
        with pytest.raises(SystemExit) as error:
            drill.main(["fine", "--report", str(page), "--part", part])
        assert (error.value.code, ran) == (2, [])
        assert "the results cannot be written: " in capsys.readouterr().err


def test_a_page_of_results_needs_no_list_of_drills(ran, tmp_path):
    """The list of all drills is on one page, the results are on others."""
    page = tmp_path / "page.md"
    for has_catalogue in (False, True):
        page.write_text(PAGE if has_catalogue else PAGE.replace("catalogue", "other"))
        drill.ALL["broken"][0].__doc__ = drill.ALL["fine"][0].__doc__ = "It is drilled."
        drill.main(["fine", "--report", str(page)])
        assert "| fine | sqlite |" in page.read_text()
        assert ("| `fine` | It is drilled. |" in page.read_text()) == has_catalogue
    assert ran == ["fine", "fine"]


def test_whatever_fails_the_others_are_run_and_the_report_is_written(ran, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    drill.ALL["broken"][0].__doc__ = drill.ALL["fine"][0].__doc__ = "It is drilled."
    assert drill.main(["broken", "fine", "broken", "--report", str(page)]) == 1
    assert ran == ["broken", "fine"], "what is named twice is run once"
    told = capsys.readouterr()
    assert "FAILED" in told.out
    assert "KeyError('tally')" in told.out
    assert "Traceback" in told.err
    assert "| broken | sqlite | | | | | | **failed**: KeyError('tally') |" in page.read_text()
    assert "**failed**: lost 1 record |" in page.read_text()


@pytest.mark.parametrize(
    ("failure", "standstill", "attempts", "code"),
    [
        (DrillError("duplicates: 57"), 13.0, 2, 0),
        (DrillError("duplicates: 57"), 0.3, 1, 1),
        (BrokenPromiseError("lost 1 record"), 13.0, 1, 1),
        (KeyError("tally"), 13.0, 1, 1),
    ],
)
def test_a_drill_that_the_machine_spoilt_runs_again(failure, standstill, attempts, code, monkeypatch, capsys):
    ran = []

    def fails_once(directory, store, *, full):
        directory.joinpath("journal").touch(exist_ok=False)
        ran.append(directory)
        if len(ran) == 1:
            raise failure
        return {"tally": "put 3"}

    class Stood(Standstill):
        def __exit__(self, *_):
            super().__exit__()
            self.longest = standstill

    monkeypatch.setattr(drill, "ALL", {"spoilt": (fails_once, ("sqlite",))})
    monkeypatch.setattr(drill, "Standstill", Stood)
    assert (drill.main(["spoilt"]), len(ran)) == (code, attempts)
    assert ("stood still for 13.0 s: the drill runs again" in capsys.readouterr().out) == (attempts == 2)


def test_a_machine_that_always_stalls_is_reported_and_fails(monkeypatch, capsys):
    def fails(directory, store, *, full):
        raise DrillError("duplicates: 57")

    monkeypatch.setattr(drill, "ALL", {"spoilt": (fails, ("sqlite",))})
    monkeypatch.setattr(drill, "LONGEST_STANDSTILL", -1.0)
    assert drill.main(["spoilt"]) == 1
    assert capsys.readouterr().out.count("FAILED") == 3


@pytest.mark.parametrize(
    ("kind", "failures", "is_listed", "calls"),
    [
        (FailureKind.TRANSIENT, 2, True, 3),
        (FailureKind.TRANSIENT, 3, False, 3),
        (FailureKind.NOT_FOUND, 1, False, 1),
    ],
)
def test_the_observer_lists_again_if_a_listing_fails_for_a_moment(kind, failures, is_listed, calls):
    answers = iter([*[Failure(kind, "Broken", "it broke", maybe_received=False)] * failures, ["a row"], None, None])
    if is_listed:
        assert listed(lambda: next(answers)) == ["a row"]
    else:
        with pytest.raises(DrillError, match=r"the leases cannot be listed: .*it broke"):
            listed(lambda: next(answers))
    assert len(list(answers)) == failures + 3 - calls


def test_a_standstill_is_what_the_longest_nap_took_too_long():
    times = iter([0.0, 0.06, 1.0, 14.25, 20.0, 20.05])
    standstill = Standstill(monotonic=lambda: next(times), nap=lambda _: None)
    with pytest.raises(StopIteration):
        standstill._watch()
    assert standstill.longest == pytest.approx(13.2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_when_all_is_cleared_up(number, code):
    line = [sys.executable, "-c", ENDLESS, str(HERE), "endless", "next"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as running:
        assert running.stdout.readline() == "begun\n"
        running.send_signal(number)
        out, errors = running.communicate(timeout=60)
    assert (out, errors) == ("cleared up\n", f"Ended by {number.name}; no report is written.\n")
    assert running.returncode == code
