"""How does ``shardline console`` start and end?"""

import errno
import json
import os
import re
import signal
import socket
import urllib.request

import pytest


def started(shardline, *arguments):
    """Start a console, and return it with the address that it prints."""
    running = shardline.start("console", "--port", "0", *arguments)
    line = running.process.stdout.readline().decode()
    return running, re.search(r"http://\S+?(?=\"|\s)", line)[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_console_serves_its_page_until_a_signal(shardline, number):
    running, url = started(shardline)
    base, _, token = url.partition("/#token=")
    with urllib.request.urlopen(base + "/", timeout=30) as page:
        assert b"<title>" in page.read()
    request = urllib.request.Request(
        base + "/api/live/stream?stream=orders", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as live:  # an open page does not keep the console alive
        assert live.readline().startswith(b"data: ")
        running.interrupt(number)
        ended = running.wait()
    assert (ended.code, ended.stderr) == (0, "")


def test_the_address_is_printed_as_json(shardline):
    running = shardline.start("console", "--port", "0", "--output", "json")
    assert json.loads(running.process.stdout.readline())["url"].startswith("http://127.0.0.1:")
    running.interrupt()
    assert running.wait().code == 0


def test_a_port_in_use_is_one_sentence(shardline):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = shardline("console", "--port", port, code=2)
    assert ended.stderr == f"Error: cannot listen on 127.0.0.1:{port}: {os.strerror(errno.EADDRINUSE)}\n"


def test_a_missing_extra_is_one_sentence(shardline):
    (shardline.directory / "aiohttp.py").write_text("raise ImportError('not installed')\n")
    ended = shardline("console", "--port", "0", code=2, PYTHONPATH=str(shardline.directory))
    assert ended.stderr == "Error: the console needs aiohttp: pip install 'shardline[console]'\n"


def test_a_local_server_has_its_console_beside_it(shardline):
    arguments = ("--port", "0", "--console", "--console-port", "0", "--stream", "orders", "--output", "json")
    running = shardline.start("local", *arguments)
    facts = json.loads(running.process.stdout.readline())
    base, _, token = facts["console_url"].partition("/#token=")
    assert base.startswith("http://127.0.0.1:")
    request = urllib.request.Request(f"{base}/api/status", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        status = json.load(answer)
    assert (status["place"], status["embedded"], status["allow_changes"]) == (facts["endpoint_url"], True, False)
    running.interrupt()
    ended = running.wait()
    assert (ended.code, ended.stderr) == (0, "")


@pytest.mark.parametrize("option", [("--allow-changes",), ("--store", "sqlite:///a.db"), ("--console-port", "0")])
def test_the_options_of_the_console_need_a_console(shardline, option):
    ended = shardline("local", "--port", "0", *option, code=2)
    assert f"{option[0]} needs --console" in ended.stderr


def test_the_port_of_the_console_may_be_in_use(shardline):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = shardline("local", "--port", "0", "--console", "--console-port", port, code=2)
    assert ended.stderr == f"Error: cannot listen on 127.0.0.1:{port}: {os.strerror(errno.EADDRINUSE)}\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--metrics", "worker:8080"), "an address of metrics is written as http://host:port/metrics"),
        (("--dead-letters", "failed.jsonl"), "--dead-letters takes GROUP=FILE or GROUP=stream:NAME"),
        (("--store", "memory:"), "the store memory: exists only inside the process"),
        (("--store", "nonsense://x"), "store 'nonsense://x' has an unknown scheme"),
        (("--store", "sqlite:///"), "store 'sqlite:///' names no file"),
    ],
)
def test_a_wrong_option_is_one_sentence(shardline, option, message):
    ended = shardline("console", "--port", "0", *option, code=2)
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_the_demo_stays_with_its_console_until_ctrl_c(shardline):
    running = shardline.start("demo", "--console", "--seconds", "5")
    url, lines = None, []
    while not lines or "the console stays open" not in lines[-1]:
        lines.append(running.process.stdout.readline().decode())
        assert lines[-1], lines
        url = url or re.search(r"http://\S+/#token=\S+", lines[-1])
    base, _, token = url[0].partition("/#token=")
    request = urllib.request.Request(f"{base}/api/groups", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert [group["group"] for group in json.load(answer)["groups"]] == ["billing"]
    assert any("lost 0" in line for line in lines)
    running.interrupt()
    assert running.wait().code == 0  # the verdict's
