"""The true state of the stream: its records, who received them, and which are done. No machine sees it."""

from dataclasses import dataclass

from fleet_scenario import passes
from tests.aggregates import split_aggregate

from shardline.model.hashing import hash_key_of
from shardline.server.model.sequence_numbers import parse


@dataclass
class Stored:
    """One user record in a shard."""

    data: bytes
    key: str
    arrived_at: float
    in_range: bool
    aggregated: bool
    size: int
    """How many records its aggregate has."""


class ShardTruth:
    """One shard: its records in order, and what happened to them."""

    def __init__(self, shard):
        self.shard_id = shard.shard_id
        self.hash_range = shard.hash_range
        self.parents = tuple(shard.parent_ids)
        self.children = []
        self.is_open = True
        self.records = {}  # by place: (sequence number, sub-sequence)
        self.places = []
        self.first_delivered = {}  # by place: the arrival time
        self.finished_under = {}  # by place: the last grant under which a user has finished the record
        self.done = set()
        self.trimmed_before = None  # the place before which all records are gone
        self.starts_at = None  # where the group began to read the shard; ``None`` while it has no row
        self.checked = 0  # places up to here were seen to be done (C2)
        self.committed = None
        self.highest = None  # the highest committed place, whatever was sought later
        self.first_committed = None
        self.finished = False
        # Finished because a worker believed that the shard is gone, not because it was read to its end.
        self.given_up = False
        self.ever_rowed = False
        self.rowed_late = False  # the row was written so late that a descendant was already being read
        self.is_gone = False

    @property
    def required(self):
        """The places that the group must have handled: those that arrived since its start, and are still there."""
        return [place for place in self.places if self.is_required(place)]

    def is_required(self, place):
        return self.starts_at is not None and not self.is_from_before_start(place) and not self.is_trimmed(place)

    def is_from_before_start(self, place):
        return self.starts_at is not None and self.records[place].arrived_at < self.starts_at

    def is_trimmed(self, place):
        return self.is_gone or (self.trimmed_before is not None and place < self.trimmed_before)


class Truth:
    """The true state of the stream, over all its shards. A re-created stream begins a new book."""

    def __init__(self, world, reached):
        self.world = world
        self.reached = reached
        self.shards = {}
        self.epoch = 0
        self.drops = world.fleet.config.out_of_range == "drop"
        loads = world.fleet.producing.loads
        self.headers = {data: headers for load in loads for data, headers in load.headers.items()}
        self.dedups = world.fleet.config.dedup
        # The payloads that have a stamp, by which a consumer recognises a copy.
        self.stamped = {put[3] for load in loads if load.config.dedup for put in load.puts}
        self.copies = {}  # by payload with a stamp: the shard and the place of each copy, in order
        self.released = set()  # the grants whose leases were released in good order
        self.first_by_data = {}  # when each payload was first handed to a user, from the shard that it belongs to

    # ---- changes of the stream

    def begin_anew(self):
        self.shards = {}
        self.epoch += 1

    def see_shards(self, stream):
        if stream.next_index != len(self.shards):
            for shard in stream.shards.values():
                if shard.shard_id not in self.shards:
                    self.shards[shard.shard_id] = ShardTruth(shard)
                    for parent in self.shards.keys() & shard.parent_ids:
                        self.shards[parent].children.append(shard.shard_id)
        for shard_id, known in self.shards.items():
            shard = stream.shards.get(shard_id)
            known.is_gone = shard is None
            known.is_open = shard is not None and shard.is_open
            if shard is not None and self.world.fleet.retention is not None:
                self._see_trimmed(known, shard)

    def _see_trimmed(self, known, shard):
        """Yield the places whose numbers in the log lie before the first remaining one."""
        for place in known.places:
            if parse(str(place[0])).number >= shard.log.first:
                known.trimmed_before = place
                return
        known.trimmed_before = (float("inf"), 0) if known.places else None

    def see_stored(self, stored):
        for batch in stored:
            known = self.shards[batch.shard.shard_id]
            for record in batch.records:
                number = int(record.sequence_number)
                for sub, (key, data, in_range, size) in enumerate(_open(record, known.hash_range)):
                    place = (number, sub)
                    assert not known.places or known.places[-1] < place, "S: numbers grow"
                    known.places.append(place)
                    known.records[place] = Stored(data, key, record.arrived_at, in_range, size > 0, size)
                    if self.drops and not in_range:
                        known.done.add(place)
                        self.reached.add("out of range: dropped")
                    if self.is_filtered(data):
                        known.done.add(place)
                    if data in self.stamped:
                        self.copies.setdefault(data, []).append((known, place))
                if size > 1:
                    self.reached.add("an aggregate opened")

    # ---- work of the group

    def deliver(self, record, now):
        """Note that a record is handed to a user."""
        known = self.shards.get(record.shard_id)
        place = (int(record.sequence_number), record.sub_sequence)
        if known is None or place not in known.records:
            assert self.epoch or self.world.fleet.recreated_at is not None, f"nobody put {record}"
            return
        truth = known.records[place]
        assert not self.is_filtered(record.data), f"{record} does not pass the filter"
        assert (record.data, record.key) == (truth.data, truth.key), f"{record} is not what was put: {truth}"
        assert record.headers == self.headers.get(record.data, {}), f"{record} has other headers than were put"
        if record.headers:
            self.reached.add("headers handed out")
        # A row of the earlier stream has another range: it lets too many records through, never too few.
        assert not self.drops or truth.in_range or self.epoch, "it lies outside of the shard"
        if place in known.first_delivered:
            self.reached.add("redelivered")
        self._check_repeat(known, place)
        self._check_copy(known, place, truth)
        known.first_delivered.setdefault(place, now)
        if truth.in_range:  # a misdirected copy is read beside the others: it has no place in the order of its key
            self.first_by_data.setdefault(record.data, (now, len(self.first_by_data)))

    def _check_repeat(self, known, place):
        """Check that a finished record comes again only after a crash or the loss of a lease, not after a release.

        If records are finished out of order, those behind a record that fails come again. A close without any time for
        threads does not wait to learn what they have just finished.
        """
        fleet = self.world.fleet
        is_abrupt = fleet.user.threaded and fleet.user.closing_time == 0.0
        blurs = fleet.set_back or fleet.recreated_at is not None or "seek" in fleet.user.control or self.epoch
        if blurs or is_abrupt or fleet.user.order != "shard" or fleet.config.ack == "manual":
            return
        lease = known.finished_under.get(place)
        if lease in self.released:
            raise AssertionError(f"{place} of {known.shard_id} comes again, and its lease was released in good order")
        if lease is not None:
            self.reached.add("handled again after a crash or a lost lease")

    def _check_copy(self, known, place, truth):
        """Check ``dedup``: of the copies of a stamped record, one is handed out, whatever crashes, moves or reshards.

        One exception is a copy in a shard that it does not belong to, where another worker may read it. Another is a copy
        from before the group's start: a worker whose start lies in the future reads it, but its successor may not. If a
        checkpoint goes back, or records or rows are lost, the copies are read again.
        """
        fleet = self.world.fleet
        blurs = fleet.set_back or fleet.retention or fleet.recreated_at is not None or "seek" in fleet.user.control
        if not self.dedups or blurs or not truth.in_range:
            return
        for other, at in self.copies.get(truth.data, ()):
            counts = at in other.first_delivered and other.records[at].in_range and other.is_required(at)
            if counts and (other, at) != (known, place):
                raise AssertionError(f"{truth.data[:20]} is handed out from {known.shard_id} and {other.shard_id}")

    def finish(self, record):
        """Note that a user has finished a record, or that its dead letter was written."""
        known = self.shards.get(record.shard_id)
        place = (int(record.sequence_number), record.sub_sequence)
        if known is not None and place in known.records:
            known.done.add(place)
            known.finished_under[place] = record.lease

    def leave_open(self, records):
        """Note that the handler of these records was cancelled. Although its code ran to its end, they may come again."""
        for record in records:
            known = self.shards.get(record.shard_id)
            if known is not None:  # otherwise the stream was re-created while the handler ran, without this shard
                known.finished_under.pop((int(record.sequence_number), record.sub_sequence), None)

    # ---- queries

    def was_delivered(self, data):
        """Whether a user got the payload, perhaps as a stamped copy in a shard that it does not belong to."""
        copies = self.copies.get(data, ())
        return data in self.first_by_data or any(at in other.first_delivered for other, at in copies)

    def find_originals(self, known, place):
        """Return the earlier copies of a stamped record in the same shard and its ancestors."""
        copies = self.copies.get(known.records[place].data, ()) if self.dedups else ()
        if len(copies) < 2:
            return []
        lineage = {known.shard_id, *self.ancestors(known.shard_id)}
        return [(other, at) for other, at in copies if other.shard_id in lineage and (other is not known or at < place)]

    def is_left_out(self, known, place):
        """Whether a consumer need not hand the record out: it is filtered, out of range, or a copy."""
        stored = known.records[place]
        is_dropped = self.drops and not stored.in_range
        return is_dropped or self.is_filtered(stored.data) or bool(self.find_originals(known, place))

    def is_done(self, known, place):
        """Whether the record, or an earlier copy of it, was handled. A copy may be left out only then."""
        if place in known.done:
            return True
        is_done = any(self._was_handled(other, at) for other, at in self.find_originals(known, place))
        if is_done:
            self.reached.add("a copy left out")
        return is_done

    def _was_handled(self, known, place):
        is_dropped = self.drops and not known.records[place].in_range
        return place in known.done and not is_dropped

    def is_filtered(self, data):
        """Whether the record does not pass the user's filter."""
        return self.world.fleet.user.filters and not passes(data)

    def ancestors(self, shard_id):
        left, seen = [*self.shards[shard_id].parents], []
        while left:
            parent = left.pop()
            if parent in self.shards and parent not in seen:
                seen.append(parent)
                left += self.shards[parent].parents
        return seen

    def descendants(self, shard_id):
        left, seen = [*self.shards[shard_id].children], []
        while left:
            child = left.pop()
            if child not in seen:
                seen.append(child)
                left += self.shards[child].children
        return seen

    def undone(self, known):
        """Return the records of a shard that the group still has to handle."""
        return [place for place in known.required if not self.is_done(known, place)]


def _open(record, hash_range):
    inner = split_aggregate(record.data)
    if inner is None:
        return [(record.key, record.data, True, 0)]
    found = []
    for one in inner:
        hash_key = hash_key_of(one.key) if one.explicit_hash_key is None else int(one.explicit_hash_key)
        found.append((one.key, one.data, hash_key in hash_range, len(inner)))
    return found
