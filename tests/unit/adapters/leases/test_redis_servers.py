"""Which servers does the URL of a Redis store name?"""

import pytest
import redis

from shardline import UsageError
from shardline.adapters.leases.redis import RedisLeases
from shardline.adapters.leases.redis_servers import Cluster, OneServer, parse_address


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "service", "plain"),
    [
        ("redis://h", "", [("h", 6379)], "", "redis://h:6379/"),
        ("rediss://u:p@h:1/2?ssl_ca_certs=/x", "", [("h", 1)], "", "rediss://u:p@h:1/2?ssl_ca_certs=/x"),
        ("redis://[::1]:7/0", "", [("::1", 7)], "", "redis://[::1]:7/0"),
        ("redis+cluster://a,b:7", "cluster", [("a", 6379), ("b", 7)], "", "redis://a:6379/"),
        ("rediss+cluster://u:p@a:1/0", "cluster", [("a", 1)], "", "rediss://u:p@a:1/0"),
        ("redis+sentinel://a/main", "sentinel", [("a", 26379)], "main", "redis://a:26379/"),
        ("redis+sentinel://:p@a:1,b/main/3", "sentinel", [("a", 1), ("b", 26379)], "main", "redis://:p@a:1/3"),
    ],
)
def test_urls(url, kind, hosts, service, plain):
    found = parse_address(url)
    assert (found.kind, found.hosts, found.service, found.plain_url) == (kind, hosts, service, plain)
    assert "p@" not in found.shown


@pytest.mark.parametrize(
    ("url", "plain", "sentinel"),
    [
        ("redis+sentinel://a/main", "redis://a:26379/", "redis://a:26379/"),
        ("redis+sentinel://u:p@a/main/3", "redis://u:p@a:26379/3", "redis://a:26379/"),
        ("redis+sentinel://u:p,v:p@a:1,b/main/3", "redis://u:p@a:1/3", "redis://v:p@a:1/"),
        (
            "rediss+sentinel://,:p@a/main?ssl_ca_certs=x",
            "rediss://a:26379/?ssl_ca_certs=x",
            "rediss://:p@a:26379/?ssl_ca_certs=x",
        ),
    ],
)
def test_logins_of_the_servers_and_of_the_sentinels(url, plain, sentinel):
    found = parse_address(url)
    assert (found.plain_url, found.sentinel_url) == (plain, sentinel)
    assert "p@" not in found.shown


def test_the_sentinels_get_their_own_login_and_tls():
    store = RedisLeases("rediss+sentinel://u:p%2C1,v:p%2C2@a,b:7/main/3?ssl_cert_reqs=none", "billing", "orders")
    pool = store._servers.client().connection_pool
    settings = [each.connection_pool.connection_kwargs for each in pool.sentinel_manager.sentinels]
    assert [(each["host"], each["port"]) for each in settings] == [("a", 26379), ("b", 7)]
    for each in settings:
        assert (each["username"], each["password"], each["db"]) == ("v", "p,2", 0)
        assert each["ssl_cert_reqs"] == "none"
    assert all(each.connection_pool.connection_class is redis.SSLConnection for each in pool.sentinel_manager.sentinels)
    assert issubclass(pool.connection_class, redis.SSLConnection)
    given = pool.connection_kwargs
    assert (given["username"], given["password"], given["db"]) == ("u", "p,1", 3)
    store._servers.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://a,b",
        "redis://a/x",
        "redis://a#f",
        "redis://a:99999",
        "redis://[::1",
        "redis+cluster://a/1",
        "redis+cluster://a,,b",
        "redis+sentinel://a",
        "redis+sentinel://a/",
        "redis+sentinel://a/main/x",
        "redis+other://a",
    ],
)
def test_urls_that_name_no_servers(url):
    assert parse_address(url) is None
    with pytest.raises(UsageError, match="names no Redis database"):
        RedisLeases(url, "billing", "orders")


def test_parameters():
    with pytest.raises(UsageError, match="must not have the parameter 'password'"):
        parse_address("redis+cluster://a?password=secret")
    with pytest.raises(UsageError, match="redis-py cannot read the store's URL at a"):
        RedisLeases("redis+cluster://a?socket_timeout=soon", "billing", "orders")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://a", OneServer),
        ("rediss+sentinel://u:secret@a/main", OneServer),
        ("rediss+sentinel://u:secret,v:secret@a/main", OneServer),
        ("rediss+cluster://u:secret@a,b?ssl_cert_reqs=none", Cluster),
    ],
)
def test_nothing_connects_before_the_store_is_opened(url, kind):
    store = RedisLeases(url, "billing", "orders")
    assert type(store._servers) is kind
    assert "secret" not in repr(store)
    store._servers.close()
