"""Looks up known vulnerabilities of the dependencies: ``make audit``.

pip-audit checks the packages that a user gets with every extra, at the versions that development uses. It asks PyPI,
then OSV. Packages that neither could look up are reported: pip-audit itself calls them "skipped", and says that no
vulnerability is known.

Exit code 0: all were looked up, and none is known; or no service was reachable, without ``--strict``. 1: some are
known. 2: with ``--strict``, not all could be looked up.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

SERVICES = ("pypi", "osv")


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")


def ask(service, site_packages):
    """Return pip-audit's findings by package: a list of vulnerabilities, or ``None`` if it could not be looked up."""
    command = [sys.executable, "-m", "pip_audit", "--path", site_packages, "--skip-editable", "--progress-spinner=off"]
    command += ["--format=json", f"--vulnerability-service={service}", "--timeout=15"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    return read_report(done.stdout), done.stderr.strip().splitlines()[-1:]


def read_report(text):
    """Return the known vulnerabilities by package; ``None`` if it was not looked up."""
    try:
        report = json.loads(text)
    except ValueError:
        return {}  # the service could not be reached at all
    return {one["name"]: None if "skip_reason" in one else one["vulns"] for one in report["dependencies"]}


def judge(reports, wanted):
    """Return the known vulnerabilities, and the packages that no service could look up."""
    known = {}
    for report in reports:
        for name, found in report.items():
            if found is not None:
                known.setdefault(name, []).extend(found)
    unknown = sorted(set(wanted) - known.keys())
    return {name: found for name, found in known.items() if found}, unknown


def installed(site_packages):
    """Return the installed packages, except our own and pip."""
    names = {path.name.partition("-")[0].replace("_", "-").lower() for path in Path(site_packages).glob("*.dist-info")}
    return names - {"shardline", "pip", "setuptools", "wheel"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("site_packages", help="the directory of an environment with what users install")
    parser.add_argument("--strict", action="store_true", help="fail if something could not be looked up")
    options = parser.parse_args()
    wanted, reports = installed(options.site_packages), []
    assert wanted, f"nothing is installed in {options.site_packages}"
    for service in SERVICES:
        report, told = ask(service, options.site_packages)
        reports.append({name.replace("_", "-").lower(): found for name, found in report.items()})
        looked_up = sum(found is not None for found in report.values())
        say(f"{service}: {looked_up} of {len(wanted)} packages looked up", *(told if not report else ()))
        if looked_up >= len(wanted):
            break
    vulnerable, unknown = judge(reports, wanted)
    for name, found in vulnerable.items():
        for one in found:
            say(
                f"VULNERABLE {name}: {one['id']}, fixed in {', '.join(one.get('fix_versions', [])) or 'no version yet'}"
            )
    if unknown:
        say(f"NOT AUDITED: {len(unknown)} of {len(wanted)} packages could not be looked up: {', '.join(unknown)}")
    if vulnerable:
        return 1
    if unknown:
        return 2 if options.strict else 0
    say(f"no vulnerability is known in any of {len(wanted)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
