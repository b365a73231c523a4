"""Writes the settings pages: ``python docs/settings.py``.

Names, defaults, ranges and meanings come from the code: from the fields of the configs and from the signatures of the
constructors. The advice (when to change a setting, and what that costs) is written here.
``tests/docs/test_settings_pages.py`` fails if a page is out of date, or if a setting has no advice.
"""

import ast
import re
from dataclasses import Field, fields
from inspect import Parameter, getsource, signature
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from shardline import Client, Consumer, ConsumerConfig, FailurePolicy, Producer, ProducerConfig, UsageError
from shardline.core.consumer.consumer_config import _CHECKS
from shardline.model.limits import KIB, MIB

FOLDER = Path(__file__).parent / "reference" / "settings"
NO_LIMIT = 10**12


class Advice(NamedTuple):
    """A sentence about when to change a setting, or what that costs."""

    lead: str
    text: str


def up(text: str) -> Advice:
    return Advice("Raise it", text)


def down(text: str) -> Advice:
    return Advice("Lower it", text)


def on(text: str) -> Advice:
    return Advice("Turn it on", text)


def off(text: str) -> Advice:
    return Advice("Turn it off", text)


def set_it(text: str) -> Advice:
    return Advice("Set it", text)


def cost(text: str) -> Advice:
    return Advice("Cost", text)


class Group(NamedTuple):
    """Settings that belong together, in the order of the page, each with its advice."""

    heading: str
    settings: dict[str, list[Advice]]


PRODUCER = [
    Group(
        "Batching",
        {
            "linger": [
                up("if you have many shards and few records: a low value causes small aggregates and many requests."),
                down("if single records must arrive quickly. With 0, the producer sends whatever is waiting."),
                cost("a higher value increases the latency by as much; a lower value adds requests and CPU."),
            ],
            "aggregation": [
                off("if a reader cannot unpack aggregates, or treats each Kinesis record as one item of work."),
                set_it('to `"force"` if the stream has channels, but its other readers matter more.'),
                cost("without aggregation, a shard accepts 1,000 records a second, and a record costs 50 % more CPU."),
            ],
            "packing": [
                set_it("if readers can unpack one of [these formats](../../guides/producer/pack.md), not the KPL's."),
                cost("only values with the same key share a record, so rare keys are hardly packed at all."),
            ],
            "aggregate_max_bytes": [
                up("with `ordered=True` over a slow connection, or to pay for fewer Kinesis records."),
                down("if a reader retries whole Kinesis records, as Lambda does."),
                cost("larger aggregates repeat more records when they are sent again, and save no CPU above 16 KiB."),
            ],
            "aggregate_max_count": [
                set_it("if a reader can handle only this many records at a time."),
            ],
            "request_max_entries": [
                down("if a proxy or an emulator is slow with large requests. 500 is the limit of the service."),
            ],
            "request_max_bytes": [
                up("for large records over a slow connection."),
                down("if your uplink is slow: a failed request is sent again as a whole."),
            ],
            "shard_burst_bytes": [
                up("if many shards are busy, so that requests are fuller."),
                down("if one shard is busy and the others are idle: its records are sent sooner, in more requests."),
            ],
        },
    ),
    Group(
        "Rates and concurrency",
        {
            "records_per_second": [
                up("only if AWS raised the limit of your shards."),
                down("if several producers write to the stream: divide 1,000 by their number."),
                cost("above the limit, the shard throttles, which costs retries and 30 % of its rate each time."),
            ],
            "bytes_per_second": [
                down("if several producers write to the stream: divide 1 MiB by their number."),
            ],
            "max_in_flight": [
                up("if you write to hundreds of shards over a slow connection."),
                down("if you may open only a few connections."),
                cost("a higher value needs more connections (up to the client's `max_connections`) and memory."),
            ],
        },
    ),
    Group(
        "Buffer and record size",
        {
            "buffer_max_bytes": [
                up("to absorb longer bursts and outages. Raise `record_ttl` as well, or records expire in the buffer."),
                down("in small containers."),
            ],
            "buffer_max_records": [
                up("if your records are very small. A buffered record of 100 B takes about 430 B of memory."),
                down("in small containers, or if several threads put and the time in the buffer matters."),
            ],
            "record_max_bytes": [
                set_it("to refuse records that your readers cannot take, or if you cannot call DescribeStreamSummary."),
            ],
        },
    ),
    Group(
        "Retries",
        {
            "record_ttl": [
                up("for bulk loads, and to survive outages of more than 30 seconds."),
                down("if late records are worthless."),
                cost("with a higher value, failures are reported later and the buffer stays full for longer."),
            ],
            "max_attempts": [
                set_it("to limit duplicates: each attempt whose response is lost may have stored the record."),
                cost("during long throttling, records fail that could still have been delivered within `record_ttl`."),
            ],
            "fail_if_throttled": [
                on("if you can store a throttled record elsewhere."),
            ],
            "retry_backoff": [
                up("if many producers share a throttled stream."),
                down("if only a few producers write and latency matters."),
            ],
            "retry_backoff_max": [
                up("if many producers share a throttled stream."),
                down("to recover faster after an outage, at the cost of more failing requests during the outage."),
            ],
            "isolation_calls_per_second": [
                up("if most of your records are invalid and you need to know quickly."),
                down("if invalid records must not put load on the service."),
                cost("more rejected calls. If a steady share of records is invalid, raise `max_in_flight` instead."),
            ],
        },
    ),
    Group(
        "Order and resharding",
        {
            "ordered": [
                on("if readers rely on the order of a key's records."),
                cost("each shard gets one aggregate per round trip, so a busy stream needs some `linger`."),
                cost("the producer sends nothing before it knows the shards."),
            ],
            "dedup": [
                on("if readers drop the copies of retries: see [copies](../../guides/consumer/dedup.md)."),
                cost("each record needs 11 more bytes and more CPU. Single records are sent in the KPL's format, too."),
            ],
            "closed_shard_ttl": [
                up("if responses may arrive more than a minute after a reshard."),
            ],
        },
    ),
]
PRODUCER_ARGUMENTS = {
    "serializer": "Turns the data of a record into bytes. Without a serializer, `put` takes bytes.",
    "packing": "The same as the setting.",
    "middleware": "Functions that change or check each record: see [middleware](../../guides/middleware.md).",
    "dedup": "The same as the setting.",
    "on_failure": "A callback for every record that failed. The callback may be `async`.",
    "sinks": "Callables and sinks such as `LogSink()` that receive every event.",
    "close_timeout": "How long the end of the block waits for deliveries. With `None`, it waits until all are done.",
    "drain_on_cancel": "Whether Ctrl-C and cancellation still deliver buffered records, within `close_timeout`.",
}
CONSUMER = [
    Group(
        "Leases",
        {
            "lease_duration": [
                up("if live workers pause for long, as in garbage collection."),
                down("to replace dead workers sooner."),
                cost("a lower value means more writes (three renewals per duration) and leases lost in short pauses."),
            ],
            "scan_interval": [
                up("for large tables on DynamoDB: every worker reads the whole table."),
                down("if shards must move sooner."),
            ],
            "max_leases": [
                set_it("so that a worker is not overloaded when others die."),
                cost("with too few workers, some shards have no reader."),
            ],
            "assign_by": [
                set_it('to `"load"` if [shards differ much](../../guides/consumer/fleets.md#sharing-by-load).'),
            ],
            "hand_over_timeout": [
                up("if your handlers need longer."),
                down("if shards must move quickly."),
                cost("a low value cancels slow handlers, and their records are delivered again."),
            ],
            "worker_id": [
                set_it("to recognize a worker in logs and tables."),
            ],
            "keep_leases": [
                on("for [rolling restarts](../../guides/consumer/fleets.md#restarting-without-moving-shards)."),
            ],
            "store_patience": [
                up("if permissions take long to fix."),
                down("if a supervisor restarts workers and raises an alarm."),
            ],
        },
    ),
    Group(
        "Commits",
        {
            "checkpoint_interval": [
                up("to write less to DynamoDB, if repeated records are harmless."),
                down("if handling a record twice is expensive. 0 commits immediately."),
            ],
            "ack": [
                set_it('to `"manual"` if your code acknowledges records after it has requested further ones.'),
                cost("an unacknowledged record holds back the checkpoint of its shard."),
            ],
            "max_unacknowledged": [
                up("if you work on, or acknowledge, many records together."),
                down("to save memory, or to notice a forgotten acknowledgement."),
                cost("below the number of records that you acknowledge together, the shard stops permanently."),
            ],
        },
    ),
    Group(
        "Reading",
        {
            "prefetch_max_bytes": [
                up("for slow, bursty handlers and many shards."),
                down("in small containers."),
            ],
            "page_max_records": [
                down("to get small batches without a backlog in memory."),
            ],
            "idle_poll_interval": [
                up("for many idle shards: fewer calls and less CPU."),
                down("to see records of idle shards sooner."),
            ],
            "calls_per_second": [
                down("if several groups read the stream: divide 5 by their number."),
                cost("values above the limit cause throttling (`ReadFailed`); low values cause latency."),
            ],
            "bytes_per_second": [
                down("if several groups read the stream: divide 2 MiB by their number."),
            ],
            "list_interval": [
                down("if shards appear other than by splitting or merging a shard that this group reads."),
            ],
        },
    ),
    Group(
        "Unusual events",
        {
            "dedup": [
                on("if producers use `dedup=True`: see [copies](../../guides/consumer/dedup.md)."),
                cost("the row of a shard grows by about 20 bytes per producer, up to 7 KB, with every commit."),
            ],
            "out_of_range": [
                set_it('to `"drop"` if only KPL-like producers write, and duplicates after a reshard are a problem.'),
                cost("if another writer mixes shards in an aggregate, its records are lost."),
            ],
            "if_recreated": [
                set_it('to `"restart"` for test streams that are often re-created.'),
            ],
            "stuck_after": [
                up("if a record or a batch may take more than 5 minutes."),
                down("to notice a hung handler sooner."),
                cost("if the value is too low, a liveness probe restarts workers that are only slow."),
            ],
        },
    ),
]
CONSUMER_ARGUMENTS = {
    "group": "The name under which workers share the stream. Without a group, the consumer reads alone.",
    "store": "The URL of the group's [lease store](../../guides/stores/index.md), or an object.",
    "start": "Where a group without a checkpoint starts: `TRIM_HORIZON`, `LATEST` or a time.",
    "deserializer": "Turns `record.data` into `record.value`.",
    "filter": "Decides which records are handed out. See [filter](../../guides/consumer/filter.md).",
    "middleware": "Functions that change or check each record: see [middleware](../../guides/middleware.md).",
    "worker_id": "The same as the setting.",
    "until": '`"latest"` ends the iteration at the newest record.',
    "idle_timeout": "Ends the iteration after this many seconds without records.",
    "max_leases": "The same as the setting.",
    "dedup": "The same as the setting.",
    "fan_out": "Read by [enhanced fan-out](../../guides/consumer/fan-out.md) with this registered consumer.",
    "sinks": "Callables and sinks such as `LogSink()` that receive every event.",
    "on_assigned": "Called before the first record of a shard. See [callbacks](../../guides/consumer/callbacks.md).",
    "on_revoked": "Called before the lease of a shard is released, or after it was lost.",
    "on_shard_end": "Called after the last record of a shard, before its end is committed.",
    "close_timeout": "How long the end of the block waits for handlers. `None` waits until they are done.",
}
POLICY = ["attempts", "backoff", "backoff_max", "bisect", "finally_"]
CLIENT = {
    "region": ("`AWS_REGION`, `AWS_DEFAULT_REGION`, the profile", 'The AWS region, such as `"eu-west-1"`.'),
    "endpoint_url": ("`AWS_ENDPOINT_URL_KINESIS`, `AWS_ENDPOINT_URL`, the profile", "The address of the service."),
    "profile": ("`AWS_PROFILE`", "A profile of the AWS config files."),
    "session": ("none", "A boto3 or botocore session that supplies region, credentials and settings."),
    "credentials": ("the AWS chain", "`Credentials(access_key, secret_key, session_token=None)`."),
    "protocol": (None, '`"cbor"` sends fewer bytes, and takes less CPU for large records.'),
    "verify": ("`True`, with `AWS_CA_BUNDLE`", "`False`, the path of a CA file, or an `ssl.SSLContext`."),
    "connect_timeout": (None, "Seconds within which a connection must be established."),
    "read_timeout": (None, "Seconds without data after which a request fails. See below."),
    "max_connections": (None, "The number of open connections. See below."),
    "proxies": (
        "`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`",
        'Proxy URLs by scheme: `{"https": "http://user:password@proxy:3128"}`.',
    ),
    "use_fips": ("the AWS settings", "Use the FIPS endpoint."),
    "use_dualstack": ("the AWS settings", "Use the dual-stack endpoint."),
    "http2": (None, "Use HTTP/2 for all calls if the endpoint supports it. Subscriptions always use HTTP/2."),
}

HEADS = {
    "producer": """\
# Producer settings

```python
from shardline import Producer, ProducerConfig

producer = Producer("orders", config=ProducerConfig(linger=0.05, record_ttl=60))
```

Durations are in seconds. Rates are per shard. An invalid value raises a `UsageError` that names the setting, the value
and the allowed range. [Settings](../settings.md) lists which settings to change for which goal.
""",
    "consumer": """\
# Consumer settings

```python
from shardline import Consumer, ConsumerConfig

consumer = Consumer("orders", config=ConsumerConfig(idle_poll_interval=0.2, prefetch_max_bytes=2**24))
```

Durations are in seconds. Rates are per shard. An invalid value raises a `UsageError` that names the setting, the value
and the allowed range. [Settings](../settings.md) lists which settings to change for which goal.
""",
    "client": """\
# Client settings

```python
from shardline import Client, Producer

client = Client(region="eu-west-1", connect_timeout=2)
producer = Producer("orders", region="eu-west-1", connect_timeout=2)  # a producer with a client of its own
```

`Client`, `Producer` and `Consumer` take these arguments. If you omit one, the AWS settings apply: environment
variables, config files, SSO, container and instance roles, and everything else that botocore supports. An argument
takes precedence over these settings. If you pass `region`, `endpoint_url` and `credentials`, botocore is not imported.
""",
}
TAILS = {
    "client": """\
## Timeouts

`read_timeout` limits how long a response may pause. The whole response is limited, too: it may take `read_timeout`,
plus one second for each 16 KiB, so a page of 10 MiB may take ten minutes. This limit prevents a server that sends a
byte now and then from blocking a request. For the events of `subscribe_to_shard`, only the pauses are limited. A
`Consumer` that reads by enhanced fan-out waits 30 s for an event, whatever `read_timeout` is, because Kinesis sends an
event only about every 5 s.

## Connections

`max_connections` applies twice: to the connections for calls, and separately to the connections for subscriptions. Over
HTTP/2, up to 100 subscriptions share a connection. If the endpoint or a proxy supports only HTTP/1.1, each subscription
needs a connection of its own, so set `max_connections` at least to the number of shards that a worker may hold. A
subscription that finds no free connection within `read_timeout` fails with the code `NoFreeConnection`. The consumer
reports the failure and tries again.

## Credentials that change

The client checks expiring credentials every minute, and botocore refreshes them in a worker thread well before they
expire. If the service says that the keys of a request are expired or unknown, the client looks them up again, at most
once per second. If the keys have changed, it sends the request a second time, so no request fails because of a key
rotation.

A call waits up to `read_timeout` for a slow lookup, such as a `credential_process`. After that time, the
call fails with the code `CredentialsTimeout`, which is retryable: the lookup continues, and the next call waits for it.
""",
}


def number(value: float, *, in_bytes: bool) -> str:
    """Return the number as people write it."""
    if in_bytes and value >= MIB and value % MIB == 0:
        return f"{int(value) // MIB} MiB"
    if in_bytes and value >= KIB and value % KIB == 0 and value != 51_200:  # AWS users know this number
        return f"{int(value) // KIB:,} KiB"
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"


def shown(name: str, value: Any) -> str:
    """Return a default as the page shows it."""
    if isinstance(value, str):
        return f'`"{value}"`'
    if value is None or isinstance(value, bool | tuple):
        return f"`{value}`"
    return number(value, in_bytes="bytes" in name)


def producer_range(setting: "Field[Any]") -> str:
    rules = setting.metadata
    if "choices" in rules:
        return ", ".join(f'`"{choice}"`' for choice in rules["choices"]) + ", or `None`"
    if "or" in rules:
        return f'`True`, `False` or `"{rules["or"]}"`'
    if "lowest" not in rules:
        return "`True` or `False`"
    low, high = (number(rules[end], in_bytes="bytes" in setting.name) for end in ("lowest", "highest"))
    words = f"{low} or more" if rules["highest"] >= NO_LIMIT else f"{low} to {high}"
    return words + (", or `None`" if rules["optional"] else "")


def is_allowed(name: str, value: object) -> bool:
    try:
        _CHECKS[name](name, value)
    except UsageError:
        return False
    return True


def consumer_range(name: str) -> str:
    """Return the range, taken from the message of the setting's own check for a wrong value."""
    message = ""
    try:
        _CHECKS[name](name, b"")
    except UsageError as error:
        message = str(error)
    found = re.fullmatch(r"\w+ must be (.+), not b''", message)
    if found is None:
        raise ValueError(message)
    words = re.sub(r"'(\w+)'", r'`"\1"`', found[1].removesuffix(", or None"))
    words = re.sub(r"^an? (?:whole )?number(?:,| from) ", "", words)
    words = words.replace(f" to {NO_LIMIT:,}", " or more")
    figures = re.compile(r"\d[\d,]{3,}")
    words = figures.sub(lambda digits: number(int(digits[0].replace(",", "")), in_bytes="bytes" in name), words)
    return words + (", or `None`" if is_allowed(name, None) else "")


def meanings(kind: type) -> dict[str, str]:
    """Return the docstring of each field of a dataclass."""
    [definition] = ast.parse(getsource(kind)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found = {}
    for statement, following in pairwise(body):
        is_field = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if is_field and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[statement.target.id] = plain(str(following.value.value))
    return found


def plain(text: str) -> str:
    """Return a docstring as one line of Markdown."""
    return " ".join(text.split()).replace("``", "`")


def code_names(text: str, names: set[str]) -> str:
    """Return the text, with the given names as code."""
    return re.sub(r"(?<![`\w])(\w+)(?![`\w])", lambda word: f"`{word[1]}`" if word[1] in names else word[1], text)


def entry(name: str, default: str, allowed: str, meaning: str, advice: list[Advice]) -> str:
    lines = [f"### `{name}`", "", meaning, "", f"Default: {default}. Allowed: {allowed}.", ""]
    lines += [
        f"- **{item.lead}** {item.text}" if item.lead != "Cost" else f"- **Cost:** {item.text}" for item in advice
    ]
    return "\n".join([*lines, ""])


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def arguments_table(function: Any, about: dict[str, str]) -> str:
    parameters = signature(function).parameters
    rows = [(f"`{name}`", shown(name, parameters[name].default), text) for name, text in about.items()]
    return table(("argument", "default", "meaning"), rows)


def producer_page() -> str:
    settings = {setting.name: setting for setting in fields(ProducerConfig) if setting.metadata}
    names = {name for name in settings if "_" in name} | {"put"}
    parts = [HEADS["producer"]]
    for group in PRODUCER:
        parts.append(f"## {group.heading}\n")
        for name, advice in group.settings.items():
            setting = settings[name]
            meaning = code_names(setting.metadata["about"], names)
            parts.append(entry(name, shown(name, setting.default), producer_range(setting), meaning, advice))
    arguments = arguments_table(Producer.__init__, PRODUCER_ARGUMENTS)
    intro = "`Producer` takes these arguments besides `config`, `client` and the [client settings](client.md):\n"
    return "\n".join([*parts, "## Arguments of `Producer`\n", intro, arguments])


def consumer_page() -> str:
    settings = {setting.name: setting for setting in fields(ConsumerConfig)}
    words = meanings(ConsumerConfig)
    parts = [HEADS["consumer"]]
    for group in CONSUMER:
        parts.append(f"## {group.heading}\n")
        for name, advice in group.settings.items():
            default = shown(name, settings[name].default)
            parts.append(entry(name, default, consumer_range(name), words[name], advice))
    arguments = arguments_table(Consumer.__init__, CONSUMER_ARGUMENTS)
    policy = table(("field", "default", "meaning"), policy_rows())
    return "\n".join(
        [
            *parts,
            "## Arguments of `Consumer`\n",
            "`Consumer` takes these arguments besides `config`, `client` and the [client settings](client.md):\n",
            arguments,
            "## Fields of `FailurePolicy`\n",
            "`run(handler, policy=...)` uses these fields: see [retries](../../guides/consumer/failures.md).\n",
            policy,
        ]
    )


def policy_rows() -> list[tuple[str, ...]]:
    words = meanings(FailurePolicy)
    return [
        (f"`{setting.name}`", shown(setting.name, setting.default), words[setting.name])
        for setting in fields(FailurePolicy)
    ]


def client_page() -> str:
    parameters = signature(Client.__init__).parameters
    rows = []
    for name, (default, meaning) in CLIENT.items():
        value = parameters[name].default
        rows.append((f"`{name}`", default or shown(name, value), meaning))
    return "\n".join([HEADS["client"], table(("argument", "default", "meaning"), rows), TAILS["client"]])


def undocumented() -> set[str]:
    """Return the settings and arguments that are missing on the pages, or that only the pages have."""

    def arguments(function: Any) -> set[str]:
        kinds = (Parameter.POSITIONAL_ONLY, Parameter.VAR_KEYWORD)
        parameters = signature(function).parameters.values()
        return {parameter.name for parameter in parameters if parameter.kind not in kinds} - {
            "self",
            "stream",
            "config",
            "client",
        }

    pairs = [
        ({setting.name for setting in fields(ProducerConfig) if setting.metadata}, [*_names(PRODUCER)]),
        ({setting.name for setting in fields(ConsumerConfig)}, [*_names(CONSUMER)]),
        ({setting.name for setting in fields(FailurePolicy)}, POLICY),
        (arguments(Producer.__init__), [*PRODUCER_ARGUMENTS]),
        (arguments(Consumer.__init__), [*CONSUMER_ARGUMENTS]),
        (arguments(Client.__init__), [*CLIENT]),
    ]
    return {name for known, listed in pairs for name in known ^ set(listed)}


def _names(groups: list[Group]) -> list[str]:
    return [name for group in groups for name in group.settings]


PAGES = {"producer.md": producer_page, "consumer.md": consumer_page, "client.md": client_page}


def written() -> dict[str, str]:
    """Return every page, by the name of its file."""
    return {name: page() for name, page in PAGES.items()}


if __name__ == "__main__":
    for name, text in written().items():
        (FOLDER / name).write_text(text)
