"""Tasks and threads of a simulated worker: generators that yield how long they work, or ``WAIT`` to be woken."""

from functools import partial

WAIT = None


class Cancelled(Exception):  # noqa: N818 - it is no error
    """Thrown into code that is cancelled, or interrupted while it waits."""


class Task:
    """Code that runs in the time of its worker. ``on_end`` is called when it has ended."""

    def __init__(self, worker, code, on_end):
        self.worker = worker
        self.is_over = False
        self.is_cancelled = False
        self.is_ending = False
        self.is_shielded = False
        self._code = code
        self._on_end = on_end
        self._turn = 0  # a wake-up for an earlier turn is ignored
        self._is_thrown = False
        self.wake()

    def wake(self):
        self._resume_after(0.0)

    def throw(self):
        """Interrupt the code where it works or waits."""
        self._is_thrown = True
        self.wake()

    def throw_after(self, seconds):
        """Interrupt the wait that begins now, unless it is over by then."""
        turn = self._turn
        self.worker.at_local(self.worker.now + seconds, lambda: turn == self._turn and self.throw())

    def cancel(self):
        """Cancel the code: at once, or at the end of a shielded section."""
        if not self.is_cancelled:
            self.is_cancelled = True
            if not self.is_shielded:
                self.throw()

    def end(self):
        """Cancel the code for good, as the end of a task group does: whatever it waits for next is cancelled, too."""
        self.is_cancelled = self.is_ending = True
        if not self.is_shielded:
            self.throw()

    def _resume_after(self, seconds):
        self.worker.at_local(self.worker.now + seconds, self._resume, self._turn)

    def _resume(self, turn):
        if turn != self._turn or self.is_over:
            return
        self._turn += 1
        is_thrown, self._is_thrown = self._is_thrown, False
        try:
            seconds = self._code.throw(Cancelled) if is_thrown else next(self._code)
        except (StopIteration, Cancelled):
            self.is_over = True
            self._on_end()
        else:
            if seconds is not WAIT:
                self._resume_after(seconds)


class Wait:
    """One wait of a task for the host's answer: a ``taker.Waiting``."""

    def __init__(self, task):
        self.caller = task
        self.wake = task.wake


def ask(task, taker):
    """Send a request to the host through the taker's mailbox, and wait for the answer."""
    worker, mine = task.worker, Wait(task)
    assert taker.enter(mine, lambda caller: caller.is_over), "the only caller is not refused"
    number = taker.asked
    worker.post(partial(worker.hand_out.ask, taker, number))
    try:
        while taker.answered < number:
            yield WAIT
    finally:
        taker.leave(mine)
