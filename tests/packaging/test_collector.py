"""Is the example of an OpenTelemetry collector valid, and does it fit the sink?

The collector has no published schema. This has the fields that the example uses, as the components document them, and
refuses all others.
"""

import copy
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

TEXT = (Path(__file__).parents[2] / "deploy" / "otel-collector.yaml").read_text()
CONFIG = yaml.safe_load(TEXT)

DURATION = {"type": "string", "pattern": r"^\d+(ms|s|m)$"}
PERCENT = {"type": "integer", "minimum": 1, "maximum": 100}
COUNT = {"type": "integer", "minimum": 1}
ADDRESS = {"type": "string", "pattern": r"^(\$\{env:[A-Z_]+:-[\w.:]+\}|[\w.]+)(:\d+)?$"}


def strict(required, **properties):
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def policy(kind, **fields):
    return strict(
        ["name", "type", kind], name={"type": "string"}, type={"const": kind}, **{kind: strict([*fields], **fields)}
    )


STATUS_CODES = {"type": "array", "items": {"enum": ["ERROR", "OK", "UNSET"]}, "minItems": 1}
SERVER = strict(["endpoint"], endpoint=ADDRESS)
RECEIVERS = strict([], otlp=strict(["protocols"], protocols=strict([], grpc=SERVER, http=SERVER)))
PROCESSORS = strict(
    [],
    memory_limiter=strict(
        ["check_interval", "limit_percentage"],
        check_interval=DURATION,
        limit_percentage=PERCENT,
        spike_limit_percentage=PERCENT,
    ),
    batch=strict([], timeout=DURATION, send_batch_size=COUNT),
    tail_sampling=strict(
        ["policies"],
        decision_wait=DURATION,
        num_traces=COUNT,
        decision_cache=strict([], sampled_cache_size=COUNT, non_sampled_cache_size=COUNT),
        policies={
            "type": "array",
            "minItems": 1,
            "items": {
                "oneOf": [
                    policy("status_code", status_codes=STATUS_CODES),
                    policy("latency", threshold_ms=COUNT),
                    policy("probabilistic", sampling_percentage=PERCENT),
                ]
            },
        },
    ),
)
EXPORTERS = strict(
    [],
    prometheus=strict(
        ["endpoint"],
        endpoint=ADDRESS,
        resource_to_telemetry_conversion=strict(["enabled"], enabled={"type": "boolean"}),
    ),
    otlp=strict(["endpoint"], endpoint=ADDRESS, tls=strict([], insecure={"type": "boolean"})),
)
NAMES = {"type": "array", "items": {"type": "string"}, "minItems": 1}
PIPELINE = strict(["receivers", "exporters"], receivers=NAMES, processors=NAMES, exporters=NAMES)
SCHEMA = strict(
    ["receivers", "exporters", "service"],
    receivers=RECEIVERS,
    processors=PROCESSORS,
    exporters=EXPORTERS,
    extensions=strict([], health_check=SERVER),
    service=strict(["pipelines"], extensions=NAMES, pipelines=strict([], metrics=PIPELINE, traces=PIPELINE)),
)
VALIDATOR = Draft202012Validator(SCHEMA)


def mistakes(config):
    return [error.json_path for error in VALIDATOR.iter_errors(config)]


def test_it_is_valid():
    Draft202012Validator.check_schema(SCHEMA)
    assert mistakes(CONFIG) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("receivers.otlp.protocols.grpc.adress", "127.0.0.1:4317"),
        ("processors.batch.timeout", 5),
        ("processors.memory_limiter.limit_percentage", 800),
        ("exporters.kafka", {}),
        ("service.pipelines.traces.exporters", []),
        ("processors.tail_sampling.policies", [{"name": "x", "type": "latency", "probabilistic": {}}]),
    ],
)
def test_the_schema_finds_mistakes(path, value):
    wrong = copy.deepcopy(CONFIG)
    *parents, name = path.split(".")
    place = wrong
    for parent in parents:
        place = place[parent]
    place[name] = value
    assert mistakes(wrong) != []


@pytest.mark.parametrize("kind", ["receivers", "processors", "exporters"])
def test_every_component_is_defined_and_used(kind):
    used = {name for pipeline in CONFIG["service"]["pipelines"].values() for name in pipeline[kind]}
    assert used == set(CONFIG[kind])
    assert CONFIG["service"]["extensions"] == list(CONFIG["extensions"])


def test_memory_is_limited_before_anything_is_kept():
    for pipeline in CONFIG["service"]["pipelines"].values():
        assert (pipeline["processors"][0], pipeline["processors"][-1]) == ("memory_limiter", "batch")


def test_it_listens_on_loopback_unless_a_variable_says_otherwise():
    listens = re.findall(r"endpoint: (\S+)", TEXT)
    assert len(listens) == 5
    assert all(re.match(r"\$\{env:[A-Z_]+:-127\.0\.0\.1", address) for address in listens)


def test_the_comment_names_the_variables():
    head = TEXT.partition("receivers:")[0]
    assert "TRACES_ENDPOINT" in head
    assert "8889" in head
