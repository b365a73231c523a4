"""Signature Version 4 by example.

The expected signatures were made with ``botocore.auth.SigV4Auth`` 1.43.117.
``tests/properties/test_sigv4_properties.py`` compares with the installed version, for any request.
"""

import traceback

import pytest

from shardline.codec import sigv4
from shardline.codec.sigv4 import Signer, payload_sha256
from shardline.errors import UsageError
from shardline.model.credentials import Credentials

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
TOKEN = "FwoGZXIvYXdzEXAMPLETOKEN//////////"
HOST = "kinesis.eu-west-1.amazonaws.com"
HEADERS = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "Kinesis_20131202.PutRecords"}
BODY = b'{"StreamName":"orders"}'
NOW = 1_700_000_000.75  # 2023-11-14 22:13:20.75


def signer(token=None):
    return Signer(Credentials("AKIDEXAMPLE", SECRET, token), region="eu-west-1", service="kinesis")


def sign(by=None, **changes):
    arguments = {"host": HOST, "headers": HEADERS, "payload_sha256": payload_sha256(BODY), "timestamp": NOW}
    return (by or signer()).sign(**(arguments | changes))


def signed_headers(added):
    return added["Authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")


class TestWhatIsSigned:
    def test_with_lasting_keys(self):
        assert sign() == {
            "X-Amz-Date": "20231114T221320Z",
            "Authorization": (
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20231114/eu-west-1/kinesis/aws4_request, "
                "SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature=dd069b41b1d07674bc0bf0f4be39d84c1503333218e06e6baba51f81d7c254e5"
            ),
        }

    def test_with_a_session_token(self):
        assert sign(signer(TOKEN)) == {
            "X-Amz-Date": "20231114T221320Z",
            "X-Amz-Security-Token": TOKEN,
            "Authorization": (
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20231114/eu-west-1/kinesis/aws4_request, "
                "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target, Signature=93c3ea14293ff9f8c42c9b9bc8417fc81c5edf6bc2a5381c39ec76c99b2a18c5"
            ),
        }

    def test_an_empty_token_is_none(self):
        assert sign(signer("")) == sign()

    def test_credentials_of_another_class_serve_as_well(self):
        class Other:
            access_key = "AKIDEXAMPLE"
            secret_key = SECRET
            session_token = None

        assert sign(Signer(Other(), region="eu-west-1", service="kinesis")) == sign()

    def test_what_proxies_and_tracers_change_is_not_signed(self):
        noise = dict.fromkeys(("User-Agent", "Connection", "X-Amzn-Trace-Id", "traceparent", "TE", "Expect"), "x")
        assert sign(headers=HEADERS | noise) == sign()
        assert "accept-encoding" in signed_headers(sign(headers=HEADERS | {"Accept-Encoding": "identity"}))

    def test_names_and_white_space_do_not_matter(self):
        same = {"X-AMZ-TARGET": "\tKinesis_20131202.PutRecords ", "content-type": " application/x-amz-json-1.1"}
        assert sign(headers=same) == sign()
        assert sign(headers={"a": " b \t  c "}) == sign(headers={"A": "b c"})

    def test_names_that_differ_in_case_only_are_one_header_with_two_values(self):
        assert sign(headers={"X-A": "1", "x-a": " 2"}) == sign(headers={"x-a": "1,2"})

    @pytest.mark.parametrize(
        ("host", "same"),
        [
            (HOST.upper(), HOST),
            (HOST + ":443", HOST),
            (HOST + ":", HOST),
            ("localhost:04567", "LOCALHOST:4567"),
            ("[::1]:443", "[::1]"),
            ("[FE80::1]:4567", "[fe80::1]:4567"),
        ],
    )
    def test_hosts_have_one_form(self, host, same):
        assert sign(host=host) == sign(host=same)
        assert sign(host=host) == sign(headers=HEADERS | {"Host": same.lower()})

    def test_other_ports_are_part_of_the_host(self):
        assert sign(host="localhost:4567") != sign(host="localhost")

    @pytest.mark.parametrize(
        ("path", "canonical"),
        [
            ("/", "/"),
            ("", "/"),
            ("//", "/"),
            ("/a//b/", "/a/b/"),
            ("/./a/../b/.", "/b"),
            ("/../..", "/"),
            ("/a/..", "/"),
            ("/~a b/ü", "/~a%20b/%C3%BC"),
            ("/a%20b", "/a%2520b"),
        ],
    )
    def test_paths_have_one_form(self, path, canonical):
        assert sigv4._canonical_path(path) == canonical
        assert (sign(path=path) == sign()) is (canonical == "/")

    def test_the_hash_of_a_body(self):
        assert payload_sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        assert sign(payload_sha256=payload_sha256(b"other")) != sign()

    @pytest.mark.parametrize(
        ("timestamp", "date"),
        [
            (0, "19700101T000000Z"),
            (0.999, "19700101T000000Z"),
            (951_782_400.0, "20000229T000000Z"),
            (1_700_000_000, "20231114T221320Z"),
            (253_402_300_799.5, "99991231T235959Z"),
        ],
    )
    def test_the_date_is_the_second_that_has_begun(self, timestamp, date):
        added = sign(timestamp=timestamp)
        assert added["X-Amz-Date"] == date
        assert f"/{date[:8]}/" in added["Authorization"]


class TestWhatIsRefused:
    """Headers that no request of ours has."""

    @pytest.mark.parametrize("name", ["Authorization", "DATE", "x-amz-date", "X-Amz-Security-Token"])
    def test_headers_that_the_signature_sets(self, name):
        with pytest.raises(UsageError, match=name):
            sign(headers=HEADERS | {name: "x"})

    @pytest.mark.parametrize(
        "host", ["", "a/b", "user@a", "a b", "a:b", "a:1:2", "a\n", "[::1", "a?b", "a#b", "https://a", "a:123456"]
    )
    def test_hosts(self, host):
        with pytest.raises(UsageError, match="host"):
            sign(host=host)

    @pytest.mark.parametrize("path", ["a", "/a?b", "/a#b", "/a\nb", "?", "*"])
    def test_paths(self, path):
        with pytest.raises(UsageError, match="path"):
            sign(path=path)

    @pytest.mark.parametrize("timestamp", [-0.001, float("nan"), float("inf"), -float("inf"), 253_402_300_800.0])
    def test_times(self, timestamp):
        by = signer()
        for _ in range(2):  # even if the last second is cached
            with pytest.raises(UsageError, match="time"):
                sign(by, timestamp=timestamp)
            sign(by)

    @pytest.mark.parametrize(
        "changes", [{"path": "/\ud800"}, {"host": "\ud800"}, {"headers": {"a": "\ud800"}}, {"headers": {"\ud800": "a"}}]
    )
    def test_lone_surrogates(self, changes):
        with pytest.raises(UsageError, match="surrogate"):
            sign(**changes)

    def test_invalid_hashes(self):
        with pytest.raises(UsageError, match="hexadecimal"):
            sign(payload_sha256="\ud800")

    @pytest.mark.parametrize("field", ["access_key", "secret_key", "session_token"])
    @pytest.mark.parametrize("value", [b"bytes", 1, "line\n", "\x00", "tab\t", "\x7f", "\ud800"])
    def test_keys(self, field, value):
        keys = {"access_key": "AKID", "secret_key": SECRET, field: value}
        with pytest.raises(UsageError):
            Signer(Credentials(**keys), region="eu-west-1", service="kinesis")

    @pytest.mark.parametrize("field", ["access_key", "secret_key", "region", "service"])
    def test_emptiness(self, field):
        given = {"access_key": "AKID", "secret_key": SECRET, "region": "eu-west-1", "service": "kinesis", field: ""}
        with pytest.raises(UsageError, match=field):
            Signer(
                Credentials(given["access_key"], given["secret_key"]), region=given["region"], service=given["service"]
            )

    @pytest.mark.parametrize("names", [{"region": None, "service": "kinesis"}, {"region": "eu-west-1", "service": 5}])
    def test_names_that_are_no_text(self, names):
        with pytest.raises(UsageError, match="must be a str"):
            Signer(Credentials("AKID", SECRET), **names)


class TestSecrets:
    def test_no_representation_shows_them(self):
        credentials = Credentials("AKIDEXAMPLE", SECRET, TOKEN)
        by = Signer(credentials, region="eu-west-1", service="kinesis")
        sign(by)
        inside = [getattr(by, name) for name in ("_stamp", "_plans")]
        for thing in (credentials, by, *inside):
            for text in (repr(thing), str(thing), f"{thing}", f"{[thing]}"):
                assert SECRET not in text
                assert TOKEN not in text
        assert "AKIDEXAMPLE" in repr(by)
        assert "AKIDEXAMPLE" in repr(credentials)

    @pytest.mark.parametrize(
        "changes",
        [
            {"headers": {"a": "\ud800"}},
            {"headers": {"Date": "x"}},
            {"host": "\ud800"},
            {"host": "a b"},
            {"path": "/\ud800"},
            {"path": "a"},
            {"timestamp": -1.0},
            {"timestamp": "now"},
            {"payload_sha256": "\ud800"},
            {"headers": {"a": b"bytes"}},
            {"headers": {"a": None}},
        ],
    )
    def test_no_exception_of_sign_shows_them(self, changes):
        with pytest.raises(Exception) as refused:  # noqa: PT011 - whatever comes, it must not tell
            sign(signer(TOKEN), **changes)
        assert_tells_nothing(refused.value, SECRET, TOKEN)

    @pytest.mark.parametrize("end", ["\n", "\ud800", "\x00"])
    def test_no_exception_of_the_constructor_shows_them(self, end):
        for keys in (("AKID", SECRET + end), ("AKID", SECRET, TOKEN + end), ("AKID", SECRET.encode()), (None, SECRET)):
            with pytest.raises(UsageError) as refused:
                Signer(Credentials(*keys), region="eu-west-1", service="kinesis")
            assert_tells_nothing(refused.value, SECRET, TOKEN)

    def test_credentials_cannot_be_changed(self):
        with pytest.raises(AttributeError) as refused:
            Credentials("AKID", SECRET, TOKEN).secret_key = "other"
        assert_tells_nothing(refused.value, SECRET, TOKEN)


def assert_tells_nothing(error, *secrets):
    """Check that neither the error nor its cause reveals the secret, in any form that a log or an error tracker keeps."""
    seen = error
    while seen is not None:
        for text in (str(seen), repr(seen), repr(seen.args), "".join(traceback.format_exception(seen))):
            assert not any(secret in text for secret in secrets)
        seen = seen.__context__


class TestMemory:
    def test_a_signer_that_remembers_signs_like_a_new_one(self):
        by = signer(TOKEN)
        times = (NOW, NOW + 0.2, NOW + 1, NOW - 5, NOW + 86_400, NOW, 0.0, NOW)
        for timestamp in times:
            for host in (HOST, "localhost:4567"):
                for headers in (HEADERS, HEADERS | {"X-Amz-Target": "Kinesis_20131202.GetRecords"}, {}):
                    case = {"timestamp": timestamp, "host": host, "headers": headers}
                    assert sign(by, **case) == sign(signer(TOKEN), **case)

    def test_the_key_of_a_day_is_derived_once(self, monkeypatch):
        derived = []
        digest = sigv4.hmac.digest
        monkeypatch.setattr(sigv4.hmac, "digest", lambda *args: derived.append(args) or digest(*args))
        by = signer()
        for second in range(5):
            sign(by, timestamp=NOW + second)
        assert len(derived) == 4
        sign(by, timestamp=NOW + 86_400)
        assert len(derived) == 8

    def test_what_is_remembered_is_bounded(self):
        by = signer()
        for number in range(1_000):
            added = sign(by, headers=HEADERS | {"Content-Length": str(number)})
        assert added == sign(headers=HEADERS | {"Content-Length": "999"})
        assert len(by._plans) <= 64

    def test_headers_changed_after_a_signature_do_not_change_it(self):
        by = signer()
        headers = dict(HEADERS)
        first = sign(by, headers=headers)
        headers["X-Amz-Target"] = "Kinesis_20131202.GetRecords"
        assert sign(by, headers=headers) == sign(headers=headers) != first
