"""Tests of ``cloudwatch_throttles``, against a small CloudWatch on this machine."""

import asyncio
import json
from contextlib import asynccontextmanager

from aiohttp import web

from shardline import Credentials
from shardline.adapters.aws.aws_service import AwsSettings
from shardline.console import cloudwatch_throttles
from shardline.console.cloudwatch_throttles import CloudWatchThrottles
from shardline.console.fleet_metrics import FleetMetrics
from shardline.console.throttle_counts import ThrottleCounts
from shardline.errors import UsageError

NOW = 1_700_000_130.0
MINUTE = 1_700_000_100.0
RESULTS = [
    {"Id": "writes", "Label": "w", "Timestamps": [MINUTE, MINUTE - 60], "Values": [7.0, 2.0]},
    {"Id": "reads", "Label": "r", "Timestamps": [MINUTE], "Values": [1.0]},
    {"Id": "shards", "Label": "shardId-000000000000", "Timestamps": [MINUTE], "Values": [0.0]},
    {"Id": "shards", "Label": "shardId-000000000003", "Timestamps": [MINUTE], "Values": [9.0]},
]


@asynccontextmanager
async def cloudwatch(answers):
    """Serve these answers, one after the other. Yield the settings and the requests."""
    seen = []

    async def answer(request):
        seen.append((request.headers["X-Amz-Target"], await request.json(), request.headers["Authorization"]))
        status, body = answers.pop(0)
        return web.Response(status=status, text=body, content_type="application/x-amz-json-1.0")

    application = web.Application()
    application.router.add_post("/", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield AwsSettings(region="eu-west-1", endpoint_url=url, credentials=Credentials("id", "secret")), seen
    finally:
        await runner.cleanup()


def test_one_call_a_minute_has_the_throttles_of_the_stream_and_of_its_shards():
    async def run():
        answers = [(200, json.dumps({"MetricDataResults": RESULTS})), (403, '{"__type": "AccessDenied"}'), (200, "no")]
        async with cloudwatch(answers) as (settings, seen):
            times, spent = [NOW], []
            found = CloudWatchThrottles(settings, lambda: times[0])

            async def spend(operation):
                spent.append(operation)

            counts = ThrottleCounts("orders", FleetMetrics([]), None, found)
            try:
                for times[0] in (NOW, NOW + 5, NOW + 59):
                    await found.refresh("orders", spend)
                assert spent == ["GetMetricData"]
                [(target, body, signature)] = seen
                assert target == "GraniteServiceVersion20100801.GetMetricData"
                assert "/eu-west-1/monitoring/" in signature
                assert body["EndTime"] - body["StartTime"] == 1800
                assert [query["Id"] for query in body["MetricDataQueries"]] == ["writes", "reads", "shards"]
                assert 'StreamName="orders"' in body["MetricDataQueries"][2]["Expression"]
                told = counts.to_json(NOW)
                assert (told["source"], told["step"], told["problem"]) == ("CloudWatch", 60, None)
                assert "all programs" in told["includes"]
                assert told["seconds"] == [[MINUTE - 60, 2, 0], [MINUTE, 7, 1]]
                assert told["shards"] == [("shardId-000000000003", 9)]
                for times[0], problem in ((NOW + 61, "AccessDenied"), (NOW + 122, "cannot be read")):
                    await found.refresh("orders", spend)
                    assert problem in counts.to_json(NOW)["problem"]
                    assert counts.to_json(NOW)["seconds"] == told["seconds"]  # what was known stays
            finally:
                await found.close()

    asyncio.run(run())


def test_settings_that_are_incomplete_are_a_problem_on_the_page(monkeypatch):
    def refuse(name, _):
        raise UsageError(f"no region for {name}")

    async def spend(operation):
        raise AssertionError(operation)

    monkeypatch.setattr(cloudwatch_throttles, "find_service", refuse)

    async def run():
        found = CloudWatchThrottles(AwsSettings(), lambda: NOW)
        await found.refresh("orders", spend)
        assert found.to_json("orders") == {
            "seconds": [],
            "step": 60,
            "shards": [],
            "problem": "no region for cloudwatch",
        }
        await found.close()

    asyncio.run(run())
