"""How does a test move the local server's time?

Invariants:

- LC1: the clock is moved between two requests, never inside one (RU4).
- LC2: what has come due is carried out when ``advance`` returns: statuses, resharding, retention.
- LC3: it can be set before the server starts, and keeps its time over a restart.
"""

from typing import final

from shardline.server.running import RunningServer


@final
class LocalClock:
    """The server's clock. Seconds since 1970."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    def __repr__(self) -> str:
        return f"<LocalClock {self.now():.3f}{', frozen' if self.is_frozen else ''}>"

    def now(self) -> float:
        """The time that it is for the server."""
        return self._server.call(self._server.clock.now)

    @property
    def is_frozen(self) -> bool:
        return self._server.clock.is_frozen

    def freeze(self) -> None:
        """Stop the clock where it is."""
        self._server.call(self._server.clock.freeze)

    def resume(self) -> None:
        """Let the clock run on from where it is."""
        self._server.call(self._server.clock.resume)

    def advance(self, seconds: float) -> None:
        """Move ahead by that much, at once; frozen or not.

        Raises:
            UsageError: it is no positive number: time does not go back.
        """

        def work() -> None:
            server = self._server
            server.clock.advance(seconds)
            if server.service is not None:
                server.service.state.advance(server.clock.now())
                server.keep()

        self._server.call(work)
