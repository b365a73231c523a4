"""Which servers does a client trust, and what does it report about others?"""

import gc
import ssl

import anyio
import pytest
import trustme

from shardline import TransportError, UsageError

pytestmark = pytest.mark.anyio

ENTRIES = [(b"x", "k")]


async def refusal(client):
    async with client:
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
    return caught.value


async def accepted(client):
    async with client:
        await client.put_records("orders", ENTRIES)


def assert_untrusted(error, server):
    assert (error.code, error.kind, error.status) == ("CertificateError", "untrusted", None)
    assert (error.maybe_received, error.retryable) == (False, False)
    for words in (server.host, "verify=", "AWS_CA_BUNDLE"):
        assert words in str(error)
    assert server.requests == []


async def test_an_unknown_authority_is_not_trusted(tls_server, make_client):
    error = await refusal(make_client(tls_server))
    assert_untrusted(error, tls_server)
    assert "local issuer" in str(error)


async def test_a_certificate_for_another_host_is_not_trusted(start_server, authority, ca_path, make_client):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("another.example").configure_cert(context)
    server = start_server(context)
    error = await refusal(make_client(server, verify=ca_path))
    assert_untrusted(error, server)
    assert "mismatch" in str(error)


async def test_the_right_authority_is_trusted_by_path(tls_server, ca_path, make_client):
    await accepted(make_client(tls_server, verify=ca_path))
    assert len(tls_server.requests) == 1


async def test_the_right_authority_is_trusted_by_context(tls_server, authority, make_client):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    await accepted(make_client(tls_server, verify=context))
    assert len(tls_server.requests) == 1


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
async def test_the_right_authority_is_trusted_by_the_environment(
    variable, tls_server, ca_path, make_client, monkeypatch
):
    monkeypatch.setenv(variable, ca_path)
    await accepted(make_client(tls_server))
    assert len(tls_server.requests) == 1


async def test_the_right_authority_is_trusted_by_the_environment_with_aws_settings(
    tls_server, ca_path, make_client, monkeypatch
):
    monkeypatch.setenv("AWS_CA_BUNDLE", ca_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    await accepted(make_client(tls_server, credentials=None))
    assert len(tls_server.requests) == 1


async def test_the_right_authority_is_trusted_by_the_profile(tls_server, ca_path, make_client, tmp_path):
    (tmp_path / "config").write_text(
        f"[profile own]\nca_bundle = {ca_path}\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = s\n"
    )
    await accepted(make_client(tls_server, credentials=None, profile="own"))
    assert len(tls_server.requests) == 1


async def test_an_explicit_authority_wins_over_the_environment(tls_server, ca_path, make_client, monkeypatch, tmp_path):
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(other))
    assert_untrusted(await refusal(make_client(tls_server)), tls_server)
    await accepted(make_client(tls_server, verify=ca_path))


async def test_trust_can_be_switched_off(start_server, make_client):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("another.example").configure_cert(context)
    server = start_server(context)
    await accepted(make_client(server, verify=False))
    assert len(server.requests) == 1


@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_an_authority_that_cannot_be_read(content, tls_server, make_client, tmp_path):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=r"CA file .*ca\.pem"):
        await make_client(tls_server, verify=str(path)).start()


async def test_a_server_that_speaks_no_tls(start_server, make_client):
    server = start_server(banner=b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    error = await refusal(make_client(server.url.replace("http:", "https:")))
    assert (error.code, error.kind, error.maybe_received, error.retryable) == ("TlsError", "transient", False, True)
    assert server.host in str(error)
    assert "https" in str(error)


async def test_a_server_that_hangs_in_the_handshake(start_server, make_client):
    server = start_server(mute=True)
    error = await refusal(make_client(server.url.replace("http:", "https:"), connect_timeout=0.2))
    assert (error.code, error.kind, error.maybe_received) == ("ConnectTimeout", "transient", False)


async def test_a_client_that_speaks_no_tls_to_a_server_that_does(tls_server, make_client):
    error = await refusal(make_client(tls_server.url.replace("https:", "http:"), read_timeout=1.0))
    assert error.code in {"ConnectError", "ConnectionReset", "BadAnswer"}
    assert error.kind == "transient"


async def test_a_cancelled_handshake_leaves_nothing_open(start_server, make_client, cancelled_when):
    server = start_server(mute=True)
    async with make_client(server.url.replace("http:", "https:"), max_connections=1) as client:
        for number in range(1, 4):
            await cancelled_when(lambda n=number: server.connections == n, client.put_records, "orders", ENTRIES)
    gc.collect()  # an unclosed socket is a ResourceWarning, and thus a failure
    assert server.connections == 3


async def test_the_client_stays_usable_after_cancelled_handshakes(tls_server, ca_path, make_client):
    async with make_client(tls_server, verify=ca_path, max_connections=1) as client:
        for step in range(12):
            with anyio.move_on_after(step / 1000):
                await client.put_records("orders", ENTRIES)
        answer = await client.put_records("orders", ENTRIES)
    gc.collect()
    assert answer.failed_count == 0


async def test_a_client_that_asks_for_http2_makes_do_with_http1(tls_server, ca_path, make_client):
    await accepted(make_client(tls_server, verify=ca_path, http2=True))
    assert len(tls_server.requests) == 1
