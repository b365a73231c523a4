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
