"""Writes shardline.json, a Grafana dashboard for Shardline's Prometheus metrics: ``python deploy/grafana/build.py``.

Each entry of ``ROWS`` is a panel: its title, its unit, a sentence about it, and its queries with their legends. The
first row answers what is wrong now, in numbers that turn red, for readers who know Kafka. The tests check that the file
is up to date, that a real Prometheus has data for every query, and that each fault of a fleet turns its number red.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

TARGET = Path(__file__).with_name("shardline.json")
P = '{stream=~"$stream"}'
C = '{stream=~"$stream", group=~"$group"}'
MIB = 1024 * 1024
RECORDS = "suffix: records/s"
WIDTH, HEIGHT, COLUMNS = 8, 7, 24
NUMBER_WIDTH, NUMBER_HEIGHT, DETAIL_HEIGHT = 6, 4, 7
WORDS_HEIGHT = 2
OVERVIEW_HEIGHT = 1 + NUMBER_HEIGHT + DETAIL_HEIGHT + WORDS_HEIGHT
WORDS = (
    "In Kafka's words: a **shard** is a partition. A **worker** is a member of the consumer group. A **lease** assigns"
    " a shard to a worker. A **dead letter** is a record in the dead-letter queue. A **rebalance** moves leases from"
    " worker to worker. Green numbers are fine. The graph below each number shows where to look. The description of"
    " each panel (its `i`) says what it shows and what to do."
)


def rate(metric: str, labels: str, by: str) -> str:
    """Return the rate of a counter, per second."""
    return f"sum by ({by}) (rate(shardline_{metric}{labels}[$__rate_interval]))"


def increase(metric: str, labels: str, by: str) -> str:
    """Return by how much a counter grew between two points of the graph."""
    return f"sum by ({by}) (increase(shardline_{metric}{labels}[$__rate_interval]))"


def gauge(how: str, metric: str, labels: str, by: str) -> str:
    """Return the values of a gauge, combined by ``how``."""
    return f"{how} by ({by}) (shardline_{metric}{labels})"


def difference(lag: str, smaller: str) -> str:
    """Return by how much one lag of a consumer exceeds another, for each worker or shard."""
    return " - ".join(f"shardline_consumer_{each}_lag_seconds{C}" for each in (lag, smaller))


def hot_shards(labels: str) -> str:
    """Return the number of shards that are throttled or have a backlog. If no shard is or has, there is no number."""
    is_throttled = f"{gauge('min', 'producer_rate_ratio', labels, 'stream, shard_id')} < 0.9"
    has_backlog = f"{gauge('max', 'producer_shard_backlog_seconds', labels, 'stream, shard_id')} > 2"
    return f"count by (stream) ({is_throttled} or {has_backlog})"


def none_of(metric: str, labels: str) -> str:
    """Return 0 for each stream that has this gauge."""
    return f"0 * {gauge('max', metric, labels, 'stream')}"


def ratio(dividend: str, divisor: str) -> str:
    """Return one expression divided by another."""
    return f"{dividend} / {divisor}"


def quantiles(metric: str, labels: str, by: str) -> list[tuple[str, str]]:
    """Return the median and the 99th percentile of a histogram."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    buckets = f"sum by ({by}, le) (rate(shardline_{metric}_bucket{labels}[$__rate_interval]))"
    return [(f"histogram_quantile({q}, {buckets})", f"p{round(q * 100)} {legend}") for q in (0.5, 0.99)]


class Panel(NamedTuple):
    """A graph."""

    title: str
    unit: str
    text: str
    queries: list[tuple[str, str]]
    limit: float | None = None
    """From this value on, the panel is red."""


class Number(NamedTuple):
    """A large number on a green, orange or red ground."""

    title: str
    unit: str
    text: str
    queries: list[tuple[str, str]]
    warning: float | None
    """From this value on, the ground is orange."""
    limit: float
    """From this value on, the ground is red."""


OVERVIEW = [
    Number(
        "Consumer lag of slow handlers",
        "s",
        "Consumer lag that your own code causes: by how much handlers are behind the records that were already fetched."
        " Handlers are too slow, hang, or fail and are retried. Look at Handler duration and Handler retries.",
        [
            (
                f"max by (stream, group) (clamp_min({difference('handling', 'reading')}, 0))",
                "{{group}} {{stream}}",
            )
        ],
        warning=10,
        limit=60,
    ),
    Number(
        "Hot shards (partitions)",
        "short",
        "Shards that get more than they can store: they throttle the producers, or more than 2 s of data wait for them."
        " Too many records have keys of the same shard, like those of a hot partition. Spread the keys, or split the"
        " shard. Backlog by shard (partition) shows which shard it is, if the sink has by_shard=True.",
        [(f"{hot_shards(P)} or {none_of('producer_open_shards', P)}", "{{stream}}")],
        warning=None,
        limit=1,
    ),
    Number(
        "Dead workers",
        "short",
        "Processes that Prometheus cannot reach: they died, or hang. The other members of the consumer group take over"
        " the shards, as in a rebalance. Processes that answer shows which process it is. If your service discovery"
        " forgets dead processes, watch Shards (partitions) by worker: the line of a dead worker ends.",
        [('count(up{job="shardline"} == 0) or vector(0)', "not answering")],
        warning=None,
        limit=1,
    ),
    Number(
        "Dead-lettered records, last hour",
        "short",
        "Records in the dead-letter queue: their handler failed on every attempt, and the consumer went on without"
        " them. Dead letters shows when.",
        [(f"sum by (stream, group) (increase(shardline_consumer_dead_lettered_records_total{C}[1h]))", "{{group}}")],
        warning=None,
        limit=0.5,
    ),
]

DETAILS = [
    Panel(
        "Consumer lag by group",
        "s",
        "Seconds behind the end of the stream: the age of the oldest record that is not done. It grows if handlers"
        " are slow, even if reading keeps up.",
        [(gauge("max", "consumer_handling_lag_seconds", C, "stream, group"), "{{group}} {{stream}}")],
        limit=300,
    ),
    Panel(
        "Backlog by shard (partition)",
        "s",
        "How long a shard takes to store what waits for it in the producers. A high line is a hot shard. Rate left by"
        " throttling shows whether the shard is throttled, too.",
        [(gauge("max", "producer_shard_backlog_seconds", P, "stream, shard_id"), "{{stream}} {{shard_id}}")],
        limit=2,
    ),
    Panel(
        "Shards (partitions) by worker",
        "short",
        "The shards that are assigned to each member of the consumer group, by lease. A line that ends is a worker that"
        " died or left. In the rebalance that follows, the lines of the others rise.",
        [(gauge("sum", "consumer_leases", C, "group, instance"), "{{group}} {{instance}}")],
    ),
    Panel(
        "Dead letters",
        "short",
        "Records in the dead-letter queue: their handler failed on every attempt.",
        [
            (increase("consumer_dead_lettered_records_total", C, "stream, group"), "dead-lettered {{group}}"),
            (increase("consumer_stopped_records_total", C, "stream, group"), "stopped the run {{group}}"),
        ],
    ),
]
"""The graphs below the numbers, each below its own."""

ROWS = {
    "Consumer lag, by shard and by cause": [
        Panel(
            "Consumer lag by shard",
            "s",
            "The same for each shard, if the sink has by_shard=True.",
            [(gauge("max", "consumer_handling_lag_seconds", C, "group, shard_id"), "{{group}} {{shard_id}}")],
        ),
        Panel(
            "Lag of reading (fetching)",
            "s",
            "How far the last page was behind the end of the shard. It stays at 0 while only handlers are slow.",
            [(gauge("max", "consumer_reading_lag_seconds", C, "stream, group"), "{{group}} {{stream}}")],
        ),
        Panel(
            "Handler duration",
            "s",
            "How long your code worked on a page, a slice of a page, or a batch of records.",
            quantiles("consumer_handler_seconds", C, "stream, group"),
        ),
    ],
    "Throughput": [
        Panel(
            "Records in and out",
            RECORDS,
            "Records that were stored, read and handled, per second.",
            [
                (rate("producer_delivered_records_total", P, "stream"), "stored {{stream}}"),
                (rate("consumer_read_records_total", C, "stream, group"), "read by {{group}}"),
                (rate("consumer_handled_records_total", C, "stream, group"), "handled by {{group}}"),
            ],
        ),
        Panel(
            "Bytes in by shard",
            "Bps",
            "Bytes of data that were stored. A shard takes 1 MiB per second.",
            [(rate("producer_delivered_bytes_total", P, "stream, shard_id"), "{{stream}} {{shard_id}}")],
            limit=MIB,
        ),
        Panel(
            "Bytes out by shard",
            "Bps",
            "Bytes of data that were read. A shard gives 2 MiB per second to all readers that share it.",
            [(rate("consumer_read_bytes_total", C, "stream, shard_id"), "{{stream}} {{shard_id}}")],
            limit=2 * MIB,
        ),
        Panel(
            "Entries in against the limit",
            "percentunit",
            "Entries per second, as a share of what all open shards take: 1,000 each.",
            [
                (
                    ratio(
                        rate("producer_entries_total", P, "stream"),
                        f"(1000 * {gauge('max', 'producer_open_shards', P, 'stream')})",
                    ),
                    "{{stream}}",
                )
            ],
            limit=1,
        ),
    ],
    "Producer": [
        Panel(
            "Errors and throttles by code",
            RECORDS,
            "Records that were sent again or failed, per second.",
            [(rate("producer_errors_total", P, "code"), "{{code}}")],
        ),
        Panel(
            "Rate left by throttling",
            "percentunit",
            "The producer lowers the rate of a shard (partition) that is throttled. A low line is a hot shard.",
            [(gauge("min", "producer_rate_ratio", P, "stream, shard_id"), "{{stream}} {{shard_id}}")],
        ),
        Panel(
            "Failed records",
            "short",
            "Records that failed for good: they expired or were refused.",
            [(increase("producer_failed_records_total", P, "stream"), "{{stream}}")],
        ),
        Panel(
            "Oldest waiting record",
            "s",
            "Records fail after record_ttl, which is 30 s by default.",
            [(gauge("max", "producer_oldest_waiting_seconds", P, "stream"), "{{stream}}")],
            limit=15,
        ),
        Panel(
            "Put to acknowledgement",
            "s",
            "From the put of the oldest record of a request and shard to its receipt.",
            quantiles("producer_put_to_ack_seconds", P, "stream"),
        ),
        Panel(
            "PutRecords requests",
            "s",
            "Duration of the requests.",
            quantiles("producer_request_seconds", P, "stream"),
        ),
        Panel(
            "Batching",
            "short",
            "Records per entry (aggregation), and entries per request.",
            [
                (
                    ratio(
                        rate("producer_entry_records_total", P, "stream"), rate("producer_entries_total", P, "stream")
                    ),
                    "records per entry, {{stream}}",
                ),
                (
                    ratio(rate("producer_entries_total", P, "stream"), rate("producer_requests_total", P, "stream")),
                    "entries per request, {{stream}}",
                ),
            ],
        ),
        Panel(
            "Buffer fill",
            "percentunit",
            "If the buffer is full, puts wait.",
            [
                (
                    ratio(
                        gauge("sum", "producer_buffered_bytes", P, "stream, instance"),
                        gauge("sum", "producer_buffer_max_bytes", P, "stream, instance"),
                    ),
                    "{{stream}} {{instance}}",
                )
            ],
            limit=0.9,
        ),
        Panel(
            "Queue",
            "short",
            "Entries that wait to be sent, and requests in flight.",
            [
                (gauge("sum", "producer_queued_entries", P, "stream"), "queued entries, {{stream}}"),
                (gauge("sum", "producer_requests_in_flight", P, "stream"), "requests in flight, {{stream}}"),
            ],
        ),
    ],
    "Handlers": [
        Panel(
            "Handler retries",
            "short",
            "Calls of a handler that failed and are repeated, and handlers that are stuck.",
            [
                (increase("consumer_handler_retries_total", C, "stream, group"), "retries {{group}}"),
                (gauge("sum", "consumer_stuck_handlers", C, "stream, group"), "stuck {{group}}"),
            ],
        ),
        Panel(
            "Records in hand and prefetched",
            "short",
            "Records that your code has, and records that wait for it.",
            [
                (gauge("sum", "consumer_in_hand_records", C, "stream, group"), "in hand {{group}}"),
                (gauge("sum", "consumer_prefetched_records", C, "stream, group"), "prefetched {{group}}"),
            ],
        ),
        Panel(
            "Lost records",
            "short",
            "Times that retention removed records before they were read, or that a position was refused.",
            [(increase("consumer_record_losses_total", C, "stream, group"), "{{group}}")],
        ),
        Panel(
            "Blocked event loops",
            "s",
            "Seconds per second in which an event loop was blocked.",
            [(rate("consumer_stalled_seconds_total", C, "instance"), "{{instance}}")],
        ),
    ],
    "Workers, leases and rebalances": [
        Panel(
            "Processes that answer",
            "short",
            "Scraped processes: 1 answers, 0 does not.",
            [('min by (instance) (up{job="shardline"})', "{{instance}}")],
        ),
        Panel(
            "Rebalances (lease moves)",
            "short",
            "Assignments of shards to workers that were taken, lost and released: Kafka would call it a rebalance.",
            [
                (increase("consumer_leases_gained_total", C, "group"), "gained {{group}}"),
                (increase("consumer_leases_lost_total", C, "group"), "lost {{group}}"),
                (increase("consumer_leases_released_total", C, "group"), "released {{group}}"),
            ],
        ),
        Panel(
            "Hand-over time",
            "s",
            "From another worker's request for a lease to its release, on average since the start.",
            [
                (
                    ratio(
                        gauge("sum", "consumer_hand_over_seconds_sum", C, "group"),
                        f"clamp_min({gauge('sum', 'consumer_hand_over_seconds_count', C, 'group')}, 1)",
                    ),
                    "average {{group}}",
                ),
                (increase("consumer_hand_overs_overdue_total", C, "group"), "overdue {{group}}"),
            ],
        ),
        Panel(
            "Commit duration",
            "s",
            "Duration of commits to the lease store.",
            quantiles("consumer_commit_seconds", C, "group"),
        ),
        Panel(
            "Failed requests of consumers",
            "short",
            "Requests to shards, to the list of shards and to the lease store that failed.",
            [
                (increase("consumer_read_failures_total", C, "group"), "shards {{group}}"),
                (increase("consumer_listing_failures_total", C, "group"), "list of shards {{group}}"),
                (increase("consumer_store_failures_total", C, "group"), "lease store {{group}}"),
            ],
        ),
    ],
}


def _panel(panel: Panel | Number, number: int, place: dict[str, int]) -> dict[str, Any]:
    """Return what graphs and numbers have in common."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if isinstance(panel, Number) and panel.warning is not None:
        steps.append({"color": "orange", "value": panel.warning})
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
    defaults = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    return {
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }


def _graph(panel: Panel, number: int, x: int, y: int, width: int = WIDTH, height: int = HEIGHT) -> dict[str, Any]:
    graph = _panel(panel, number, {"x": x, "y": y, "w": width, "h": height})
    style = {"thresholdsStyle": {"mode": "off" if panel.limit is None else "line"}, "fillOpacity": 5}
    graph["fieldConfig"]["defaults"]["custom"] = style
    options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return {**graph, "type": "timeseries", "options": options}


def _number(panel: Number, number: int, x: int, y: int) -> dict[str, Any]:
    shown = _panel(panel, number, {"x": x, "y": y, "w": NUMBER_WIDTH, "h": NUMBER_HEIGHT})
    shown["fieldConfig"]["defaults"]["decimals"] = 0
    options = {
        "colorMode": "background",
        "graphMode": "area",
        "textMode": "value_and_name",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return {**shown, "type": "stat", "options": options}


def _overview() -> list[dict[str, Any]]:
    """Return the first row: its title, the numbers with their graphs, and the words for readers who know Kafka."""
    numbers = [_number(each, 2 + index, index * NUMBER_WIDTH, 1) for index, each in enumerate(OVERVIEW)]
    graphs = [
        _graph(each, 2 + len(numbers) + index, index * NUMBER_WIDTH, 1 + NUMBER_HEIGHT, NUMBER_WIDTH, DETAIL_HEIGHT)
        for index, each in enumerate(DETAILS)
    ]
    words = {
        "id": 2 + len(numbers) + len(graphs),
        "type": "text",
        "title": "",
        "gridPos": {"x": 0, "y": OVERVIEW_HEIGHT - WORDS_HEIGHT, "w": COLUMNS, "h": WORDS_HEIGHT},
        "options": {"mode": "markdown", "content": WORDS},
    }
    return [_row("Overview: what is wrong now", 1, 0), *numbers, *graphs, words]


def _row(title: str, number: int, y: int) -> dict[str, Any]:
    place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place}


def _variable(name: str, metric: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": f"label_values({metric}, {name})", "refId": name},
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    panels = _overview()
    y = OVERVIEW_HEIGHT
    for row, contents in ROWS.items():
        panels.append(_row(row, len(panels) + 1, y))
        y += 1
        for index, content in enumerate(contents):
            line, column = divmod(index, COLUMNS // WIDTH)
            panels.append(_graph(content, len(panels) + 1, column * WIDTH, y + line * HEIGHT))
        y += HEIGHT * -(-len(contents) // (COLUMNS // WIDTH))
    streams = '{__name__=~"shardline_producer_requests_total|shardline_consumer_leases"}'
    return {
        "title": "Shardline",
        "uid": "shardline",
        "tags": ["kinesis", "shardline"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                _variable("stream", streams),
                _variable("group", "shardline_consumer_leases"),
            ]
        },
        "panels": panels,
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(dashboard(), indent=2) + "\n")
