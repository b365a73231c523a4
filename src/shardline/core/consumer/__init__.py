"""The state machines of a consumer: how a worker reads its share of a stream.

Each module's docstring says what the module decides. A shell drives the machines like this::

    worker = Coordinator(stream, me, start, config=config, latest_at=..., clock=..., ...)
    hand_out = HandOut({stream.name: worker}, config, RunBounds(...), report_interval=...)

    loop:                                          # the host; every response, message and command wakes it
        hand_out.handle_time(now)                  # first: reports the finished records to the coordinators
        while operation := worker.poll_operation(now):   # ScanLeases -> store.list_leases, others -> store.apply
            send the operation                     # answer with exactly one of handle_rows, handle_scan_failed,
                                                   # handle_applied, handle_operation_failed, even if cancelled
        while request := worker.poll_request(now): # answer: handle_shards | handle_summary | handle_request_failed
        for event in worker.take_events(): act on the event (see below)
        sleep until worker.next_deadline() or hand_out.next_deadline()

    for each LeaseGained:                          # one task per shard: a slow or idle shard delays no other shard
        reader = PollingReader(stream, event.shard_id, event.start, budget=hand_out.budget, lease=event.grant,
            trims=worker.trims, deaggregator=Deaggregator(..., done=event.checkpoint.sequence_number), ...)
        shard = hand_out.handle_gained(stream.name, event, reader, now)
        loop:
            request = reader.poll_request(now)     # answer: handle_iterator | handle_page | handle_failure
            hand_out.handle_pages(shard, reader.take_pages(), now); events = reader.take_events()
            sleep until reader.next_deadline(), or until the hand-out emits WakeReader

    for each request of user code:                 # see Taker: user code itself calls no machine
        hand_out.ask(taker, number, now)           # take_answered returns the taker when its cursor or its end is set

    after each call of the hand-out: take_actions, take_answered, take_events, take_pump_due

- A store request takes less than a lease duration. The shell cancels a request that takes longer, and reports a failure
  with ``maybe_received``.
- On ``HandOverAsked`` and ``LeaseSurplus``, call ``handle_hand_over_asked``. On ``LeaseLost``, ``HandOverOverdue`` and
  ``LeaseReleased``, call ``handle_gone``.
- On ``StreamReplaced`` and ``ConsumerFailed``, call ``hand_out.fail``. When a reader has ended, call
  ``handle_reader_over``.
- The task of a user's handler carries out the steps of its ``HandlerTask``. Only records that the ``HandlerTask``
  reports as done are acknowledged.
- After each new ``topology.discovery.summary``, set ``by_auto`` of each ``Deaggregator``.
- To exit: call ``hand_out.close``, ``settle`` the records that users have in hand, call ``worker.close()``, and keep
  running the loops until ``is_closed`` is true or the time is up.
- The clock also counts the time during which the computer is suspended (CLOCK_BOOTTIME where available). ``latest_at``
  is the service's time minus 1 s.
"""
