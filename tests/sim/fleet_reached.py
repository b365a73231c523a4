"""Counts the interesting states that a fleet has reached, over many seeds."""

from producer_reached import STATES as PRODUCER_STATES

from shardline.core.error_codes import FailureKind

STATES = frozenset({
    # leases
    "an expired lease taken",
    "steal: a lease asked for",
    "hand-over completed",
    "hand-over timed out",
    "two took the same lease: one was refused",
    "zombie commit refused",
    "zombie renewal refused",
    "paused past its lease, then stopped",
    "lease lost while the user had records",
    "lease released on exit",
    "a lease kept on exit",
    "a kept lease taken by its restarted worker",
    "a kept lease taken by another worker in the end",
    "a hand-over called off on exit",
    "handed over to one that leaves: let go of unread",
    "a worker without leases",
    "a lease moved because of its load",
    "max_leases left some to others",
    "rows deleted",
    "a dead worker of another lease duration replaced",
    "two processes under one name: reported",
    "a process took what another of its name had left",
    "the store came back empty",
    "the store came back empty: told",
    "the store came back as it was",
    "a token above one that the store has forgotten",
    # the store
    "lost answer landed",
    "lost answer not landed",
    "a write landed after it was given up",
    "store outage past lease",
    "store outage within lease",
    "store recovered",
    "store throttled",
    "rows changed between two pages of a scan",
    "a take whose answer was lost was completed",
    # several streams
    "several streams in one fleet",
    "one of several streams was resharded",
    # topology
    "child waits for parent",
    "merge waits for both parents",
    "SHARD_END committed last",
    "an empty shard ended",
    "a stale listing",
    "children's rows before SHARD_END",
    "the stream was made anew: stopped",
    "the stream was made anew: read from its start",
    "the stream was missing: ended",
    "the stream was missing, and read from its start when it was back",
    # reading
    "iterator expired",
    "reads throttled",
    "credentials expired",
    "prefetch full",
    "a page opened in slices",
    "an aggregate opened",
    "headers handed out",
    "resumed inside an aggregate",
    "out of range: dropped",
    "trimmed position",
    "trimmed between two pages",
    "retention shortened under a reader that lags: told",
    "retention raised under a reader that lags: nothing was lost",
    "a whole shard trimmed",
    "a copy left out",
    "LATEST pinned, and read by another than its maker",
    "a group at LATEST begun in part, and completed by one that came later",
    # subscriptions
    "both kinds of readers in one group",
    "a subscription was ended by the service",
    "a subscription broke",
    "a subscription stalled",
    "a silent subscription was replaced",
    "a subscription was refused",
    "a subscription came too early",
    "a live subscription was taken over",
    "an event of an older subscription came too late",
    "an event without records moved the position",
    "a shard was read to its end by a subscription",
    # handlers side by side
    "records of a shard handled side by side",
    "as many handlers at work as are allowed",
    "a record waited for its key",
    "a record was overtaken by one of another key",
    "a failing record held up only its own key",
    "handlers were as far ahead of the watermark as is allowed",
    "a batch with several records of a key",
    "lease lost while several handlers were at work",
    "a hand-over waited for several handlers",
    "records that were done early were left out by the next iteration",
    "several records travelled to a process together",
    "a process died while it handled a record",
    "a process that hangs was killed",
    "a handler in a process failed",
    # the user
    "dead letter",
    "dead letter could not be written at first",
    "bisect",
    "retried by the handler's policy",
    "handler stopped the consumer",
    "acknowledged out of order",
    "acknowledgement refused",
    "redelivered",
    "handled again after a crash or a lost lease",
    "a thread outlived its lease",
    "a handler slower than the lease",
    "a stuck handler was reported",
    "a stuck handler went on, or lost its shard",
    "interrupted while it waited",
    "an iteration ended by the next one",
    "a run interrupted, or stopped, and another begun",
    "a run ended by until=latest",
    "a run ended by idle_timeout",
    "a thread outlived its run",
    "a shielded handler outlived its lease",
    "a shielded handler outlived its lease, and that was regained",
    "a part of a page given back",
    "acknowledged with all before it",
    "closed by an error with records in hand",
    "the time for closing was up before the user was done",
    # callbacks
    "on_revoked before a hand-over",
    "on_revoked before a close",
    "on_revoked after a loss",
    "on_shard_end",
    "a callback was cancelled",
    "a callback failed",
    "the time for closing was up before a callback was done",
    # control
    "a page of which no record passed the filter",
    "a commit was confirmed",
    "a commit of a lost lease",
    "paused with records in hand",
    "a shard gained while all are paused",
    "sought with records in hand",
    "sought while paused",
    "read again from a sought position",
    "sought, and released before it was read again",
    "a checkpoint went back by a seek",
    "max_leases raised",
    "max_leases lowered below the leases that are held",
    # lives
    "crash with records in hand",
    "crash with a commit under way",
    "closed in good order",
    "ordered keys through a reshard",
})  # fmt: skip


_FAILURES = {
    FailureKind.EXPIRED_ITERATOR: "iterator expired",
    FailureKind.THROTTLED: "reads throttled",
    FailureKind.EXPIRED_CREDENTIALS: "credentials expired",
}


class Reached:
    """The states that were seen, over all seeds. The producers' shells report here, too, although their states are
    counted elsewhere.
    """

    def __init__(self):
        self.states = {}
        self.rules = set()
        self.seed = None

    def add(self, state):
        if state in STATES:
            self.states.setdefault(state, self.seed)
        else:
            assert state in PRODUCER_STATES, state

    def see_event(self, event):
        """Note an event of a producer."""

    def see_failure(self, failure):
        """Note the failure of a read request."""
        state = _FAILURES.get(failure.kind)
        if state is not None:
            self.add(state)

    def see_rows(self, worker, rows):
        """Note the rows that a scan returns to a worker."""
        finished = {row.shard_id: row.checkpoint.is_finished for row in rows}
        for row in rows:
            parents = [finished[parent] for parent in row.parent_ids if parent in finished]
            if parents and not all(parents) and not row.checkpoint.is_finished:
                self.add("child waits for parent")
                if any(parents):
                    self.add("merge waits for both parents")
        held = len(worker.machine.held.holdings)
        if worker.plan.max_leases is not None and held == worker.plan.max_leases:
            self.add("max_leases left some to others")
        if not held and len(worker.world.live) > 1:
            self.add("a worker without leases")

    def missing(self):
        return sorted(STATES - self.states.keys())
