"""``shardline doctor`` without a stream checks the connection, the credentials and the account.

The real command, as a process of its own.
"""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from shardline.testing import LocalKinesis

NETWORK = ["DNS", "TCP", "TLS"]
ACCOUNT = ["identity", "streams", "limits", "may ListStreams", "may DescribeLimits"]
EVERY_CHECK = {"implementation", "region", "credentials", *NETWORK, "endpoint", "clock", *ACCOUNT}


@pytest.fixture
def diagnose(shardline):
    """Run ``shardline doctor``, and return the findings by check."""

    def diagnose(*arguments, code=0, **changes):
        ended = shardline("doctor", "--output", "json", *arguments, code=code, **changes)
        document = json.loads(ended.stdout)
        assert (document["stream"], document["ok"]) == (None, code == 0)
        found = {finding["check"]: finding for finding in document["checks"]}
        assert len(found) == len(document["checks"])
        for finding in found.values():
            assert (finding["advice"] is not None) == (finding["verdict"] in {"warning", "failed"}), finding
        return found

    return diagnose


def verdicts(found, *wanted):
    return {check: finding["verdict"] for check, finding in found.items() if finding["verdict"] in wanted}


def test_everything_is_well_and_nothing_is_changed(diagnose, kinesis):
    found = diagnose()
    assert set(found) == EVERY_CHECK
    assert verdicts(found, "failed", "warning") == {}
    assert set(verdicts(found, "not checked")) == {"TLS", "identity"}
    assert found["DNS"]["seen"] == "not needed: 127.0.0.1 is an address"
    assert found["TCP"]["seen"].startswith("connected to 127.0.0.1, port ")
    assert found["streams"]["seen"] == "1 stream: orders"
    assert found["limits"]["seen"] == "2 of 20,000 open shards, 0 of 50 on-demand streams"
    assert kinesis.requests.total == kinesis.requests.count("ListStreams") + kinesis.requests.count("DescribeLimits")


def test_the_table_points_to_the_checks_of_a_stream(shardline):
    ended = shardline("doctor")
    assert ended.lines[0].split() == ["CHECK", "RESULT,", "AND", "WHAT", "TO", "DO"]
    assert ended.stderr.splitlines() == [
        "0 failed, 0 warnings",
        "`shardline doctor STREAM` also checks a stream, and the permissions on it",
    ]


def test_options_that_need_a_stream(shardline):
    assert shardline("doctor", "--for", "producer", code=2).stderr == "Error: --for works only with a STREAM\n"
    assert shardline("doctor", "--no-sample", code=2).stderr == "Error: --sample works only with a STREAM\n"


def test_a_store_is_checked_without_a_stream_too(diagnose, tmp_path):
    found = diagnose("--store", f"sqlite:///{tmp_path}/missing.db")
    assert found["store"]["verdict"] == "warning"


# ---- the network


def test_a_name_that_cannot_be_resolved(diagnose):
    found = diagnose("--endpoint-url", "https://kinesis.invalid", code=1)
    assert verdicts(found, "failed") == {"DNS": "failed"}
    assert found["DNS"]["seen"].startswith("kinesis.invalid cannot be resolved: ")
    assert set(verdicts(found, "not checked")) == EVERY_CHECK - {"implementation", "region", "credentials", "DNS"}


def test_a_name_that_can_be_resolved(diagnose, kinesis):
    port = kinesis.endpoint_url.rpartition(":")[2]
    assert "127.0.0.1" in diagnose("--endpoint-url", f"http://localhost:{port}")["DNS"]["seen"]


def test_a_dead_endpoint(diagnose):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = diagnose("--endpoint-url", f"http://127.0.0.1:{port}", code=1)
    assert verdicts(found, "failed") == {"TCP": "failed"}
    assert found["TCP"]["seen"] == f"no connection to 127.0.0.1, port {port}: Connection refused"
    assert found["may ListStreams"]["seen"] == "an earlier check failed"


def test_tls(shardline, diagnose):
    with LocalKinesis(tls=True) as kinesis:
        found = diagnose(**kinesis.environment)
        assert "the certificate of 127.0.0.1 is verified" in found["TLS"]["seen"]
        assert found["streams"]["verdict"] == "warning", "there are none"
        found = diagnose(code=1, **kinesis.environment | {"AWS_CA_BUNDLE": None})
        assert verdicts(found, "failed") == {"TLS": "failed"}
        assert "cannot be verified" in found["TLS"]["seen"]
        assert "AWS_CA_BUNDLE" in found["TLS"]["advice"]
        found = diagnose(code=1, **kinesis.environment | {"AWS_CA_BUNDLE": "/missing.pem"})
        assert "'/missing.pem' cannot be read" in found["TLS"]["seen"]


def test_a_plain_server_behind_https(diagnose, kinesis):
    found = diagnose("--endpoint-url", kinesis.endpoint_url.replace("http:", "https:"), code=1)
    assert verdicts(found, "failed") == {"TLS": "failed"}
    assert "does the server speak https" in found["TLS"]["advice"]


def test_a_proxy_is_what_is_connected_to(diagnose, kinesis):
    port = kinesis.endpoint_url.rpartition(":")[2]
    found = diagnose("--endpoint-url", "https://kinesis.invalid", code=1, HTTPS_PROXY=f"http://127.0.0.1:{port}")
    assert found["TCP"]["seen"].startswith(f"connected to the proxy 127.0.0.1, port {port}, in ")
    assert found["TLS"]["seen"] == "a proxy connects to the endpoint"
    assert verdicts(found, "failed") == {"endpoint": "failed"}
    found = diagnose("--endpoint-url", "https://kinesis.invalid", code=1, HTTPS_PROXY="socks://secret@here")
    assert verdicts(found, "failed") == {"proxy": "failed"}
    assert "secret" not in str(found)


def test_a_clock_that_is_wrong(diagnose, kinesis):
    kinesis.faults.clock_skew(-600)
    found = diagnose(code=1)
    assert verdicts(found, "failed") == {"clock": "failed"}
    assert "NTP" in found["clock"]["advice"]


# ---- the credentials


def test_no_region(diagnose):
    found = diagnose(code=1, AWS_REGION=None, AWS_DEFAULT_REGION=None)
    assert verdicts(found, "failed") == {"region": "failed"}
    assert set(verdicts(found, "not checked")) == EVERY_CHECK - {"implementation", "region", "credentials"}


def test_no_credentials(diagnose, kinesis):
    found = diagnose(code=1, AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None)
    assert verdicts(found, "failed") == {"credentials": "failed"}
    assert found["TCP"]["verdict"] == "ok"
    assert found["may ListStreams"]["seen"] == "nothing is sent without credentials"
    assert kinesis.requests.total == 0


@pytest.mark.parametrize(
    ("variables", "advice"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "the secret key does not belong"),
        ({"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN"}, "the access key is unknown"),
    ],
)
def test_credentials_that_are_refused(diagnose, variables, advice):
    with LocalKinesis(stream="orders", verify_signatures=True) as kinesis:
        found = diagnose(code=1, **kinesis.environment | variables)
        assert verdicts(found, "failed") == {"identity": "failed"}
        assert advice in found["identity"]["advice"]
        assert found["streams"]["seen"] == "the service does not accept the credentials"


IDENTITY = b"""<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>arn:aws:iam::111122223333:user/alice</Arn><UserId>AIDA</UserId><Account>111122223333</Account>
</GetCallerIdentityResult></GetCallerIdentityResponse>"""
REFUSAL = b"""<ErrorResponse><Error><Code>InvalidClientTokenId</Code><Message>The token is invalid.</Message></Error>
</ErrorResponse>"""


@pytest.fixture
def sts():
    """A server that answers like STS, and the answers that it gives."""
    answers = []

    class Sts(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Sts)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_caller_is_named_by_sts(diagnose, sts):
    url, answers = sts
    answers += [(200, IDENTITY), (403, REFUSAL)]
    found = diagnose(AWS_ENDPOINT_URL_STS=url)
    assert (found["identity"]["verdict"], found["identity"]["seen"]) == (
        "ok",
        "arn:aws:iam::111122223333:user/alice",
    )
    found = diagnose(AWS_ENDPOINT_URL_STS=url)
    assert found["identity"]["verdict"] == "not checked"
    assert "STS does not name the caller: " in found["identity"]["seen"]
    assert "InvalidClientTokenId" in found["identity"]["seen"]


def test_no_secret_is_printed(shardline, kinesis):
    secrets = {"AWS_SECRET_ACCESS_KEY": "the-secret-itself", "AWS_SESSION_TOKEN": "the-token-itself"}
    ended = shardline("doctor", "-v", **secrets)
    for secret in (*secrets.values(), kinesis.credentials.access_key):
        assert secret not in ended.stdout.decode() + ended.stderr


# ---- the account


@pytest.mark.parametrize(
    ("operation", "unknown", "purpose"),
    [("ListStreams", "streams", "`shardline streams list`"), ("DescribeLimits", "limits", "this check")],
)
def test_a_denied_permission_is_a_warning_with_advice(diagnose, kinesis, operation, unknown, purpose):
    kinesis.faults.error("AccessDeniedException", "not authorized", operation=operation)
    found = diagnose()
    assert verdicts(found, "failed", "warning") == {f"may {operation}": "warning"}
    assert f"allow kinesis:{operation} on * for this identity" in found[f"may {operation}"]["advice"]
    assert purpose in found[f"may {operation}"]["advice"]
    assert found[unknown]["seen"] == f"{operation} failed"


def test_a_server_without_describe_limits(diagnose, kinesis):
    kinesis.faults.error("UnknownOperationException", "unknown", operation="DescribeLimits")
    found = diagnose()
    assert found["may DescribeLimits"]["verdict"] == "not checked"
    assert found["limits"]["verdict"] == "not checked"


def test_a_busy_service_is_asked_again(diagnose, kinesis):
    kinesis.faults.throttle(operation="ListStreams", count=2)
    assert verdicts(diagnose(), "failed", "warning") == {}


def test_a_response_that_is_not_of_kinesis(diagnose, kinesis):
    kinesis.faults.html(503)
    found = diagnose(code=1)
    assert set(verdicts(found, "failed")) == {"may ListStreams", "may DescribeLimits"}
    assert set(found) == EVERY_CHECK
