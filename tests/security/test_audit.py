"""Does the audit report packages that it could not look up? A skipped package may have vulnerabilities."""

import json
import sys

import audit
import pytest

FOUND = {"id": "CVE-1", "fix_versions": ["2.0"]}


def report(**packages):
    """Return a report as pip-audit writes it; ``None`` is a package that it skipped."""
    rows = [
        {"name": name, "skip_reason": "not found"} if found is None else {"name": name, "version": "1", "vulns": found}
        for name, found in packages.items()
    ]
    return json.dumps({"dependencies": rows, "fixes": []})


def run(monkeypatch, capsys, tmp_path, answers, *options):
    for name in ("a", "b", "shardline"):
        (tmp_path / f"{name}-1.0.dist-info").mkdir(exist_ok=True)
    given = iter(answers)
    monkeypatch.setattr(audit, "ask", lambda *_: (audit.read_report(next(given)), ["unreachable"]))
    monkeypatch.setattr(sys, "argv", ["audit", str(tmp_path), *options])
    return audit.main(), capsys.readouterr().out


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict",), 2)])
@pytest.mark.parametrize("answers", [["", ""], [report(a=None, b=None)] * 2])
def test_an_unreachable_service_is_reported_and_fails_with_strict(
    answers, options, code, monkeypatch, capsys, tmp_path
):
    result, told = run(monkeypatch, capsys, tmp_path, answers, *options)
    assert result == code
    assert "NOT AUDITED: 2 of 2 packages" in told
    assert "no vulnerability is known" not in told


def test_what_one_service_does_not_know_the_next_is_asked(monkeypatch, capsys, tmp_path):
    result, told = run(monkeypatch, capsys, tmp_path, [report(a=[], b=None), report(a=[], b=[])], "--strict")
    assert result == 0
    assert "no vulnerability is known in any of 2 packages" in told


def test_a_vulnerability_fails_always(monkeypatch, capsys, tmp_path):
    result, told = run(monkeypatch, capsys, tmp_path, [report(a=[FOUND], b=None), ""])
    assert result == 1
    assert "VULNERABLE a: CVE-1, fixed in 2.0" in told
    assert "NOT AUDITED: 1 of 2 packages" in told
