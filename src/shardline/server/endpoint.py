"""What goes back for the bytes of one HTTP request?

Everything between the HTTP shells and the model: target, body, signature, faults, model, persistence, answer, record.
It is called by one thread; a shell sends what it gives, and brings about its ``Trouble``. Only ``Pushes.wait`` waits.

Invariants:

- Every request gets a ``Reply``; nothing raises: a bug of ours is InternalFailure, and a line in the log.
- What a request stored is kept before its reply exists. What cannot be kept is not acknowledged: InternalFailure,
  and one line in the log until it can be kept again.
- One request is one call of the model, or none where a fault or a refusal comes first.
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
from shardline.server.request_log import RequestsSeen, Seen, counts_of
from shardline.server.server_clock import ServerClock
from shardline.server.signatures import Signatures, access_key_of
from shardline.server.wakeups import Wakeups

if TYPE_CHECKING:
    from msgspec import Struct

TARGET_PREFIX: Final = "Kinesis_20131202."
_ID_2_BYTES: Final = 72  # AWS's are of 64 to 80 bytes (kinesalite, test/connection.js)
EVENT_STREAM: Final = "application/vnd.amazon.eventstream"

_log: Final = logging.getLogger(__name__)


@final
class Reply(NamedTuple):
    """What a shell sends, and how."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    subscription: "Pushes | None" = None
    """For SubscribeToShard: what follows the head."""
    trouble: "Trouble | None" = None


@final
class Trouble(NamedTuple):
    """What a shell does to a reply, in this order."""

    delay: float = 0.0
    """Wait so many seconds."""
    resume: Callable[[], Reply] | None = None
    """Then send what this gives, instead."""
    is_silent: bool = False
    """Send nothing."""
    cut: int | None = None
    """Announce the whole body, and send so much of it."""
    ending: Literal["keep", "close", "reset"] = "keep"
    """What becomes of the connection."""


@final
class Pushes:
    """The frames of one subscription, as they come due."""

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
        """What every subscription begins with."""
        headers = {":message-type": "event", ":event-type": "initial-response", ":content-type": bodies.JSON}
        return encode_message(headers, b"{}")

    def due(self) -> bytes | None:
        """The next frame, ``None`` if none is due."""
        was_ended = self._subscription.ended
        event = self._subscription.poll(self._clock.now())
        if event is None:
            fault = self._subscription.fault
            return None if fault is None or fault.exception is None or was_ended else _exception(*fault.exception)
        return frame_message(self._header, bodies.write_answer(self._content_type, event))

    async def wait(self) -> None:
        """Return when a frame may be due, or the subscription has ended. It may return early."""
        await self._wakeups.wait(self._subscription)

    @property
    def ended(self) -> bool:
        return self._subscription.ended

    @property
    def is_reset(self) -> bool:
        """Whether it ends with a reset."""
        return self._subscription.fault is not None and self._subscription.fault.is_reset

    def end(self) -> None:
        """The client has gone."""
        self._subscription.ended = True
        self._wakeups.wake(self._subscription)


@final
class Endpoint:
    """The service behind HTTP."""

    def __init__(
        self,
        service: Service,
        clock: ServerClock,
        *,
        on_handled: Callable[[], None] | None = None,
        faults: Faults | None = None,
        signatures: Signatures | None = None,
        requests: RequestsSeen | None = None,
    ) -> None:
        self.wakeups = Wakeups(service.state, clock)
        self._service = service
        self._clock = clock
        self._on_handled = on_handled
        self._signatures = signatures
        self._requests = RequestsSeen() if requests is None else requests
        self._is_failing = False
        self._chance = Random()  # noqa: S311 - request ids need not be secret, and must not move the model's seed
        if faults is not None:
            service.use_faults(faults)

    def reply(self, headers: Mapping[str, str], body: bytes, *, method: str = "POST", path: str = "/") -> Reply:
        """Answer a request. Headers are looked up by their lower-case names."""
        form = bodies.form_of(method, headers, has_body=bool(body))
        return self._guard(self._begin, _Call(method, path, headers, body, form=form, now=self._clock.now()))

    def refuse(self, headers: Mapping[str, str], refusal: Refused) -> Reply:
        """What goes back for a request that is refused before its body is read: the message must not be lost."""
        form = bodies.CBOR if bodies.content_type(headers) == bodies.CBOR else bodies.JSON
        return self._encode(Answer(refusal=refusal), form, self._clock.now())

    def _guard(self, step: "Callable[[_Call], Reply]", call: "_Call") -> Reply:
        """What a step replies; a bug of ours is a reply too."""
        try:
            return step(call)
        except Exception:  # noqa: BLE001 - a bug of ours
            _log.exception("a request failed")
        refusal = internal_failure("The request could not be processed: see the log of the server.")
        return self._encode(Answer(refusal=refusal), call.form, self._clock.now())

    def _keep(self, answer: Answer) -> Answer:
        """The answer, once all that was stored is kept."""
        self.wakeups.look()
        if self._on_handled is None:
            return answer
        try:
            self._on_handled()
        except Exception:  # noqa: BLE001 - whatever persistence raises
            if not self._is_failing:
                _log.exception("what was stored cannot be kept: requests fail until it can")
            self._is_failing = True
            if answer.subscription is not None:
                answer.subscription.ended = True
            return Answer(refusal=internal_failure("What was stored cannot be kept: see the log."), plan=answer.plan)
        self._is_failing = False
        return answer

    def _begin(self, call: "_Call") -> Reply:
        """What is wrong with the request, and what befalls it."""
        try:
            call.operation = _operation(call.headers, call.form, call.body)
            call.members = bodies.read_request(call.operation, call.form, call.body)
            call.plan = self._service.plan(call.operation, call.members, call.now)
        except Refused as refusal:
            call.refusal = refusal
        # As on AWS, a body that cannot be read at all is refused before the caller is known, members that do not fit
        # after that. Without an operation only a request of no known protocol is asked who sent it.
        is_known = bool(call.operation) or call.form == bodies.XML
        if self._signatures is not None and is_known and not is_unreadable(call.refusal):
            call.refusal = self._check_signature(call) or call.refusal
        if call.plan is not None and call.plan.waits_first:
            return Reply(0, {}, trouble=Trouble(call.plan.delay, partial(self._guard, self._carry_out, call)))
        return self._carry_out(call)

    def _check_signature(self, call: "_Call") -> Refused | None:
        assert self._signatures is not None, "asked for"
        skew = 0.0 if call.plan is None else call.plan.skew
        machine_now = None if skew else self._clock.machine_now()
        return self._signatures.check(
            call.method, call.path, call.headers, call.body, call.now + skew, machine_now=machine_now
        )

    def _carry_out(self, call: "_Call") -> Reply:
        now = self._clock.now()
        target = target_of(call.members, self._service.state)  # before: DeleteChannel deletes what tells its stream
        if call.refusal is None and call.members is not None:
            answer = self._service.handle(call.operation, call.members, now, call.plan)
        else:
            answer = Answer(refusal=call.refusal, plan=call.plan)
        answer = self._keep(answer)
        plan = answer.plan
        reply = self._encode(answer, call.form, now + (0.0 if plan is None else plan.skew))
        if plan is not None:
            reply = apply_faults(reply, plan)
        self._requests.add(self._seen(call, answer, reply, target))
        return reply

    def _seen(self, call: "_Call", answer: Answer, reply: Reply, target: Target) -> Seen:
        is_silent = reply.trouble is not None and reply.trouble.is_silent
        entries, failed, stored_in = counts_of(call.members, answer.body)
        return Seen(
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
            "x-amz-id-2": b2a_base64(self._chance.randbytes(_ID_2_BYTES), newline=False).decode(),
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
        digits = f"{self._chance.getrandbits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


@final
class _Call:
    """One request."""

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
    """The reply, as the faults that hit its request change it."""
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
