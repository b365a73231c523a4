"""Which faults does a chaos run have?

Drawn from a seed: which kinds, how often each, and with what values. All are such that a client can survive them.
"""

from typing import TYPE_CHECKING, Any, Final

from shardline.server.model.fault_rules import Chaos, FaultRule

if TYPE_CHECKING:
    from random import Random

_INCLUDED: Final = 0.7
_READS: Final = ["GetRecords", "GetShardIterator"]


def _choices(chance: "Random") -> list[dict[str, Any]]:
    mean = chance.uniform(0.001, 0.02)
    return [
        {"kind": "throttle", "operation": "PutRecords"},
        {"kind": "throttle", "operation": _READS},
        {"kind": "throttle", "operation": ["ListShards", "DescribeStreamSummary"]},
        {"kind": "fail_entries", "share": round(chance.uniform(0.05, 1.0), 3)},
        {"kind": "error", "code": "InternalFailureException", "message": "Internal Service Failure"},
        {"kind": "error", "code": "ServiceUnavailableException", "message": "Service Unavailable"},
        {
            "kind": "error",
            "operation": "GetRecords",
            "code": "ExpiredIteratorException",
            "message": "Iterator expired.",
        },
        {"kind": "latency", "seconds": {"mean": mean, "p99": mean * chance.uniform(2, 10)}},
        {"kind": "latency", "seconds": [0.0, 0.05], "where": "after"},
        {"kind": "reset", "where": "before"},
        {"kind": "reset", "where": "after"},
        {"kind": "reset", "where": "inside"},
        {"kind": "truncate", "share": round(chance.random(), 3)},
        {"kind": "malformed"},
        {"kind": "html", "status": chance.choice([502, 503, 504])},
        {"kind": "wrong_count", "delta": chance.choice([-1, 1])},
        {"kind": "fan_out_exception"},
        {"kind": "fan_out_end"},
        {"kind": "fan_out_reset"},
    ]


def draw_mixture(wanted: Chaos, chance: "Random") -> list[FaultRule]:
    """The rules of one run: at least one."""
    choices = _choices(chance)
    chosen = [one for one in choices if chance.random() < _INCLUDED] or choices[:1]
    where = {} if wanted.stream is None else {"stream": wanted.stream}
    return [
        FaultRule.from_dict(one | where | {"chance": wanted.intensity * chance.uniform(0.1, 1.0)}) for one in chosen
    ]
