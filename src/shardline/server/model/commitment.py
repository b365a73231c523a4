"""Models the account's commitment to pay for a minimum throughput.

Invariants:

- A commitment lasts at least 24 hours. If it is disabled earlier, it ends after 24 hours, unless it is enabled again.
- Whether a commitment is enabled depends only on its two times and the current time, so no event is needed at its end.
"""

from typing import Final, final

from msgspec import Struct, structs

_MIN_DURATION: Final = 86_400.0  # [API] MinimumThroughputBillingCommitmentInput: 24 hours


@final
class Commitment(Struct, frozen=True):
    """The account's latest minimum throughput billing commitment."""

    started_at: float | None = None
    """When the commitment started, or ``None`` if the account never had one."""
    ends_at: float | None = None
    """When the commitment ends or ended, or ``None`` if it was not disabled."""

    def is_enabled(self, now: float) -> bool:
        return self.started_at is not None and (self.ends_at is None or now < self.ends_at)

    def enable(self, now: float) -> "Commitment":
        return structs.replace(self, ends_at=None) if self.is_enabled(now) else Commitment(now)

    def disable(self, now: float) -> "Commitment":
        if self.started_at is None or self.ends_at is not None:
            return self
        return structs.replace(self, ends_at=max(now, self.started_at + _MIN_DURATION))

    def describe(self, now: float) -> dict[str, object]:
        """Return the members of MinimumThroughputBillingCommitmentOutput."""
        if self.started_at is None:
            return {"Status": "DISABLED"}
        if not self.is_enabled(now):
            return {"Status": "DISABLED", "StartedAt": self.started_at, "EndedAt": self.ends_at}
        return {
            "Status": "ENABLED" if self.ends_at is None else "ENABLED_UNTIL_EARLIEST_ALLOWED_END",
            "StartedAt": self.started_at,
            "EarliestAllowedEndAt": self.started_at + _MIN_DURATION,
        }
