"""The findings about the network, layer by layer."""

import socket
import ssl
import threading
import time

import anyio
import pytest

from shardline.adapters.http.http_settings import make_ssl_context
from shardline.cli.doctor import network_checks
from shardline.cli.doctor.diagnoses import Verdict
from shardline.testing import LocalKinesis

DAY = 86_400


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def check(url, context=None, now=None):
    findings = anyio.run(network_checks.check_network, url, context, time.time() if now is None else now)
    return {finding.check: finding for finding in findings}


def test_a_certificate_that_expires_soon():
    with LocalKinesis(tls=True) as kinesis:
        context = make_ssl_context(verify=kinesis.ca_path, ca_bundle=None)
        found = check(kinesis.endpoint_url, context)
        assert found["TLS"].verdict is Verdict.OK
        assert found["TLS"].seen.startswith("TLSv1.3, the certificate of 127.0.0.1 is verified, expires in ")
        days = int(found["TLS"].seen.split()[-2])
        found = check(kinesis.endpoint_url, context, time.time() + (days - 5) * DAY)
        assert found["TLS"].verdict is Verdict.WARNING
        assert "expires in 5 d" in found["TLS"].seen


def test_a_certificate_that_is_not_verified_has_no_expiry():
    with LocalKinesis(tls=True) as kinesis:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        assert "expires" not in check(kinesis.endpoint_url, context)["TLS"].seen


def test_a_server_that_closes_the_connection():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_the_first():
            connection, _ = server.accept()
            connection.recv(1)
            connection.close()

        thread = threading.Thread(target=close_the_first)
        thread.start()
        found = check(f"https://127.0.0.1:{server.getsockname()[1]}", ssl.create_default_context())
        thread.join()
    assert found["TLS"].verdict is Verdict.FAILED
    assert found["TCP"].verdict is Verdict.OK


def test_a_silent_server(monkeypatch):
    monkeypatch.setattr(network_checks, "CONNECT_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = check(f"https://127.0.0.1:{server.getsockname()[1]}", ssl.create_default_context())
    assert "did not complete the TLS handshake" in found["TLS"].seen


@pytest.mark.parametrize("layer", ["DNS", "TCP"])
def test_a_layer_that_takes_too_long(monkeypatch, layer):
    async def hang(*_, **__):
        await anyio.sleep_forever()

    monkeypatch.setattr(network_checks, "CONNECT_TIMEOUT", 0.1)
    monkeypatch.setattr(network_checks.anyio, "getaddrinfo" if layer == "DNS" else "connect_tcp", hang)
    found = check("http://localhost:1")
    assert found[layer].verdict is Verdict.FAILED
    assert list(found)[-1] == layer


def test_many_addresses_are_counted(monkeypatch):
    async def resolve(*_, **__):
        return [(0, 0, 0, "", (address, 1)) for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3")]

    async def refuse(*_):
        raise OSError("All connection attempts failed")

    monkeypatch.setattr(network_checks.anyio, "getaddrinfo", resolve)
    monkeypatch.setattr(network_checks.anyio, "connect_tcp", refuse)
    found = check("http://kinesis.example.com")
    assert found["DNS"].seen == "kinesis.example.com is 10.0.0.1, 10.0.0.2 and 1 more"
    assert found["TCP"].seen == "no connection to kinesis.example.com, port 80: All connection attempts failed"
