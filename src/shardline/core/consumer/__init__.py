"""How does a worker read its share of a stream?

Machines, each with the question that it answers at its top. A shell drives them like this::

    budget = PrefetchBudget(config.prefetch_max_bytes)                       # one for the worker
    worker = Coordinator(stream, me, start, config=config, latest_at=..., clock=..., ...)

    loop:                                          # one task; woken by every answer, ack and command
        while operation := worker.poll_operation(now):   # ScanLeases -> store.list_leases, others -> store.apply
            send it                                # handle_rows | handle_scan_failed | handle_applied |
                                                   # handle_operation_failed: exactly one, also if it is cancelled
        while request := worker.poll_request(now): # handle_shards | handle_summary | handle_request_failed
        for event in worker.take_events(): follow it (below)
        sleep until worker.next_deadline()

    per LeaseGained:                               # one task a shard: a slow or idle shard delays no other
        reader = PollingReader(stream, event.shard_id, event.start, budget=budget, lease=event.grant,
            trims=worker.trims, deaggregator=Deaggregator(..., done=event.checkpoint.sequence_number), ...)
        loop:
            request = reader.poll_request(now)     # handle_iterator | handle_page | handle_failure
            pages = reader.take_pages(), events = reader.take_events()
            sleep until reader.next_deadline(), or until budget.take_admitted() names the shard

    per page, as the user asks for it:
        worker.held.deliver(shard_id, records); hand them out; budget.release(shard_id, page.held_bytes)
        worker.held.ack_through(shard_id, record)  # once the user asked for the next (C5); lazily: it covers all before
        after the last page was handed out: worker.end(shard_id, page.child_shards, now)

- A store request takes less than a lease duration: the shell gives up before, as a failure with ``maybe_received``.
- ``HandOverAsked``: stop the reader, drop what the user has not seen; when the user is done, ``held.leave``.
- ``LeaseLost``, ``HandOverOverdue``: stop the reader, cancel the user's code for the shard. ``LeaseReleased``: forget.
- ``StreamRecreated``, ``ConsumerFailed``, a reader that FAILED: raise to the user, and close.
- A reader that is GONE: hand out what it read, then ``worker.lose_sight(shard_id, now)``.
- A user's handler runs under ``BatchWork`` (``failure_policy``): what it calls done is acknowledged, nothing else.
- After a new ``topology.summary``: set ``by_auto`` of each ``Deaggregator``.
- Exit: acknowledge what the user is done with, ``worker.close()``, pump until ``is_closed`` or out of time.
- The clock counts suspension (CLOCK_BOOTTIME where there is one). ``latest_at`` is the service's time less 1 s.
"""
