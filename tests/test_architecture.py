"""Does the tree follow the architecture (docs/architecture.md)? The tests check import contracts, sizes, names and
words.

A rule that cannot fail proves nothing, so every import contract and every check of our own is also seen to fail.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "shardline"
TESTS = ROOT / "tests"
UNIT = TESTS / "unit"
PURE = ("model", "codec", "core")

MODULES = sorted(SRC.rglob("*.py"))
PURE_MODULES = [path for path in MODULES if path.relative_to(SRC).parts[0] in PURE]

MAX_FUNCTION_LINES = 60
NO_NAMES = {"utils", "helpers", "common", "base", "manager"}
NO_WORDS = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|NotImplementedError)\b|pragma:\s*no\s*cover")


def named(path):
    return str(path.relative_to(SRC))


# ---- import contracts

CONTRACTS = {
    contract["id"]: contract["name"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
# Packages that contracts name. import-linter refuses to check a contract about a package that does not exist yet.
PLANNED = ("core/producer", "core/consumer")

# The changes to a copy of the tree: a file and the line added to it, and the contracts that this breaks, and no others.
BREACHES = {
    "codec imports aio": (
        {"aio/quiet.py": "", "codec/shapes.py": "import shardline.aio.quiet"},
        {"layers", "acyclic"},  # acyclic, because aio imports codec
    ),
    "model imports codec": ({"model/limits.py": "import shardline.codec"}, {"layers", "acyclic"}),
    "a top-level package that no layer names": ({"utils/__init__.py": ""}, {"layers"}),
    "error_codes imports requests": ({"core/error_codes.py": "import shardline.core.requests"}, {"core-layers"}),
    "a part of core that no layer names": ({"core/gossip.py": ""}, {"core-layers"}),
    "core reads the clock": ({"core/producer/machine.py": "import time"}, {"pure"}),
    "core draws chance": ({"core/requests.py": "from random import Random"}, {"pure"}),
    "the ports log": ({"ports.py": "import logging"}, {"pure"}),
    "an adapter knows a machine": (
        {"core/producer/machine.py": "", "adapters/kinesis.py": "import shardline.core.producer.machine"},
        {"adapters"},
    ),
    "an adapter reads the clock": ({"adapters/aws/endpoints.py": "import time"}, {"clock"}),
    "the server imports core": ({"server/endpoint.py": "import shardline.core.error_codes"}, {"oracle"}),
    "the server's model reads the clock": ({"server/model/buckets.py": "import time"}, {"pure"}),
    "the command line imports the console": ({"cli/quantities.py": "import shardline.console"}, {"layers", "acyclic"}),
    "two siblings import each other": (
        {"model/one.py": "import shardline.model.two", "model/two.py": "import shardline.model.one"},
        {"acyclic"},
    ),
}


def lint(tree):
    """Return the exit code of ``lint-imports`` in ``tree``, and its output."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "COLUMNS": "200", "NO_COLOR": "1"}
    run = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return run.returncode, run.stdout + run.stderr


def verdicts(output):
    """Return the contracts that were kept, and those that were broken, by their ids."""
    lines = {" ".join(line.partition("(")[0].split()) for line in output.splitlines()}  # without "(1 ignored import)"
    kept = {key for key, name in CONTRACTS.items() if f"{name} KEPT" in lines}
    broken = {key for key, name in CONTRACTS.items() if f"{name} BROKEN" in lines}
    return kept, broken


def analysed_files(output):
    found = re.search(r"Analyzed (\d+) files", output)
    assert found, output
    return int(found[1])


def add(tree, files):
    for name, line in files.items():
        path = tree / "src" / "shardline" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        old = path.read_text() if path.exists() else '"""New."""\n'
        path.write_text(f"{old}\n{line}\n")


@pytest.fixture
def copy(tmp_path):
    """A copy of the tree, with the planned packages, to be broken."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    add(tmp_path, {f"{name}/__init__.py": "" for name in PLANNED if not (SRC / name).exists()})
    return tmp_path


def test_the_repository_keeps_every_contract():
    code, output = lint(ROOT)
    assert verdicts(output) == (set(CONTRACTS), set()), output
    assert code == 0, output


def test_a_copy_of_the_tree_keeps_every_contract_and_is_what_is_analysed(copy):
    code, output = lint(copy)
    assert verdicts(output) == (set(CONTRACTS), set()), output
    assert code == 0, output
    add(copy, {"model/harmless.py": ""})
    assert analysed_files(lint(copy)[1]) == analysed_files(output) + 1


@pytest.mark.parametrize("breach", BREACHES)
def test_each_contract_can_be_broken(copy, breach):
    files, broken = BREACHES[breach]
    add(copy, files)
    code, output = lint(copy)
    assert code != 0
    assert verdicts(output) == (set(CONTRACTS) - broken, broken), output


def test_every_contract_is_seen_broken():
    assert set().union(*(broken for _, broken in BREACHES.values())) == set(CONTRACTS)


# ---- sizes


def docstring_lines(function):
    first = function.body[0]
    return first.end_lineno - first.lineno + 1 if ast.get_docstring(function) is not None else 0


def long_functions(source):
    """Return the name and the length of the functions that are too long, from ``def`` to the last line, without the
    docstring.
    """
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    lengths = [(node.name, node.end_lineno - node.lineno + 1 - docstring_lines(node)) for node in functions]
    return [(name, length) for name, length in lengths if length > MAX_FUNCTION_LINES]


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_functions_are_short(path):
    assert long_functions(path.read_text()) == []


def test_a_long_function_is_seen():
    body = "    pass\n"
    assert long_functions("def f():\n" + body * 59) == []
    assert long_functions("def f():\n" + body * 60) == [("f", 61)]
    assert long_functions('def f():\n    """A long\n    text."""\n' + body * 59) == []
    assert long_functions('def f():\n    """A long\n    text."""\n' + body * 60) == [("f", 61)]
    assert long_functions("class C:\n    async def f():\n" + ("    " + body) * 60) == [("f", 61)]


# ---- names


def bad_names(path):
    return NO_NAMES & {part.removesuffix(".py").strip("_") for part in path.parts}


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_is_named_for_what_it_is_about(path):
    assert bad_names(path.relative_to(SRC)) == set()


def test_a_name_that_says_nothing_is_seen():
    assert bad_names(Path("core/utils.py")) == {"utils"}
    assert bad_names(Path("core/_helpers.py")) == {"helpers"}
    assert bad_names(Path("common/records.py")) == {"common"}
    assert bad_names(Path("core/database.py")) == set()


# ---- words


# A handler in a process of its own is never cancelled: its process is killed. Whatever it raises goes to the failure policy.
WITHOUT_CANCELLATION = {"aio/consumer/handler_child.py"}


def broad_handlers(source):
    """Return the lines of handlers that would also catch cancellation: bare ones, and those of ``BaseException``.

    A handler that ends with ``raise`` is allowed.
    """
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            caught = [] if node.type is None else list(ast.walk(node.type))
            names = {getattr(inner, "id", None) or getattr(inner, "attr", None) for inner in caught}
            passes_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            if (node.type is None or "BaseException" in names) and not passes_on:
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", PURE_MODULES, ids=named)
def test_nothing_is_left_for_later_in_the_pure_half(path):
    assert NO_WORDS.findall(path.read_text()) == []


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_no_handler_swallows_cancellation(path):
    assert (broad_handlers(path.read_text()) != []) == (named(path) in WITHOUT_CANCELLATION)


@pytest.mark.parametrize(
    "line", ["# TODO later", "raise NotImplementedError", "x = 1  # pragma: no cover", "# XXX", "# HACK: y"]
)
def test_a_word_for_later_is_seen(line):
    assert NO_WORDS.search(line)


@pytest.mark.parametrize(
    "clause", ["except:", "except BaseException:", "except (ValueError, builtins.BaseException) as e:"]
)
def test_a_broad_handler_is_seen(clause):
    assert broad_handlers(f"try:\n    pass\n{clause}\n    pass\n") == [3]
    assert broad_handlers("try:\n    pass\nexcept Exception:\n    pass\n") == []
    assert broad_handlers(f"try:\n    pass\n{clause}\n    raise\n") == []


# ---- python -O

HARMLESS_CALLS = {"isinstance", "len", "covers"}


def behaviour_by_assertion(source):
    """Return lines that behave differently under ``python -O``: an assert with a side effect, or one whose error is
    caught.
    """
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assert):
            calls = [inner.func for inner in ast.walk(node.test) if isinstance(inner, ast.Call)]
            names = {getattr(call, "id", None) or getattr(call, "attr", None) for call in calls}
            acts = any(isinstance(inner, (ast.NamedExpr, ast.Await, ast.Yield)) for inner in ast.walk(node.test))
            if acts or names - HARMLESS_CALLS:
                lines.append(node.lineno)
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            caught = {getattr(inner, "id", None) for inner in ast.walk(node.type)}
            if "AssertionError" in caught:
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_no_behaviour_depends_on_an_assertion(path):
    assert behaviour_by_assertion(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "assert (x := 1)",
        "assert take(1)",
        "assert queue.pop() == 1, 'last'",
        "async def f():\n assert await g()",
        "try:\n f()\nexcept AssertionError:\n g()",
        "try:\n f()\nexcept (KeyError, AssertionError) as error:\n g()",
    ],
)
def test_behaviour_that_depends_on_an_assertion_is_seen(source):
    assert behaviour_by_assertion(source) != []
    assert behaviour_by_assertion("assert isinstance(x, int) and len(y) == 1 and z is not None") == []


# ---- docstrings


def opening(source):
    """Return the first line of the module's docstring."""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_module_opens_with_the_question_it_answers_or_with_what_it_is(path):
    line = opening(path.read_text())
    assert not line[:1].islower()
    assert len(line.split()) > 1


def test_a_module_without_an_opening_is_seen():
    assert opening("x = 1\n") == ""
    assert opening('"""Why?\n\nBecause."""\n') == "Why?"


# ---- tests


# Modules that do I/O have a test file of the same name in the suite that runs them for real.
SUITES = {"server": "shell", "testing": "shell", "cli": "cli", "adapters/leases": "contract"}
# Modules that are tested together, in one file.
TOGETHER = {
    "shell/test_console.py": {  # they are one server: what a browser may do, through all of them
        "console/console_actions.py",
        "console/console_command.py",
        "console/console_server.py",
    },
    "unit/adapters/aws/test_credential_provider.py": {"adapters/aws/aws_service.py"},  # botocore's two chains
    "unit/server/model/test_broken_constraints.py": {  # each constraint of each member, against botocore's model
        "server/model/channel_inputs.py",
        "server/model/member_types.py",
    },
    "contract/test_redis_latency.py": {"adapters/leases/row_swaps.py"},  # the round trips of its writes
    "postgres/test_postgres_leases.py": {"adapters/leases/postgres.py"},
    "contract/test_lease_stores.py": {"adapters/leases/memory.py"},  # it is the reference of all stores
    "shell/test_local_kinesis.py": {  # the server behind a socket, and its use in tests
        *("server/http_server.py", "server/http1_connection.py", "server/running_server.py", "server/sockets.py"),
        "testing/local_streams.py",
    },
    "shell/test_server_http2.py": {"server/http2.py"},
    "shell/test_http2.py": {"adapters/http/http2_transport.py"},
    "unit/adapters/http/test_http1_connections.py": {"adapters/http/http_routes.py"},  # HTTP/1.1 uses it to connect
    "shell/test_tls.py": {"server/certificates.py"},
    "shell/test_cli_local.py": {"cli/local/local_command.py"},
    # Commands run as processes; these are their parts.
    "cli/test_main.py": {
        "cli/commands.py",
        "cli/completion/completion_command.py",
        "cli/invocation.py",
        "cli/terminal.py",
    },
    "cli/test_completion.py": {
        "cli/completion/bash_words.py",
        "cli/completion/suggestions.py",
        "cli/groups/group_suggestions.py",
    },
    "cli/test_account_doctor.py": {"cli/doctor/check_run.py"},
    "cli/test_endings.py": {"cli/interrupts.py", "cli/tail/pipe_output.py"},
    "cli/test_doctor.py": {
        "cli/doctor/doctor_command.py",
        "cli/doctor/diagnoses.py",
        "cli/retrying.py",
    },
    "cli/test_groups.py": {
        "cli/groups/groups_command.py",
        "cli/groups/group_changes.py",
        "cli/groups/group_options.py",
    },
    "cli/test_group_positions.py": {"cli/groups/transfer_commands.py"},
    "cli/test_consume.py": {"cli/consume/consume_command.py"},
    "cli/test_put.py": {"cli/put/put_command.py", "cli/put/put_run.py"},
    "cli/test_dead_letters.py": {"cli/put/failed_records.py"},
    "cli/test_streams.py": {"cli/streams/streams_command.py", "cli/streams/stream_views.py"},
    "cli/test_stream_settings.py": {"cli/confirmation.py", "cli/streams/setting_commands.py"},
    "cli/test_stream_consumers.py": {"cli/streams/consumer_commands.py"},
    "cli/test_tail.py": {
        *("cli/tail/tail_command.py", "cli/tail/shard_following.py", "cli/tail/page_sources.py"),
        "cli/fan_out_option.py",
    },
    "cli/test_demo.py": {"cli/demo/demo_command.py"},
    "prometheus/test_fleet.py": {"cli/demo/demo_metrics.py"},
    "shell/test_health.py": {"health.py"},
    "cli/test_demo_picture.py": {"cli/demo/terminal_picture.py"},
    "cli/test_demo_parts.py": {
        *("cli/demo/fleet.py", "cli/demo/scene_observer.py", "cli/demo/orders.py", "cli/demo/independent_reader.py"),
        *("cli/demo/scene.py", "cli/demo/story.py", "cli/demo/loss_check.py", "cli/demo/demo_worker.py"),
    },
}
# The shells are behind the public classes: the files of tests/shell are named after their guarantees, on every loop.
BY_PROMISE = {"aio", "sync"}
WITHOUT_CODE = {"__init__.py", "__main__.py", "ports.py"}  # names, and protocols that every implementation follows
# Files of unit/ that test more than one module.
ACROSS = {
    "core/producer/test_peer_defects.py",  # of aiokpl
    "server/model/test_broken_constraints.py",
    "server/model/test_service_model.py",  # all operations and members that botocore knows
    "server/model/test_texts.py",  # the table of docs/tested/differences.md
    "core/consumer/test_kcl_following.py",  # the coordinator, the planner and the held leases on a table of the KCL
    "core/consumer/test_handlers_side_by_side.py",  # the hand-out, the held shard and the tasks of a pool
    "test_public_names.py",  # of the package
}


def mirror_of(module):
    """Return the unit test file of a module."""
    return module.parent / f"test_{module.name}"


def homes_of(module):
    """Return the files that may have the tests of a module, in the order in which they are tried."""
    mirror = mirror_of(module)
    yield UNIT / mirror
    for folder, suite in SUITES.items():
        if module.is_relative_to(folder):
            yield from (TESTS / suite).rglob(mirror.name)
    yield from (TESTS / file for file, modules in TOGETHER.items() if str(module) in modules)


TESTED = [path.relative_to(SRC) for path in MODULES if path.name not in WITHOUT_CODE]


@pytest.mark.parametrize("module", [module for module in TESTED if module.parts[0] not in BY_PROMISE], ids=str)
def test_every_module_has_a_test_file_of_its_own(module):
    homes = list(homes_of(module))
    if module.parts[0] in PURE:
        homes = homes[:1]
    assert any(home.is_file() for home in homes)


def test_a_module_without_a_test_file_is_seen():
    for module in ("core/gossip.py", "server/model/gossip.py", "adapters/gossip.py", "cli/gossip.py"):
        assert not any(home.is_file() for home in homes_of(Path(module))), module


def test_modules_that_are_tested_together_exist_and_have_no_file_of_their_own():
    for module in set().union(*TOGETHER.values()):
        assert Path(module) in TESTED
        assert next(homes_of(Path(module))).exists() is False


def test_every_file_of_the_unit_tests_is_about_a_module():
    mirrors = {mirror_of(module) for module in TESTED}
    files = {path.relative_to(UNIT) for path in UNIT.rglob("test_*.py")}
    assert {str(path) for path in files - mirrors} == ACROSS


def go_by_the_clock(folder):
    """Return the test modules with a test that must run alone."""
    mark = "pytest.mark." + "clock"
    return [path for path in folder.rglob("test_*.py") if mark in path.read_text()]


def test_what_goes_by_the_clock_is_where_make_looks_for_it():
    [line] = re.findall(r"^PYTEST_CLOCK := .* (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert go_by_the_clock(ROOT / line)
    assert set(go_by_the_clock(ROOT / line)) == set(go_by_the_clock(ROOT / "tests"))


def test_the_tree_was_really_read():
    assert len(MODULES) > 20
    assert {path.relative_to(SRC).parts[0] for path in PURE_MODULES} == set(PURE)
