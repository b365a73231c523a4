"""Are both forms measured, judged by their own limits, and shown in the table of the benchmarks page?"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    import bench_report
    import forms
    import results

    monkeypatch.setattr(results, "_found", {"verdicts": [], "ratios": [], "series": [], "rows": []})
    monkeypatch.setattr(forms, "has_extension", lambda: True)
    yield bench_report
    for name in set(sys.modules) - before:
        if str(ROOT / "benchmarks") in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def figures_with(*rows):
    return {"benches": {"producer": {"rows": list(rows)}}}


def row_of(limits, form, best, median):
    return {"row": limits.row, "form": form, "best": best, "median": median}


def test_every_row_of_the_table_is_measured(benchmarks):
    import bench_consumer
    import bench_producer
    import forms

    cases = [*bench_producer.CASES, *bench_consumer.CASES]
    measured = [target.limits for case in cases for target in case.targets if target.limits.row]
    # The aggregates, the growth and the memory are not ratios of two clients; the KPL has its own report.
    measured += [forms.BUILD, forms.OPEN, forms.GROWTH, forms.MEMORY, forms.KPL]
    assert sorted(limits.row for limits in measured) == sorted(limits.row for limits in forms.TABLE)


def test_each_of_our_clients_runs_in_both_forms_and_the_peers_once(benchmarks):
    import bench_consumer
    import bench_producer

    for module in (bench_producer, bench_consumer):
        for case in module.CASES:
            both = module.in_each_form(case)
            for name in case.clients:
                assert (name + " (pure)" in both.clients) == name.startswith("shardline")
            assert len(both.targets) == 2 * len(case.targets)
            assert all({target.upper, target.lower} <= set(both.clients) for target in both.targets)


def test_without_the_extension_only_the_pure_form_is_measured(benchmarks, monkeypatch):
    import bench_producer
    import forms

    monkeypatch.setattr(forms, "has_extension", lambda: False)
    clients = bench_producer.in_each_form(bench_producer.CASES[0]).clients
    assert {forms.form_of(name) for name in clients if name.startswith("shardline")} == {"pure"}


def test_a_process_that_uses_the_other_form_ends_the_benchmark(benchmarks):
    import forms

    forms.check_form("shardline sync", "native")
    forms.check_form("shardline sync (pure)", "pure")
    with pytest.raises(SystemExit, match="must use the native form, but it uses pure"):
        forms.check_form("shardline sync", "pure")
    assert forms.environment_of("shardline (pure)")["SHARDLINE_PURE"] == "1"
    assert forms.environment_of("shardline")["SHARDLINE_PURE"] == "0"


@pytest.mark.parametrize(
    ("at_most", "best", "median", "word"),
    [
        (False, 11.0, 12.0, "met"),
        (False, 10.9, 12.0, "MISSED, unclear: best and median differ"),
        (False, 10.9, 10.0, "MISSED"),
        (True, 11.0, 10.0, "met"),
        (True, 11.1, 12.0, "MISSED"),
    ],
)
def test_the_best_and_the_median_figure_must_both_keep_the_limit(benchmarks, at_most, best, median, word):
    import forms
    import results

    limits = forms.Limits(None, 11, at_most=at_most, row="a")
    assert forms.judge(limits, "x", "shardline", results.Cost(best, median)) == (word == "met")
    assert forms.judge(limits, "x", "shardline (pure)", results.Cost(best, median)), "there is no such limit"
    [verdict] = results._found["verdicts"]
    assert (verdict["verdict"], verdict["target"]) == (word, f"at {'most' if at_most else 'least'} 11")
    assert [row["form"] for row in results._found["rows"]] == ["native", "pure"]


def test_the_table_shows_the_figure_that_is_furthest_from_its_limit(benchmarks):
    import forms

    table = benchmarks.table_of_forms(
        figures_with(
            row_of(forms.BUILD, "native", 16.0, 15.5),
            row_of(forms.BUILD, "native", 15.2, 14.0),
            row_of(forms.GROWTH, "pure", 1.5, 1.71),
            row_of(forms.GROWTH, "native", 1.5, 1.6),
        )
    )
    [build] = [line for line in table.splitlines() if line.startswith(f"| {forms.BUILD.row} ")]
    assert "15.20 (14.00), MISSED | at least 15 | not measured | at least 4.5 |" in build
    [growth] = [line for line in table.splitlines() if line.startswith(f"| {forms.GROWTH.row} ")]
    assert "1.50 (1.60), met | at most 1.7 | 1.50 (1.71), MISSED | at most 1.7 |" in growth
    assert len(table.splitlines()) == 2 + len(forms.TABLE)
