"""Does the page of the benchmarks say what was measured, and does the guard see a fall?"""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    import bench_report
    import guard

    yield bench_report, guard
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_page_is_made_of_the_figures(benchmarks):
    report, _ = benchmarks
    figures = json.loads(report.FIGURES.read_text())
    assert list(figures["benches"]) == list(report.BENCHES)
    assert report.PAGE.read_text() == report.rendered(figures), "run: python benchmarks/bench_report.py --render"
    for found in figures["benches"].values():
        assert found["verdicts"]


def test_what_the_guard_measures_is_in_the_report(benchmarks):
    report, guard = benchmarks
    benches = json.loads(report.FIGURES.read_text())["benches"]
    assert all(guard.best_of(benches[bench]) for bench in guard.SHORT)


def test_the_guard_sees_a_ratio_that_fell_by_more_than_a_quarter(benchmarks, monkeypatch, capsys):
    _, guard = benchmarks
    runs = iter([{"a": 7.4, "b": 4.0}, {"a": 7.6, "b": 3.0}, {"a": 7.0, "b": 2.0}])
    monkeypatch.setattr(guard, "ratios_of", lambda _: next(runs))
    assert guard.guard("producer", {"a": 10.0, "b": 4.0, "c": 1.0})  # the second run clears the first
    assert "FALLEN" not in capsys.readouterr().out
    runs = iter([{"a": 7.4}] * 3)
    assert not guard.guard("producer", {"a": 10.0})
    assert "7.40, was  10.00  FALLEN" in capsys.readouterr().out
    assert next(runs, None) is None  # it tried three times
