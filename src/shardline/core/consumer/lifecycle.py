"""Decides when the callbacks of a lease are called, and which steps have to wait until the callbacks have returned.

The user may pass three callbacks: ``on_assigned``, ``on_revoked`` and ``on_shard_end``. The hand-out asks ``Lifecycle``
whether records of a shard may be handed out, and whether the shard may be finished or its lease released. The shell
makes the calls (``CallBack``) and reports the end of each call.

Invariants:

- ``on_assigned`` returns before the first record of the lease is handed out.
- ``on_shard_end`` is called when the user is done with the last record of the shard. It returns before SHARD_END is
  committed (C3).
- ``on_revoked`` is called when user code has no record of the shard. It returns before the lease is released. If the
  lease is gone before the call, ``on_revoked`` is called with ``lost``.
- Each lease whose ``on_assigned`` returned gets one ``on_revoked``, unless the shard was finished. If ``on_assigned``
  raised or was cancelled, ``on_revoked`` is not called.
- The callbacks of a shard are called one after another, even if its lease is lost and gained again. Meanwhile no record
  of the shard is handed out.
- If the lease is gone, ``on_assigned`` and ``on_shard_end`` are cancelled. ``on_revoked`` is not cancelled, because it
  cleans up.
"""

from collections import deque
from collections.abc import Callable, Collection
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias, final

from shardline.core.consumer.held_shard import HeldShard

Reason: TypeAlias = Literal["hand-over", "close", "lost"]


@final
class AssignedShard(NamedTuple):
    """The argument of ``on_assigned`` and ``on_shard_end``: a shard whose lease this worker holds."""

    stream: str
    """The name of the stream."""
    shard_id: str
    token: int
    """The fencing token of the lease. It is greater than the token of every earlier owner."""


@final
class RevokedShard(NamedTuple):
    """The argument of ``on_revoked``: a shard whose lease this worker releases, or has lost."""

    stream: str
    """The name of the stream."""
    shard_id: str
    token: int
    """The fencing token that was passed to ``on_assigned``."""
    reason: Reason
    """``"hand-over"``: another worker asked for the lease, or ``max_leases`` was lowered. ``"close"``: the consumer is
    closed. ``"lost"``: the lease expired, or another worker took it."""
    lost: bool
    """Whether the lease is already gone. If it is, another worker may read the shard. If not, this worker holds the
    lease until the callback returns."""


@final
class CallbackKind(Enum):
    """The callbacks that a user can pass: one for each step in the life of a lease."""

    ASSIGNED = "on_assigned"
    SHARD_END = "on_shard_end"
    REVOKED = "on_revoked"


@final
class CallBack(NamedTuple):
    """Call this callback and report its end with ``HandOut.handle_called_back``."""

    kind: CallbackKind
    shard: HeldShard
    reason: Reason = "lost"
    lost: bool = False

    @property
    def argument(self) -> AssignedShard | RevokedShard:
        """The argument for the user's callback."""
        stream, shard_id = self.shard.key
        token = self.shard.grant.token
        if self.kind is CallbackKind.REVOKED:
            return RevokedShard(stream, shard_id, token, self.reason, self.lost)
        return AssignedShard(stream, shard_id, token)


@final
class CancelCallBack(NamedTuple):
    """Cancel this call, because the lease is gone. Report the end of the call as usual."""

    call: CallBack


@final
class _Stage(Enum):
    ASSIGNING = "on_assigned is called, or waits for its turn"
    ASSIGNED = "records may be handed out"
    ENDING = "on_shard_end is called, or waits for its turn"
    ENDED = "on_shard_end has returned"
    REVOKING = "on_revoked is called, or waits for its turn"
    CLOSED = "no callback will be called any more"


_WAITING = frozenset({_Stage.ASSIGNED, _Stage.ENDED})  # the next callback may be called


@final
class Lifecycle:
    """The callbacks of all leases of one consumer. ``wanted`` contains the callbacks that the user passed."""

    def __init__(self, wanted: Collection[CallbackKind] = ()) -> None:
        self._wanted: frozenset[CallbackKind] = frozenset(wanted)
        self._stages: dict[HeldShard, _Stage] = {}
        self._lost: dict[HeldShard, Reason] = {}  # leases that are gone, and whose on_revoked has not been called yet
        self._moved: dict[HeldShard, HeldShard] = {}  # shards that were replaced after a seek, while they had a call
        self._calls: dict[tuple[str, str], deque[CallBack]] = {}  # by shard, in order; the first is in progress
        self._actions: list[CallBack | CancelCallBack] = []

    # ---- queries

    @property
    def is_wanted(self) -> bool:
        """Whether the user passed any callback."""
        return bool(self._wanted)

    @property
    def is_settled(self) -> bool:
        """Whether no callback is in progress, and no callback has to be called before the leases are released."""
        has_revocations = CallbackKind.REVOKED in self._wanted and any(
            stage is not _Stage.CLOSED for stage in self._stages.values()
        )
        return not self._calls and not has_revocations

    def may_hand_out(self, shard: HeldShard) -> bool:
        """Return whether records of the shard may be handed out."""
        if not self._wanted:
            return True
        is_shard_free = shard.key not in self._calls and all(lost.key != shard.key for lost in self._lost)
        return is_shard_free and self._stages.get(shard) is _Stage.ASSIGNED

    # ---- commands

    def begin(self, shard: HeldShard) -> None:
        """Called when the worker gained the lease."""
        if CallbackKind.ASSIGNED in self._wanted:
            self._stages[shard] = _Stage.ASSIGNING
            self._enqueue(CallBack(CallbackKind.ASSIGNED, shard))
        elif self._wanted:
            self._stages[shard] = _Stage.ASSIGNED

    def move(self, older: HeldShard, newer: HeldShard) -> None:
        """Let ``newer`` take the place of ``older`` after a seek.

        The lease is the same, so no callback is called, and a call in progress counts for ``newer``.
        """
        stage = self._stages.pop(older, None)
        if stage is not None:
            self._stages[newer] = stage
        if stage is _Stage.ASSIGNING:
            self._moved = {first: newer if last is older else last for first, last in self._moved.items()}
            self._moved[older] = newer

    def end(self, shard: HeldShard) -> bool:
        """Called when the user is done with the shard's last record. Return whether SHARD_END may be committed now."""
        if CallbackKind.SHARD_END not in self._wanted:
            return True
        self._stages[shard] = _Stage.ENDING
        self._enqueue(CallBack(CallbackKind.SHARD_END, shard))
        return False

    def release(self, shard: HeldShard, reason: Reason) -> bool:
        """Called to release a lease when user code has no records of its shard. Return whether the lease may be
        released now.

        If not, the lease may be released after the last callback has ended (``handle_called``).
        """
        stage = self._stages.get(shard, _Stage.CLOSED)
        if stage in _WAITING:
            if CallbackKind.REVOKED not in self._wanted:
                return True
            self._revoke(shard, reason, lost=False)
            return False
        return stage is _Stage.CLOSED

    def drop(self, shard: HeldShard, reason: Reason, *, finished: bool) -> None:
        """Called when the lease is gone. ``finished`` means that SHARD_END was committed, so nothing was lost."""
        stage = self._stages.get(shard, _Stage.CLOSED)
        if stage in {_Stage.ASSIGNING, _Stage.ENDING}:
            self._cancel(shard)
        if stage is _Stage.REVOKING:
            calls = self._calls[shard.key]
            # If ``on_revoked`` still has to wait for the callbacks of an older lease, it is called only after the loss.
            for place in range(1, len(calls)):
                if calls[place].shard is shard:
                    calls[place] = calls[place]._replace(lost=True)
        is_over = finished or stage in {_Stage.CLOSED, _Stage.REVOKING} or CallbackKind.REVOKED not in self._wanted
        if self._stages.get(shard, _Stage.CLOSED) is _Stage.CLOSED or (is_over and stage in _WAITING):
            self._stages.pop(shard, None)
        elif not is_over:
            self._lost[shard] = reason

    def revoke_lost(self, has_records: Callable[[HeldShard], bool]) -> None:
        """Call ``on_revoked`` for the leases that are gone, once user code has no records of their shards."""
        for shard, reason in [*self._lost.items()]:
            if self._stages[shard] in _WAITING and not has_records(shard):
                del self._lost[shard]
                self._revoke(shard, reason, lost=True)

    def take_actions(self) -> list[CallBack | CancelCallBack]:
        actions, self._actions = self._actions, []
        return actions

    # ---- inputs

    def handle_called(self, call: CallBack, *, has_returned: bool) -> None:
        """Called when a callback has returned, has raised, or was cancelled."""
        shard, calls = self._current(call.shard), self._calls[call.shard.key]
        self._forget_moves(shard)
        assert calls[0] == call, "the callbacks of a shard are called one after another"
        calls.popleft()
        if calls:
            self._actions.append(calls[0])
        else:
            del self._calls[shard.key]
        stage = _Stage.CLOSED
        if call.kind is CallbackKind.SHARD_END:
            stage = _Stage.ENDED
        elif call.kind is CallbackKind.ASSIGNED and has_returned:
            stage = _Stage.ASSIGNED
        self._stages[shard] = stage
        if stage is _Stage.CLOSED:
            self._lost.pop(shard, None)
        if shard.is_over and shard not in self._lost:
            del self._stages[shard]

    # ---- internal

    def _current(self, shard: HeldShard) -> HeldShard:
        """Return the shard that has taken the place of this one after seeks, or the shard itself."""
        return self._moved.get(shard, shard)

    def _forget_moves(self, shard: HeldShard) -> None:
        self._moved = {first: last for first, last in self._moved.items() if last is not shard}

    def _revoke(self, shard: HeldShard, reason: Reason, *, lost: bool) -> None:
        self._stages[shard] = _Stage.REVOKING
        self._enqueue(CallBack(CallbackKind.REVOKED, shard, reason, lost))

    def _enqueue(self, call: CallBack) -> None:
        calls = self._calls.setdefault(call.shard.key, deque())
        calls.append(call)
        if len(calls) == 1:
            self._actions.append(call)

    def _cancel(self, shard: HeldShard) -> None:
        """Cancel the callback of the shard if it is in progress. A callback that still waits is not called at all."""
        calls = self._calls[shard.key]
        call = next(call for call in calls if self._current(call.shard) is shard)
        if call is calls[0]:
            self._actions.append(CancelCallBack(call))
        else:
            calls.remove(call)
            self._forget_moves(shard)
            # Only ``on_assigned`` can wait, because the callbacks of an older lease are called before it.
            self._stages[shard] = _Stage.CLOSED
