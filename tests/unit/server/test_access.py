"""Is a request refused when a web page or another user of the machine may have sent it?"""

import pytest

from shardline.errors import UsageError
from shardline.server.access import Access, check_allowed_host, check_token, host_of

HOST = "127.0.0.1:4567"
TOKEN = "0123456789abcdef-token"
JSON = {"host": HOST, "content-type": "application/json"}


@pytest.fixture
def access():
    return Access(["kinesis", "*.example.com"])


# ---- the host


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:4567", "LocalHost:4567", "localhost.", "localhost:", "kinesis.localhost:1", "a.b.localhost"),
        *("127.0.0.1", "127.0.0.1:4567", "0.0.0.0:80", "192.168.1.20:65535", "[::1]", "[::1]:4567", "[FE80::1]:0"),
        *("[::ffff:127.0.0.1]", "kinesis", "Kinesis:4567", "kinesis.", "a.example.com", "b.a.EXAMPLE.com:1"),
    ],
)  # fmt: skip
def test_addresses_localhost_and_allowed_names_are_served(access, host):
    assert [access.judge_host(host), access.judge_host(host)] == [None, None]


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:4567", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost"),
        *("kinesis.evil", "xkinesis", "example.com", "evilexample.com", "127.1", "2130706433", "0x7f.0.0.1", "127.0.0.256"),
        *("127.0.0.01", "localhost.localdomain", "_", "a" * 63 + ".b"),
    ],
)  # fmt: skip
def test_any_other_name_is_refused_with_the_option_that_allows_it(access, host):
    refusal = access.judge_host(host)
    assert (refusal.code, refusal.status) == ("AccessDeniedException", 403)
    name = host.partition(":")[0]
    assert f"--allow-host {name}," in refusal.message
    assert f"LocalKinesis(allow_host='{name}')" in refusal.message
    assert Access([name]).judge_host(host) is None, "and it does"


@pytest.mark.parametrize(
    "host",
    [
        *("", " ", ":", ":80", "localhost:x", "localhost:65536", "localhost:123456", "localhost:-1", "localhost:+1"),
        *("localhost:1:2", "localhost, localhost", "a, b", "user@localhost", "localhost/", "http://localhost", "[::1", "::1"),
        *("[::1]x", "[localhost]", "[]", "[::1%25eth0]", "[127.0.0.1]", "local host", "localhost\x00", "localhost\n", "é"),
        *("\udcff", "..", "localhost..", ".localhost", "a..localhost", "a" * 64, "a." * 126 + "localhost", "*.localhost", "\u0661"),
    ],
)  # fmt: skip
def test_a_host_that_is_malformed_is_refused(access, host):
    refusal = access.judge_host(host)
    assert (refusal.code, refusal.status) == ("AccessDeniedException", 400)
    assert "malformed" in refusal.message
    assert refusal.message.isascii() or not host.isascii()
    refusal.message.encode()  # so that it can be sent


def test_no_host_is_refused(access):
    refusal = access.judge_host(None)
    assert (refusal.status, refusal.message) == (400, "the request has no Host header")


def test_a_refusal_is_short_however_long_the_host_is(access):
    assert len(access.judge_host("a" * 100_000).message) < 300


def test_hosts_that_were_served_are_remembered_in_bounded_memory(access):
    for number in range(1_000):
        assert access.judge_host(f"a{number}.localhost") is None
        assert access.judge_host(f"a{number}.evil") is not None
    assert len(access._allowed_hosts) == 100


@pytest.mark.parametrize(
    ("authority", "host"), [("A.b:1", "a.b"), ("[::1]:2", "[::1]"), ("1.2.3.4", "1.2.3.4"), ("a b", None)]
)
def test_the_host_of_an_authority(authority, host):
    assert host_of(authority) == host


# ---- origins and content types


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": f"http://{HOST}"},
        {"origin": f"https://{HOST}", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"host": "LOCALHOST:4567", "origin": "http://localhost:4567"},
        {"content-type": "application/json; charset=utf-8"},
        {"content-type": "Application/JSON"},
    ],
)
def test_programs_and_pages_of_the_server_itself_are_served(access, headers):
    assert access.judge_control(JSON | headers, has_body=True) is None


@pytest.mark.parametrize("has_body", [True, False])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:4568"},
        {"origin": "http://127.0.0.1"},
        {"origin": "http://localhost:4567"},
        {"origin": HOST},
        {"origin": f"file://{HOST}"},
        {"origin": f"http://{HOST}, http://evil.example"},
        {"origin": f"http://{HOST}/"},
        {"origin": f"http://{HOST}", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": ""},
        {"origin": "\udcff" * 9999},
    ],
)
def test_a_page_of_another_origin_is_refused(access, headers, has_body):
    refusal = access.judge_control(JSON | headers, has_body=has_body)
    assert (refusal.code, refusal.status) == ("AccessDeniedException", 403)
    assert "another origin" in refusal.message
    assert len(refusal.message.encode()) < 1_000


def test_a_control_request_without_a_host_has_no_own_origin(access):
    assert access.judge_control({"origin": "http://"}, has_body=False).status == 403


@pytest.mark.parametrize(
    "content_type",
    [
        *("text/plain", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"),
        *("text/plain; application/json", "application/jsonp", "application/x-amz-json-1.1", "application/json, text/plain"),
    ],
)  # fmt: skip
def test_a_body_must_be_json(access, content_type):
    refusal = access.judge_control(JSON | {"content-type": content_type}, has_body=True)
    assert refusal.status == 415
    assert "needs the header Content-Type: application/json, not " in refusal.message
    assert access.judge_control(JSON | {"content-type": content_type}, has_body=False) is None


def test_a_body_without_a_content_type_is_refused(access):
    refusal = access.judge_control({"host": HOST}, has_body=True)
    wanted = "a control request with a body needs the header Content-Type: application/json"
    assert (refusal.status, refusal.message) == (415, wanted)


# ---- the token


def test_a_server_with_a_token_serves_those_who_know_it():
    access = Access(token=TOKEN)
    for good in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer  {TOKEN} "):
        assert access.judge_control(JSON | {"authorization": good}, has_body=True) is None
    wrong = [
        None,
        "",
        TOKEN,
        f"Basic {TOKEN}",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer \udcff",
    ]
    for one in wrong:
        refusal = access.judge_control(JSON if one is None else JSON | {"authorization": one}, has_body=True)
        assert (refusal.code, refusal.status) == ("AccessDeniedException", 403)
        assert refusal.message == "this server needs its token: send the header Authorization: Bearer TOKEN"


def test_the_health_path_needs_no_token_but_the_right_origin():
    access = Access(token=TOKEN)
    assert access.judge_control({"host": HOST}, has_body=False, is_health=True) is None
    assert access.judge_control({"host": HOST, "origin": "null"}, has_body=False, is_health=True).status == 403


def test_without_a_token_any_is_good(access):
    assert access.judge_control({"authorization": "Bearer x"}, has_body=False) is None


def test_no_token_is_shown():
    assert repr(Access(["kinesis"], token=TOKEN)) == "<Access by *.localhost, kinesis, localhost, with a token>"
    assert repr(Access()) == "<Access by *.localhost, localhost>"
    with pytest.raises(UsageError) as raised:
        check_token("a secret with spaces")
    assert "secret with" not in str(raised.value)


# ---- settings


@pytest.mark.parametrize("name", ["kinesis", "a.b-c_d", "*.example.com", "a" * 63, "KINESIS.", "10.0.0.1"])
def test_names_that_may_be_allowed(name):
    assert check_allowed_host(name) == name.lower().removesuffix(".")


@pytest.mark.parametrize(
    "name",
    ["", "*", "*.", "**.a", "a.*", "http://kinesis", "kinesis:4567", "a b", "[::1]", "é", "a\n", None, 7, b"a", "a" * 64],
)  # fmt: skip
def test_names_that_cannot_be_allowed(name):
    with pytest.raises(UsageError, match="an allowed host must be a name"):
        Access([name])


@pytest.mark.parametrize("token", ["", "short", "x" * 15, "x" * 257, "x" * 20 + "\n", "é" * 20, b"x" * 20, 7, True])
def test_tokens_that_cannot_be(token):
    with pytest.raises(UsageError, match="a token must be a str of 16 to 256 visible ASCII characters"):
        Access(token=token)
