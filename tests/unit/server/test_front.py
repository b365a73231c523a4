"""Does every request reach the part that answers it, and get an answer?"""

import json
from random import Random

import pytest

from shardline.server.access import Access
from shardline.server.control import Control
from shardline.server.endpoint import Endpoint
from shardline.server.front import Front
from shardline.server.model.faults import Faults
from shardline.server.model.refusals import too_large
from shardline.server.model.service import Service
from shardline.server.model.settings import ServiceSettings
from shardline.server.request_log import RequestLog
from shardline.server.server_clock import ServerClock

NOW = 1_700_000_000.0
HEADERS = {
    "host": "127.0.0.1:4567",
    "content-type": "application/x-amz-json-1.1",
    "x-amz-target": "Kinesis_20131202.DescribeLimits",
}


class World:
    def __init__(self, *, has_control=True, token=None):
        clock = ServerClock(lambda: NOW)
        service = Service(ServiceSettings(), Random(1), NOW)
        self.requests = RequestLog()
        faults = Faults(Random(1), clock.now)
        self.control = Control(service, clock, faults=faults, requests=self.requests)
        endpoint = Endpoint(service, clock, requests=self.requests)
        self.front = Front(endpoint, access=Access(["x"], token=token), control=self.control if has_control else None)

    def ask(self, target, *, method="GET", body=None, headers=HEADERS):
        body = (b"{}" if method == "POST" else b"") if body is None else body
        reply = self.front.reply(method, target, headers, body)
        return reply.status, json.loads(reply.body)


@pytest.fixture
def world():
    return World()


@pytest.mark.parametrize(
    "target",
    [
        "/_shardline/clock",
        "/_shardline/clock?x=1",
        "/%5Fshardline/clock",
        "http://localhost:4567/_shardline/clock",
        "https://x/_shardline/clock?",
    ],
)
def test_a_control_path_is_found_however_it_is_written(world, target):
    assert world.ask(target) == (200, {"now": NOW, "frozen": False})
    assert world.requests.total == 0


@pytest.mark.parametrize("target", ["/", "/?x=/_shardline/clock", "/shardline", "http://localhost:4567", "*", "x", ""])
def test_any_other_target_is_a_call_of_the_service(world, target):
    status, answer = world.ask(target, method="POST")
    assert status == 200
    assert "ShardLimit" in answer
    assert world.requests.total == 1


def test_without_a_control_path_the_service_answers():
    assert "ShardLimit" in World(has_control=False).ask("/_shardline/clock", method="POST")[1]


def test_of_a_repeated_name_in_a_query_the_first_counts(world):
    for _ in range(3):
        world.ask("/", method="POST")
    shown = world.ask("/_shardline/requests?limit=2&limit=1&operation=Describe%4Cimits")[1]["requests"]
    assert len(shown) == 2
    assert world.ask("/_shardline/requests?error")[1]["requests"] == []


@pytest.mark.parametrize("target", ["/_shardline/\udcff", "/_shardline/%ff", "/_shardline/requests?limit=\udcff"])
def test_bytes_that_are_no_text_are_answered(world, target):
    status, answer = world.ask(target)
    assert status in {400, 404}
    assert "\ufffd" in answer["error"]


def test_a_bug_in_the_control_path_is_answered_and_logged(world, caplog):
    def fail(_):
        raise ZeroDivisionError("a bug")

    world.control._routes["clock"]["GET"] = fail
    status, answer = world.ask("/_shardline/clock")
    assert (status, list(answer)) == (500, ["error"])
    assert [record.name for record in caplog.records] == ["shardline.server.front"]


def test_a_body_that_was_not_read_is_refused_in_the_form_of_its_path(world):
    refusal = too_large(7)
    reply = world.front.refuse("/", HEADERS, refusal)
    assert (reply.status, json.loads(reply.body)["__type"]) == (413, "RequestEntityTooLargeException")
    reply = world.front.refuse("/_shardline/faults?x", {}, refusal)
    assert (reply.status, json.loads(reply.body)) == (413, {"error": "The request is larger than 7 bytes."})


def test_no_host_but_an_allowed_one_reaches_anything(world):
    for host in (None, "evil.example", "a, b"):
        headers = {name: value for name, value in (HEADERS | {"host": host}).items() if value is not None}
        for target in ("/", "/elsewhere", "http://localhost/"):
            status, answer = world.ask(target, method="POST", headers=headers)
            assert (status, answer["__type"]) == (403 if host == "evil.example" else 400, "AccessDeniedException")
            assert "ost" in answer["message"]
        for target in ("/_shardline/health", "/_shardline/clock"):
            status, answer = world.ask(target, headers=headers)
            assert (status, list(answer)) == (403 if host == "evil.example" else 400, ["error"])
    assert world.requests.total == 0


@pytest.mark.parametrize(
    "target", ["http://evil.example/", "http://evil.example:80/_shardline/clock", "a://u@localhost/"]
)
def test_the_host_of_a_url_is_judged_too(world, target):
    assert world.ask(target, method="POST")[0] in {400, 403}
    assert world.requests.total == 0


def test_a_control_request_of_another_origin_changes_nothing(world):
    body, plain = b'{"advance": 60}', {"host": "localhost", "content-type": "text/plain"}
    json_type = plain | {"content-type": "application/json"}
    refused = [plain, json_type | {"origin": "http://evil.example"}, json_type | {"sec-fetch-site": "same-site"}]
    for headers in refused:
        status, answer = world.ask("/_shardline/clock", method="POST", body=body, headers=headers)
        assert (status, list(answer)) == (415 if headers is plain else 403, ["error"])
    assert world.ask("/_shardline/clock")[1]["now"] == NOW
    assert world.ask("/_shardline/clock", method="POST", body=body, headers=json_type)[1]["now"] == NOW + 60


def test_a_token_is_asked_for_by_every_control_path_but_that_of_health():
    world = World(token="0123456789abcdef")
    bearer = HEADERS | {"authorization": "Bearer 0123456789abcdef"}
    for path in ("faults", "requests", "clock", "streams", "nothing", "health/more"):
        assert world.ask(f"/_shardline/{path}")[0] == 403
    assert world.ask("/_shardline/clock", headers=bearer)[0] == 200
    assert world.ask("/_shardline/health")[0] == 200
