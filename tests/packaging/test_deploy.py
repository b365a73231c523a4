"""Are the files in deploy/ valid, and do they name things that exist?"""

import re
import shlex
import subprocess
from configparser import ConfigParser
from pathlib import Path
from runpy import run_path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "worker.yaml").read_text()))
BY_KIND = {manifest["kind"]: manifest for manifest in MANIFESTS}
UNIT = (DEPLOY / "systemd" / "shardline-worker.service").read_text()


@pytest.mark.parametrize("kind", BY_KIND)
@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_each_manifest_is_valid(kind, version):
    assert kubernetes_validate.validate(BY_KIND[kind], version, strict=True) == version


def test_the_validator_finds_mistakes():
    wrong = {**BY_KIND["Deployment"], "spec": {**BY_KIND["Deployment"]["spec"], "replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_the_manifests_belong_together():
    deployment, account = BY_KIND["Deployment"], BY_KIND["ServiceAccount"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    target = BY_KIND["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert target == {key: deployment[key] for key in ("apiVersion", "kind")} | {"name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"], "the autoscaler sets it; an apply would set it back"
    assert [manifest["kind"] for manifest in MANIFESTS] == list(BY_KIND)


def test_the_arguments_are_those_of_the_worker():
    usage = run_path(str(ROOT / "examples" / "worker.py"))["__doc__"].splitlines()[0]
    count = len(re.findall(r"\b[A-Z_]{4,}\b", usage))
    [container] = BY_KIND["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert len(container["args"]) == count
    [command] = re.findall(r"^ExecStart=(.+)$", UNIT, re.MULTILINE)
    assert shlex.split(command)[1] == "/opt/billing/worker.py"
    assert len(shlex.split(command)) - 2 == count


def test_the_unit_gives_the_worker_time_to_stop():
    unit = ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read_string(UNIT)
    assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
    [timeout] = re.findall(r"consumer\.close\(timeout=(\d+)\)", (ROOT / "examples" / "worker.py").read_text())
    assert int(unit["Service"]["TimeoutStopSec"]) > int(timeout)
    directory = f"/var/lib/{unit['Service']['StateDirectory']}/"
    assert unit["Service"]["ExecStart"].split()[-1].startswith(directory), "only this directory can be written to"


def test_systemd_accepts_the_unit(tmp_path):
    """Where systemd is installed, it reads the unit itself; elsewhere the test above is all that can be checked."""
    unit = tmp_path / "shardline-worker.service"
    unit.write_text(re.sub(r"^ExecStart=\S+ ", "ExecStart=/bin/echo ", UNIT, flags=re.MULTILINE))
    try:
        checked = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        assert "[Service]\nType=exec\n" in UNIT
        return
    assert (checked.returncode, checked.stderr) == (0, "")
