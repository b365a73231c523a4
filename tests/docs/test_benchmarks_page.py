"""Do the pages of the benchmarks match the measurements?"""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def report(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    import bench_report

    yield bench_report
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_pages_are_made_of_the_figures(report):
    figures = json.loads(report.FIGURES.read_text())
    assert list(figures["benches"]) == list(report.BENCHES)
    for path, text in report.rendered(figures).items():
        assert path.read_text() == text, "run: python benchmarks/bench_report.py --render"
    for found in figures["benches"].values():
        assert found["verdicts"]


def test_the_page_is_led_by_the_chart(report):
    assert report.PAGE.read_text().startswith("# Benchmarks\n\n![CPU seconds")


def test_every_benchmark_has_its_table(report):
    shown = [name for _, names in report.RESULTS.values() for name in names]
    assert sorted(shown) == sorted(report.BENCHES)


def test_the_short_tables_are_made_of_the_figures(report):
    figures = json.loads(report.FIGURES.read_text())
    for path in report.SHORT_TABLES:
        page = path.read_text()
        assert all(f"\n| {row} | " in page for row in report.SHORT_ROWS)
        assert page == report.with_short_rows(page, figures), "run: python benchmarks/bench_report.py --render"


def test_the_page_beside_the_kpl_is_made_of_its_figures(report):
    import bench_java

    figures = json.loads(bench_java.FIGURES.read_text())
    assert bench_java.PAGE.read_text() == bench_java.rendered(figures), "run: python benchmarks/bench_java.py --render"
    assert figures["read_back"]["read"] == figures["read_back"]["put"]
