"""Where do the workers of a drill keep their leases, and how does that place go down and come back?

SQLite is a file; Redis (Valkey) and DynamoDB (dynalite) are real servers, behind a relay that can be cut.
"""

import contextlib
import importlib.util
import secrets
import shutil
import socket
import sqlite3
import threading
from pathlib import Path

CONTRACT = Path(__file__).resolve().parents[1] / "contract" / "conftest.py"


def contract_servers():
    """The module that knows how to start the servers: that of the contract tests."""
    spec = importlib.util.spec_from_file_location("contract_servers", CONTRACT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Relay:
    """Passes bytes to a port on loopback, unless it is cut."""

    def __init__(self, port):
        self._target = port
        self._open = set()
        self._is_cut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
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
                for ends in ((caller, callee), (callee, caller)):
                    threading.Thread(target=self._pass, args=ends, daemon=True).start()

    def _pass(self, source, sink):
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self._open.discard(end)

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

    def close(self):
        self._listener.close()
        with self.cut():
            pass


class Store:
    """A place for leases: its URL for the workers, another for the one who watches, and a way to take it down."""

    def __init__(self, kind, url, watched_url, down):
        self.kind, self.url, self.watched_url, self.down = kind, url, watched_url, down


@contextlib.contextmanager
def sqlite_store(directory):
    path = directory / "leases.db"

    @contextlib.contextmanager
    def down():
        """Nobody else gets in: to a worker it looks like a disk that hangs."""
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")

    url = f"sqlite:///{path}"
    yield Store("sqlite", url, url, down)


@contextlib.contextmanager
def redis_store(directory):
    with contract_servers().valkey(directory) as port:
        relay = Relay(port)
        try:
            yield Store("redis", f"redis://127.0.0.1:{relay.port}/0", f"redis://127.0.0.1:{port}/0", relay.cut)
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

    with servers.running(command, directory) as port:
        relay = Relay(port)
        table = f"drill-{secrets.token_hex(4)}"
        try:
            relayed, direct = (
                f"dynamodb://{table}?region=us-east-1&endpoint_url=http://127.0.0.1:{one}" for one in (relay.port, port)
            )
            yield Store("dynamodb", relayed, direct, relay.cut)
        finally:
            relay.close()


STORES = {"sqlite": sqlite_store, "redis": redis_store, "dynamodb": dynamodb_store}
