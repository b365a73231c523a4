"""Do the commands of the page on the local server work: the script that waits for the server, the containers, the
token?
"""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.docs import pages

from shardline.testing import LocalKinesis

DEPLOY = Path(__file__).parents[2] / "deploy" / "local"


def block(language, mark):
    (found,) = [text for text in pages.blocks_of("docs/guides/testing/local-server.md", language) if mark in text]
    return found


@pytest.fixture
def environment(tmp_path):
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def test_the_script_waits_for_the_server(environment, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = block("bash", "/_shardline/health").replace("4567", str(port))
    script = script.replace("shardline local ", f"shardline local --port {port} ")
    ended = subprocess.run(
        ["bash", "-e", "-c", f"{script}\nkill $!\nwait $!"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    health, heading, row = ended.stdout.replace("}", "}\n", 1).splitlines()
    assert json.loads(health) == {"status": "ok", "streams": 1, "records": 0}
    assert (heading.split()[0], row.split()[:2]) == ("NAME", ["orders", "ACTIVE"])
    assert (tmp_path / "local.log").read_text().endswith("stopped\n")


def test_an_operation_is_called_by_hand(environment):
    with LocalKinesis(stream="orders") as kinesis:
        script = block("bash", "X-Amz-Target").replace("http://127.0.0.1:4567", f"--silent {kinesis.endpoint_url}")
        command = ["bash", "-c", script]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert json.loads(ended.stdout)["StreamNames"] == ["orders"]


def test_the_check_of_compose_tells_up_from_down(environment):
    check = yaml.safe_load(block("yaml", "healthcheck"))["services"]["kinesis"]["healthcheck"]["test"]
    assert check[0] == "CMD"

    def is_healthy(port):
        command = [part.replace("4567", str(port)) for part in check[1:]]
        return subprocess.run(command, env=environment, capture_output=True, timeout=30, check=False).returncode == 0

    with LocalKinesis(verify_signatures=True) as kinesis:
        port = int(kinesis.endpoint_url.rpartition(":")[2])
        assert is_healthy(port)
    assert not is_healthy(port)


def served(command, environment, hosts):
    """Return the statuses of the health path of this command, by the requested host."""
    command = [part.replace("4567", "0") for part in command]
    assert command[:2] == ["shardline", "local"]
    port = [] if "--port" in command else ["--port", "0"]
    with subprocess.Popen(
        [*command, *port, "--output", "json"], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            address = re.search(r"//(.*):(\d+)$", json.loads(process.stdout.readline())["endpoint_url"])
            statuses = []
            for host in hosts:
                connection = http.client.HTTPConnection(address[1], int(address[2]), timeout=10)
                connection.request("GET", "/_shardline/health", headers={"Host": host})
                statuses.append(connection.getresponse().status)
                connection.close()
            return statuses
        finally:
            process.terminate()


def test_other_containers_reach_the_server_by_the_name_of_its_service(environment):
    services = yaml.safe_load(block("yaml", "healthcheck"))["services"]
    assert services == yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    image = services["kinesis"]["build"]
    recipe = (DEPLOY / image["context"] / image["dockerfile"]).read_text()
    command = json.loads(re.search(r"^ENTRYPOINT (\[.*\])$", recipe, re.MULTILINE)[1]) + services["kinesis"]["command"]
    hosts = [services["worker"]["environment"]["AWS_ENDPOINT_URL_KINESIS"].removeprefix("http://"), "127.0.0.1:4567"]
    assert served(command, environment, [*hosts, "evil.example"]) == [200, 200, 403]


def test_the_image_is_reached_by_the_name_that_it_allows(environment):
    recipe = block("dockerfile", "ENTRYPOINT")
    written = (DEPLOY / "Dockerfile").read_text()
    assert recipe.splitlines() == [line for line in written.splitlines() if not line.startswith("#")]
    [check] = re.findall(r"^  CMD (\[.*\])$", recipe, re.MULTILINE)
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert json.loads(check) == compose["services"]["kinesis"]["healthcheck"]["test"][1:]
    command = json.loads(re.search(r"^ENTRYPOINT (\[.*\])$", recipe, re.MULTILINE)[1])
    hosts = ["kinesis:4567", "other", "localhost", "evil.example"]
    assert served([*command, "--allow-host", "other"], environment, hosts) == [200, 200, 200, 403]
