"""Which route does a request take, and what happens if a proxy on it refuses?"""

import base64
import gc
import ssl

import anyio
import pytest
import trustme

from shardline import ServiceError, TransportError, UsageError

pytestmark = pytest.mark.anyio

ENTRIES = [(b"x", "k")]
LOGIN = "us%40er:pa%3Ass%C3%A9"
LOGIN_SENT = "Basic " + base64.b64encode("us@er:pa:ssé".encode()).decode()


@pytest.fixture
def proxy(start_server):
    return start_server()


def target_of(server):
    return ("127.0.0.1", server.port)


async def put(client):
    async with client:
        await client.put_records("orders", ENTRIES)


async def failed_put(client):
    async with client:
        with pytest.raises(TransportError) as caught:
            await client.put_records("orders", ENTRIES)
    return caught.value


async def test_a_tunnel_with_a_login(proxy, tls_server, ca_path, make_client):
    proxy.tunnel(target_of(tls_server))
    async with make_client(tls_server, verify=ca_path, proxies={"https": f"http://{LOGIN}@{proxy.host}"}) as client:
        for _ in range(3):
            await client.put_records("orders", ENTRIES)
    [connect] = proxy.requests
    assert (connect.method, connect.target) == ("CONNECT", tls_server.host)
    assert connect.headers["proxy-authorization"] == LOGIN_SENT
    assert len(tls_server.requests) == 3
    assert tls_server.connections == 1
    assert all("proxy-authorization" not in request.headers for request in tls_server.requests)


async def test_a_tunnel_without_a_login(proxy, tls_server, ca_path, make_client):
    proxy.tunnel(target_of(tls_server))
    await put(make_client(tls_server, verify=ca_path, proxies={"https": f"http://{proxy.host}"}))
    assert "proxy-authorization" not in proxy.requests[0].headers
    assert len(tls_server.requests) == 1


@pytest.mark.parametrize("login", ["", f"{LOGIN}@"])
async def test_a_plain_request_goes_whole_to_the_proxy(login, proxy, server, make_client):
    await put(make_client(server, proxies={"http": f"http://{login}{proxy.host}"}))
    [request] = proxy.requests
    assert (request.method, request.target) == ("POST", f"{server.url}/")
    assert request.headers["host"] == server.host
    assert request.headers.get("proxy-authorization") == (LOGIN_SENT if login else None)
    assert "proxy-authorization" not in request.headers["authorization"]  # not signed: a proxy removes it
    assert server.connections == 0


async def test_an_https_proxy(start_server, server_tls, tls_server, ca_path, make_client):
    proxy = start_server(server_tls)
    proxy.tunnel(target_of(tls_server))
    await put(make_client(tls_server, verify=ca_path, proxies={"https": f"https://{proxy.host}"}))
    assert len(proxy.requests) == len(tls_server.requests) == 1


async def test_a_proxy_that_wants_a_login(proxy, tls_server, ca_path, make_client):
    proxy.reply(b"", status=407, headers={"Proxy-Authenticate": "Basic"})
    error = await failed_put(make_client(tls_server, verify=ca_path, proxies={"https": f"http://{proxy.host}"}))
    assert (error.code, error.kind, error.status) == ("ProxyLoginError", "transient", None)
    assert (error.maybe_received, error.retryable) == (False, True)
    assert tls_server.host in str(error)
    assert "HTTPS_PROXY" in str(error)
    assert (len(proxy.requests), tls_server.connections) == (1, 0)


async def test_a_proxy_that_wants_a_login_for_a_plain_request(proxy, server, make_client):
    proxy.reply(b"", status=407)
    async with make_client(server, proxies={"http": f"http://{proxy.host}"}) as client:
        with pytest.raises(ServiceError) as caught:
            await client.put_records("orders", ENTRIES)
    told = (caught.value.code, caught.value.kind, caught.value.status)
    assert told == ("ProxyAuthenticationRequired", "transient", 407)


async def test_a_proxy_that_cannot_connect(proxy, tls_server, ca_path, make_client):
    proxy.reply(b"no route", status=502)
    error = await failed_put(make_client(tls_server, verify=ca_path, proxies={"https": f"http://{proxy.host}"}))
    assert (error.code, error.kind, error.maybe_received, error.retryable) == ("ProxyError", "transient", False, True)
    assert "502" in str(error)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "shardline-proxy.invalid:3128"])
async def test_a_proxy_that_is_not_there(address, tls_server, ca_path, make_client):
    error = await failed_put(make_client(tls_server, verify=ca_path, proxies={"https": f"http://u:hush@{address}"}))
    assert (error.code, error.kind, error.maybe_received) == ("ProxyError", "transient", False)
    assert "hush" not in str(error)


async def test_a_proxy_that_does_not_answer(proxy, tls_server, ca_path, make_client):
    proxy.then_stay()
    settings = {"verify": ca_path, "connect_timeout": 0.2, "read_timeout": 0.2}
    error = await failed_put(make_client(tls_server, proxies={"https": f"http://{proxy.host}"}, **settings))
    assert error.code in {"ConnectTimeout", "ReadTimeout"}
    assert error.kind == "transient"


async def test_a_proxy_that_closes(proxy, tls_server, ca_path, make_client):
    proxy.raw()
    error = await failed_put(make_client(tls_server, verify=ca_path, proxies={"https": f"http://{proxy.host}"}))
    assert error.kind == "transient"
    assert tls_server.connections == 0


async def test_a_man_in_the_middle_is_not_trusted_however_often_it_is_tried(proxy, start_server, make_client):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    middle = start_server(context)
    async with make_client(middle, max_connections=1, proxies={"https": f"http://{proxy.host}"}) as client:
        for _ in range(3):  # with at most one connection: a failed tunnel must not stay in the pool
            proxy.tunnel(target_of(middle))
            with anyio.fail_after(5):
                with pytest.raises(TransportError) as caught:
                    await client.put_records("orders", ENTRIES)
            assert (caught.value.code, caught.value.kind) == ("CertificateError", "untrusted")
    assert middle.requests == []
    gc.collect()


async def test_a_tunnel_that_is_cancelled_leaves_the_client_usable(
    *, proxy, tls_server, ca_path, make_client, cancelled_when
):
    proxy.then_stay(b"HTTP/1.1 200 OK\r\n\r\n")  # and then it does not speak TLS
    async with make_client(
        tls_server, verify=ca_path, max_connections=1, proxies={"https": f"http://{proxy.host}"}
    ) as client:
        await cancelled_when(lambda: proxy.requests, client.put_records, "orders", ENTRIES)
        proxy.tunnel(target_of(tls_server))
        with anyio.fail_after(5):
            await client.put_records("orders", ENTRIES)
    gc.collect()


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
async def test_the_environment_names_a_proxy(variable, *, proxy, tls_server, ca_path, make_client, monkeypatch):
    monkeypatch.setenv(variable, f"http://{LOGIN}@{proxy.host}")
    proxy.tunnel(target_of(tls_server))
    await put(make_client(tls_server, verify=ca_path))
    assert proxy.requests[0].headers["proxy-authorization"] == LOGIN_SENT


@pytest.mark.parametrize("exempt", ["127.0.0.1", "*", "localhost,127.0.0.1", "127.0.0.1:{port}"])
async def test_the_environment_names_exceptions(exempt, proxy, server, make_client, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.host}")
    monkeypatch.setenv("NO_PROXY", exempt.format(port=server.port))
    await put(make_client(server))
    assert (proxy.connections, len(server.requests)) == (0, 1)


async def test_an_explicit_proxy_wins_over_the_environment(proxy, server, make_client, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "*")
    await put(make_client(server, proxies={"http": f"http://{proxy.host}"}))
    assert len(proxy.requests) == 1
    await put(make_client(server, proxies={}))  # explicitly no proxy
    assert len(server.requests) == 1


@pytest.mark.parametrize("value", ["socks5://user:hush@127.0.0.1:1", "http://[user:hush@", "http://user:hush@:x"])
async def test_an_invalid_proxy_in_the_environment(value, server, make_client, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", value)
    error = await failed_put(make_client(server))
    assert (error.code, error.kind, error.maybe_received) == ("HttpClientError", "invalid", False)
    assert "hush" not in str(error)
    assert server.connections == 0


@pytest.mark.parametrize(
    "value",
    [
        {"https": "socks5://user:hush@proxy"},
        {"ftp": "http://proxy"},
        {"http": 3},
        "http://proxy",
        {"http": "http://user:hush@"},
    ],
)
def test_a_wrong_proxy_is_refused_at_once(value, make_client):
    with pytest.raises(UsageError, match="prox") as caught:
        make_client("http://127.0.0.1:1", proxies=value)
    assert "hush" not in str(caught.value)
