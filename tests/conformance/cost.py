"""What will a run on AWS cost, at most, and how long will it take?

The prices are those of US East (N. Virginia) on AWS's public page https://aws.amazon.com/kinesis/data-streams/pricing/. They
are higher in other regions, by up to a half. Every started hour is counted as a whole one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tests.conformance.scenario import Scenario

PRICES_OF = "2025"
SHARD_HOUR = 0.015
ON_DEMAND_STREAM_HOUR = 0.04
ON_DEMAND_GB_IN = 0.08
PUT_UNIT = 0.014 / 1_000_000  # of up to 25 KB
CONSUMER_SHARD_HOUR = 0.015
CONSUMER_GB = 0.013
EXTENDED_RETENTION_SHARD_HOUR = 0.02
_FEW_PUT_UNITS = 400
"""Of a scenario that says nothing: our producer's scenarios put 300 records."""


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
    seconds = [0.0]
    for scenario in scenarios:
        made = [*scenario.streams.values(), *scenario.makes.values()]
        streams += len(made)
        on_demand += sum(stream.on_demand for stream in made)
        # An on-demand stream is billed by the hour, not by its shards; one that was made provisioned has had both.
        shards += max(scenario.shards_at_most, sum(stream.shards for stream in made))
        consumers += scenario.consumer_shards
        units += (scenario.put_units or _FEW_PUT_UNITS) if made else 0
        retained += scenario.extended_retention_shards
        seconds.append(scenario.seconds)
    gigabytes = units * 25 / 1024 / 1024
    dollars = sum(
        amount * price
        for amount, price in (
            (shards, SHARD_HOUR),
            (on_demand, ON_DEMAND_STREAM_HOUR),
            (gigabytes if on_demand else 0.0, ON_DEMAND_GB_IN),
            (units, PUT_UNIT),
            (consumers, CONSUMER_SHARD_HOUR),
            (gigabytes if consumers else 0.0, CONSUMER_GB),
            (retained, EXTENDED_RETENTION_SHARD_HOUR),
        )
    )
    minutes = max(*seconds, sum(seconds) / jobs) / 60
    return Estimate(streams, shards, on_demand, consumers, units, dollars, max(1.0, minutes))
