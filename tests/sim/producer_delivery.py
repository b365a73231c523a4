"""Decides which records had to be delivered in spite of all faults: those that lived longer than the trouble.

- If nothing is refused permanently, a record that is given up has expired, and for no other reason: with the code
  ``Expired``, or in a part of a refused request with the reason of the refusal.
- A record that is still alive when all trouble is over is delivered, if it lives for as long as the slowest path to the
  stream takes at worst, and within that time.

Allowances after the last fault, reshard or change of the distribution (``_calm_at``):

- a request that was in flight then, the pause after it, and the detour of a record that landed in the wrong shard: the
  map, perhaps twice, then the request (``_detour``);
- the pauses of the map itself, which grow with the time for which it could not be read;
- the queue: requests one after the other where they must be, records and bytes at the lowest rate that producer and
  shard have, as if all of them went to one shard, while a rate that throttling has lowered recovers (``_queue``).
"""

from math import ceil, sqrt

from producer_scenario import FATAL, POISON

from shardline.codec.aggregation import encode_tags
from shardline.core.producer.producer_record import Undelivered
from shardline.core.producer.retries import EXPIRED, HEADERS_REFUSED

TIMEOUT = 3.0
SLOW = 4.0  # the worst round trip, where the network is slow at times
RECOVERY = 0.05  # the share of a rate by which it recovers in a second
BLIND = 1.0  # how long records wait for the first map
THROTTLES = {"throttled", "slow-down", "entry-throttle"}


def check_delivered(shell):
    """Check, at the end of a world, that all these records were delivered."""
    config, scenario = shell.config, shell.world.scenario
    refused = FATAL & scenario.faults.keys() or (config.ordered and "denied" in scenario.listing_faults)
    if scenario.recreated is not None and scenario.recreated[0] < scenario.recreated[1]:
        return  # while the stream is missing, records fail at once
    if refused or config.fail_if_throttled or config.max_attempts is not None or shell.closed:
        return
    needed = _needed(shell)
    calm_at = _calm_at(scenario)
    applied = False
    for given in shell.given:
        record = given.record
        if POISON in given.data:
            continue
        is_lost = type(record.ending) is Undelivered
        if is_lost and record.ending.code == HEADERS_REFUSED:
            continue  # its headers cannot be sent, however long it waits
        assert not is_lost or _has_expired(record.ending), f"failed with {record.ending.code}"
        accepted_at = given.accepted_at - shell.world.start
        if given.expires_at - shell.world.start >= max(calm_at, accepted_at) + needed:
            assert not is_lost, f"{given.data[:20]!r} had {needed:.1f} s after all trouble, and expired"
            if given.ended_at is not None:
                late = given.ended_at - shell.world.start - max(calm_at, accepted_at)
                assert late <= needed, f"{given.data[:20]!r} ended {late:.1f} s after all trouble, not {needed:.1f}"
            applied |= record.attempt_count > 1 and accepted_at < calm_at
    if applied:
        shell.world.reached.add("delivered after trouble that was shorter than its life")


def _has_expired(ending):
    return ending.code == EXPIRED or "ended before this one was sent alone" in ending.message


def _calm_at(scenario):
    """Return the time from which on nothing goes wrong any more."""
    faulty = scenario.faults or scenario.listing_faults or scenario.summary_faults
    ends = [end for _, end in scenario.fault_windows] if faulty else []
    ends += [] if scenario.recreated is None else [scenario.recreated[1]]
    switches = [*scenario.toggles, *scenario.channel_toggles]
    return max([0.0, *ends, *(moment for moment, _ in scenario.reshards), *switches])


def _needed(shell):
    return _detour(shell) + _queue(shell)


def _round_trip(scenario):
    trip = SLOW if scenario.slow_chance else scenario.latency[1]
    return trip + (TIMEOUT if "timeout" in scenario.faults else 0.0)


def _detour(shell):
    scenario, config = shell.world.scenario, shell.config
    trips = 6 * _round_trip(scenario)
    unread = scenario.listing_faults or scenario.summary_faults
    pauses = 3 * config.retry_backoff_max + config.linger + BLIND + 1.0
    return trips + pauses + (_calm_at(scenario) + 3.0 if unread else 0.0)


def _size(given):
    return len(given.data) + (len(encode_tags(given.headers)) + 60 if given.headers else 0)


def _queue(shell):
    scenario, config = shell.world.scenario, shell.config
    givens = [given for one in shell.world.shells for given in one.given]
    count, size = len(givens), sum(_size(given) + len(given.key or "") + 40 for given in givens)
    largest = max((_size(given) for given in givens), default=0) + 300
    together = 1 if config.ordered else min(config.request_max_entries, max(1, config.request_max_bytes // largest))
    poison = sum(POISON in given.data for given in givens)
    # P4: while no newer map is to be had, a record with headers is stored three times, because it is always an aggregate.
    again = 2 * sum(bool(given.headers) for given in givens) if scenario.reshards else 0
    requests = ceil((count + again) / together) + 20 * poison
    seconds = requests * _round_trip(scenario)
    for demand, rates in (
        (count, (config.records_per_second, scenario.record_rate)),
        (size, (config.bytes_per_second, scenario.byte_rate)),
    ):
        lowest = min(rates)
        seconds += 4 * demand / lowest + sqrt(2 * demand / (RECOVERY * lowest))
    return seconds
