"""Starts a PostgreSQL server and a pgbouncer, from Debian's packages, and ends them reliably.

A server refuses to run as root, so that root starts it as the user ``postgres``, which the package creates.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

START_LIMIT = 60.0


def program(name):
    """The newest PostgreSQL of this machine is used; Debian keeps its programs outside the PATH."""
    found = shutil.which(name) or max(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), default=None)
    if found is None:
        pytest.fail(f"{name} is missing: apt-get install postgresql pgbouncer", pytrace=False)
    return found


def server_user():
    return "postgres" if os.geteuid() == 0 else None


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def directory():
    """A directory that the server's user may enter; pytest's own belong to one user alone."""
    path = Path(tempfile.mkdtemp(prefix="shardline-postgres-", dir="/tmp"))
    if server_user():
        owner = pwd.getpwnam("postgres")
        os.chown(path, owner.pw_uid, owner.pw_gid)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Server:
    """One PostgreSQL server, which a test may stop and start again."""

    def __init__(self, path, settings=()):
        self.path, self.port, self.settings = path, free_port(), settings
        self.process = None

    def create(self):
        made = subprocess.run(
            [program("initdb"), "-D", self.path / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"],
            user=server_user(),
            cwd=self.path,
            capture_output=True,
            text=True,
            check=False,
            env={"LC_ALL": "C"},
        )
        assert made.returncode == 0, made.stderr

    def copy_to(self, replica):
        """Make the data of a streaming replica of this server, which runs."""
        with (self.path / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host replication all 127.0.0.1/32 trust\n")
        self.execute("SELECT pg_reload_conf()")
        made = subprocess.run(
            [program("pg_basebackup"), "-d", self.url(), "-D", replica.path / "data", "-R", "-c", "fast", "--no-sync"],
            user=server_user(),
            cwd=replica.path,
            capture_output=True,
            text=True,
            check=False,
            env={"LC_ALL": "C"},
        )
        assert made.returncode == 0, made.stderr

    def wait_for_replica(self, replica):
        """Wait until the replica has all writes."""
        give_up_at = time.monotonic() + START_LIMIT
        ((written,),) = self.execute("SELECT pg_current_wal_lsn()")
        while not replica.execute(f"SELECT pg_last_wal_replay_lsn() >= '{written}'")[0][0]:
            assert time.monotonic() < give_up_at, (replica.path / "log.txt").read_text()
            time.sleep(0.05)

    def start(self):
        self._launch()
        give_up_at = time.monotonic() + START_LIMIT
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
            except psycopg.OperationalError:
                assert time.monotonic() < give_up_at, (self.path / "log.txt").read_text()
                time.sleep(0.05)
                if self.process.poll() is not None:
                    # The backends of a server that was killed live a moment longer, and hold its memory.
                    last_words = (self.path / "log.txt").read_text().splitlines()[-3:]
                    assert any("is still in use" in line for line in last_words), (self.path / "log.txt").read_text()
                    self._launch()
            else:
                return

    def _launch(self):
        settings = (
            f"port={self.port}",
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.path}",
            "fsync=off",
            "max_connections=50",
            *self.settings,
        )
        with (self.path / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                [program("postgres"), "-D", self.path / "data", *(part for one in settings for part in ("-c", one))],
                user=server_user(),
                cwd=self.path,
                stdout=log,
                stderr=log,
                env={"LC_ALL": "C"},
                start_new_session=True,
            )

    def stop(self, how=signal.SIGINT):
        """SIGINT is PostgreSQL's fast shutdown; SIGKILL loses all its processes at once."""
        if self.process is not None and self.process.poll() is None:
            pid = self.process.pid
            # Backends have groups of their own. Some would answer after the server has died, and keep its memory.
            backends = Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if how == signal.SIGKILL else []
            self.process.send_signal(how)
            for backend in backends:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(backend), how)
            self.process.wait(60)

    def url(self, database="postgres"):
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def execute(self, *statements, database="postgres"):
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None


@contextlib.contextmanager
def running_server(*settings):
    with directory() as path:
        server = Server(path, settings)
        try:
            server.create()
            server.start()
            yield server
        finally:
            server.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def server():
    with running_server() as started:
        yield started


@pytest.fixture
def start_server():
    """Start a separate server with these settings."""
    with contextlib.ExitStack() as stack:
        yield lambda *settings: stack.enter_context(running_server(*settings))


@pytest.fixture
def start_replica():
    """Start a streaming replica of a server."""
    with contextlib.ExitStack() as stack:

        def start(primary):
            replica = Server(stack.enter_context(directory()))
            stack.callback(replica.stop, signal.SIGKILL)
            primary.copy_to(replica)
            replica.start()
            return replica

        yield start


class SmallDisk:
    """A file system of a few megabytes."""

    def __init__(self, path):
        self.path = path

    @contextlib.contextmanager
    def full(self):
        filler = self.path / "filler"
        with filler.open("wb", buffering=0) as file:
            for piece in (65536, 1):  # to the last byte
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"x" * piece)
        try:
            yield
        finally:
            filler.unlink()


@pytest.fixture
def small_disk():
    """A small file system in which the server may make files. Mounting one needs root."""
    with directory() as path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m,mode=0777", "tmpfs", path], check=True)
        try:
            yield SmallDisk(path)
        finally:
            subprocess.run(["umount", "--lazy", path], check=True)


@contextlib.contextmanager
def running_pgbouncer(server, pool_size):
    """Put pgbouncer in transaction mode before the server, which gives every transaction another connection. Yields the
    address."""
    port = free_port()
    with directory() as path:
        (path / "users.txt").write_text('"postgres" ""\n')
        (path / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {port}\nauth_type = trust\nauth_file = {path}/users.txt\npool_mode = transaction\n"
            f"default_pool_size = {pool_size}\nserver_round_robin = 1\nunix_socket_dir =\n"
        )
        process = subprocess.Popen(
            [program("pgbouncer"), "-q", path / "pgbouncer.ini"],
            user=server_user(),
            cwd=path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
        )
        try:
            give_up_at = time.monotonic() + START_LIMIT
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                assert process.poll() is None, "pgbouncer ended"
                assert time.monotonic() < give_up_at, "pgbouncer did not start"
                time.sleep(0.05)
            yield f"postgresql://postgres@127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def pgbouncer_url(server):
    with running_pgbouncer(server, 3) as address:
        yield f"{address}/postgres"


@pytest.fixture
def narrow_url(server, database):
    """The URL of a new database behind a pgbouncer with a single connection to it."""
    with running_pgbouncer(server, 1) as address:
        yield f"{address}/{database.rpartition('/')[2]}"


@pytest.fixture
def database(server):
    """The URL of a new, empty database."""
    name = f"t{secrets.token_hex(6)}"
    server.execute(f"CREATE DATABASE {name}")
    return server.url(name)


@pytest.fixture
def unique():
    return f"g{secrets.token_hex(6)}"


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def anyio_backend(request):
    if request.param == "uvloop":
        return "asyncio", {"use_uvloop": True}
    return request.param
