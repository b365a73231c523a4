"""Tests of ``console_beside``. ``tests/cli`` and ``tests/browser`` run it with the commands."""

import urllib.request

from shardline.cli.console_beside import console_in_thread
from shardline.testing import LocalKinesis


def test_the_console_is_served_during_the_block():
    with LocalKinesis(stream="orders") as kinesis:
        with console_in_thread(kinesis, []) as url:
            base, _, token = url.partition("/#token=")
            request = urllib.request.Request(f"{base}/api/streams", headers={"Authorization": f"Bearer {token}"})
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert b'"orders"' in answer.read()
        try:
            urllib.request.urlopen(f"{base}/", timeout=30)
        except OSError:
            return
        raise AssertionError("the console is still served")
