"""Checks P1 to P12 of docs/guarantees.md from outside, after every step and at the end."""

from collections import Counter
from math import log2

from producer_endpoint import ODD_SHARD
from producer_scenario import DUPLICATING, POISON
from tests.aggregates import SPLITTERS, split_aggregate, split_entry, split_headed

from shardline.codec.aggregation import is_framed, split_columns
from shardline.core.clock import NEVER
from shardline.core.error_codes import Failure
from shardline.core.producer.producer_record import Undelivered, payload_bytes
from shardline.core.producer.retries import EXPIRED, HEADERS_REFUSED, landed_wrong_twice
from shardline.core.producer.verdicts import WRONG_SHARD, Rules
from shardline.model.hashing import hash_key_of

LONGEST_REQUEST = 8.0  # slow in both directions, and a timeout
LONGEST_TRIP = 0.2  # a round trip in a healthy world
SLACK = 1e-6


class Allowance:
    """A bucket as the service would keep it for the producer: one second of the rate, and debt for larger amounts (P6)."""

    def __init__(self, rate, now):
        self.rate = rate
        self.balance = rate
        self.now = now

    def take(self, cost, now, share, most):
        """Take ``cost``, and return whether it may pass. After throttling, a smaller bucket counts as full: a ``share``
        of ``most``.
        """
        self.balance = min(self.rate, self.balance + self.rate * (now - self.now))
        self.now = now
        full = self.rate if share == 1.0 else min(self.rate, most) * share
        allowed = self.balance >= min(cost, full) * (1 - 1e-6)
        self.balance -= cost
        return allowed

    def set_rate(self, rate, now):
        self.balance = min(rate, self.rate, self.balance + self.rate * (now - self.now))
        self.now, self.rate = now, rate


class StepOracles:
    """Checks one producer."""

    def __init__(self, shell):
        self.shell = shell
        self.ended = 0
        self.delivered_seen = 0
        self.idle_wakes = 0
        self._woken = False
        self._allowances = {}
        self._tripped = set()
        self._lowered = set()
        self._held = set()
        self._distrusted = set()
        self.isolated_at = []
        self.forgiven = set()
        """Data of records with headers that are delivered wherever they land, although readers check where."""
        self.most_refused = 1

    @property
    def machine(self):
        return self.shell.machine

    @property
    def reached(self):
        return self.shell.world.reached

    # ---- after every call

    def check_step(self):
        machine, config, ledger = self.machine, self.shell.config, self.machine.ledger
        assert machine.intake.outstanding <= config.buffer_max_records, "P7"
        # The host stamps records that were accepted (21 bytes), and gives keyless ones a key (10 bytes).
        stamps = 31 * machine.intake.outstanding if config.dedup else 0
        room = config.buffer_max_bytes + stamps
        assert machine.intake.buffered_bytes <= room or machine.intake.outstanding == 1, "P7"
        ended = ledger.delivered_records + ledger.failed_records
        assert machine.intake.outstanding + ended == len(self.shell.given), "P1"
        assert machine._collector.in_flight <= config.max_in_flight, "no more requests are in flight than allowed"
        isolated = sum(flight.group.part is not None for flight in machine._flights.values())
        assert isolated <= max(1, config.max_in_flight // 4), (
            "at most a quarter of max_in_flight requests are under way for this, and at least one may be"
        )
        if machine._responses.parked:
            self.reached.add("parked")
        for record in machine.intake.records[:1]:
            self._check_deadline(record, machine.next_deadline())
        for lane in machine._router.lanes:
            self._watch(lane, self._tripped, lane.is_tripped, "circuit open", "circuit closed again")
            self._watch(lane, self._lowered, lane.share < 1.0, "rates lowered", "rates recovered")
            self._watch(lane, self._held, lane.held, "held lane", "held lane released")
            self._watch(lane, self._distrusted, lane.is_distrusted, "lane distrusted", "lane trusted again")

    def _watch(self, lane, known, state, on, off):
        if state and lane not in known:
            known.add(lane)
            self.reached.add(on)
        elif not state and lane in known:
            known.discard(lane)
            self.reached.add(off)

    def _check_deadline(self, record, deadline):
        """Check that the machine wakes up when a record that is in no lane yet has lingered, and when it expires."""
        config, now = self.shell.config, self.shell.now
        due_at = record.expires_at - config.record_ttl + config.linger
        assert deadline <= max(now, due_at) + SLACK, f"it lingers until {due_at}, the deadline is {deadline}"
        expires_at = self.shell.by_record[id(record)].expires_at
        assert deadline <= max(now, expires_at) + SLACK, "nobody looks when its life is over"

    def _check_dates(self, lane):
        """Check that the records of an aggregate are due, and expire, when the oldest of them does."""
        life = self.shell.config.record_ttl - self.shell.config.linger
        aggregates = [aggregate for _, _, aggregate in lane._queue] + list(lane.open.values())
        for aggregate in aggregates:
            oldest = min(record.expires_at for record in aggregate.records)
            due_at = aggregate.due_at + lane._linger_change
            assert due_at <= oldest - life + SLACK, f"due at {due_at}, not at {oldest - life}"

    def _check_expiry(self):
        """Check that no waiting record outlives its TTL, and that the machine wakes up when the next one expires."""
        machine = self.machine
        shipments = [*machine._responses.parked, *machine._isolation.shipments()]
        waiting = [record for shipment in shipments for record in shipment.aggregate.records]
        waiting += [record for lane in machine._router.all_lanes() for record in lane.unsent()]
        for expires_at in [self.shell.by_record[id(record)].expires_at for record in waiting]:
            assert expires_at > self.shell.now - SLACK, "its life is over, and it waits"
            assert machine._expires_at <= expires_at + SLACK, "nobody looks when its life is over"

    def check_full(self, record):
        machine, config = self.machine, self.shell.config
        size = payload_bytes(record)
        full = machine.intake.outstanding >= config.buffer_max_records
        assert full or machine.intake.buffered_bytes + size > config.buffer_max_bytes, "P7: refused, and there was room"

    def note_wake(self):
        self._woken = True
        self._before = (self.ended, self.machine._flight_count, self.shell.map_requests, self.shell.summary_requests)

    def check_pumped(self, deadline):
        """Check that nothing that could be sent is forgotten, and that every wake-up has a purpose."""
        if self._woken:
            self._woken = False
            after = (self.ended, self.machine._flight_count, self.shell.map_requests, self.shell.summary_requests)
            self.idle_wakes += after == self._before
        machine, now = self.machine, self.shell.now
        collector, router = machine._collector, machine._router
        for lane in router.all_lanes():
            self._check_dates(lane)
        self._check_expiry()
        if not collector._has_slot():
            return
        for lane in router.all_lanes():
            if lane.open and not lane.queued:
                due_at = min(aggregate.due_at for aggregate in lane.open.values()) + lane._linger_change
                assert deadline <= max(now, due_at) + SLACK, f"forgotten: {due_at}, not {deadline}"
            if not lane.queued or lane.held or lane._is_busy():
                continue
            largest = max(aggregate.cost_bytes for _, _, aggregate in lane._queue)
            tokens_at = lane._bucket.ready_at(1.0, largest, now)
            at = max(lane.due_at(), lane._blocked_until, tokens_at, collector._blocked_until, now)
            at += collector._gather + SLACK
            if not machine._facts.answered:
                at = max(at, machine._blind_at + SLACK)
            if lane is router.catch_all and machine._router.is_blind:
                if self.shell.config.ordered:
                    continue
                at = max(at, machine._blind_at)
            assert deadline <= at, f"forgotten: {lane.shard_id} could send at {at}, the deadline is {deadline}"

    def check_flushed(self):
        assert not any(lane.open for lane in self.machine._router.all_lanes()), "P10: something still lingers"

    def check_abandoned(self):
        flights = self.machine._flights.values()
        under_way = sum(flight.record_count for flight in flights)
        assert self.machine.intake.outstanding == under_way, "P1: only what is under way outlives the end"

    # ---- requests

    def check_request(self, number, request):
        shell, config, now = self.shell, self.shell.config, self.shell.now
        assert not shell.closed, "nothing is sent after the end"
        flight = self.machine._flights[number]
        shipments, entries = flight.group.shipments, request.entries
        if flight.group.part is not None:
            self.isolated_at.append(now)
            if flight.group.part.named:
                self.reached.add("isolated an entry that the service named")
        assert 0 < len(entries) <= config.request_max_entries, "a request keeps the limits of the service"
        sizes = [len(entry.data) + len((entry.key or "").encode()) for entry in entries]
        assert sum(sizes) <= config.request_max_bytes or len(entries) == 1, "a request keeps the limits of the service"
        if sum(sizes) > config.request_max_bytes:
            self.reached.add("larger than a request, alone")
        parts = [part for shipment in shipments for part in _parts(*shipment)]
        for (aggregate, records, lane), entry, size in zip(parts, entries, sizes, strict=True):
            self._check_entry(aggregate, records, lane, entry)
            self._check_may_aggregate(records, lane)
            if lane.shard_id is None:
                if self.machine._router.is_blind:
                    self.reached.add("sent without a map")
                if config.packing is not None and len(records) > 1:
                    self.reached.add("packed without a map")
                assert len(records) == 1 or config.packing is not None, "P2: without a map one record an entry"
                continue
            assert not (config.ordered and lane.held), "P9"
            if config.ordered and not aggregate.separate:
                assert lane.in_flight == 1 or flight.group.part is not None, "P9: one aggregate of a lane in flight"
            if flight.group.part is None:
                number, volume = self._allowance(lane)
                assert number.take(1.0, now, lane.share, 1_000), "P6: records a second"
                assert volume.take(size, now, lane.share, 1 << 20), "P6: bytes a second"

        if config.ordered:
            self._check_heads()

    def _check_may_aggregate(self, records, lane):
        """What is known to forbid aggregates is heeded, also by parts of a request that was refused before."""
        facts = self.machine._facts
        if not facts.may_aggregate:
            assert len(records) == 1 or self.shell.config.packing is not None, (
                "an aggregate, and it is known to be wrong"
            )
            assert not records[0].tags, "headers, and it is known that they cannot be sent"
        if len(records) == 1 and records[0].tags and (lane.shard_id is None or landed_wrong_twice(records[0])):
            self.forgiven.add(records[0].data)

    def _shipments(self):
        return [shipment for flight in self.machine._flights.values() for shipment in flight.group.shipments]

    def _check_heads(self):
        """Check P9: PutRecords does not keep the order of its entries, so a key has at most one entry in flight."""
        shipments = self._shipments()
        separate = [one for one in shipments if one.aggregate.separate]
        keys = [(one.lane, each.key) for one in separate for each in one.aggregate.records if each.key is not None]
        assert len(keys) == len(set(keys)), "P9: two records of a key are under way"
        if len(separate) > 1 and len({one.lane for one in separate}) == 1:
            self.reached.add("several keys of an ordered lane under way")
        for one in shipments:
            if not one.aggregate.separate:
                assert all(other.lane is not one.lane for other in separate), "P9: beside an aggregate"

    def note_rates(self):
        """Note that the user has changed the rates. A balance is at most one second of the new rate."""
        config, now = self.shell.config, self.shell.now
        for allowances in self._allowances.values():
            for allowance, rate in zip(allowances, (config.records_per_second, config.bytes_per_second), strict=True):
                allowance.set_rate(rate, now)

    def _allowance(self, lane):
        """Return the allowance of a lane (not of a shard: a lane that comes back after AUTO starts over)."""
        if lane not in self._allowances:
            config, now = self.shell.config, self.shell.now
            rates = (config.records_per_second, config.bytes_per_second)
            self._allowances[lane] = tuple(Allowance(rate, now) for rate in rates)
        return self._allowances[lane]

    def _check_entry(self, aggregate, records, lane, entry):
        packing = self.shell.config.packing
        inner = split_aggregate(entry.data)
        if packing is not None:
            assert inner is None, "P12: a pack looks like an aggregate"
            assert len(entry.data) == aggregate.size, "an entry is as large as was counted"
            assert len(entry.data) <= max(lane.max_bytes, self.shell.config.aggregate_max_bytes) or len(records) == 1
            found = [(one.key, one.data, one.explicit_hash_key) for one in split_entry(entry, packing)]
            if len(found) > 1 and sum(one.lane is lane for one in self._shipments()) > 1:
                self.reached.add("packs of a lane under way together")
        elif len(records) == 1 and not is_framed(records[0].data) and not records[0].tags:
            assert inner is None or entry.data != records[0].data
            found = [(entry.key, entry.data, entry.explicit_hash_key)]
        else:
            assert inner is not None, "P12: it must be wrapped"
            if len(records) == 1:
                odd = is_framed(records[0].data)
                self.reached.add("wrapped a payload that looks like an aggregate" if odd else "headers sent alone")
            else:
                assert len(entry.data) <= max(lane.max_bytes, self.shell.config.aggregate_max_bytes)
                assert len(entry.data) == aggregate.size, "an entry is as large as was counted"
            if not aggregate.separate:
                assert len(entry.data) == aggregate.size, "an entry is as large as was counted"
            found = [(one.key, one.data, one.explicit_hash_key) for one in inner]
            self._check_headers(records, split_headed(entry.data))
        for record, (key, data, hash_key) in zip(records, found, strict=True):
            given = self.shell.by_record[id(record)]
            assert record.ending is None, "P1: it has ended"
            assert given.expires_at > self.shell.now - SLACK, "its life was over"
            if record.expires_at + SLACK < self.shell.now:
                self.reached.add("sent after record_ttl, by its own TTL")
            assert data == given.data
            if given.key is not None:
                assert (key, hash_key) == (given.key, given.hash_key), "P8: keys are kept"
            if lane.shard_id is not None:
                place = hash_key_of(key) if hash_key is None else int(hash_key)
                assert place in lane.hash_range, "P2: an aggregate is of one shard"

    def _check_headers(self, records, found):
        for record, one in zip(records, found, strict=True):
            assert one.headers == self.shell.by_record[id(record)].headers, "headers stay with their record"

    def see_answer(self, number, answer):
        flight = self.machine._flights[number]
        if isinstance(answer, Failure) and flight.group.part is None:
            self.most_refused = max(self.most_refused, flight.record_count)
        if flight.group.part is not None and not isinstance(answer, Failure):
            self.reached.add("innocent beside a poisonous record delivered")
        if isinstance(answer, Failure) and flight.group.part is not None and flight.record_count == 1:
            lane = flight.group.shipments[0].lane
            if lane.aggregates and self.shell.config.aggregate_max_count != 1:
                self.reached.add("bisected down to a record inside an aggregate")
        if flight.started_at < self.shell.now and any(
            record.deadline <= self.shell.now for one in flight.group.shipments for record in one.aggregate.records
        ):
            self.reached.add("expired in flight")

    # ---- outcomes

    def check_ended(self, failed, finished):
        shell = self.shell
        for record in failed:
            assert type(record.ending) is Undelivered
            self._note_failed(record)
        assert len(finished) == len(set(map(id, finished))), "P1: told once"
        for record in finished:
            given = shell.by_record[id(record)]
            assert record.ending is not None
            assert given.ended_at is None, "P1: told once"
            given.ended_at = shell.now
            late = shell.now - given.expires_at
            assert late <= LONGEST_REQUEST, f"ended {late} s after its life"
        ledger = self.machine.ledger
        self.ended = ledger.delivered_records + ledger.failed_records

    def _note_failed(self, record):
        ending, given = record.ending, self.shell.by_record[id(record)]
        if ending.code == EXPIRED:
            self.reached.rules.add(Rules.EXPIRED)
            assert given.expires_at <= self.shell.now + SLACK, "its life was not over"
            if record.extra_ttl:
                self.reached.add("expired by its own TTL")
        if ending.code == HEADERS_REFUSED:
            endpoint, stops = self.shell.world.endpoint, self.reached.states & {"aggregation stopped"}
            assert given.headers or self.shell.config.dedup, "it has no headers"
            assert endpoint.auto_ever or endpoint.channels_ever or stops, "nothing forbids headers"
            self.reached.add("headers refused after the put")
        if "given up after" in ending.message:
            self.reached.rules.add(Rules.TOO_MANY_ATTEMPTS)


def _parts(aggregate, lane):
    """Return the records of each entry of a shipment: all of an aggregate, or each record of a bundle by itself."""
    if aggregate.separate:
        return [(aggregate, [record], lane) for record in aggregate.records]
    return [(aggregate, aggregate.records, lane)]


# ---- at the end


def check_end(shell):
    machine = shell.machine
    assert not shell.queue, "P7: someone waits for room that is there"
    assert machine.intake.outstanding == 0, "P1"
    assert machine.intake.buffered_bytes == 0, "P1"
    assert machine.intake.unfinished() == []
    assert not machine._flights
    collector = machine._collector
    assert (collector.in_flight, collector._waiting_bytes, collector._waiting_entries) == (0, 0, 0)
    assert not machine._isolation.shipments()
    assert not machine._isolation._in_flight
    assert not collector._ready
    asks_on = [machine._facts.next_deadline()] if machine._facts.auto or machine._facts.channels else []
    asks_on += [machine._map.next_deadline()] if shell.world.endpoint.is_blacked_out_for_good else []
    assert machine.next_deadline() == min(asks_on, default=NEVER)
    for lane in machine._router.all_lanes():
        assert lane.is_idle
        assert lane.queued_bytes == 0
    assert not machine._router.vanished, "lanes that vanished are forgotten"
    for given in shell.given:
        assert given.record.ending is not None, "P1"
        assert (given.ended_at is not None) is shell.load.waits, "P1: who waits is told"
    check_effort(shell)
    if shell.world.scenario.steady_poison:
        check_isolation(shell)
    _check_stream(shell)


def check_effort(shell):
    """Check that there are no storms: of ListShards, of attempts, or of wake-ups."""
    endpoint, scenario, config = shell.world.endpoint, shell.world.scenario, shell.config
    pages = 1 + max(len(endpoint.stream.shards), 40) // scenario.page_size
    # A landing in a shard that no listing has makes the producer list the shards at once, again after a pause, and once
    # more when its records are sent again, because the map is then still considered stale.
    refreshes = 2 + 3 * endpoint.changes + endpoint.bad_listings + 3 * endpoint.oddities
    refreshes += 2 * shell.missing_answers  # a shard that is not found is listed again
    assert shell.map_requests <= refreshes * pages, f"ListShards: {shell.map_requests} for {refreshes}"
    most = 30 + 2 * max([config.record_ttl, *shell.load.own_ttls.values()]) / config.retry_backoff
    for given in shell.given:
        assert given.record.attempt_count <= most, "attempts are bounded by the backoff"
        kept = given.record.history.kept if given.record.history is not None else ()
        astray = sum(attempt.code == WRONG_SHARD for attempt in kept)
        assert astray <= 2, "P4: what landed in a wrong shard twice goes alone"
    rest = shell.now - 5_000.0
    assert shell.oracles.idle_wakes <= 100 + 60 * rest, f"{shell.oracles.idle_wakes} wake-ups for nothing in {rest} s"


def check_isolation(shell):
    """Check invalid records in a healthy world: they fail with the service's reason, and the others are delivered."""
    calls, config = shell.oracles.isolated_at, shell.config
    bad = [given for given in shell.given if POISON in given.data]
    for given in bad:
        assert given.record.ending.code == "ValidationException", f"an invalid record: {given.record.ending}"
        assert given.ended_at <= given.expires_at + LONGEST_TRIP, "it was told too late"
    for given in shell.given:
        assert POISON in given.data or type(given.record.ending) is not Undelivered, "IS: a valid record was given up"
    if shell.world.scenario.steady_poison < 1.0:
        most = 2 * log2(shell.oracles.most_refused) + (2 if not config.aggregation else 4)
        assert len(calls) <= len(bad) * most, f"{len(calls)} calls for {len(bad)} invalid records"
        if len(bad) > 5:
            shell.world.reached.add("invalid records at a steady rate")
        return
    assert len(calls) <= 1.1 * len(bad), f"{len(calls)} calls for {len(bad)} invalid records"
    rate = config.isolation_calls_per_second
    for earlier, later in zip(calls, calls[rate:], strict=False):
        assert later - earlier >= 1.0 - SLACK, f"more than {rate} calls in a second"
        shell.world.reached.add("isolation kept its pace")


def _check_stream(shell):
    readable, stored, headers = _read(shell)
    if shell.config.dedup:
        _check_stamps(shell)
    is_stored_once = not (DUPLICATING & shell.world.scenario.faults.keys())
    for given in shell.given:
        ending = given.record.ending
        if is_stored_once:
            assert stored[given.data] <= 3, f"P4: stored {stored[given.data]} times, whatever the map says"
        if type(ending) is Undelivered:
            assert ending.maybe_stored or given.data not in stored, "said not to be stored, and it is"
            continue
        result = given.record.conclusion
        place = (result.shard_id, int(result.sequence_number), result.sub_sequence)
        if result.shard_id == ODD_SHARD:  # the answer named a shard that does not exist, and the record went alone
            assert result.sub_sequence == 0 or shell.config.packing is not None, "P4"
            place = next(found for found in readable[given.data] if found[1:] == place[1:])
        assert place in readable.get(given.data, ()), f"P4: delivered, and no reader sees it: {given.data[:20]!r}"
        if given.headers:
            assert headers[given.data] == given.headers, "a reader gets other headers than were put"
            shell.world.reached.add("headers read back")
        if shell.config.packing is not None:
            assert all(attempt.code != WRONG_SHARD for attempt in result.attempts), "a pack is delivered where it lands"
            if result.sub_sequence:
                shell.world.reached.add("delivered in a pack")
        if any(attempt.code == WRONG_SHARD for attempt in result.attempts):
            shell.world.reached.add("delivered after a wrong shard")
        if given.key is None and len({one.shard_id for one in result.attempts}) > 1:
            shell.world.reached.add("keyless record chose another lane")
    if shell.config.ordered:
        _check_order(shell, readable)


def _read(shell):
    """Return every payload with the place where the KCL's reader finds it, everything that is stored, readable or not,
    and the headers.
    """
    endpoint = shell.world.endpoint
    keys = {given.data: (given.key, given.hash_key) for given in shell.given}
    readable, stored, headers = {}, Counter(), {}
    forgiven = {data for one in shell.world.shells for data in one.oracles.forgiven}
    stamped = {given.data for one in shell.world.shells if one.config.dedup for given in one.given}
    for shard in [*endpoint.past_shards, *endpoint.stream.shards.values()]:
        for kept in shard.log.records:
            packing = shell.world.scenario.packing
            inner = split_headed(kept.data)
            headers |= {one.data: one.headers for one in inner or ()}
            if packing is not None:
                assert inner is None, "P12"
                found = [(kept.key, data, None) for data in SPLITTERS[packing](kept.data)]
            elif inner is None:
                found = [(kept.key, kept.data, None)]
            else:
                found = [(one.key, one.data, one.explicit_hash_key) for one in inner]
            stored.update(data for _, data, _ in found)
            has_tags = inner is not None and (inner[0].headers or inner[0].data in stamped)
            alone = inner is not None and len(inner) == 1 and (not has_tags or inner[0].data in forgiven)
            if inner is not None and not (endpoint.auto_ever and alone):
                places = [hash_key_of(key) if hash_key is None else int(hash_key) for key, _, hash_key in found]
                if not all(place in shard.hash_range for place in places):
                    continue  # the KCL drops the whole aggregate
            for at, (key, data, hash_key) in enumerate(found):
                wanted = keys.get(data)
                if wanted is not None and wanted[0] is not None:
                    assert key == wanted[0], "P8"
                    assert inner is None or hash_key == wanted[1], "P8"
                place = (shard.shard_id, int(kept.sequence_number), at)
                readable.setdefault(data, []).append(place)
    return readable, stored, headers


def _check_stamps(shell):
    """Check ``dedup``: all copies of a record have one stamp, which no other record has, and belong to one hash key."""
    ours, stamps, homes = {given.data for given in shell.given}, {}, {}
    for shard in [*shell.world.endpoint.past_shards, *shell.world.endpoint.stream.shards.values()]:
        for kept in shard.log.records:
            columns = split_columns(kept.data)
            if columns is None:
                assert kept.data not in ours, "a record without a stamp"
                continue
            numbers = {
                run.place + at: (run.producer, run.first + at) for run in columns.stamps for at in range(run.length)
            }
            for place, data in enumerate(columns.payloads):
                if data in ours:
                    stamps.setdefault(data, set()).add(numbers[place])
                    homes.setdefault(data, set()).add((columns.keys[place], columns.explicit_hash_keys[place]))
    for data, found in stamps.items():
        assert len(found) == 1, f"{data[:20]} has the stamps {found}"
        assert len(homes[data]) == 1, f"{data[:20]} was stored under {homes[data]}"
    assert len(set.union(set(), *stamps.values())) == len(stamps), "two records have one stamp"
    shell.world.reached.add("stamped")


def _count(shell, kept):
    packing = shell.world.scenario.packing
    return len(split_aggregate(kept.data) or [kept]) if packing is None else len(SPLITTERS[packing](kept.data))


def _check_order(shell, readable):
    """Check P9: the first copies of a key's delivered records are stored in the order of their puts."""
    last = {}
    past = {
        (shard.shard_id, int(kept.sequence_number), place)
        for shard in shell.world.endpoint.past_shards
        for kept in shard.log.records
        for place in range(_count(shell, kept))
    }
    for given in shell.given:
        if given.key is None or type(given.record.ending) is Undelivered:
            continue
        place = (given.key, given.hash_key)
        # The numbers of a stream that was re-created may be smaller than those of the one that was deleted.
        first = min((found not in past, *found[1:]) for found in readable[given.data])
        assert last.get(place, (False, 0, 0)) < first, f"P9: {given.data[:20]!r} stands before one that was put earlier"
        last[place] = first
