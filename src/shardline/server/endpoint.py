"""Answers one HTTP request to the Kinesis API.

The endpoint does everything between the HTTP shells and the model, in this order: it reads the target and the body,
plans the faults, checks the signature, calls the model, lets the storage persist the changes, encodes the answer and
adds the request to the log. One thread calls it. A shell sends the ``Reply`` and applies the injected faults (its
``Trouble``). Only ``Pushes.wait`` waits.

Invariants:

- Every request gets a ``Reply``; nothing raises. A bug in the server is answered with InternalFailure and logged.
- The records of a request are persisted before its reply exists. If they cannot be persisted, the request is answered
  with InternalFailure. Of several failures in a row to persist records, only the first is logged.
- A request causes one call of the model. If a fault or a refusal comes first, it causes no call.
"""

import logging
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from email.utils import formatdate
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, final

from shardline.codec.eventstream import encode_headers, encode_message, frame_message
from shardline.server import bodies
from shardline.server.model.consumers import ServerSubscription
from shardline.server.model.fault_rules import Plan, ReplyPlan
from shardline.server.model.faults import Faults
from shardline.server.model.inputs import INPUTS
from shardline.server.model.refusals import Refused, internal_failure, is_unreadable, unknown_operation
from shardline.server.model.service import Answer, Service
from shardline.server.model.targets import Target, target_of
from shardline.server.request_log import LoggedRequest, RequestLog, counts_of
from shardline.server.server_clock import ServerClock
from shardline.server.signatures import Signatures, access_key_of
from shardline.server.wakeups import Wakeups

if TYPE_CHECKING:
    from msgspec import Struct

TARGET_PREFIX: Final = "Kinesis_20131202."
_ID_2_BYTES: Final = 72  # AWS's ids have 64 to 80 bytes (kinesalite, test/connection.js)
EVENT_STREAM: Final = "application/vnd.amazon.eventstream"

_log: Final = logging.getLogger(__name__)


@final
class Reply(NamedTuple):
    """An answer and how a shell sends it."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    subscription: "Pushes | None" = None
    """For SubscribeToShard: the frames that follow the head."""
    trouble: "Trouble | None" = None
    """The injected faults that the shell applies."""


@final
class Trouble(NamedTuple):
    """The faults that a shell applies to a reply. The shell applies them in the order of the fields."""

    delay: float = 0.0
    """How many seconds the shell waits before it does anything else."""
    resume: Callable[[], Reply] | None = None
    """A function that the shell calls after the wait. The shell then sends the returned reply instead of this reply."""
    is_silent: bool = False
    """Whether the shell sends no answer at all."""
    cut: int | None = None
    """How many bytes of the body the shell sends, although it announces the whole body. ``None`` means all bytes."""
    ending: Literal["keep", "close", "reset"] = "keep"
    """Whether the shell then keeps, closes or resets the connection."""


@final
class Pushes:
    """Returns the frames of one subscription, each frame at the time when it is due."""

    def __init__(
        self, subscription: ServerSubscription, content_type: str, clock: ServerClock, wakeups: Wakeups
    ) -> None:
        self._subscription = subscription
        self._content_type = content_type
        self._header = encode_headers(
            {":message-type": "event", ":event-type": "SubscribeToShardEvent", ":content-type": content_type}
        )
        self._clock = clock
        self._wakeups = wakeups

    @staticmethod
    def first() -> bytes:
        """Return the frame that every subscription begins with."""
        headers = {":message-type": "event", ":event-type": "initial-response", ":content-type": bodies.JSON}
        return encode_message(headers, b"{}")

    def due(self) -> bytes | None:
        """Return the next frame, or ``None`` if no frame is due."""
        was_ended = self._subscription.ended
        event = self._subscription.poll(self._clock.now())
        if event is None:
            fault = self._subscription.fault
            return None if fault is None or fault.exception is None or was_ended else _exception(*fault.exception)
        return frame_message(self._header, bodies.write_answer(self._content_type, event))

    async def wait(self) -> None:
        """Wait until a frame may be due or the subscription has ended. The wait may end early."""
        await self._wakeups.wait(self._subscription)

    @property
    def ended(self) -> bool:
        return self._subscription.ended

    @property
    def is_reset(self) -> bool:
        """Whether a fault ends the subscription with a reset."""
        return self._subscription.fault is not None and self._subscription.fault.is_reset

    def end(self) -> None:
        """End the subscription, because its client has disconnected or a fault replaces its frames."""
        self._subscription.ended = True
        self._wakeups.wake(self._subscription)


@final
class Endpoint:
    """Answers HTTP requests with the responses of the service.

    ``on_handled`` is called after every request, before the reply is encoded. The storage persists the changes in this
    call.
    """

    def __init__(
        self,
        service: Service,
        clock: ServerClock,
        *,
        on_handled: Callable[[], None] | None = None,
        faults: Faults | None = None,
        signatures: Signatures | None = None,
        requests: RequestLog | None = None,
    ) -> None:
        self.wakeups: Wakeups = Wakeups(service.state, clock)
        self._service = service
        self._clock = clock
        self._on_handled = on_handled
        self._signatures = signatures
        self._requests = RequestLog() if requests is None else requests
        self._is_failing = False  # whether the last call of on_handled raised
        # Request ids are not drawn from the model's generator: that would change the results that its seed reproduces.
        self._rng = Random()  # noqa: S311 - request ids need not be secret
        if faults is not None:
            service.use_faults(faults)

    def reply(self, headers: Mapping[str, str], body: bytes, *, method: str = "POST", path: str = "/") -> Reply:
        """Answer a request. The names of ``headers`` are in lower case, or the mapping ignores case."""
        form = bodies.form_of(method, headers, has_body=bool(body))
        return self._guard(self._begin, _Call(method, path, headers, body, form=form, now=self._clock.now()))

    def refuse(self, headers: Mapping[str, str], refusal: Refused) -> Reply:
        """Answer a request that is refused before its body is read."""
        # Answer in CBOR or else in JSON, because the two other forms of a refusal would not show the message.
        form = bodies.CBOR if bodies.content_type(headers) == bodies.CBOR else bodies.JSON
        return self._encode(Answer(refusal=refusal), form, self._clock.now())

    def _guard(self, step: "Callable[[_Call], Reply]", call: "_Call") -> Reply:
        """Return the reply of a step. If the step raises an exception, log it and answer with InternalFailure."""
        try:
            return step(call)
        except Exception:  # noqa: BLE001 - a bug in the server
            _log.exception("a request failed")
        refusal = internal_failure("The request could not be processed: see the log of the server.")
        return self._encode(Answer(refusal=refusal), call.form, self._clock.now())

    def _persist(self, answer: Answer) -> Answer:
        """Persist the changes of a request, and return its answer, or InternalFailure if they cannot be persisted."""
        self.wakeups.wake_touched()
        if self._on_handled is None:
            return answer
        try:
            self._on_handled()
        except Exception:  # noqa: BLE001 - whatever the storage raises
            if not self._is_failing:
                _log.exception("changes cannot be written to the data file: requests fail until they can")
            self._is_failing = True
            if answer.subscription is not None:
                answer.subscription.ended = True
            refusal = internal_failure("The changes cannot be written to the data file: see the log of the server.")
            return Answer(refusal=refusal, plan=answer.plan)
        self._is_failing = False
        return answer

    def _begin(self, call: "_Call") -> Reply:
        """Read the request, plan its faults and check its signature; then carry it out, now or after a delay."""
        try:
            call.operation = _operation(call.headers, call.form, call.body)
            call.members = bodies.read_request(call.operation, call.form, call.body)
            call.plan = self._service.plan(call.operation, call.members, call.now)
        except Refused as refusal:
            call.refusal = refusal
        # As on AWS, an unreadable body is refused before the signature is checked, and invalid members are refused
        # afterwards. If the request names no operation, its signature is checked only if its form is unknown (XML).
        is_known = bool(call.operation) or call.form == bodies.XML
        if self._signatures is not None and is_known and not is_unreadable(call.refusal):
            call.refusal = self._check_signature(call) or call.refusal
        if call.plan is not None and call.plan.waits_first:
            return Reply(0, {}, trouble=Trouble(call.plan.delay, partial(self._guard, self._carry_out, call)))
        return self._carry_out(call)

    def _check_signature(self, call: "_Call") -> Refused | None:
        assert self._signatures is not None, "only called if signatures are checked"
        skew = 0.0 if call.plan is None else call.plan.skew
        machine_now = None if skew else self._clock.machine_now()
        return self._signatures.check(
            call.method, call.path, call.headers, call.body, call.now + skew, machine_now=machine_now
        )

    def _carry_out(self, call: "_Call") -> Reply:
        now = self._clock.now()
        # Find the target before the request is handled: DeleteChannel removes the channel that names the stream.
        target = target_of(call.members, self._service.state)
        if call.refusal is None and call.members is not None:
            answer = self._service.handle(call.operation, call.members, now, call.plan)
        else:
            answer = Answer(refusal=call.refusal, plan=call.plan)
        answer = self._persist(answer)
        plan = answer.plan
        reply = self._encode(answer, call.form, now + (0.0 if plan is None else plan.skew))
        if plan is not None:
            reply = apply_faults(reply, plan)
        self._requests.add(self._log_entry(call, answer, reply, target))
        return reply

    def _log_entry(self, call: "_Call", answer: Answer, reply: Reply, target: Target) -> LoggedRequest:
        is_silent = reply.trouble is not None and reply.trouble.is_silent
        entries, failed, stored_in = counts_of(call.members, answer.body)
        return LoggedRequest(
            operation=call.operation,
            stream=target.stream,
            shards=frozenset({*target.shards, *stored_in}),
            entries=entries,
            failed_entries=failed,
            size=len(call.body),
            at=call.now,
            status=None if is_silent else reply.status,
            error=None if answer.refusal is None else answer.refusal.code,
            was_handled=call.refusal is None and (call.plan is None or call.plan.is_handled),
            access_key=access_key_of(call.headers, call.path),
        )

    def _encode(self, answer: Answer, form: str, now: float) -> Reply:
        headers = {
            "x-amzn-RequestId": self._request_id(),
            "x-amz-id-2": b2a_base64(self._rng.randbytes(_ID_2_BYTES), newline=False).decode(),
            "Content-Type": form,
            "Date": formatdate(now, usegmt=True),
        }
        if answer.refusal is not None:
            headers["x-amzn-ErrorType"] = answer.refusal.code
            status = 403 if form == bodies.XML else answer.refusal.status
            return Reply(status, headers, bodies.write_refusal(form, answer.refusal))
        if answer.subscription is not None:
            headers["Content-Type"] = EVENT_STREAM
            return Reply(200, headers, subscription=Pushes(answer.subscription, form, self._clock, self.wakeups))
        return Reply(200, headers, bodies.write_answer(form, answer.body))

    def _request_id(self) -> str:
        digits = f"{self._rng.getrandbits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@final
class _Call:
    """A request and what the steps have found out about it so far."""

    def __init__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, *, form: str, now: float
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.form = form
        self.now = now
        self.operation = ""
        self.members: Struct | None = None
        self.plan: Plan | None = None
        self.refusal: Refused | None = None


def apply_faults(reply: Reply, plan: Plan) -> Reply:
    """Return the reply, changed by the faults that hit its request."""
    pushes = reply.subscription
    delay = 0.0 if plan.waits_first else plan.delay
    changed = ReplyPlan(*reply[:3], has_pushes=pushes is not None, delay=delay)
    for rule in plan.hits:
        rule.on_reply(changed)
    if pushes is not None and not changed.has_pushes:
        pushes.end()
        pushes = None
    trouble = Trouble(changed.delay, is_silent=changed.is_silent, cut=changed.cut, ending=changed.ending)
    return Reply(
        changed.status, changed.headers, changed.body, pushes, trouble=None if trouble == Trouble() else trouble
    )


def _exception(code: str, message: str) -> bytes:
    headers = {":message-type": "exception", ":exception-type": code, ":content-type": bodies.JSON}
    return encode_message(headers, bodies.write_answer(bodies.JSON, {"message": message}))


def _operation(headers: Mapping[str, str], form: str, body: bytes) -> str:
    refusal = bodies.refusal_of_form(form, body)
    if refusal is not None:
        raise refusal
    target = headers.get("x-amz-target", "")
    operation = target.removeprefix(TARGET_PREFIX)
    if not target.startswith(TARGET_PREFIX) or operation not in INPUTS:
        raise unknown_operation()
    return operation
