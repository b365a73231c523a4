"""The lease stores of drills, and how each can be down, slow, throttled or full.

SQLite is a file. Redis (Valkey), PostgreSQL and DynamoDB (dynalite, ministack) are real servers, behind a relay that can be cut,
delay, and answer in place of DynamoDB. A full store is really full: a small tmpfs for SQLite, ``maxmemory`` for Valkey.
"""

import contextlib
import errno
import importlib.util
import random
import secrets
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CONTRACT = REPOSITORY / "tests" / "contract" / "conftest.py"


def contract_servers():
    """Return the module that starts the servers, which belongs to the contract tests."""
    return load("contract_servers", CONTRACT)


def postgres_servers():
    """Return the module that starts PostgreSQL, which belongs to the tests of its store."""
    return load("postgres_servers", REPOSITORY / "tests" / "postgres" / "conftest.py")


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SLOW_DOWN = (
    b'{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException","message":"slow down"}'
)
THROTTLED = b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: %d\r\n\r\n%b" % (
    len(SLOW_DOWN),
    SLOW_DOWN,
)


class Relay:
    """Passes bytes to a port on loopback: late if it is slow, not at all if it is cut."""

    def __init__(self, port):
        self._target = port
        self._open = set()
        self._is_cut = False
        self._delay = 0.0
        self._throttled = 0.0  # the share of requests that is refused
        self._rng = random.Random(1)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.refused = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                if self._is_cut:
                    caller.close()
                    continue
                callee = socket.create_connection(("127.0.0.1", self._target))
                self._open |= {caller, callee}
                for ends in ((caller, callee, True), (callee, caller, False)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source, sink, is_request):
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 20):
                if is_request and self._delay:
                    time.sleep(self._delay)
                if is_request and self._refuses(chunk):
                    source.sendall(THROTTLED)
                else:
                    sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self._open.discard(end)

    def _refuses(self, chunk):
        """Whether to refuse a request. Only a complete request is refused: the rest of another would look like the next
        one.
        """
        if not self._throttled or self._rng.random() >= self._throttled:
            return False
        head, _, body = chunk.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), -1
        )
        whole = head.startswith(b"POST ") and len(body) == length
        self.refused += whole
        return whole

    @contextlib.contextmanager
    def cut(self):
        self._is_cut = True
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            self._is_cut = False

    @contextlib.contextmanager
    def slow(self, delay):
        self._delay = delay
        try:
            yield
        finally:
            self._delay = 0.0

    @contextlib.contextmanager
    def throttled(self, share):
        """Answer this share of the requests in place of DynamoDB, as throttled. Return a function that counts them."""
        self._throttled = share
        try:
            yield lambda: self.refused
        finally:
            self._throttled = 0.0

    def close(self):
        self._listener.close()
        with self.cut():
            pass


class Store:
    """A lease store: its URL for the workers, another URL for the observer, and the faults that it supports.

    ``down()``: the store is unreachable. ``slow(seconds)``: every write takes that much longer. ``throttled(share)``: that share
    of the requests is refused. ``full()``: no room for a write. A store has methods only for the faults that it supports.
    """

    def __init__(self, kind, url, watched_url, **troubles):
        self.kind, self.url, self.watched_url = kind, url, watched_url
        self.down, self.slow = troubles.pop("down"), troubles.pop("slow")
        self.throttled, self.full = troubles.pop("throttled", None), troubles.pop("full", None)


@contextlib.contextmanager
def small_disk(directory, size="256k"):
    """Mount a file system in this directory. Return a context manager that fills it up."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        raise OSError(
            f"a small disk needs the right to mount (as root, or under unshare -rm): {mounted.stderr.strip()}"
        )
    filler = directory / "filler"

    @contextlib.contextmanager
    def full():
        with filler.open("wb", buffering=0) as file:
            for piece in (4096, 1):  # to the last byte
                try:
                    while True:
                        file.write(b"x" * piece)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        try:
            yield
        finally:
            filler.unlink()

    try:
        yield full
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)


def sqlite_at(directory, full=None):
    path = directory / "leases.db"

    @contextlib.contextmanager
    def locked():
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def slow(seconds):
        """Another connection holds the lock most of the time, for this long each time, so writes wait for it."""
        stopping = threading.Event()

        def hinder():
            while not stopping.is_set():
                with locked():
                    stopping.wait(seconds)
                stopping.wait(seconds / 4)

        thread = threading.Thread(target=hinder, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()

    url = f"sqlite:///{path}"
    # No other connection gets in: to a worker, this looks like a disk that hangs.
    return Store("sqlite", url, url, down=locked, slow=slow, full=full)


@contextlib.contextmanager
def sqlite_store(directory):
    yield sqlite_at(directory)


@contextlib.contextmanager
def small_sqlite_store(directory):
    """SQLite on a disk that can be filled up."""
    with small_disk(directory) as full:
        yield sqlite_at(directory, full)


@contextlib.contextmanager
def redis_store(directory):
    servers = contract_servers()
    with servers.valkey(directory) as port:
        relay = Relay(port)

        def tell(*words):
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(" ".join(words).encode() + b"\r\n")
                answer = connection.recv(100)
            if not answer.startswith(b"+OK"):
                raise OSError(f"Valkey does not {words}: {answer}")

        @contextlib.contextmanager
        def full():
            tell("CONFIG", "SET", "maxmemory", "1")  # bytes: every write that needs memory is refused
            try:
                yield
            finally:
                tell("CONFIG", "SET", "maxmemory", "0")

        relayed, direct = (f"redis://127.0.0.1:{one}/0" for one in (relay.port, port))
        try:
            yield Store("redis", relayed, direct, down=relay.cut, slow=relay.slow, full=full)
        finally:
            relay.close()


@contextlib.contextmanager
def relayed_table(port):
    """A table in the DynamoDB that answers at this port, behind a relay."""
    relay = Relay(port)
    table = f"drill-{secrets.token_hex(4)}"
    try:
        relayed, direct = (
            f"dynamodb://{table}?region=us-east-1&endpoint_url=http://127.0.0.1:{one}" for one in (relay.port, port)
        )
        troubles = {"down": relay.cut, "slow": relay.slow, "throttled": relay.throttled}
        yield Store("dynamodb", relayed, direct, **troubles)
    finally:
        relay.close()


@contextlib.contextmanager
def dynamodb_store(directory):
    servers = contract_servers()
    servers.require_installed("package.json", servers.NODE)
    script = servers.NODE / "node_modules/dynalite/cli.js"
    times = [part for verb in ("create", "delete", "update") for part in (f"--{verb}TableMs", "50")]

    def command(port):
        return [shutil.which("node"), script, "--host", "127.0.0.1", "--port", port, *times]

    with servers.running(command, directory) as port, relayed_table(port) as store:
        yield store


@contextlib.contextmanager
def ministack_store(directory):
    """The other DynamoDB: it can add an index to a table in on-demand mode, which the Java KCL needs."""
    servers = contract_servers()
    with servers.ministack(directory) as port, relayed_table(port) as store:
        yield store


def has_postgres():
    """Whether a PostgreSQL server is installed: from Debian's package, which keeps its programs outside the PATH."""
    return bool(shutil.which("postgres") or [*Path("/usr/lib/postgresql").glob("*/bin/postgres")])


@contextlib.contextmanager
def postgres_store(_):
    """PostgreSQL. It is full when each write fails with the error that a full disk causes."""
    with postgres_servers().running_server() as server:
        relay = Relay(server.port)

        @contextlib.contextmanager
        def full():
            server.execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$",
                "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON shardline_leases EXECUTE FUNCTION refuse()",
            )
            try:
                yield
            finally:
                server.execute("DROP FUNCTION refuse() CASCADE")

        relayed, direct = (f"postgresql://postgres@127.0.0.1:{port}/postgres" for port in (relay.port, server.port))
        try:
            yield Store("postgres", relayed, direct, down=relay.cut, slow=relay.slow, full=full)
        finally:
            relay.close()


STORES = {"sqlite": sqlite_store, "redis": redis_store, "dynamodb": dynamodb_store, "postgres": postgres_store}
OTHERS = {"ministack": ministack_store, "small-sqlite": small_sqlite_store}
