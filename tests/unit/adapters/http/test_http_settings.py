"""Which timeouts, trust and proxies result from the settings?"""

import dataclasses
import ssl

import pytest
import trustme

from shardline.adapters.http.http_settings import (
    HttpSettings,
    Proxy,
    environment_ca_bundle,
    make_ssl_context,
    parse_proxy,
    proxy_for,
)
from shardline.errors import UsageError


@pytest.fixture(autouse=True)
def no_ambient_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "request_method", "aws_ca_bundle"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)


@pytest.mark.parametrize("name", ["connect_timeout", "read_timeout", "idle_timeout"])
@pytest.mark.parametrize("wrong", [0, -1, 3601, float("nan"), float("inf"), "5", None, True])
def test_a_wrong_timeout_is_named(name, wrong):
    with pytest.raises(UsageError, match=name):
        HttpSettings(**{name: wrong})


@pytest.mark.parametrize("wrong", [0, -1, 10_001, 2.0, "5", None, True])
def test_a_wrong_number_of_connections_is_named(wrong):
    with pytest.raises(UsageError, match="max_connections"):
        HttpSettings(max_connections=wrong)


@pytest.mark.parametrize("wrong", [None, 1, b"path"])
def test_a_wrong_trust_is_named(wrong):
    with pytest.raises(UsageError, match="verify"):
        HttpSettings(verify=wrong)


@pytest.mark.parametrize(
    "wrong", ["http://proxy", [("http", "http://proxy")], {"socks": "http://p"}, {"http": None}, {"http": ""}]
)
def test_wrong_proxies_are_refused(wrong):
    with pytest.raises(UsageError, match="prox"):
        HttpSettings(proxies=wrong)


def test_good_settings_pass_and_cannot_be_changed():
    settings = HttpSettings(connect_timeout=1, read_timeout=3600, proxies={"https": "http://u:hush@proxy:3128"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.read_timeout = 1
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "proxy"),
    [
        ("http://proxy:3128", Proxy("http://proxy:3128")),
        ("proxy:3128", Proxy("http://proxy:3128")),
        ("https://Proxy.Example", Proxy("https://proxy.example")),
        ("http://user@proxy", Proxy("http://proxy", "user")),
        ("http://us%40er:p%3Ass%2F@proxy:1/", Proxy("http://proxy:1", "us@er", "p:ss/")),
        ("http://user:@[::1]:8080", Proxy("http://[::1]:8080", "user")),
    ],
)
def test_a_proxy_is_read(text, proxy):
    assert parse_proxy(text) == proxy


@pytest.mark.parametrize(
    "text", ["", "http://", "socks5://proxy", "ftp://proxy", "http://user:hush@", "http://user:hush@proxy:port", "http://[user:hush@", "http://hush.bücher.example"]
)  # fmt: skip
def test_what_is_no_proxy_is_refused_without_being_shown(text):
    with pytest.raises(UsageError, match="http://host:port") as caught:
        parse_proxy(text)
    assert "hush" not in str(caught.value)


def test_a_login_is_sent_as_basic_authorization():
    assert Proxy("http://p", "Aladdin", "open sesame").authorization == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    assert Proxy("http://p", "user").authorization == "Basic dXNlcjo="
    assert Proxy("http://p", "é", "ü").authorization == "Basic w6k6w7w="
    assert "hush" not in repr(Proxy("http://p", "user", "hush"))


@pytest.mark.parametrize(
    ("environment", "url", "found"),
    [
        ({}, "https://host", None),
        ({"HTTPS_PROXY": "http://s"}, "https://host", "http://s"),
        ({"HTTPS_PROXY": "http://s"}, "http://host", None),
        ({"https_proxy": "http://small", "HTTPS_PROXY": "http://large"}, "https://host", "http://small"),
        ({"HTTP_PROXY": "p:1"}, "http://host", "http://p:1"),
        ({"ALL_PROXY": "http://a"}, "https://host", "http://a"),
        ({"ALL_PROXY": "http://a", "HTTPS_PROXY": "http://s"}, "https://host", "http://s"),
        ({"HTTPS_PROXY": "http://s", "NO_PROXY": "host"}, "https://host", None),
        ({"HTTPS_PROXY": "http://s", "NO_PROXY": "*"}, "https://host", None),
        ({"HTTPS_PROXY": "http://s", "NO_PROXY": ".example"}, "https://a.example", None),
        ({"HTTPS_PROXY": "http://s", "NO_PROXY": "example"}, "https://other", "http://s"),
        ({"HTTPS_PROXY": "http://s", "NO_PROXY": "host:8443"}, "https://host:8443", None),
        ({"HTTPS_PROXY": "http://s", "NO_PROXY": "host:8443"}, "https://host", "http://s"),
        ({"HTTPS_PROXY": "http://s", "NO_PROXY": "::1"}, "https://[::1]:99", None),
        ({"HTTP_PROXY": "http://p", "REQUEST_METHOD": "GET"}, "http://host", None),
    ],
)
def test_the_environment_decides_where_nothing_is_said(environment, url, found, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    proxy = proxy_for(url, None)
    assert (None if proxy is None else proxy.url) == found


def test_what_is_said_wins(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://ambient")
    monkeypatch.setenv("NO_PROXY", "*")
    assert proxy_for("https://host", {"https": "http://own"}) == Proxy("http://own")
    assert proxy_for("https://host", {"http": "http://own"}) is None
    assert proxy_for("https://host", {}) is None


def test_certificates_are_verified_by_default():
    default = make_ssl_context(verify=True, ca_bundle=None)
    assert (default.verify_mode, default.check_hostname) == (ssl.CERT_REQUIRED, True)
    # The system may have no certificates: botocore's bundle is included.
    assert default.cert_store_stats()["x509_ca"] > 50
    off = make_ssl_context(verify=False, ca_bundle=None)
    assert (off.verify_mode, off.check_hostname) == (ssl.CERT_NONE, False)


def test_an_authority_replaces_all_others(tmp_path):
    own, ambient = tmp_path / "own.pem", tmp_path / "ambient.pem"
    trustme.CA(organization_name="own").cert_pem.write_to_path(own)
    trustme.CA(organization_name="ambient").cert_pem.write_to_path(ambient)

    def trusted(context):
        return [dict(part[0] for part in one["subject"])["organizationName"] for one in context.get_ca_certs()]

    assert trusted(make_ssl_context(str(own), str(ambient))) == ["own"]
    assert trusted(make_ssl_context(verify=True, ca_bundle=str(ambient))) == ["ambient"]
    assert make_ssl_context(str(own), None).verify_mode is ssl.CERT_REQUIRED
    assert make_ssl_context(verify=False, ca_bundle=str(ambient)).verify_mode is ssl.CERT_NONE


def test_a_context_is_taken_as_it_is():
    context = ssl.create_default_context()
    assert make_ssl_context(context, "/no/such/file") is context


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"\xff\xfe"])
def test_an_authority_that_cannot_be_read(content, tmp_path):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"ca\.pem"):
        make_ssl_context(str(path), None)
    with pytest.raises(UsageError, match=r"ca\.pem"):
        make_ssl_context(verify=True, ca_bundle=str(path))


def test_the_authority_of_the_environment(monkeypatch):
    assert environment_ca_bundle() is None
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/requests.pem")
    assert environment_ca_bundle() == "/requests.pem"
    monkeypatch.setenv("AWS_CA_BUNDLE", "/aws.pem")
    assert environment_ca_bundle() == "/aws.pem"
    monkeypatch.setenv("AWS_CA_BUNDLE", "")
    assert environment_ca_bundle() == "/requests.pem"
