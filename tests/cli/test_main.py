"""Do the common parts of all commands work: help, options, errors, exit codes, secrets, completion?

The tests run the real command in a separate process.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module

import click
import pytest
from click.testing import CliRunner

from shardline.cli.commands import COMMANDS
from shardline.cli.commands import shardline as root

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYSECRETKEY"
TOKEN = "FwoGZXIvYXdzEJr//////////SESSIONTOKEN"


# ---- help


def test_help_names_every_command_and_every_option(shardline):
    shown = shardline("--help").stdout.decode()
    assert re.findall(r"^  ([a-z]+)  ", shown.partition("Commands:")[2], re.MULTILINE) == list(COMMANDS)
    for option in ("--endpoint-url", "--region", "--profile", "--output", "--verbose", "--version"):
        assert option in shown
    assert shardline("-h").stdout.decode() == shown


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_first_sentence_of_its_help(name):
    package = "shardline.console" if name == "console" else f"shardline.cli.{name}"
    command = getattr(import_module(f"{package}.{name}_command"), name)
    first = " ".join(command.help.split("\n\n")[0].split())
    assert COMMANDS[name] == first


def every_command():
    """Return all commands and their subcommands, as they are typed."""

    def walk(command, words):
        yield " ".join(words), command
        if isinstance(command, click.Group):
            with click.Context(command) as context:
                for name in command.list_commands(context):
                    yield from walk(command.get_command(context, name), [*words, name])

    return dict(walk(root, ["shardline"]))


def help_of(command):
    words = [*command.split()[1:], "-h"]
    ended = CliRunner().invoke(root, words, prog_name="shardline", terminal_width=200, max_content_width=200)
    assert ended.exit_code == 0
    return ended.output


@pytest.mark.parametrize("command", every_command())
def test_every_help_has_examples_that_parse(command):
    shown = help_of(command).partition("Examples")[2]
    examples = [line.strip() for line in shown.splitlines() if re.search(rf"\b{command} ?", line)]
    assert examples, help_of(command)
    commands = every_command()
    for example in examples:
        words = shlex.split(re.search(r"shardline[^|>)]*", example)[0])
        name = max((one for one in commands if words[: len(one.split())] == one.split()), key=len)
        rest = [word for word in words[len(name.split()) :] if word != "..."]
        if not isinstance(commands[name], click.Group):
            context = click.Context(commands[name], parent=click.Context(root, **root.context_settings))
            commands[name].make_parser(context).parse_args(rest)  # refuses an option that does not exist


def test_the_demo_shows_only_the_options_that_it_uses():
    shown = set(re.findall(r"--[a-z-]+", help_of("shardline demo").partition("Options:")[2]))
    own = {"--seconds", "--rate", "--shards", "--seed", "--plain", "--metrics", "--console"}
    assert shown == own | {"--output", "--verbose", "--help"}


def test_the_demo_refuses_an_endpoint(shardline):
    for option in ("--endpoint-url", "--region", "--profile"):
        ended = shardline(option, "x", "demo", code=2)
        assert told(ended) == "Error: the demo runs its own local Kinesis: it takes no endpoint, region or profile"
        assert f"No such option '{option}'" in shardline("demo", option, "x", code=2).stderr


def test_help_and_version_load_no_command_and_no_network():
    code = (
        "import sys; from shardline.cli.main import main\n"
        "sys.argv = ['shardline', sys.argv[1]]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([one for one in sys.modules if one.startswith(('shardline.cli.', 'shardline.aio', 'botocore', 'rich.'))])"
    )
    for option in ("--help", "--version"):
        ended = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True, check=True)
        assert set(eval(ended.stdout.splitlines()[-1])) == {
            "shardline.cli.main",
            "shardline.cli.commands",
            "shardline.cli.invocation",
            "shardline.cli.error_messages",
            "shardline.cli.standard_streams",
        }


# ---- options of all commands


def test_options_may_stand_before_and_after_the_command_and_the_last_counts(shardline, kinesis):
    url = kinesis.endpoint_url
    hidden = {"AWS_ENDPOINT_URL_KINESIS": None, "AWS_REGION": None, "AWS_DEFAULT_REGION": None}
    before = shardline("--endpoint-url", url, "--region", "us-east-1", "--output", "json", "streams", "list", **hidden)
    after = shardline("streams", "list", "--endpoint-url", url, "--region", "us-east-1", "--output", "json", **hidden)
    between = shardline("--output", "text", "streams", "--region", "us-east-1", "list", "--output", "json")
    last = shardline("--endpoint-url", "http://127.0.0.1:1", "streams", "list", "--endpoint-url", url, "--output=json")
    names = [[one["name"] for one in json.loads(ended.stdout)] for ended in (before, after, between, last)]
    assert names == [["orders"]] * 4


def test_the_region_before_local_is_the_one_that_it_plays(shardline):
    running = shardline.start("--region", "eu-west-1", "local", "--port", "0")
    assert b"region eu-west-1" in running.process.stdout.readline()
    running.interrupt()
    assert running.wait().code == 0
    running = shardline.start("--region", "eu-west-1", "local", "--port", "0", "--region", "eu-west-2")
    assert b"region eu-west-2" in running.process.stdout.readline()
    running.interrupt()
    assert running.wait().code == 0


def test_a_profile_of_the_aws_files_is_used(shardline, kinesis, tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(
        f"[profile here]\nregion = us-east-1\nendpoint_url = {kinesis.endpoint_url}\n"
        "aws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = secret\n"
    )
    hidden = dict.fromkeys(kinesis.environment)
    assert shardline("streams", "list", "-q", "--profile", "here", **hidden).lines == ["orders"]


# ---- errors


def told(ended):
    """Return the single line of an error."""
    assert ended.stdout == b""
    (line,) = ended.stderr.splitlines()
    return line


def test_a_stream_that_is_not_there(shardline, kinesis):
    line = told(shardline("streams", "describe", "nothing", code=1))
    assert line == (
        "Error: Stream nothing under account 000000000000 not found (searched in us-east-1 at "
        f"{kinesis.endpoint_url}; `shardline streams list` shows the existing streams)"
    )
    for command in (["put", "nothing", "x"], ["tail", "nothing"], ["streams", "delete", "nothing", "--yes"]):
        assert told(shardline(*command, code=1)).startswith(
            "Error: Stream nothing under account 000000000000 not found"
        )


def test_a_missing_stream_is_reported_with_the_wrong_region(shardline):
    arn = "arn:aws:kinesis:eu-west-1:000000000000:stream/elsewhere"
    line = told(shardline("streams", "describe", arn, "--region", "eu-west-1", code=1))
    assert "elsewhere" in line
    assert "searched in eu-west-1" in line
    # The proxy, which does not exist, keeps the command from looking up the host.
    outside = {"AWS_ENDPOINT_URL_KINESIS": None, "AWS_REGION": "mars-north-1", "HTTPS_PROXY": "http://127.0.0.1:1"}
    line = told(shardline("streams", "list", **outside, code=1))
    assert line.startswith(
        "Error: ListStreams: the proxy for kinesis.mars-north-1.amazonaws.com refused the connection"
    )


def test_no_region_no_credentials_no_profile(shardline):
    line = told(shardline("streams", "list", AWS_REGION=None, AWS_DEFAULT_REGION=None, code=2))
    assert line == (
        "Error: no AWS region found: give --region, or set AWS_REGION, AWS_DEFAULT_REGION or a profile's region"
    )
    line = told(shardline("streams", "list", AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None, code=1))
    assert line == (
        "Error: no AWS credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with"
        " --profile"
    )
    line = told(shardline("streams", "list", "--profile", "nobody", code=2))
    assert line == "Error: the profile 'nobody' is not in the AWS config files; they have: none"


@pytest.mark.parametrize("command", [["streams", "list"], ["put", "orders", "x"], ["tail", "orders"]])
def test_a_dead_endpoint(shardline, command):
    line = told(shardline(*command, "--endpoint-url", "http://127.0.0.1:1", code=1))
    assert re.fullmatch(r"Error: \w+: no connection to 127\.0\.0\.1:1 .*: check --endpoint-url, .*", line)


def test_what_is_no_name_no_url_and_no_region(shardline):
    line = told(shardline("streams", "create", "two words", code=2))
    assert line == "Error: 'two words' is not a stream name: expected 1 to 128 of the characters a-z A-Z 0-9 _ . -"
    assert "'two words' is not a stream name" in told(shardline("tail", "two words", code=2))
    assert "'two words' is not a stream name" in told(shardline("put", "two words", "x", code=2))
    line = told(shardline("streams", "list", "--endpoint-url", "nowhere", code=2))
    assert line == "Error: --endpoint-url must look like https://host or http://host:port, not 'nowhere'"
    assert "region must look like 'eu-west-1'" in told(shardline("streams", "list", "--region", "Über", code=2))


@pytest.mark.parametrize(
    "command", [["put", "orders", "x", "--key"], ["put", "orders", "x", "--key-field"], ["tail", "orders", "--key"]]
)
def test_a_key_that_is_not_utf_8(shardline, kinesis, command):
    ended = shardline(*command, os.fsdecode(b"caf\xe9"), code=2)
    assert ended.stderr.splitlines()[-1] == f"Error: Invalid value for '{command[-1]}': b'caf\\xe9' is not valid UTF-8"
    assert kinesis.streams["orders"].record_count == 0


def test_an_invalid_store_url_is_quoted_unchanged(shardline):
    url = "dynamodb://t?endpoint_url=http://localhost:8000"
    line = told(shardline("groups", "list", "--store", url, code=2))
    assert line.startswith(f"Error: store '{url}' names no table (3 to 255 ")
    assert "--endpoint-url" not in line


def test_an_error_of_the_service_is_reported_with_its_code(shardline, kinesis):
    kinesis.faults.error("AccessDeniedException", "User: x is not authorized to perform: kinesis:ListStreams.")
    assert told(shardline("streams", "list", code=1)) == (
        "Error: ListStreams: User: x is not authorized to perform: kinesis:ListStreams (AccessDeniedException)"
    )


def test_wrong_usage_is_exit_code_2(shardline):
    for command in (["streams", "describe"], ["nothing"], ["streams", "list", "--output", "xml"], ["put"]):
        ended = shardline(*command, code=2)
        assert ended.stderr.splitlines()[-1].startswith("Error: ")


def test_the_traceback_and_the_log_are_shown_if_asked_for(shardline, kinesis):
    ended = shardline("-v", "streams", "describe", "nothing", code=1)
    assert "Traceback (most recent call last)" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("Error: Stream nothing")
    kinesis.faults.throttle(operation="PutRecords", count=1)
    assert "shardline.producer" in shardline("-v", "put", "orders", stdin=b"x\n").stderr
    kinesis.faults.throttle(operation="PutRecords", count=1)
    assert "shardline.producer" not in shardline("put", "orders", stdin=b"x\n").stderr


def test_a_bug_is_also_reported_in_one_sentence():
    code = (
        "import sys; from shardline.cli.streams import streams_command\n"
        "from shardline.cli.main import main\n"
        "async def broken(*_): raise LookupError('what now?')\n"
        "streams_command._list = broken\n"
        "sys.argv = ['shardline', 'streams', 'list', *sys.argv[1:]]\n"
        "main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "Error: internal error: LookupError: what now? (-v shows the traceback)\n"
    ended = subprocess.run([sys.executable, "-c", code, "-v"], capture_output=True, text=True, check=False)
    assert "Traceback" in ended.stderr


# ---- secrets


@pytest.mark.parametrize("trouble", ["none", "refused", "html", "reset", "dead"])
def test_no_secret_is_ever_printed(shardline, kinesis, trouble):
    secrets = {"AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
    options = ["-v"]
    if trouble == "refused":
        kinesis.faults.error("InvalidSignatureException", "The request signature does not match.")
    elif trouble == "html":
        kinesis.faults.html(503)
    elif trouble == "reset":
        kinesis.faults.reset("before")
    elif trouble == "dead":
        options += ["--endpoint-url", "http://127.0.0.1:1"]
    commands = [["streams", "list"], ["put", "orders", "x"], ["tail", "orders", "--until", "latest"]]
    all_running = [shardline.start(*command, *options, **secrets) for command in commands]
    for running in all_running:
        ended = running.wait()
        printed = ended.stdout.decode() + ended.stderr
        assert ended.code == (trouble != "none"), printed
        assert "Traceback" in printed or trouble == "none"
        for secret in (SECRET, TOKEN, SECRET[10:], TOKEN[:15]):
            assert secret not in printed


# ---- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shardline, shell):
    script = shardline("completion", shell).stdout.decode()
    assert f"_SHARDLINE_COMPLETE={shell}_complete" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=30)


def completed(shardline, line, **changes):
    """Return bash's suggestions for the last word of a line."""
    words = line.split(" ")
    changes |= {"_SHARDLINE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    ended = shardline(**changes)
    assert ended.stderr == ""
    return [one.partition(",")[2] for one in ended.lines if one]


def test_commands_options_and_streams_are_completed(shardline, kinesis, eventually):
    kinesis.create_stream("orders-eu")
    kinesis.create_stream("returns")
    assert completed(shardline, "shardline st") == ["streams"]
    assert completed(shardline, "shardline streams de") == ["delete", "describe"]
    assert "--key-field" in completed(shardline, "shardline put orders --k")
    # Completion gives up soon, so a busy machine may need more than one attempt.
    eventually(lambda: completed(shardline, "shardline tail ord") == ["orders", "orders-eu"])
    eventually(lambda: completed(shardline, "shardline streams describe ret") == ["returns"])


def test_completion_is_silent_if_the_server_does_not_answer(shardline, kinesis):
    assert completed(shardline, "shardline tail ord", AWS_ENDPOINT_URL_KINESIS="http://127.0.0.1:1") == []
    assert completed(shardline, "shardline tail ord", AWS_SECRET_ACCESS_KEY=None, AWS_ACCESS_KEY_ID=None) == []
    kinesis.faults.latency(30, operation="ListStreams")
    assert completed(shardline, "shardline tail ord") == []
