"""Is every example of the pages on testing a test that runs, and do their tables agree with the code?"""

import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardline.cli.local.local_command import local
from shardline.server import control
from shardline.server.model.fault_kinds import KINDS, read_rule
from shardline.server.model.fault_rules import FaultRule
from shardline.server.model.faults import Fault, Faults
from shardline.testing import LocalKinesis

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = {path.stem: path.read_text() for path in (DOCS / "guides" / "testing").glob("*.md")}
COMMAND = (DOCS / "reference" / "cli" / "local.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", "\n".join(GUIDES.values()), re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (\w+\.py)\n")


def names_in(block):
    return re.findall(r"^(?:async )?def (test_\w+)", block, re.MULTILINE)


def test_every_example_is_a_test_or_a_file_that_the_tests_use():
    assert len(BLOCKS) > 15
    for block in BLOCKS:
        assert bool(names_in(block)) != bool(NAMED.match(block)), block


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Return the outcome of each test of the page, run as a user would."""
    place = tmp_path_factory.mktemp("page")
    for number, block in enumerate(BLOCKS):
        name = NAMED.match(block)
        (place / (name[1] if name else f"test_block_{number}.py")).write_text(block)
    (place / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider -p anyio\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "--tb=short"],
        cwd=place,
        env={key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found = re.findall(r"::(test_\w+)(?:\[.*\])? (PASSED|FAILED|ERROR|SKIPPED)", done.stdout)
    return found, done.stdout


@pytest.mark.parametrize("name", [name for block in BLOCKS for name in names_in(block)])
def test_an_example_of_the_page_passes(outcomes, name):
    found, output = outcomes
    ended = {outcome for one, outcome in found if one == name}
    assert ended == {"PASSED"}, output


def test_the_page_names_every_fault_and_every_setting():
    methods = {name: method for name, method in vars(Faults).items() if not name.startswith("_") and name != "add"}
    kinds = {name for name, method in methods.items() if getattr(method, "__annotations__", {}).get("return") is Fault}
    assert len(kinds) > 15
    shown = GUIDES["faults"].partition("| `kinesis.faults.`")[2].partition("\n\n")[0]
    assert kinds - set(re.findall(r"`(\w+)\(", shown)) == set()
    for name in LocalKinesis.__init__.__kwdefaults__:
        assert f"`{name}`" in GUIDES["settings"]


def test_the_first_page_leads_to_the_others():
    assert set(re.findall(r"\]\(([\w-]+)\.md\)", GUIDES["index"])) == GUIDES.keys() - {"index"}


# ---- the server as a command


def rows(heading):
    """Return the first cells of the table that begins with this heading."""
    table = COMMAND.partition(f"\n| {heading} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| (.*?) \|", table, re.MULTILINE)


def test_the_table_of_options_has_them_all():
    shown = {word for cell in rows("option") for word in re.findall(r"`(--?[a-z0-9-]+)", cell)}
    have = {
        word
        for option in local.params
        if not getattr(option, "hidden", False)
        for word in [*option.opts, *option.secondary_opts]
    }
    assert shown == have


def test_the_table_of_the_control_path_is_that_of_the_module():
    listed = re.findall(r"^``(GET|POST|DELETE) (\S+)``", control.__doc__, re.MULTILINE)
    shown = re.findall(r"^\| `(GET|POST|DELETE) (/_shardline/\S+)`", GUIDES["control"], re.MULTILINE)
    assert shown == listed


def test_the_file_of_faults_is_right_and_every_kind_is_described():
    [example] = re.findall(r"^```json\n(.*?)^```$", GUIDES["fault-rules"], re.DOTALL | re.MULTILINE)
    assert len([read_rule(one) for one in json.loads(example)]) == 6
    rules = GUIDES["fault-rules"]
    shown = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ", rules.partition("| kind |")[2], re.MULTILINE)
    assert {name for cell in shown for name in re.findall(r"\w+", cell)} == set(KINDS)
    common = set(FaultRule.__struct_fields__)
    for name, kind in KINDS.items():
        own = set(kind.__struct_fields__) - common
        row = next(line for line in rules.splitlines() if line.startswith("| `") and f"`{name}`" in line.split("|")[1])
        for key in own:
            assert f"`{key}`" in row, (name, key)


def test_the_commands_for_curl_do_what_they_say():
    commands = re.findall(r"^\$ curl --json '(.*)' http://127.0.0.1:4567(/\S+)$", GUIDES["control"], re.MULTILINE)
    assert [path for _, path in commands] == ["/_shardline/faults", "/_shardline/clock"]
    with LocalKinesis() as kinesis:
        for body, path in commands:
            headers = {"Content-Type": "application/json"}  # as curl --json sends it
            request = urllib.request.Request(kinesis.endpoint_url + path, body.encode(), headers)
            with urllib.request.urlopen(request, timeout=5) as answer:
                assert "error" not in json.load(answer)
        assert len(kinesis.faults.rules) == 1


def test_the_exit_codes_are_those_of_the_page():
    assert rows("exit code") == ["0", "1", "2"]
    assert CliRunner().invoke(local, ["--port", "x"]).exit_code == 2
