"""Which servers do the lease stores trust? A server with an untrusted certificate, or one for another host, is refused, and
receives no key and no password. ``test_tls`` has the tests of the client.
"""

import socket
import ssl
import threading
import time

import pytest
import trustme

from shardline import Credentials
from shardline.adapters.aws.aws_service import AwsAccess
from shardline.adapters.leases.store_urls import lease_store
from shardline.core.error_codes import Failure

pytestmark = pytest.mark.anyio

AWS = AwsAccess(wall_time=time.time, region="eu-west-1", credentials=Credentials("AKIDEXAMPLE", "secret"))


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def event_loop_kind(request):
    return request.param


def context_for(authority, host):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    return context


class RedisOverTls:
    """Answers PING and INFO, and remembers the commands."""

    def __init__(self, context):
        self.heard = b""
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            plain.settimeout(10)
            try:
                with self._context.wrap_socket(plain, server_side=True) as one:
                    while said := one.recv(65_536):
                        self.heard += said
                        one.sendall(b"+OK\r\n" * max(1, said.count(b"*")))
            except OSError:  # the client refused the certificate, as the test expects
                plain.close()

    def stop(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(15)
        assert not self._thread.is_alive()


@pytest.fixture
def start_redis():
    running = []

    def start(context):
        running.append(RedisOverTls(context))
        return running[-1]

    yield start
    for one in running:
        one.stop()


async def open_store(url):
    store = lease_store(url, group="g", stream="s", aws=AWS)
    try:
        return await store.open()
    finally:
        await store.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "another.example"])
async def test_a_dynamodb_with_an_untrusted_certificate_is_refused(host, start_server):
    server = start_server(context_for(trustme.CA(), host))
    failure = await open_store(f"dynamodb://table?endpoint_url={server.url}")
    assert isinstance(failure, Failure)
    assert (failure.code, failure.retryable, failure.maybe_received) == ("CertificateError", False, False)
    assert server.requests == []


async def test_a_dynamodb_with_a_certificate_for_another_host_is_refused(start_server, authority, ca_path, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", ca_path)
    server = start_server(context_for(authority, "another.example"))
    failure = await open_store(f"dynamodb://table?endpoint_url={server.url}")
    assert isinstance(failure, Failure)
    assert failure.code == "CertificateError"
    assert server.requests == []


async def test_a_dynamodb_whose_authority_is_known_is_spoken_to(start_server, server_tls, ca_path, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", ca_path)
    server = start_server(server_tls).reply(b'{"__type":"AccessDeniedException","message":"no"}', status=400)
    failure = await open_store(f"dynamodb://table?endpoint_url={server.url}")
    assert failure.code == "AccessDeniedException"
    assert len(server.requests) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "another.example"])
async def test_a_redis_with_an_untrusted_certificate_is_refused(host, start_redis):
    server = start_redis(context_for(trustme.CA(), host))
    failure = await open_store(f"rediss://user:password@127.0.0.1:{server.port}/0")
    assert isinstance(failure, Failure)
    assert "certificate" in failure.message.lower()
    assert server.heard == b""


async def test_a_redis_with_a_certificate_for_another_host_is_refused(start_redis, authority, ca_path):
    server = start_redis(context_for(authority, "another.example"))
    failure = await open_store(f"rediss://user:password@127.0.0.1:{server.port}/0?ssl_ca_certs={ca_path}")
    assert isinstance(failure, Failure)
    assert server.heard == b""


async def test_a_redis_whose_authority_is_known_is_spoken_to(start_redis, server_tls, ca_path):
    server = start_redis(server_tls)
    await open_store(f"rediss://user:password@127.0.0.1:{server.port}/0?ssl_ca_certs={ca_path}")
    assert b"AUTH" in server.heard
