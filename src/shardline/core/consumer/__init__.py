"""How does a worker read its share of a stream?

Machines, each with the question that it answers at its top. A shell drives them like this::

    worker = Coordinator(stream, me, start, config=config, latest_at=..., clock=..., ...)
    hand_out = HandOut({stream.name: worker}, config, RunBounds(...), report_interval=...)

    loop:                                          # the host; woken by every answer, message and command
        hand_out.handle_time(now)                  # what the users are done with is reported before anything is polled
        while operation := worker.poll_operation(now):   # ScanLeases -> store.list_leases, others -> store.apply
            send it                                # handle_rows | handle_scan_failed | handle_applied |
                                                   # handle_operation_failed: exactly one, also if it is cancelled
        while request := worker.poll_request(now): # handle_shards | handle_summary | handle_request_failed
        for event in worker.take_events(): follow it (below)
        sleep until worker.next_deadline() or hand_out.next_deadline()

    per LeaseGained:                               # one task a shard: a slow or idle shard delays no other
        reader = PollingReader(stream, event.shard_id, event.start, budget=hand_out.budget, lease=event.grant,
            trims=worker.trims, deaggregator=Deaggregator(..., done=event.checkpoint.sequence_number), ...)
        shard = hand_out.handle_gained(stream.name, event, reader, now)
        loop:
            request = reader.poll_request(now)     # handle_iterator | handle_page | handle_failure
            hand_out.handle_pages(shard, reader.take_pages(), now); events = reader.take_events()
            sleep until reader.next_deadline(), or until the hand-out says WakeReader

    per question of user code:                     # see Taker: user code itself calls no machine
        hand_out.ask(taker, number, now)           # take_answered names it when its cursor, or its end, is there

    after each call of the hand-out: take_actions, take_answered, take_events, take_pump_due

- A store request takes less than a lease duration: the shell gives up before, as a failure with ``maybe_received``.
- ``HandOverAsked``: ``handle_hand_over_asked``. ``LeaseLost``, ``HandOverOverdue``, ``LeaseReleased``: ``handle_gone``.
- ``StreamRecreated``, ``ConsumerFailed``: ``hand_out.fail``. A reader that ended: ``handle_reader_over``.
- A user's handler does the steps of its ``HandlerTask``: what that calls done is acknowledged, nothing else.
- After a new ``topology.discovery.summary``: set ``by_auto`` of each ``Deaggregator``.
- Exit: ``hand_out.close``, ``settle`` what the users have, ``worker.close()``, pump until ``is_closed`` or out of time.
- The clock counts suspension (CLOCK_BOOTTIME where there is one). ``latest_at`` is the service's time less 1 s.
"""
