"""Starts third-party Kinesis servers and clients for tests, and ends them reliably.

Each server starts on first use, on free loopback ports, once per session. Its process group has two processes: the
server and a watcher that reads a pipe from us. We kill the group at the end of the session; if we die before that
(SIGKILL, pytest-timeout's thread method), the pipe closes and the watcher kills it. We use SIGKILL, because
kinesis-local takes 32 s to obey SIGTERM while a keep-alive connection is open. A server that is not installed fails the
test: nothing here may pass by skipping.
"""

import contextlib
import filecmp
import http.client
import json
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

LISTS = Path(__file__).parent / "servers"
INSTALLED = Path(__file__).parents[2] / ".servers"
NODE = INSTALLED / "node"
PYTHON = INSTALLED / "python"
CLIENTS = INSTALLED / "clients"
NODE_CLIENTS = INSTALLED / "node-clients"
START_LIMIT = 60.0
OUTPUT_SHOWN = 4_000

# The pipe is file descriptor 3 of the watcher alone: the server must not read it, nor keep it open.
WATCHED = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -9 0; } & exec "$@" 3<&-'

# None of the servers checks a signature, but kinesalite wants to see one.
LIST_STREAMS = {
    "Content-Type": "application/x-amz-json-1.1",
    "X-Amz-Target": "Kinesis_20131202.ListStreams",
    "X-Amz-Date": "20130101T000000Z",
    "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20130101/us-east-1/kinesis/aws4_request, "
    "SignedHeaders=host;x-amz-date;x-amz-target, Signature=00",
}


@dataclass(frozen=True)
class ThirdPartyServer:
    http_url: str
    https_url: str | None = None
    ca_path: str | None = None  # verifies https_url


@dataclass(frozen=True)
class Launch:
    """How to start a server on given ports: the command, and the URLs at which it will answer."""

    command: list[str]
    environment: dict[str, str]
    server: ThirdPartyServer


class PortTakenError(Exception):
    """Another process took the port after we found it free and before the server bound it."""


def require_installed(name: str, listed: str, into: Path) -> None:
    stamp = into / ".stamp"
    if not stamp.exists() or not filecmp.cmp(LISTS / listed, stamp, shallow=False):
        pytest.fail(f"{name} is not installed in the version that is listed: run make setup", pytrace=False)


def require_node() -> str:
    node = shutil.which("node")
    if node is None:
        pytest.fail("Node.js is not on the PATH: install it, then run make setup", pytrace=False)
    return node


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            # on every interface, since that is where kinesis-local and kinesalite bind
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


def answers(url: str, ca_path: str | None) -> bool:
    where = urlsplit(url)
    if where.scheme == "https":
        context = ssl.create_default_context(cafile=ca_path)
        connection = http.client.HTTPSConnection(where.hostname, where.port, timeout=5, context=context)
    else:
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=5)
    try:
        connection.request("POST", "/", b"{}", LIST_STREAMS)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until_up(process: subprocess.Popen[bytes], server: ThirdPartyServer, output: Path) -> None:
    urls = [url for url in (server.http_url, server.https_url) if url is not None]
    give_up_at = time.monotonic() + START_LIMIT
    while not all(answers(url, server.ca_path) for url in urls):
        said = output.read_text(errors="replace")
        if "EADDRINUSE" in said or "already in use" in said:
            # kinesis-local neither exits nor obeys SIGTERM then
            raise PortTakenError
        if process.poll() is not None or time.monotonic() > give_up_at:
            state = "no answer" if process.returncode is None else f"exit status {process.returncode}"
            command = " ".join(process.args[4:])
            pytest.fail(f"{command} did not start: {state}. Its output:\n{said[-OUTPUT_SHOWN:]}", pytrace=False)
        time.sleep(0.05)


@contextlib.contextmanager
def started(launch: Launch, directory: Path) -> Iterator[None]:
    output = directory / "output.txt"
    # A closed environment, because variables such as AWS_REGION change what the servers do.
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "TMPDIR": str(directory), **launch.environment}
    with output.open("wb") as sink:
        process = subprocess.Popen(
            ["sh", "-c", WATCHED, "sh", *launch.command],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    try:
        wait_until_up(process, launch.server, output)
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        process.wait()


@contextlib.contextmanager
def running(ports: int, launch: Callable[[list[int], Path], Launch]) -> Iterator[ThirdPartyServer]:
    """Run a server until the block ends, on other ports if another process takes the first ones."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        for attempt in range(3):
            plan = launch(free_ports(ports), directory)
            try:
                stack.enter_context(started(plan, directory))
            except PortTakenError:
                if attempt == 2:
                    raise
            else:
                break
        yield plan.server


def kinesis_local_launch(ports: list[int], directory: Path) -> Launch:
    # The server's own certificate names no host, so no client accepts it: it gets one that does.
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    ca_path, certificate_path = directory / "ca.pem", directory / "server.json"
    authority.cert_pem.write_to_path(ca_path)
    key, certificate = issued.private_key_pem.bytes().decode(), issued.cert_chain_pems[0].bytes().decode()
    certificate_path.write_text(json.dumps({"server": {"key": key, "cert": certificate}}))
    operations = (
        *("CREATE_STREAM", "DELETE_STREAM", "MERGE_SHARDS", "SPLIT_SHARD", "UPDATE_SHARD_COUNT", "UPDATE_STREAM_MODE"),
        *("REGISTER_STREAM_CONSUMER", "DEREGISTER_STREAM_CONSUMER"),
        *("START_STREAM_ENCRYPTION", "STOP_STREAM_ENCRYPTION"),
    )
    plain, tls = ports
    environment = {
        "KINESIS_MOCK_PLAIN_PORT": str(plain),
        "KINESIS_MOCK_TLS_PORT": str(tls),
        "KINESIS_MOCK_CERT_PATH": str(certificate_path),
        "SHARD_LIMIT": "10000",
        "ON_DEMAND_STREAM_COUNT_LIMIT": "1000",
        "LOAD_DATA_IF_EXISTS": "false",
        **{f"{operation}_DURATION": "50ms" for operation in operations},
    }
    command = [require_node(), str(NODE / "node_modules/kinesis-local/main.js")]
    server = ThirdPartyServer(f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{tls}", str(ca_path))
    return Launch(command, environment, server)


def kinesalite_launch(ports: list[int], directory: Path) -> Launch:
    [port] = ports
    command = [
        require_node(),
        str(NODE / "node_modules/kinesalite/cli.js"),
        "--port",
        str(port),
        "--shardLimit",
        "10000",
    ]
    for operation in ("create", "delete", "update"):
        command += [f"--{operation}StreamMs", "50"]
    return Launch(command, {}, ThirdPartyServer(f"http://127.0.0.1:{port}"))


def ministack_launch(ports: list[int], directory: Path) -> Launch:
    [port] = ports
    environment = {
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "kinesis",
        # It removes the containers of other MiniStacks when it starts; a missing socket keeps it from Docker.
        "DOCKER_HOST": f"unix://{directory}/no-docker.sock",
    }
    command = [str(PYTHON / "bin/python"), "-m", "ministack.app"]
    return Launch(command, environment, ThirdPartyServer(f"http://127.0.0.1:{port}"))


@pytest.fixture(scope="session")
def kinesis_local() -> Iterator[ThirdPartyServer]:
    require_installed("kinesis-local", "package.json", NODE)
    with running(2, kinesis_local_launch) as server:
        yield server


@pytest.fixture(scope="session")
def kinesalite() -> Iterator[ThirdPartyServer]:
    require_installed("kinesalite", "package.json", NODE)
    with running(1, kinesalite_launch) as server:
        yield server


@pytest.fixture(scope="session")
def ministack() -> Iterator[ThirdPartyServer]:
    require_installed("ministack", "requirements.txt", PYTHON)
    with running(1, ministack_launch) as server:
        yield server


@pytest.fixture(scope="session")
def clients_python() -> Path:
    """The Python of the environment with third-party clients."""
    require_installed("the AWS CLI or a peer", "requirements-clients.txt", CLIENTS)
    return CLIENTS / "bin/python"


@pytest.fixture(scope="session")
def run_with_javascript_sdk() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script with the AWS SDK for JavaScript."""
    require_installed("the AWS SDK for JavaScript", "package-clients.json", NODE_CLIENTS)
    node = require_node()

    def run(script: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        environment |= {"PATH": os.environ["PATH"], "NODE_PATH": str(NODE_CLIENTS / "node_modules")}
        command = [node, "--no-warnings", str(script), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.fixture
def stream_name(request: pytest.FixtureRequest) -> str:
    """Return a unique name for a stream: the servers live for the session, and deleting streams is slow and racy."""
    test = re.sub(r"[^a-zA-Z0-9_.-]", "-", request.node.name)
    return f"{test[:100]}-{secrets.token_hex(4)}"


@pytest.fixture(autouse=True)
def no_ambient_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the developer's AWS profile, endpoints and proxies away from clients that read the environment."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.upper() in {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
