"""A stand-in for AWS, for tests: a TLS endpoint under a name of its own, behind an HTTPS proxy, that checks signatures.

The program under test finds it as it would find AWS: the name from its settings, the address through HTTPS_PROXY, the
certificate through AWS_CA_BUNDLE, the credentials in a profile. Behind it is the embedded server, with an account of its own,
AWS's limits, and delays. What goes wrong is ordered through ``faults`` and ``signatures``.
"""

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import trustme

from shardline.server.access import Access
from shardline.server.model.refusals import Refused
from shardline.server.model.settings import Delays, ServiceSettings
from shardline.server.running_server import RunningServer, ServerSettings
from shardline.server.signatures import Signatures

NAME = "kinesis.conformance.test"
REGION = "eu-central-1"
ACCOUNT = "424242424242"
ACCESS_KEY, SECRET_KEY, SESSION_TOKEN = "ASIACONFORMANCE00001", "a-secret-of-the-stand-in", "a-session-token"
# Where the SDKs' rules lead without further settings: to the region's endpoint, or, by ARN, to one of the account.
AWS_NAMES = (
    f"kinesis.{REGION}.amazonaws.com",
    f"*.data-kinesis.{REGION}.amazonaws.com",
    f"*.control-kinesis.{REGION}.amazonaws.com",
)
_BUFFER = 65_536


@dataclass
class StandIn:
    server: RunningServer
    signatures: "ExpiringSignatures"
    home: Path
    proxy_url: str
    ca_path: Path
    proxy: "Proxy"

    @property
    def streams(self) -> list[str]:
        return sorted(self.server.call(lambda: list(self.server.service.state.streams)))

    def write_profile(self, token: str = SESSION_TOKEN) -> None:
        """Write the credentials file of the user."""
        folder = self.home / ".aws"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "credentials").write_text(
            f"[conformance]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
            f"aws_session_token = {token}\n"
        )

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of a user of another partition, without the settings of the person who runs the tests."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return ours | {
            "HOME": str(self.home),
            "AWS_PROFILE": "conformance",
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL_KINESIS": f"https://{NAME}",
            "AWS_CA_BUNDLE": str(self.ca_path),
            "AWS_EC2_METADATA_DISABLED": "true",
            "HTTPS_PROXY": self.proxy_url,
            "PYTHONUNBUFFERED": "1",
            **more,
        }


class ExpiringSignatures:
    """Signature checks with a session token that can expire."""

    def __init__(self, credentials: dict[str, tuple[str, str | None]], region: str) -> None:
        self._signatures = Signatures(credentials, region)
        self.rotate = self._signatures.rotate
        self.expired: str | None = None

    def check(self, method, path, headers, body, now, **options):
        if self.expired is not None and headers.get("x-amz-security-token") == self.expired:
            return Refused("ExpiredTokenException", "The security token included in the request is expired")
        return self._signatures.check(method, path, headers, body, now, **options)


@contextlib.contextmanager
def stand_in(directory: Path, delay: float = 0.2) -> Iterator[StandIn]:
    signatures = ExpiringSignatures({ACCESS_KEY: (SECRET_KEY, SESSION_TOKEN)}, REGION)
    delays = Delays(create=delay, delete=delay, update=delay, register=delay, deregister=delay)
    settings = ServerSettings(
        service=ServiceSettings(region=REGION, account_id=ACCOUNT, delays=delays),
        signatures=signatures,
        access=Access([NAME, "*.amazonaws.com"]),
    )
    server = RunningServer(settings)
    server.start()
    try:
        authority = trustme.CA()
        ca_path = directory / "ca.pem"
        authority.cert_pem.write_to_path(ca_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2", "http/1.1"])
        authority.issue_cert(NAME, *AWS_NAMES).configure_cert(context)
        with Proxy(context, server.port) as proxy:
            made = StandIn(server, signatures, directory / "home", proxy.url, ca_path, proxy)
            made.write_profile()
            yield made
    finally:
        server.stop()


class Proxy:
    """An HTTPS proxy that connects every name to one address, and terminates TLS there."""

    def __init__(self, context: ssl.SSLContext, port: int) -> None:
        self._context = context
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.names: set[str] = set()
        self.protocols: set[str | None] = set()
        """The protocols that were negotiated inside TLS: HTTP/2, HTTP/1.1, or none."""
        """The requested hosts."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            head = b""
            while b"\r\n\r\n" not in head:
                chunk = client.recv(_BUFFER)
                if not chunk:
                    return
                head += chunk
            method, place, *_ = head.split(b" ", 2)
            if method != b"CONNECT":
                client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
                return
            self.names.add(place.decode().partition(":")[0])
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with (
                self._context.wrap_socket(client, server_side=True) as inside,
                socket.create_connection(("127.0.0.1", self._port)) as behind,
            ):
                self.protocols.add(inside.selected_alpn_protocol())
                back = threading.Thread(target=_copy, args=(behind, inside), daemon=True)
                back.start()
                _copy(inside, behind)
                back.join(timeout=5)
        except OSError:
            return  # the client has disconnected, which is allowed
        finally:
            client.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes until one of the two is closed."""
    with contextlib.suppress(OSError):
        while data := source.recv(_BUFFER):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
