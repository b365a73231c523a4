"""Does the guard of the benchmarks detect regressions, and only regressions?"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def guard(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    import guard

    yield guard
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def part(guard):
    return guard.Part("producer", (), ("a", "b"))


class Runs:
    """Runs with these costs, (peer's, ours) of each ratio; the last one repeats."""

    def __init__(self, guard, *tries):
        self._tries = [{name: guard.Costs(*costs) for name, costs in one.items()} for one in tries]
        self.made = 0

    def __call__(self, _):
        self.made += 1
        return self._tries[min(self.made, len(self._tries)) - 1]


def figures_of(guard, ratio=10.0):
    """Return a report in which every compared ratio has this value, in the form of reports without costs."""
    benches = {}
    for part in guard.PARTS:
        found = benches.setdefault(part.bench, {"ratios": []})
        found["ratios"] += [{"name": name, "best": ratio, "median": ratio * 1.1} for name in part.ratios]
    return benches


def all_at(guard, ratio):
    return lambda part: {name: guard.Costs(ratio * 3.0, 3.0) for name in part.ratios}


def test_a_ratio_that_fell_by_30_percent_in_every_try_fails(guard, part, capsys):
    runs = Runs(guard, {"a": (70.0, 10.0), "b": (40.0, 10.0)})
    assert not guard.guard(part, {"a": 10.0, "b": 4.0}, runs)
    assert runs.made == guard.TRIES
    told = capsys.readouterr().out.splitlines()
    assert "7.00   10.00    70%" in told[0]
    assert told[0].endswith("FALLEN")
    assert told[1].endswith("ok")


def test_a_loss_is_seen_through_noise_that_hits_both_sides_by_turns(guard, part):
    """The peer is never cheaper than 100, nor we than 14.5 (45 % more than before), whatever one run shows."""
    noisy = [(100.0, 16.0), (101.0, 15.0), (103.0, 14.5), (100.0, 19.0)]
    runs = Runs(guard, *({"a": costs, "b": (40.0, 10.0)} for costs in noisy))
    assert not guard.guard(part, {"a": 10.0, "b": 4.0}, runs)


def test_noise_in_one_try_passes(guard, part, capsys):
    runs = Runs(guard, {"a": (100.0, 20.0), "b": (40.0, 10.0)}, {"a": (130.0, 10.5), "b": (90.0, 30.0)})
    assert guard.guard(part, {"a": 10.0, "b": 4.0}, runs)
    assert runs.made == 2
    told = capsys.readouterr().out
    assert "FALLEN" not in told
    assert "9.52" in told  # the peer's 100 of the first run by our 10.5 of the second
    assert "4.00" in told  # and a good ratio stays unchanged


def test_noise_of_both_sides_in_different_tries_passes(guard, part):
    """No single run is good enough, but the minimum of each side is."""
    runs = Runs(guard, {"a": (100.0, 14.0), "b": (4.0, 1.0)}, {"a": (140.0, 13.3), "b": (4.0, 1.0)})
    assert guard.guard(part, {"a": 10.0, "b": 4.0}, runs)
    assert runs.made == 2


def test_what_looks_fine_is_measured_once(guard, part):
    runs = Runs(guard, {"a": (76.0, 10.0), "b": (31.0, 10.0)}, {"a": (1.0, 10.0), "b": (1.0, 10.0)})
    assert guard.guard(part, {"a": 10.0, "b": 4.0}, runs)
    assert runs.made == 1


def test_only_what_looks_fallen_is_measured_again(guard, capsys):
    made = []

    def run(part):
        made.append(part)
        ratio = 5.0 if part is guard.PARTS[1] and made.count(part) < 3 else 10.0
        return {name: guard.Costs(100.0, 100.0 / ratio) for name in part.ratios}

    assert guard.guard_all(figures_of(guard), run)
    assert [made.count(part) for part in guard.PARTS] == [1, 3, 1, 1, 1]
    assert "none has fallen" in capsys.readouterr().out


def test_the_reference_is_the_lower_ratio_of_a_report_that_need_not_have_costs(guard, part):
    ratios = [{"name": "a", "best": 3.0, "median": 4.0}, {"name": "b", "best": 7.0, "median": 6.0}]
    assert guard.reference({"producer": {"ratios": ratios}}, part) == {"a": 3.0, "b": 6.0}


def test_a_fall_says_what_to_do(guard, capsys):
    assert guard.guard_all(figures_of(guard), all_at(guard, 7.6))
    assert not guard.guard_all(figures_of(guard), all_at(guard, 7.4))
    told = capsys.readouterr().out
    assert "quiet machine" in told
    assert "make bench-report" in told


@pytest.mark.parametrize(
    "benches", [{}, {"producer": {}}, {"producer": {"ratios": [{"name": "a", "best": 1, "median": 1}]}}]
)
def test_a_name_that_the_report_lacks_is_a_clear_error(guard, part, benches):
    with pytest.raises(guard.GuardError, match=r"no ratio \[.*'b'\] of bench_producer.py.*make bench-report"):
        guard.reference(benches, part)


def test_it_cannot_pass_by_measuring_nothing(guard, part, monkeypatch):
    with pytest.raises(guard.GuardError, match=r"gave no ratio \['a', 'b'\]"):
        guard.guard(part, {"a": 1.0, "b": 1.0}, lambda _: {})
    with pytest.raises(guard.GuardError, match=r"gave no ratio \['b'\]"):
        guard.guard(part, {"a": 1.0, "b": 1.0}, lambda _: {"a": guard.Costs(1.0, 1.0)})
    with pytest.raises(guard.GuardError):
        guard.reference({"producer": {"ratios": []}}, guard.Part("producer", (), ()))
    monkeypatch.setattr(guard, "PARTS", ())
    assert not guard.guard_all({}, lambda _: {})


def test_a_run_that_fails_is_an_error(guard, part, monkeypatch):
    def fail(line, **_):
        raise subprocess.CalledProcessError(1, line)

    monkeypatch.setattr(guard.subprocess, "run", fail)
    with pytest.raises(guard.GuardError, match="nothing was compared"):
        guard.run_part(part)
    assert guard.main() == 2


@pytest.mark.parametrize("text", [None, "no JSON", "[]", "{}"])
def test_without_a_report_nothing_is_compared_and_that_is_no_loss(guard, text, tmp_path, monkeypatch, capsys):
    report = tmp_path / "benchmarks.json"
    if text is not None:
        report.write_text(text)
    monkeypatch.setattr(guard, "FIGURES", report)
    assert guard.main() == 2
    assert f"The guard cannot compare: {report} is not a report: " in capsys.readouterr().err


def test_everything_that_is_compared_is_in_the_report(guard):
    benches = json.loads(guard.FIGURES.read_text())["benches"]
    compared = [name for part in guard.PARTS for name in guard.reference(benches, part)]
    assert len(compared) == len(set(compared)) == 36
    assert len([name for name in compared if name.endswith(" (pure)")]) == 18, "both forms are guarded"
    assert {part.bench for part in guard.PARTS} == {"aggregation", "producer", "consumer"}


def test_a_benchmark_writes_down_what_the_guard_reads(guard, tmp_path, monkeypatch):
    import results

    monkeypatch.setattr(results, "_found", {"ratios": []})
    ratio = results.note_ratio("a", results.Cost(30.0, 44.0), results.Cost(10.0, 11.0))
    assert ratio == (3.0, 4.0)
    results.write(tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["ratios"] == [{"name": "a", "best": 3.0, "median": 4.0, "peer_cost": 30.0, "our_cost": 10.0}]
    assert guard.costs_in(found) == {"a": (30.0, 10.0)}
