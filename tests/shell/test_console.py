"""Does the console keep others out, change nothing unasked, and show what the command line shows?"""

import asyncio
import base64
import io
import json
import re
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from shardline.aio.client import Client
from shardline.cli.groups.group_store import StorePlace
from shardline.cli.invocation import Invocation
from shardline.codec.record_lines import PlainRecord, line_of
from shardline.console.console_actions import shown_store
from shardline.console.console_command import serving
from shardline.console.fleet_metrics import FleetMetrics
from shardline.console.stream_watch import StreamWatch
from shardline.sync import Consumer, Producer
from shardline.testing import Delays, LocalKinesis

FILES = ("app.js", "pages.js", "charts.js", "lineage.js", "shard_list.js", "style.css", "uplot.js", "uplot.css")
PAGE = Path(__file__).parents[2] / "docs/reference/cli/console.md"
RESET = {"group": "billing", "stream": "orders", "to": "TRIM_HORIZON"}


class Console:
    """A running console, and a client that knows its token."""

    def __init__(self, session, url, kinesis):
        self.session = session
        self.base, _, self.token = url.partition("/#token=")
        self.kinesis = kinesis

    async def request(self, method, path, **how):
        headers = {"Authorization": f"Bearer {self.token}"} | how.pop("headers", {})
        async with self.session.request(method, self.base + path, headers=headers, **how) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def get(self, path, **headers):
        return await self.request("GET", path, headers=headers)

    async def post(self, path, body):
        return await self.request("POST", path, json=body)

    @asynccontextmanager
    async def live(self, path):
        """Yield a function that waits for an update of a live page that fulfils a condition."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self.session.get(f"{self.base}/api/live/{path}", headers=headers) as answer:
            assert answer.status == 200, await answer.text()

            async def until(is_wanted):
                async with asyncio.timeout(30):
                    while True:
                        line = await answer.content.readline()
                        if line.strip() and is_wanted(update := json.loads(line.removeprefix(b"data: "))):
                            return update

            yield until


@asynccontextmanager
async def running(tmp_path, *, delays=None, more_stores=(), **how):
    store = f"sqlite:///{tmp_path}/leases.db"
    with LocalKinesis(stream="orders", shards=2, delays=delays) as kinesis:
        place = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}

        def fill():
            with Producer("orders", **place) as producer:
                producer.put_many([("user-1", b'{"order": 1}'), ("user-2", b"two")])
            with Consumer("orders", group="billing", store=store, until="latest", **place) as consumer:
                assert len(list(consumer)) == 2

        await asyncio.to_thread(fill)
        stores = [StorePlace.of(url, Invocation(region=kinesis.region)) for url in (store, *more_stores)]
        async with (
            Client(**place) as client,
            aiohttp.ClientSession() as session,
            serving(client, stores, place="here", kinesis=kinesis, **how) as url,
        ):
            yield Console(session, url, kinesis)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Authorization": "Bearer wrong"}, 403),
        ({"Authorization": ""}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "2130706433"}, 403),
        ({"Host": "127.0.0.1@evil.example"}, 400),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_only_the_page_itself_with_its_token_is_served(tmp_path, headers, status):
    async def run():
        async with running(tmp_path) as console:
            assert (await console.get("/api/streams", **headers))[0] == status

    asyncio.run(run())


def test_a_form_cannot_change_anything_and_a_foreign_name_gets_no_page(tmp_path):
    async def run():
        async with running(tmp_path, allow_changes=True) as console:
            before = console.kinesis.streams["orders"].record_count
            body = json.dumps({"stream": "orders", "key": "k", "data": "x"})
            how = {"data": body, "headers": {"Content-Type": "text/plain"}}
            assert (await console.request("POST", "/api/put", **how))[0] == 415
            assert (await console.get("/", Host="evil.example"))[0] == 403
            assert (await console.get("/../console_server.py"))[0] == 404
            assert console.kinesis.streams["orders"].record_count == before

    asyncio.run(run())


@pytest.mark.parametrize(
    ("action", "body", "status"),
    [
        ("put", b"[" * 200_000, 400),
        ("put", b'{"a":' * 50_000, 400),
        ("put", b"[]", 400),
        ("reshard", b'{"stream": "orders", "merge": 5}', 500),
        ("put", b'{"stream": "orders", "base64": 5}', 500),
        ("reset", b'{"store": [1]}', 400),
        ("clock", b'{"advance": 1e300}', 500),
        ("put", b'{"data": "' + b"x" * 17 * 1024 * 1024 + b'"}', 413),
    ],
)
def test_a_body_that_makes_no_sense_gets_an_answer_with_the_policy(tmp_path, action, body, status):
    async def run():
        async with running(tmp_path, allow_changes=True) as console:
            headers = {"Authorization": f"Bearer {console.token}", "Content-Type": "application/json"}
            address = f"{console.base}/api/{action}"
            async with console.session.post(address, data=io.BytesIO(body), headers=headers) as answer:
                assert (answer.status, answer.content_type) == (status, "application/json")
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert len((await answer.json())["error"]) < 200
            assert (await console.get("/api/streams"))[0] == 200

    asyncio.run(run())


def test_connections_that_send_nothing_or_half_a_request_are_closed_and_delay_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr("shardline.console.console_command._IDLE_TIMEOUT", 3.0)

    async def run():
        async with running(tmp_path) as console:
            port = int(console.base.rpartition(":")[2])
            slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
            for number, (_, writer) in enumerate(slow):
                writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: " if number % 2 else b"")
            assert (await console.get("/api/streams"))[0] == 200
            async with asyncio.timeout(30):
                for reader, writer in slow:
                    assert await reader.read() == b""
                    writer.close()

    asyncio.run(run())


def test_pages_have_a_policy_without_inline_code_and_no_secret(tmp_path):
    async def run():
        async with running(tmp_path) as console:
            for path in ("/", *(f"/{name}" for name in FILES), "/api/status"):
                headers = {"Authorization": f"Bearer {console.token}"}
                async with console.session.get(console.base + path, headers=headers) as answer:
                    policy, text = answer.headers["Content-Security-Policy"], await answer.text()
                assert answer.status == 200
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert console.token not in text
                assert console.kinesis.credentials.secret_key not in text
                assert " style=" not in text
                assert ' onclick="' not in text

    asyncio.run(run())


def test_a_read_only_console_plans_and_changes_nothing(tmp_path):
    async def run():
        async with running(tmp_path) as console:
            wishes = {
                "put": {"stream": "orders", "key": "k", "data": "x"},
                "reset": RESET,
                "reshard": {"stream": "orders", "split": "0"},
                "clock": {"freeze": True},
                "fault": {"fault": {"kind": "throttle"}},
            }
            for action, wish in wishes.items():
                status, answer = await console.post(f"/api/{action}", wish | {"dry_run": True})
                assert (status, answer["dry_run"]) == (200, True), action
                status, answer = await console.post(f"/api/{action}", wish)
                assert status == 403
                assert "--allow-changes" in answer["error"]
            assert (await console.get("/api/server"))[1]["faults"] == []
            assert (await console.get("/api/stream?stream=orders"))[1]["closed_shards"] == 0

    asyncio.run(run())


def test_the_pages_show_streams_groups_and_records(tmp_path):
    async def run():
        async with running(tmp_path) as console:
            (stream,) = (await console.get("/api/streams"))[1]["streams"]
            assert (stream["name"], stream["open_shards"]) == ("orders", 2)
            (group,) = (await console.get("/api/groups"))[1]["groups"]
            assert (group["group"], group["stream"], group["store"]) == ("billing", "orders", 0)
            lag = (await console.get("/api/lag?store=0&group=billing&stream=orders"))[1]
            assert (lag["lag_ms"], lag["unknown"], lag["shards"]) == (0, 0, 2)
            load = (await console.get("/api/load?stream=orders"))[1]
            assert (load["open_shards"], load["measured_shards"], load["problem"]) == (2, 2, None)
            assert load["records_per_second"] > 0
            found = (await console.get("/api/records?stream=orders&key=user-1"))[1]
            assert [record["views"]["text"] for record in found["records"]] == ['{"order": 1}']
            calls = (await console.get("/api/status"))[1]["calls"]
            assert calls["operations"]["GetRecords"] >= 3
            for path in (
                "records?stream=orders&from=49680347059784527948762861494950057513906280596429078530",
                "lag?store=7&group=a&stream=b",
                "live/group?group=a",
                "live/stream",
            ):
                status, answer = await console.get(f"/api/{path}")
                assert (status, bool(answer["error"])) == (400, True)

    asyncio.run(run())


def test_a_stream_that_may_not_be_described_does_not_hide_the_others(tmp_path):
    async def run():
        async with running(tmp_path) as console:
            console.kinesis.create_stream("secret", shards=1)
            console.kinesis.faults.error(
                "AccessDeniedException", "not you", operation="DescribeStreamSummary", stream="secret"
            )
            orders, secret = (await console.get("/api/streams"))[1]["streams"]
            assert (orders["name"], orders["open_shards"], orders["problem"]) == ("orders", 2, None)
            assert (secret["name"], secret["open_shards"], secret["retention_hours"]) == ("secret", None, None)
            assert "not you" in secret["problem"]

    asyncio.run(run())


def test_changes_are_those_of_the_command_line(tmp_path):
    async def run():
        async with running(tmp_path, allow_changes=True) as console:
            receipt = (await console.post("/api/put", {"stream": "orders", "key": "user-3", "data": "three"}))[1]
            (record,) = (await console.get("/api/records?stream=orders&key=user-3"))[1]["records"]
            assert record["sequence_number"] == receipt["sequence_number"]
            plan = (await console.post("/api/reset", RESET | {"dry_run": True}))[1]
            assert "replay" in {shard["effect"] for shard in plan["shards"]}
            done = (await console.post("/api/reset", RESET))[1]
            assert (done["stopped_by"], all(shard["done"] for shard in done["shards"])) == (None, True)
            assert (await console.post("/api/reshard", {"stream": "orders", "split": "0"}))[0] == 200
            assert (await console.get("/api/stream?stream=orders"))[1]["open_shards"] == 3
            assert (await console.post("/api/clock", {"freeze": True}))[1]["frozen"] is True
            assert len((await console.post("/api/fault", {"fault": {"kind": "throttle"}}))[1]["faults"]) == 1

    asyncio.run(run())


def test_a_reshard_takes_every_step_that_its_plan_shows(tmp_path):
    async def run():
        async with running(tmp_path, allow_changes=True) as console:
            wish = {"stream": "orders", "shards": 7}
            plan = (await console.post("/api/reshard", wish | {"dry_run": True}))[1]
            assert plan["sentence"] == "2 -> 4 -> 7 shards"
            assert (await console.get("/api/stream?stream=orders"))[1]["open_shards"] == 2
            done = (await console.post("/api/reshard", wish))[1]
            assert (done["done"], done["stopped_by"]) == ([4, 7], None)
            assert (await console.get("/api/stream?stream=orders"))[1]["open_shards"] == 7
            again = (await console.post("/api/reshard", wish))[1]
            assert again["sentence"] == "it already has 7 shards"
            for number in (0, -1, "many", None, True):
                status, answer = await console.post("/api/reshard", {"stream": "orders", "shards": number})
                assert (status, "whole number from 1" in answer["error"]) == (400, True)

    asyncio.run(run())


def test_a_reshard_that_fails_in_the_middle_says_what_was_done(tmp_path):
    async def run():
        async with running(tmp_path, allow_changes=True) as console:
            fault = {"kind": "error", "code": "LimitExceededException", "operation": "UpdateShardCount", "after": 1}
            console.kinesis.faults.load([fault])
            answer = (await console.post("/api/reshard", {"stream": "orders", "shards": 16}))[1]
            assert (answer["steps"], answer["done"]) == ([4, 8, 16], [4])
            assert "LimitExceeded" in answer["stopped_by"]
            assert "done: 2 -> 4 shards; not complete: 4 -> 8 -> 16 shards" in answer["stopped_by"]
            assert (await console.get("/api/stream?stream=orders"))[1]["open_shards"] == 4

    asyncio.run(run())


def test_a_reshard_that_takes_too_long_goes_on_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("shardline.console.console_actions._RESHARD_TIMEOUT", 0.0)

    async def run():
        async with running(tmp_path, allow_changes=True, delays=Delays(update=3600)) as console:
            answer = (await console.post("/api/reshard", {"stream": "orders", "shards": 8}))[1]
            assert answer["done"] == []
            assert "no step is complete; not complete: 2 -> 4 -> 8 shards" in answer["stopped_by"]
            assert "the service goes on with the first of these" in answer["stopped_by"]

    asyncio.run(run())


def test_a_key_is_found_in_the_closed_parents_of_its_shard_oldest_first(tmp_path):
    async def run():
        async with running(tmp_path, allow_changes=True) as console:
            for count in (4, 2):
                assert (await console.post("/api/reshard", {"stream": "orders", "shards": count}))[1]["done"] == [count]
                put = {"stream": "orders", "key": "user-1", "data": f"at {count}"}
                assert (await console.post("/api/put", put))[0] == 200
            found = (await console.get("/api/records?stream=orders&key=user-1"))[1]
            assert [record["views"]["text"] for record in found["records"]] == ['{"order": 1}', "at 4", "at 2"]
            assert (len(found["shards"]), found["is_end"]) == (3, True)
            second = found["records"][1]["sequence_number"]
            later = (await console.get(f"/api/records?stream=orders&key=user-1&from={second}"))[1]
            assert [record["views"]["text"] for record in later["records"]] == ["at 4", "at 2"]
            first = (await console.get("/api/records?stream=orders&key=user-1&limit=1"))[1]
            assert (len(first["records"]), first["is_end"]) == (1, False)

    asyncio.run(run())


def test_without_a_key_each_shard_is_read(tmp_path):
    async def run():
        async with running(tmp_path) as console:
            found = (await console.get("/api/records?stream=orders"))[1]
            assert len(found["shards"]) == 2
            assert {record["key"] for record in found["records"]} == {"user-1", "user-2"}
            assert (found["read"], found["is_end"]) == (2, True)
            found = (await console.get("/api/records?stream=orders&text=two"))[1]
            assert [record["key"] for record in found["records"]] == ["user-2"]
            found = (await console.get("/api/records?stream=orders&limit=1"))[1]
            assert (len(found["records"]), found["is_end"]) == (1, False)

    asyncio.run(run())


def test_a_search_that_finds_more_than_it_returns_says_so(tmp_path):
    async def run():
        async with running(tmp_path, allow_changes=True) as console:
            for _ in range(2):
                await console.post("/api/put", {"stream": "orders", "key": "user-1", "data": "x"})
            found = (await console.get("/api/records?stream=orders&key=user-1&limit=2"))[1]
            assert (len(found["records"]), found["read"] > 2, found["is_end"]) == (2, True, False)
            found = (await console.get("/api/records?stream=orders&key=user-1&limit=3"))[1]
            assert (len(found["records"]), found["is_end"]) == (3, True)

    asyncio.run(run())


def test_a_throttled_shard_is_measured_again_and_named_if_that_fails_too(tmp_path):
    async def run():
        async with running(tmp_path) as console:
            console.kinesis.faults.throttle(operation="GetRecords", count=1)
            load = (await console.get("/api/load?stream=orders"))[1]
            assert (load["measured_shards"], load["failed_shards"], load["problem"]) == (2, [], None)
            console.kinesis.faults.throttle(operation="GetRecords", count=3)
            load = (await console.get("/api/load?stream=orders"))[1]
            assert (load["measured_shards"], len(load["failed_shards"])) == (1, 1)
            assert "exceeded" in load["problem"]

    asyncio.run(run())


@asynccontextmanager
async def fake_dynamodb():
    """Serve a DynamoDB without tables. Yield its address."""

    async def answer(_):
        body = {"__type": "com.amazonaws.dynamodb.v20120810#ResourceNotFoundException", "message": "no"}
        return web.json_response(body, status=400, content_type="application/x-amz-json-1.0")

    application = web.Application()
    application.router.add_post("/", answer)
    async with TestServer(application) as server:
        yield str(server.make_url("")).rstrip("/")


def test_calls_to_dynamodb_count_against_the_budget_too(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")

    async def run():
        async with (
            fake_dynamodb() as endpoint,
            running(tmp_path, more_stores=[f"dynamodb://leases?region=us-east-1&endpoint_url={endpoint}"]) as console,
        ):
            problems = (await console.get("/api/groups"))[1]["problems"]
            assert len(problems) == 1, problems
            assert "leases" in problems[0]
            assert (await console.get("/api/status"))[1]["calls"]["operations"] == {"DescribeTable": 1}

    asyncio.run(run())


def test_a_large_record_is_sent_whole_only_if_the_page_asks_for_it(tmp_path):
    data = "x" * 500_000

    async def run():
        async with running(tmp_path, allow_changes=True) as console:
            put = {"stream": "orders", "key": "large", "data": data}
            assert (await console.post("/api/put", put))[0] == 200
            (cut,) = (await console.get("/api/records?stream=orders&key=large"))[1]["records"]
            assert (cut["size"], cut["cut"], cut["base64"], cut["views"]["text"]) == (500_000, True, None, data[:4096])
            (whole,) = (await console.get("/api/records?stream=orders&key=large&whole=yes"))[1]["records"]
            assert base64.b64decode(whole["base64"]) == data.encode()
            assert (whole["cut"], len(whole["views"]["text"])) == (True, 256 * 1024)

    asyncio.run(run())


def test_a_store_that_cannot_be_read_does_not_hide_the_groups_of_the_others(tmp_path):
    broken = "redis://someone:hunter2@127.0.0.1:9/0", f"sqlite:///{tmp_path}/nowhere.db"

    async def run():
        async with running(tmp_path, more_stores=broken) as console:
            found = (await console.get("/api/groups"))[1]
            assert [(group["group"], group["store"]) for group in found["groups"]] == [("billing", 0)]
            assert found["stores"] == 3
            assert [problem.partition(": ")[0] for problem in found["problems"]] == [
                "redis://127.0.0.1:9/0",
                f"sqlite:///{tmp_path}/nowhere.db",
            ]
            assert "hunter2" not in str(found)
            assert (await console.get("/api/lag?store=0&group=billing&stream=orders"))[1]["lag_ms"] == 0

    asyncio.run(run())


def test_a_reset_to_a_time_knows_what_it_replays(tmp_path):
    async def run():
        async with running(tmp_path) as console:
            plan = (await console.post("/api/reset", RESET | {"to": "15m", "dry_run": True}))[1]
            assert "replay" in {shard["effect"] for shard in plan["shards"]}

    asyncio.run(run())


def test_live_updates_have_the_rates_and_the_records_that_match(tmp_path):
    async def run():
        wanted = "stream?stream=orders&key=vip"
        async with running(tmp_path, allow_changes=True) as console, console.live(wanted) as until:
            await until(lambda update: update["open"] == 2)
            for key in ("vip", "other"):
                await console.post("/api/put", {"stream": "orders", "key": key, "data": key})
            update = await until(lambda update: update["records"])
            assert [record["key"] for record in update["records"]] == ["vip"]
            assert update["matched"] == 1
            assert sum(row[1] for shard in update["traffic"]["shards"].values() for row in shard["seconds"]) >= 1

    asyncio.run(run())


def test_a_tail_can_start_and_end_in_the_past(tmp_path):
    async def run():
        async with running(tmp_path, allow_changes=True) as console:
            async with console.live("stream?stream=orders&from=TRIM_HORIZON") as until:
                seen = []
                await until(lambda update: seen.extend(update["records"]) or len(seen) >= 2)
                assert sorted(record["key"] for record in seen) == ["user-1", "user-2"]
            now = console.kinesis.clock.now()
            for to, count in ((f"{now - 3600:.3f}", 0), (f"{now + 60:.3f}", 1), ("+1m", 1)):
                query = {"stream": "orders", "key": "user-1", "to": to}
                found = (await console.request("GET", "/api/records", params=query))[1]
                assert len(found["records"]) == count, to
            status, answer = await console.get("/api/live/stream?stream=orders&from=yesterday")
            assert (status, "yesterday" in answer["error"]) == (400, True)

    asyncio.run(run())


def test_each_tail_that_starts_in_the_past_starts_there(tmp_path):
    """A reader that an earlier tail uses has gone on: a second tab, or a second click, would show nothing."""

    async def run():
        async with running(tmp_path) as console:
            path = "stream?stream=orders&traffic=no&from=TRIM_HORIZON"
            async with console.live(path) as first:
                await first(lambda update: update["matched"] == 2)
                async with console.live(path) as second:
                    await second(lambda update: update["matched"] == 2)

    asyncio.run(run())


def test_a_tail_of_one_shard_has_no_records_of_the_others(tmp_path):
    async def run():
        async with running(tmp_path) as console:
            places = [(await console.get(f"/api/records?stream=orders&shard={number}"))[1]["read"] for number in (0, 1)]

            async def count(number, expected):
                seen = []
                async with console.live(f"stream?stream=orders&traffic=no&from=TRIM_HORIZON&shard={number}") as until:
                    await until(
                        lambda update: seen.append(update["matched"]) or (len(seen) > 3 and sum(seen) >= expected)
                    )
                return sum(seen)

            counts = [await count(number, expected) for number, expected in enumerate(places)]
            assert counts == places

    asyncio.run(run())


def test_updates_do_not_wait_for_the_figures_of_other_programs(tmp_path, monkeypatch):
    async def never(*_):
        await asyncio.Event().wait()

    monkeypatch.setattr(FleetMetrics, "refresh", never)

    async def run():
        async with running(tmp_path) as console, console.live("stream?stream=orders") as until:
            await until(lambda update: update["open"] == 2)

    asyncio.run(run())


def test_a_search_reads_on_until_its_end(tmp_path):
    async def run():
        async with running(tmp_path) as console:
            first = (await console.get("/api/records?stream=orders&limit=1"))[1]
            assert (len(first["records"]), first["is_end"]) == (1, False)
            second = (await console.get(f"/api/records?next={first['next']}"))[1]
            assert (second["is_end"], second["next"]) == (True, None)
            assert {record["key"] for record in first["records"] + second["records"]} == {"user-1", "user-2"}
            status, answer = await console.get(f"/api/records?next={first['next']}")
            assert (status, answer["error"]) == (400, "this search cannot be continued any more: find again")

    asyncio.run(run())


@pytest.mark.parametrize("path", ["records?stream=orders&limit=ten", "lag?store=first&group=billing&stream=orders"])
def test_a_number_that_is_not_a_number_is_named(tmp_path, path):
    async def run():
        async with running(tmp_path) as console:
            status, answer = await console.get(f"/api/{path}")
            assert (status, "must be a whole number" in answer["error"]) == (400, True)

    asyncio.run(run())


def test_throttles_are_those_that_the_embedded_server_refused(tmp_path):
    async def run():
        async with running(tmp_path, allow_changes=True) as console, console.live("stream?stream=orders") as until:
            update = await until(lambda update: update["open"] == 2)
            assert (update["throttles"]["source"], update["throttles"]["seconds"]) == ("the embedded server", [])
            console.kinesis.faults.throttle(operation="PutRecords", count=3)
            await console.post("/api/put", {"stream": "orders", "key": "k", "data": "x"})
            update = await until(lambda update: update["throttles"]["seconds"])
            assert sum(row[1] for row in update["throttles"]["seconds"]) == 3

    asyncio.run(run())


def test_a_group_is_watched_with_its_lag_and_its_hand_overs(tmp_path):
    store = f"sqlite:///{tmp_path}/leases.db"

    seen_by_the_page = threading.Event()

    def hold(kinesis, name):
        where = {"endpoint_url": kinesis.endpoint_url, "region": kinesis.region, "credentials": kinesis.credentials}
        with Consumer("orders", group="billing", store=store, worker_id=name, **where) as consumer:
            consumer.wait_ready(30)
            assert seen_by_the_page.wait(30)

    async def run():
        async with running(tmp_path) as console, console.live("group?store=0&group=billing&stream=orders") as until:
            update = await until(lambda update: len(update["history"]) == 2)
            assert {shard["lag_ms"] for shard in update["shards"]} == {0}
            assert {rows[0][1] for rows in update["history"].values()} == {0}
            assert (update["metrics"]["asked"], update["metrics"]["reading_lag"]) == (0, {})
            holding = asyncio.create_task(asyncio.to_thread(hold, console.kinesis, "worker-b"))
            seen = []
            await until(lambda update: seen.extend(update["hand_overs"]) or len(seen) >= 2)
            seen_by_the_page.set()
            assert {(event["after"], event["kind"]) for event in seen} == {("worker-b", "changed")}
            await until(lambda update: any(event["before"] == "worker-b" for event in update["hand_overs"]))
            await holding

    asyncio.run(run())


def test_the_workers_own_metrics_have_the_reading_lag_and_the_dead_letters(tmp_path):
    page = (
        "# HELP shardline_consumer_reading_lag_seconds text\n"
        'shardline_consumer_reading_lag_seconds{stream="orders",group="billing",shard_id="shardId-000000000000"} 2.5\n'
        'shardline_consumer_dead_lettered_records_total{stream="orders",group="billing"} 3.0\n'
        'shardline_producer_errors_total{stream="orders",code="ProvisionedThroughputExceededException"} 7.0\n'
    )

    async def run():
        async def answer(_):
            return web.Response(text=page)

        application = web.Application()
        application.router.add_get("/metrics", answer)
        async with TestServer(application) as server:
            urls = [f"http://user:secret@127.0.0.1:{server.port}", "http://127.0.0.1:9/metrics"]
            async with running(tmp_path, metrics=urls) as console:
                async with console.live("group?store=0&group=billing&stream=orders") as until:
                    update = await until(lambda update: update["metrics"]["reading_lag"] and update["history"])
                found = update["metrics"]
                assert found["reading_lag"] == {"shardId-000000000000": 2.5}
                assert found["dead_lettered"] == 3
                assert update["history"]["shardId-000000000000"][-1][2] == 2500
                (problem,) = found["problems"]
                assert "http://127.0.0.1:9/metrics cannot be read" in problem
                assert "secret" not in json.dumps(update)

    asyncio.run(run())


def test_dead_letters_are_shown_from_their_file(tmp_path):
    path = tmp_path / "failed.jsonl"

    async def run():
        async with running(tmp_path, dead_letters=[f"billing={path}", "audit=stream:failed"]) as console:
            assert (await console.get("/api/letters?group=billing"))[1]["letters"] == []
            facts = {"error": "HandlerFailed", "message": "ValueError: no price", "stream": "orders"}
            path.write_bytes(line_of(PlainRecord("user-7", b"seven"), **facts) + b"not a record\n")
            found = (await console.get("/api/letters?group=billing"))[1]
            (letter,) = found["letters"]
            assert (letter["key"], letter["message"], letter["views"]["text"]) == ("user-7", facts["message"], "seven")
            assert (found["unreadable"], found["more"]) == (1, False)
            assert (await console.get("/api/letters?group=audit"))[1] == {"is_known": True, "stream": "failed"}
            assert (await console.get("/api/letters?group=other"))[1] == {"is_known": False}

    asyncio.run(run())


def test_live_updates_continue_after_an_error(tmp_path):
    async def run():
        async with running(tmp_path) as console, console.live("stream?stream=late") as until:
            update = await until(lambda update: update["problem"] is not None)
            assert "late" in update["problem"]
            console.kinesis.create_stream("late", shards=1)
            update = await until(lambda update: update["problem"] is None and update["open"])
            assert update["open"] == 1

    asyncio.run(run())


def test_a_bug_in_an_update_ends_the_updates_with_an_error(tmp_path, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("a text with a secret")

    monkeypatch.setattr(StreamWatch, "update", fail)

    async def run():
        async with running(tmp_path) as console, console.live("stream?stream=orders") as until:
            update = await until(lambda update: "error" in update)
            assert update == {"error": "internal error: ZeroDivisionError. Start the console with -v to see more."}

    asyncio.run(run())


def test_the_permissions_in_the_docs_are_the_calls_that_are_made(tmp_path):
    """Every page and every change together make exactly the calls that the reference lists."""
    listed = set(re.findall(r"`kinesis:(\w+)`", PAGE.read_text()))

    async def run():
        async with running(tmp_path, allow_changes=True) as console:
            console.kinesis.requests.clear()
            for path in (
                "streams",
                "stream?stream=orders",
                "load?stream=orders",
                "groups",
                "records?stream=orders&key=k",
            ):
                assert (await console.get(f"/api/{path}"))[0] == 200
            for path in ("stream?stream=orders", "group?store=0&group=billing&stream=orders"):
                async with console.live(path) as until:
                    await until(lambda update: update.get("open") or update.get("history"))
            for action, wish in (
                ("put", {"stream": "orders", "key": "k", "data": "x", "headers": {"a": "b"}}),
                ("reset", RESET),
                ("reshard", {"stream": "orders", "split": "0"}),
                ("reshard", {"stream": "orders", "merge": ["2", "3"]}),
                ("reshard", {"stream": "orders", "shards": 4}),
            ):
                assert (await console.post(f"/api/{action}", wish))[0] == 200, wish
            made = {request.operation for request in console.kinesis.requests}
            assert made == listed
            calls = (await console.get("/api/status"))[1]["calls"]
            assert calls["total"] >= len(console.kinesis.requests)

    asyncio.run(run())


def test_a_click_does_not_wait_behind_the_readers_of_live_pages(tmp_path):
    async def run():
        async with running(tmp_path, calls_per_minute=40) as console, console.live("stream?stream=orders") as until:
            await until(lambda update: update["open"])
            await asyncio.sleep(4)  # the reader waits for its share of the budget
            began = asyncio.get_running_loop().time()
            assert (await console.get("/api/stream?stream=orders"))[0] == 200
            assert asyncio.get_running_loop().time() - began < 5

    asyncio.run(run())


def test_a_store_is_shown_without_its_password():
    assert shown_store("redis://user:secret@host:6379/0?password=x") == "redis://host:6379/0"


@pytest.mark.parametrize("modules", ["shardline, shardline.sync", "shardline.cli.main, shardline.cli.commands"])
def test_other_commands_do_not_import_the_console(modules):
    code = f"import sys, {modules}; print([m for m in sys.modules if 'shardline.console' in m or m == 'aiohttp'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"
