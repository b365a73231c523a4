"""Which handler task may call the handler, if at most ``concurrency`` handlers may run at the same time?

The tasks of a run with ``concurrency`` belong to a pool. A task is *at work* while its handler runs, *idle* while it
has no records, and *pausing* while its failed records wait for the next attempt.

Invariants:

- At most ``concurrency`` tasks are at work. A handler in a thread that outlived its task counts until it returns.
- A pausing task does not count, so failing records hold up no records of other keys. At most ``PAUSING_MAX`` tasks
  pause while others work: if more were pausing, new records would wait.
- A task whose pause is over is served before tasks that are waiting for new records.
- Waking a task takes constant time: tasks are woken one by one, each by the task that was started before it.
"""

from typing import Final, final

from shardline.core.consumer.taker import Taker

PAUSING_MAX: Final = 1_000


@final
class HandlerPool:
    """The tasks of one run."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency: int = concurrency
        self._tasks: dict[Taker, None] = {}
        self._at_work: dict[Taker, None] = {}
        self._idle: dict[Taker, None] = {}
        self._pausing: dict[Taker, None] = {}
        self._due: dict[Taker, None] = {}  # tasks whose pause is over, waiting until they may work

    # ---- queries

    @property
    def at_work(self) -> list[Taker]:
        """The tasks whose handlers are running."""
        return [*self._at_work]

    @property
    def may_retry(self) -> bool:
        """Whether a task whose pause is over may call the handler."""
        return len(self._at_work) < self._concurrency

    @property
    def may_take(self) -> bool:
        """Whether a task may take new records."""
        is_free = len(self._at_work) + len(self._due) < self._concurrency
        return is_free and len(self._pausing) < PAUSING_MAX

    @property
    def is_surplus(self) -> bool:
        """Whether there are more tasks than can be at work, so that an idle one may end."""
        return len(self._tasks) - len(self._pausing) - len(self._due) > self._concurrency

    def next_task(self, *, has_records: bool) -> Taker | None:
        """Return the task to wake next, if one may work. ``has_records`` says whether new records are waiting."""
        if self._due:
            return next(iter(self._due)) if self.may_retry else None
        return next(iter(self._idle), None) if has_records and self.may_take else None

    def missing(self, waiting: int) -> int:
        """Return how many tasks to start, if no task is idle and ``waiting`` records are waiting."""
        if self._idle or not self.may_take:
            return 0
        # Tasks that were started and have not asked for records yet count as free.
        free = len(self._tasks) - len(self._at_work) - len(self._pausing) - len(self._due)
        return max(0, min(self._concurrency - len(self._at_work) - len(self._due) - free, waiting - free))

    # ---- commands

    def add(self, task: Taker) -> None:
        """Add a task that is about to start."""
        self._tasks[task] = None

    def start(self, task: Taker) -> None:
        """Note that the task got a step, so that its handler runs from now on."""
        self._at_work[task] = None

    def rest(self, task: Taker) -> None:
        """Note that the task's handler is not running. A task that has ended is forgotten."""
        for tasks in (self._at_work, self._idle, self._pausing, self._due):
            if task in tasks:
                del tasks[task]
                break  # a task is in at most one of these collections
        if task.is_over:
            self._tasks.pop(task, None)

    def wait(self, task: Taker) -> None:
        """Note that the task is waiting for new records."""
        self._idle[task] = None

    def pause(self, task: Taker) -> None:
        """Note that the task's records are waiting for their next attempt."""
        self._pausing[task] = None

    def wait_to_retry(self, task: Taker) -> None:
        """Note that the task's pause is over, and that the task is waiting until it may work."""
        self._due[task] = None
