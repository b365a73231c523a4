"""Which tables of ``docs/tuning.md`` are made here?

Those between ``<!-- table: NAME -->`` and ``<!-- end -->``: one row for each setting, with the default that the code has.
``python tests/docs/tuning_tables.py`` writes them anew; ``test_tuning_page.py`` fails when a setting is missing, or when
the page says something else.
"""

from pathlib import Path
from runpy import run_path

HERE = Path(__file__)
PAGE = HERE.parents[2] / "docs" / "tuning.md"
producer = run_path(str(HERE.with_name("producer_tables.py")))
consumer = run_path(str(HERE.with_name("consumer_tables.py")))

# Of each setting: when to turn it up, when to turn it down, what that costs.
PRODUCER = {
    "linger": (
        "many shards and few records: aggregates are small, requests many",
        "a record alone must be fast; 0 sends at once, with what is there",
        "up: latency, by as much; down: requests, and CPU of both sides",
    ),
    "record_ttl": (
        "bulk loads, outages longer than 30 s",
        "late data is worthless",
        "up: memory, as long as the buffer is full; what fails is told later",
    ),
    "aggregation": (
        "the default: all readers open aggregates",
        "`False`: a reader cannot, or works Kinesis record by Kinesis record",
        "off: 1,000 records a shard and second at most, and half as much CPU again",
    ),
    "aggregate_max_bytes": (
        "`ordered=True` over long round trips; fewer Kinesis records to pay for",
        "a reader that takes a Kinesis record as its unit of retry (Lambda)",
        "up: more comes again when one aggregate is sent again; nothing is gained in CPU above 16 KiB",
    ),
    "aggregate_max_count": (
        "no need: unset, only the size counts",
        "a reader that can take so many at a time",
        "down: more Kinesis records",
    ),
    "request_max_entries": (
        "no need: 500 is the service's limit",
        "a proxy or an emulator that is slow with large requests",
        "down: more requests",
    ),
    "request_max_bytes": (
        "large records over long round trips: up to 10 MiB",
        "a slow uplink: a large request takes its time, and is sent again whole",
        "up: memory, and latency of what shares the request",
    ),
    "shard_burst_bytes": (
        "many hot shards: requests that are fuller",
        "one hot shard among idle ones: it goes sooner",
        "down: more requests",
    ),
    "records_per_second": (
        "the service lifted the limit of your shards",
        "several producers share the stream: 1,000 by their number",
        "too high: throttling, which costs retries and 30 % of the rate each time; too low: a slow stream",
    ),
    "bytes_per_second": (
        "the same",
        "the same: 1 MiB by their number",
        "the same",
    ),
    "max_in_flight": (
        "hundreds of shards far away: throughput / round trip",
        "few connections are allowed",
        "up: connections (the client's `max_connections`), memory",
    ),
    "isolation_calls_per_second": (
        "most records are invalid, and their failures must be known soon",
        "invalid records must not load the service",
        (
            "up: refused calls. For a steady share of invalid records raise `max_in_flight`: a quarter of it finds them, with "
            "about 10 calls each, or 2 if AWS names the entry"
        ),
    ),
    "buffer_max_bytes": (
        "bursts that outlast the shards' limits, outages",
        "small containers",
        "up: memory; and records that expire in the buffer if `record_ttl` is not raised with it",
    ),
    "buffer_max_records": (
        "very small records",
        "the same",
        "up: about 430 B for a record of 100 B",
    ),
    "record_max_bytes": (
        "never needed: the stream is asked",
        "refuse at `put` what readers cannot take; or no permission for DescribeStreamSummary",
        "a wrong value: records are refused here, or by the service",
    ),
    "ordered": (
        "`True`: readers rely on the order of a key's records",
        "`False`: they do not",
        "on: one aggregate a shard and round trip, nothing before the first map; a stuck shard holds up its keys",
    ),
    "fail_if_throttled": (
        "`True`: you have another way for a record, at once",
        "`False`: the producer shall try",
        "on: failures that a second later would have been none",
    ),
    "max_attempts": (
        "no need: unset, the TTL ends it",
        "a bound on duplicates: each attempt whose answer is lost may be one",
        "down: failures in a longer storm",
    ),
    "retry_backoff": (
        "many producers on one throttled stream",
        "few, and latency counts",
        "down: more refused requests",
    ),
    "retry_backoff_max": (
        "the same",
        "a quicker return after an outage",
        "down: more requests while nothing works",
    ),
    "closed_shard_ttl": (
        "answers later than a minute after a reshard",
        "no need",
        "up: a few bytes a closed shard",
    ),
}
CONSUMER = {
    "lease_duration": (
        "pauses of your workers that are no deaths: long garbage collections, throttled CPU",
        "a dead worker must be replaced sooner",
        "down: more writes (three in each), and leases lost in short pauses",
    ),
    "checkpoint_interval": (
        "DynamoDB's bill; what comes again is harmless",
        "expensive handlers: less comes again after a crash; 0 commits whenever one is done",
        "down: writes, one a shard and interval",
    ),
    "scan_interval": (
        "large tables on DynamoDB: every worker reads all of it",
        "shards must move sooner after a worker came or went",
        "down: reads of the store",
    ),
    "max_leases": (
        "no need: unset, a worker has its share",
        "a worker that may not be overloaded when others die",
        "down: shards that nobody reads, if there are too few workers",
    ),
    "hand_over_timeout": (
        "handlers that take longer than 30 s for what they have",
        "shards must move soon",
        "up: a rebalance waits; down: handlers are cancelled, and their records come again",
    ),
    "list_interval": (
        "no need",
        "shards that appear otherwise than by the end of one we read",
        "down: ListShards calls, one a worker",
    ),
    "prefetch_max_bytes": (
        "slow, bursty handlers, many shards",
        "small containers",
        "up: memory; more that is read again after a hand-over",
    ),
    "page_max_records": (
        "no need: 10,000 is the service's limit",
        "small batches at once, without a backlog in memory",
        "down: more calls, and 5 a second is the limit",
    ),
    "idle_poll_interval": (
        "many idle shards: fewer calls, less CPU",
        "a record in an idle shard must be seen sooner",
        "down: calls; 5 a second and shard are shared by all groups",
    ),
    "calls_per_second": (
        "no need",
        "several groups poll one stream: 5 by their number",
        "too high: throttling, told as `ReadFailed`; too low: latency",
    ),
    "bytes_per_second": (
        "no need",
        "the same: 2 MiB by their number",
        "too low: a backlog takes longer",
    ),
    "ack": (
        '`"manual"`: records of a shard are handled side by side, or out of order',
        '`"auto"`: one after the other',
        "manual: what is never acknowledged holds up the checkpoint, and memory grows with the gap",
    ),
    "max_unacknowledged": (
        "up: many records are worked on at once, or acknowledged in large groups",
        "down: memory is short, or a forgotten acknowledgement should show early",
        "down: a shard pauses when one record takes long; below the number that you acknowledge together, for good",
    ),
    "out_of_range": (
        '`"drop"`: only KPL-like producers write, and duplicates after a reshard hurt',
        '`"deliver"`: anybody else writes aggregates',
        "drop: a writer that mixes shards loses records",
    ),
    "if_recreated": (
        '`"restart"`: a test stream, which is made anew often',
        '`"stop"`: someone should look',
        "restart: everything in the new stream from `start`, without a word but in the log",
    ),
    "store_patience": (
        "up: permissions take long to be repaired, and a worker that waits is better than one that restarts",
        "down: a supervisor restarts workers and raises the alarm",
        "up: a worker without permissions reads nothing for longer, and only its log says so",
    ),
    "stuck_after": (
        "handlers that may take longer than 5 minutes for a record or a batch",
        "a hung handler must be noticed, and its worker restarted, sooner",
        "too low: a liveness probe restarts workers that are only slow",
    ),
    "worker_id": (
        "set: a name that you know again in logs and tables, unique",
        "unset: unique by itself",
        "set twice: an ERROR in the log, and the work is not shared evenly",
    ),
}


def knob_table(words, default_of):
    rows = [(f"`{name}`", default_of(name), *cells) for name, cells in words.items()]
    return producer["table"](("setting", "default", "turn it up, or on", "turn it down, or off", "the price"), rows)


def producer_table():
    knobs = {knob.name: knob for knob in producer["KNOBS"]}
    return knob_table(PRODUCER, lambda name: producer["default_of"](knobs[name]))


def consumer_table():
    settings = consumer["SETTINGS"]
    return knob_table(CONSUMER, lambda name: consumer["shown"](name, settings[name].default))


TABLES = {"producer": producer_table, "consumer": consumer_table}


def written(page):
    """The page, with every table as it is here."""
    return producer["REGION"].sub(lambda found: f"{found[1]}{found[2]}{TABLES[found[1]]()}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
