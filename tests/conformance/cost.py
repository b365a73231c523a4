"""Estimates the highest cost of a run on AWS, and its duration.

The prices are those of US East (N. Virginia) on AWS's public page https://aws.amazon.com/kinesis/data-streams/pricing/.
Prices in other regions are higher, by up to a half. Every hour that has begun counts as a whole hour.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.conformance.scenario import Scenario, Stream

PRICES_OF = "2025"
SHARD_HOUR = 0.015
ON_DEMAND_STREAM_HOUR = 0.04
ON_DEMAND_GB_IN = 0.08
PUT_UNIT = 0.014 / 1_000_000  # units of up to 25 KB
CONSUMER_SHARD_HOUR = 0.015
CONSUMER_GB = 0.013
EXTENDED_RETENTION_SHARD_HOUR = 0.02
_UNIT_GB = 25 / 1024 / 1024
_FEW_PUT_UNITS = 400
"""The number of records that is assumed for a scenario that states none. Our producer's scenarios put 300 records."""


@dataclass(frozen=True)
class Estimate:
    streams: int
    shards: int
    on_demand_streams: int
    consumer_shards: int
    put_units: int
    dollars: float
    minutes: float

    def __str__(self) -> str:
        return (
            f"{counted(self.streams, 'stream')} with {counted(self.shards, 'shard')} ({self.on_demand_streams} on-demand), "
            f"{counted(self.consumer_shards, 'consumer-shard')} of enhanced fan-out and "
            f"{counted(self.put_units, 'PUT payload unit')}: at most "
            f"{self.dollars:.2f} US dollars (prices of us-east-1, {PRICES_OF}), about {counted(round(self.minutes), 'minute')}"
        )


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def estimate(scenarios: Iterable[Scenario], jobs: int) -> Estimate:
    streams = shards = on_demand = consumers = units = retained = 0
    gigabytes_in = gigabytes_pushed = 0.0
    shared: set[Stream] = set()
    seconds = [0.0]
    for scenario in scenarios:
        shared |= {stream for stream in scenario.streams.values() if stream.shared}
        made = [stream for stream in (*scenario.streams.values(), *scenario.makes.values()) if not stream.shared]
        streams += len(made)
        on_demand += sum(stream.on_demand for stream in made)
        # An on-demand stream is billed by the hour, not by its shards. A scenario in which such a stream becomes
        # provisioned states its number of shards.
        shards += max(scenario.shards_at_most, sum(stream.shards for stream in made if not stream.on_demand))
        consumers += scenario.consumer_shards
        put = (scenario.put_units or _FEW_PUT_UNITS) if scenario.streams or scenario.makes else 0
        units += put
        gigabytes_in += put * _UNIT_GB if any(stream.on_demand for stream in made) else 0.0
        gigabytes_pushed += put * _UNIT_GB if scenario.consumer_shards else 0.0
        retained += scenario.extended_retention_shards
        seconds.append(scenario.seconds)
    streams += len(shared)
    shards += sum(stream.shards for stream in shared)
    dollars = sum(
        amount * price
        for amount, price in (
            (shards, SHARD_HOUR),
            (on_demand, ON_DEMAND_STREAM_HOUR),
            (gigabytes_in, ON_DEMAND_GB_IN),
            (units, PUT_UNIT),
            (consumers, CONSUMER_SHARD_HOUR),
            (gigabytes_pushed, CONSUMER_GB),
            (retained, EXTENDED_RETENTION_SHARD_HOUR),
        )
    )
    minutes = max(*seconds, sum(seconds) / jobs) / 60
    return Estimate(streams, shards, on_demand, consumers, units, dollars, max(1.0, minutes))
