"""Finds the Redis server that has the leases: one server, the master of a sentinel, or a node of a cluster.

The leases of a group are in one hash, so in a cluster they are all on one node.

Invariants:

- One call is one attempt. A command that a node redirected was not carried out, so it is sent to the other node.
- After a lost connection, the next call finds out where the hash is now.
- No connection is opened before the first call, which is made in a worker thread.
"""

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast, final
from urllib.parse import parse_qsl, urlsplit

import redis
import redis.cluster
import redis.connection
import redis.exceptions
import redis.sentinel
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardline.errors import UsageError

# The parameters of redis-py that are allowed in the URL. A password is not allowed, because it would end up in logs.
_QUERY: Final = re.compile(r"ssl_\w+|socket_timeout|socket_connect_timeout|client_name")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\],@]+)(?::([0-9]{1,5}))?")
_PATHS: Final = {
    "": re.compile(r"(?:/([0-9]*))?"),
    "cluster": re.compile(r"(?:/(0?))?"),
    "sentinel": re.compile(r"/[^/]+(?:/([0-9]*))?"),
}
_PORTS: Final = {"": 6379, "cluster": 6379, "sentinel": 26379}
_PORT_MAX: Final = 65_535
_REDIRECTIONS: Final = (redis.exceptions.MovedError, redis.exceptions.AskError)

Command = tuple[Any, ...]


@final
class RedisAddress(NamedTuple):
    """The parts of a store's URL."""

    kind: str
    """``""`` for one server, ``"cluster"`` or ``"sentinel"``."""
    hosts: list[tuple[str, int]]
    service: str
    """The name under which the sentinels know the master."""
    shown: str
    """The hosts as text, without a password."""
    plain_url: str
    """The URL of the first host, as if it were a single server. redis-py reads the other parts from it."""
    sentinel_url: str = ""
    """The URL of the first sentinel, with the user and the password of the sentinels."""


def parse_address(url: str) -> RedisAddress | None:
    """Return the parts of a URL, or ``None`` if it names no Redis database.

    Raises:
        UsageError: the URL contains a parameter that is not allowed.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    scheme, _, kind = parts.scheme.partition("+")
    if kind not in _PATHS:
        return None
    login, at, netloc = parts.netloc.rpartition("@")
    path = _PATHS[kind].fullmatch(parts.path)
    found = [_HOST.fullmatch(host) for host in netloc.split(",")]
    hosts = [(match[1].strip("[]"), int(match[2] or _PORTS[kind])) for match in found if match is not None]
    if path is None or parts.fragment or len(hosts) < len(found) or any(port > _PORT_MAX for _, port in hosts):
        return None
    if not kind and len(hosts) > 1:
        return None
    unknown = [name for name, _ in parse_qsl(parts.query) if not _QUERY.fullmatch(name)]
    if unknown:
        raise UsageError(
            f"a Redis store's URL must not have the parameter {unknown[0]!r}; allowed are: ssl_..., "
            "socket_timeout, socket_connect_timeout, client_name"
        )
    host, port = hosts[0]
    first = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    if kind != "sentinel":
        return RedisAddress(kind, hosts, "", netloc, f"{scheme}://{login}{at}{first}/{path[1] or ''}{query}")
    login, _, of_sentinels = login.partition(",")
    plain_url, sentinel_url = (
        f"{scheme}://{each}{'@' if each else ''}{first}/{database}{query}"
        for each, database in ((login, path[1] or ""), (of_sentinels, ""))
    )
    return RedisAddress(kind, hosts, parts.path.split("/")[1], netloc, plain_url, sentinel_url)


class RedisServers(Protocol):
    """Finds the server that has the leases, and sends commands to it. All methods block."""

    def client(self) -> Any:
        """Return the client of the server that has the hash."""
        ...

    def send(self, commands: Sequence[Command]) -> list[Any]:
        """Send the commands, which all belong to the hash, in one round trip. The reply to a failed command is an
        exception.
        """
        ...

    def scan(self, pattern: str) -> Iterable[bytes]:
        """Return all keys that match the pattern."""
        ...

    def close(self) -> None: ...


def redis_servers(address: RedisAddress, key: str, limit: float) -> RedisServers:
    """Return the servers of a store, without connecting to them.

    Args:
        address: the parts of the store's URL.
        key: the key of the hash.
        limit: how many seconds connecting may take, and the response to a command.

    Raises:
        UsageError: redis-py cannot read the URL.
    """
    times: dict[str, Any] = {"socket_timeout": limit, "socket_connect_timeout": limit}
    settings: dict[str, Any] = {
        **times,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,  # every server since Redis 2.6 and every Valkey supports it
        "health_check_interval": 0,  # redis-py notices closed connections without health checks
    }
    try:
        if not address.kind:
            return OneServer(cast("Any", redis.Redis).from_url(address.plain_url, **settings))
        settings |= _settings_of(address.plain_url)
        sentinel_settings = times | (_settings_of(address.sentinel_url) if address.sentinel_url else {})
    except (ValueError, TypeError) as error:
        raise UsageError(f"redis-py cannot read the store's URL at {address.shown}: {error}") from None
    if address.kind == "sentinel":
        # Sentinels have no databases, but they have logins and TLS settings of their own, which redis-py would not use
        # by itself.
        make_sentinel: Any = redis.sentinel.Sentinel
        return OneServer(
            make_sentinel(address.hosts, sentinel_kwargs=sentinel_settings, **settings).master_for(address.service)
        )
    settings.pop("db", None)  # a cluster has one database
    make: Any = redis.cluster.RedisCluster
    nodes = [cast("Any", redis.cluster.ClusterNode)(host, port) for host, port in address.hosts]
    return Cluster(lambda: make(startup_nodes=nodes, require_full_coverage=False, **settings), key)


def _settings_of(url: str) -> dict[str, Any]:
    """Return the settings in a URL as arguments of a client, without the host."""
    given: dict[str, Any] = dict(cast("Any", redis.connection).parse_url(url))
    is_tls = given.pop("connection_class", None) is not None
    for name in ("host", "port"):
        given.pop(name, None)
    return given | ({"ssl": True} if is_tls else {})


@final
class OneServer:
    """A single server, or the master that the sentinels name. redis-py asks the sentinels for each new connection."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def client(self) -> Any:
        return self._client

    def send(self, commands: Sequence[Command]) -> list[Any]:
        return _send(self._client, commands)

    def scan(self, pattern: str) -> Iterable[bytes]:
        return cast("Iterable[bytes]", self._client.scan_iter(pattern, count=1_000))

    def close(self) -> None:
        self._client.close()


@final
class Cluster:
    """The node of a cluster that has the hash. Threads share this object."""

    def __init__(self, make: Callable[[], Any], key: str) -> None:
        self._make = make
        self._key = key
        self._lock = threading.Lock()
        self._cluster: Any = None

    def client(self) -> Any:
        cluster = self._connected()
        node = cluster.get_node_from_key(self._key)
        if node is None:
            self._find_nodes(cluster)
            raise redis.exceptions.ClusterDownError("no node of the cluster serves the slot of the leases")
        return cluster.get_redis_connection(node)

    def send(self, commands: Sequence[Command]) -> list[Any]:
        client, cluster = self.client(), self._connected()
        try:
            replies = _send(client, commands)
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
            self._find_nodes(cluster)  # for the next call; this call may have been carried out
            raise
        return [
            self._redirect(cluster, command, reply) if isinstance(reply, _REDIRECTIONS) else reply
            for command, reply in zip(commands, replies, strict=True)
        ]

    def scan(self, pattern: str) -> Iterable[bytes]:
        return cast("Iterable[bytes]", self._connected().scan_iter(pattern, count=1_000))

    def close(self) -> None:
        with self._lock:
            cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def _connected(self) -> Any:
        with self._lock:
            if self._cluster is None:
                self._cluster = self._make()
            return self._cluster

    def _redirect(self, cluster: Any, command: Command, reply: Exception) -> Any:
        """Send a command where the cluster has redirected it. The first node has not carried it out."""
        if isinstance(reply, redis.exceptions.MovedError):
            self._find_nodes(cluster)
        try:
            return cluster.execute_command(*command)
        except redis.exceptions.RedisError as error:
            return error

    def _find_nodes(self, cluster: Any) -> None:
        with self._lock:
            try:
                cluster.nodes_manager.initialize()
            except redis.exceptions.RedisError:
                if self._cluster is cluster:  # no node answers: begin with the hosts of the URL again
                    self._cluster = None
                cluster.close()


def _send(client: Any, commands: Sequence[Command]) -> list[Any]:
    pipeline = client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    return replies
