"""A process of the simulated world: it has its own clock, can be paused, and ends.

While the process is paused, nothing in it runs. Afterwards, everything that waited happens at once, in order or in any
order.
"""


class Clock:
    """A clock that counts suspension, runs a little too fast or too slow, and starts anywhere."""

    def __init__(self, world_now, zero, drift):
        self.drift = drift
        self._began = world_now
        self._zero = zero
        self.floor = zero  # the time never goes back, whatever the rounding

    def read(self, world_now):
        self.floor = max(self.floor, self._zero + (world_now - self._began) * (1.0 + self.drift))
        return self.floor

    def world_time(self, local):
        return self._began + (local - self._zero) / (1.0 + self.drift)


class Process:
    """The base of simulated processes. All of their code runs through ``run`` and ``at_local``."""

    rng = None

    def __init__(self, world, name, clock):
        self.world = world
        self.name = name
        self.clock = clock
        self.is_dead = False
        self.is_paused = False
        self.was_paused = False
        self._backlog = []

    @property
    def now(self):
        return self.clock.read(self.world.now)

    def note(self, what, *why):
        self.world.note(self.name, what, *why)

    def run(self, action, *arguments):
        if self.is_dead:
            return
        if self.is_paused:
            self._backlog.append((action, arguments))
        else:
            action(*arguments)

    def at_local(self, local, action, *arguments):
        """Call a function when the clock of this process reaches a time."""
        self.world.at(self.clock.world_time(local), self._due, local, action, arguments)

    def _due(self, local, action, arguments):
        self.clock.floor = max(self.clock.floor, local)
        self.run(action, *arguments)

    def pause(self):
        self.note("is paused")
        self.is_paused = True

    def resume(self):
        if self.is_dead:
            return
        self.note("goes on", f"{len(self._backlog)} events waited")
        self.is_paused, self.was_paused = False, True
        backlog, self._backlog = self._backlog, []
        if self.world.fleet.shuffles:
            self.rng.shuffle(backlog)
        for action, arguments in backlog:
            self.run(action, *arguments)
