"""Which tables of ``docs/producer.md`` are made from the code?

Those between ``<!-- table: NAME -->`` and ``<!-- end -->``. ``python tests/docs/producer_tables.py`` writes them anew;
``test_producer_page.py`` fails when the page says something else than the code.
"""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from shardline.core.events import Event
from shardline.core.producer import kpl_properties
from shardline.core.producer.config import ProducerConfig
from shardline.core.producer.verdicts import Rules
from shardline.model.limits import KIB, MIB

PAGE = Path(__file__).parents[2] / "docs" / "producer.md"
REGION = re.compile(r"(?<=<!-- table: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)

KNOBS = [knob for knob in fields(ProducerConfig) if knob.metadata]

# The KPL's default, and aiokpl's name, of what has a counterpart here.
KPL_DEFAULTS = {
    "AggregationEnabled": "true",
    "AggregationMaxCount": "4,294,967,295",
    "AggregationMaxSize": "51,200",
    "CollectionMaxCount": "500",
    "CollectionMaxSize": "5 MiB",
    "FailIfThrottled": "false",
    "MaxConnections": "24",
    "MaxUserRecordSize": "1 MiB",
    "RateLimit": "150 %",
    "RecordMaxBufferedTime": "100 ms",
    "RecordTtl": "30,000 ms",
}
AIOKPL_NAMES = {
    "AggregationEnabled": ("aggregation_enabled",),
    "AggregationMaxCount": ("aggregation_max_count",),
    "AggregationMaxSize": ("aggregation_max_size",),
    "CollectionMaxCount": ("collection_max_count",),
    "CollectionMaxSize": ("collection_max_size",),
    "FailIfThrottled": ("fail_if_throttled",),
    "RateLimit": ("rate_limit_records_per_sec_per_shard", "rate_limit_bytes_per_sec_per_shard"),
    "RecordMaxBufferedTime": ("record_max_buffered_time_ms",),
    "RecordTtl": ("record_ttl_ms",),
    "KinesisEndpoint": ("endpoint_url",),
    "MetricsLevel": ("metrics_level",),
    "MetricsUploadDelay": ("metrics_upload_interval_ms",),
    "Region": ("region",),
    "VerifyCertificate": ("verify_ssl",),
}
# Settings of ours that the KPL has not: what is there instead, and aiokpl's name.
OURS_ALONE = {
    "shard_burst_bytes": ("fixed at 256 KiB", ()),
    "buffer_max_bytes": ("nothing: memory has no bound", ()),
    "buffer_max_records": ("nothing: memory has no bound", ("max_outstanding_records",)),
    "ordered": ("nothing", ()),
    "max_attempts": ("nothing: until the TTL", ()),
    "retry_backoff": ("half of RecordMaxBufferedTime, always", ("retry_deadline_ms",)),
    "retry_backoff_max": ("the same", ()),
    "isolation_calls_per_second": ("nothing: the whole request is retried until the TTL", ()),
    "closed_shard_ttl": ("fixed at 60 s", ()),
}
# What the KPL and aiokpl set in code, or what only aiokpl has.
OTHERS = [
    ("CredentialsProvider", ("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
     "belongs to the client: the AWS chain, or give it to Producer or Client as credentials="),
    ("MetricsCredentialsProvider", (), "has no counterpart: measurements go to the sink that you give to Producer"),
    ("addAdditionalMetricsDimension", (), "has no counterpart: measurements go to the sink that you give to Producer"),
    ("", ("metrics_sink",), "has no counterpart: measurements go to the sink that you give to Producer"),
    ("GlueSchemaRegistryConfiguration", (), "has no counterpart: encode with serializer="),
    ("GlueSchemaRegistryCredentialsProvider", (), "has no counterpart: encode with serializer="),
    ("", ("drain_interval_ms",), "has no counterpart: nothing is polled, the producer wakes when something is due"),
]  # fmt: skip


def table(heads, rows):
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def number(value, *, in_bytes):
    """A number as people write it."""
    if in_bytes and value >= MIB and value % MIB == 0:
        return f"{int(value) // MIB} MiB"
    if in_bytes and value >= KIB and value % KIB == 0 and value != 51_200:  # which everybody knows as such
        return f"{int(value) // KIB:,} KiB"
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"


def default_of(knob):
    if isinstance(knob.default, bool) or knob.default is None:
        return f"`{knob.default}`"
    return number(knob.default, in_bytes="bytes" in knob.name)


def allowed_of(knob):
    rules = knob.metadata
    if "lowest" not in rules:
        return "`True`, `False`"
    in_bytes = "bytes" in knob.name
    low, high = (number(rules[end], in_bytes=in_bytes) for end in ("lowest", "highest"))
    words = f"{low} or more" if rules["highest"] >= 10**12 else f"{low} to {high}"
    return words + (", or `None`" if rules["optional"] else "")


def settings_table():
    rows = [(f"`{knob.name}`", default_of(knob), allowed_of(knob), knob.metadata["about"]) for knob in KNOBS]
    return table(("setting", "default", "allowed", "meaning"), rows)


def retry_table():
    rows = [
        (rule.when, rule.action.value, "yes" if rule.throttled else "", "yes" if rule.stale_map else "")
        for rule in Rules.ALL
    ]
    return table(("what came of it", "its records are", "rates fall", "map is read again"), rows)


def events_table():
    rows = []
    for kind in get_args(Event):
        meaning = " ".join(kind.__doc__.split("\n\n")[0].split())
        rows.append((f"`{kind.__name__}`", ", ".join(f"`{name}`" for name in kind._fields), meaning))
    return table(("event", "fields", "meaning"), rows)


def named(names):
    return ", ".join(f"`{name}`" for name in names)


def kpl_table():
    """What is translated, then what is ours alone."""
    defaults = {knob.name: default_of(knob) for knob in KNOBS}
    settings = {name: (ours,) for name, (ours, _) in kpl_properties._SETTINGS.items()}
    settings["RateLimit"] = ("records_per_second", "bytes_per_second")
    rows = [
        (
            f"`{name}`",
            KPL_DEFAULTS[name],
            named(AIOKPL_NAMES.get(name, ())),
            named(settings[name]),
            ", ".join(defaults[ours] for ours in settings[name]),
        )
        for name in sorted(settings)
    ]
    rows += [(there, "", named(aiokpl), f"`{ours}`", defaults[ours]) for ours, (there, aiokpl) in OURS_ALONE.items()]
    return table(("KPL", "its default", "aiokpl", "Shardline", "default"), rows)


def elsewhere_table():
    """What is no setting of the producer here."""
    by_reason = {}
    listed = [(name, AIOKPL_NAMES.get(name, ()), why) for name, why in sorted(kpl_properties._EXPLAINED.items())]
    for name, aiokpl, why in [*listed, *OTHERS]:
        theirs, others = by_reason.setdefault(why, ([], []))
        theirs += [name] if name else []
        others += aiokpl
    rows = [(named(theirs), named(aiokpl), why) for why, (theirs, aiokpl) in by_reason.items()]
    return table(("KPL", "aiokpl", "here"), rows)


TABLES = {
    "settings": settings_table,
    "retries": retry_table,
    "events": events_table,
    "kpl": kpl_table,
    "elsewhere": elsewhere_table,
}


def written(page):
    """The page, with every table as the code has it."""
    return REGION.sub(lambda found: f"{found[1]}{found[2]}{TABLES[found[1]]()}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
