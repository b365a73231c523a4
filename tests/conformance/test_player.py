"""Does a player wait out temporary failures, stop where it must, and never send an incomplete request?"""

import json
import threading

import pytest
from tests.conformance import wire
from tests.conformance.expectation import ANY_TEXT
from tests.conformance.player import (
    CannotPlay,
    CredentialsExpired,
    Player,
    Run,
    Stopped,
    _raised,
    is_denied,
    stream_name,
)
from tests.conformance.scenario import Call, Flood, Pause, Program, Scenario, Stream, Wait, ok, refused
from tests.conformance.sites import Pacer, Site

from shardline import ServiceError

RATE = ("LimitExceededException", "Rate exceeded for stream x under account 1.")
DENIED = ("AccessDeniedException", "User: arn:aws:iam::1:user/u is not authorized to perform: kinesis:ListStreams")


class FakeWire:
    """Answers from a script, and repeats the last answer."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.sent = []
        self.status = 400

    @staticmethod
    def credentials():
        return None

    def send(self, request):
        self.sent.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        status, body = (
            (self.status, {"__type": answer[0], "message": answer[1]}) if isinstance(answer, tuple) else (200, answer)
        )
        return wire.Raw(status, {"content-type": wire.JSON}, b"" if body is None else json.dumps(body).encode())


def player_of(fake, *steps, stop=None, refresh=lambda _used: False, **scenario):
    paused = []
    site = Site("fake", fake, "r", "123456789012", advance=paused.append, refresh=refresh, poll_pause=0.5)
    run = Run("run", stop or threading.Event(), lambda name, owner: noted.append((name, owner)))
    noted = []
    player = Player(site, Scenario("s", "t", steps, **scenario), run)
    player.paused, player.noted = paused, noted
    return player


def mismatches(result):
    return [(step.label, one.field, one.expected, one.got) for step in result.steps for one in step.mismatches]


def test_a_refusal_for_speed_is_waited_out():
    fake = FakeWire(RATE, ("ProvisionedThroughputExceededException", "x"), {"StreamNames": []})
    player = player_of(fake, Call("ListStreams", {}, ok({"StreamNames": []})))
    assert mismatches(player.play()) == []
    assert len(fake.sent) == 3
    assert player.paused == [0.25, 0.5]


def test_a_refusal_for_speed_that_is_expected_is_the_answer():
    fake = FakeWire(RATE)
    assert mismatches(player_of(fake, Call("ListStreams", {}, refused(RATE[0]))).play()) == []
    assert len(fake.sent) == 1


def test_a_refusal_for_speed_is_waited_out_also_where_another_of_the_same_type_is_expected():
    fake = FakeWire(RATE, ("LimitExceededException", "shard limit"))
    player = player_of(fake, Call("CreateStream", {}, refused("LimitExceededException", "shard limit")))
    assert mismatches(player.play()) == []
    assert len(fake.sent) == 2


def test_a_refusal_for_speed_that_never_ends_is_the_answer():
    fake = FakeWire(RATE)
    assert mismatches(player_of(fake, Call("ListStreams", {}, ok())).play()) != []
    assert len(fake.sent) == 30


def test_a_failure_of_the_service_is_repeated_three_times():
    fake = FakeWire(("InternalFailure", ""))
    fake.status = 500
    player_of(fake, Call("ListStreams", {}, ok())).play()
    assert len(fake.sent) == 4


def test_a_limit_that_has_nothing_to_do_with_speed_is_the_answer():
    fake = FakeWire(("LimitExceededException", "This request would exceed the shard limit"))
    result = player_of(fake, Call("CreateStream", {}, ok())).play()
    assert len(fake.sent) == 1
    assert [one[1] for one in mismatches(result)] == ["status", "error"]


def test_denied_access_ends_the_scenario_as_not_run():
    result = player_of(FakeWire(DENIED), Call("ListStreams", {}, ok()), Call("ListStreams", {}, ok())).play()
    assert "ListStreams is denied" in result.not_run
    assert result.steps == ()


def test_denied_access_that_is_expected_is_an_answer():
    assert player_of(FakeWire(DENIED), Call("ListStreams", {}, refused(DENIED[0]))).play().not_run == ""


def test_an_operation_that_an_emulator_does_not_know_is_no_denied_access():
    assert not is_denied("AccessDeniedException", "Unable to determine service/operation name to be authorized")


def test_expired_credentials_are_looked_up_again_once():
    fake = FakeWire(("ExpiredTokenException", "expired"), {"StreamNames": []})
    player = player_of(fake, Call("ListStreams", {}, ok({"StreamNames": []})), refresh=lambda _used: True)
    assert mismatches(player.play()) == []
    with pytest.raises(CredentialsExpired, match="expired"):
        player_of(
            FakeWire(("ExpiredTokenException", "expired")), Call("ListStreams", {}, ok()), refresh=lambda _used: True
        ).play()
    with pytest.raises(CredentialsExpired):
        player_of(FakeWire(("ExpiredTokenException", "expired")), Call("ListStreams", {}, ok())).play()


def test_a_request_that_is_signed_wrongly_on_purpose_is_sent_once():
    fake = FakeWire(("UnrecognizedClientException", "x"))
    player_of(fake, Call("ListStreams", {}, ok(), signing="unknown key")).play()
    assert len(fake.sent) == 1


def test_a_stream_is_noted_before_it_is_made():
    fake = FakeWire(("LimitExceededException", "shard limit"))
    player = player_of(fake, streams={"a": Stream(2)}, makes={"b": Stream(1)})
    result = player.play()
    assert "cannot be made" in result.not_run
    assert player.noted == [(stream_name("run", "s", "b"), "s"), (stream_name("run", "s", "a"), "s")]


def test_a_stream_that_scenarios_share_is_made_once_and_belongs_to_none_of_them():
    active = {"StreamDescriptionSummary": {"StreamStatus": "ACTIVE"}}
    fake = FakeWire(None, active)
    player = player_of(fake, streams={"a": Stream(2, shared=True)})
    player.play()
    again = Player(player.site, Scenario("other", "t", (), streams={"a": Stream(2, shared=True)}), Run("run"))
    again.play()
    assert [request.operation for request in fake.sent] == ["CreateStream", "DescribeStreamSummary"]
    assert player.noted == [(stream_name("run", "shared", "2"), "shared")]
    assert again.names["a"] == player.names["a"]


def test_every_stream_is_tagged():
    active = {"StreamDescriptionSummary": {"StreamStatus": "ACTIVE"}}
    fake = FakeWire(None, active, None)
    player_of(
        fake, Call("CreateStream", {"StreamName": "$b"}, ok()), streams={"a": Stream(2)}, makes={"b": Stream()}
    ).play()
    made = [json.loads(request.body) for request in fake.sent if request.operation == "CreateStream"]
    assert [members["Tags"] for members in made] == [{"shardline-conformance": "run"}] * 2


def test_a_name_that_no_answer_gave_is_a_difference_and_nothing_is_sent():
    fake = FakeWire({"Other": 1}, {})
    steps = (Call("A", {}, ok({"Other": 1}), keep={"it": "ShardIterator"}), Call("B", {"I": "$it"}, ok({})))
    result = player_of(fake, *steps).play()
    assert mismatches(result) == [("B", "the request", "$it", "no earlier answer had it")]
    assert len(fake.sent) == 1


def test_what_was_kept_is_sent_and_expected_later():
    fake = FakeWire({"Records": [{"N": "7"}]}, {"N": "7"})
    steps = (
        Call("A", {}, ok({"Records": [{"N": ANY_TEXT}]}), keep={"n": "Records[0].N"}),
        Call("B", {"N": "$n"}, ok({"N": "$n"})),
    )
    assert mismatches(player_of(fake, *steps).play()) == []
    assert json.loads(fake.sent[1].body) == {"N": "7"}


def test_waiting_ends_with_the_state_or_when_patience_does():
    fake = FakeWire(
        {"StreamDescriptionSummary": {"StreamStatus": "CREATING"}},
        {"StreamDescriptionSummary": {"StreamStatus": "ACTIVE"}},
    )
    assert mismatches(player_of(fake, Wait("a"), makes={"a": Stream()}).play()) == []
    player = player_of(FakeWire(("ResourceNotFoundException", "x")), Wait("a"), makes={"a": Stream()})
    player.site.patience = 0.0
    assert [one[2:] for one in mismatches(player.play())] == [("'ACTIVE'", "'gone'")]


def test_a_flood_that_is_never_refused_is_a_difference():
    result = player_of(FakeWire({}), Flood("GetRecords", {}, refused("X"), at_most=5)).play()
    assert "throttled" in [one[1] for one in mismatches(result)]


def test_an_interrupt_stops_between_two_steps():
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped):
        player_of(FakeWire({}), Call("A", {}, ok()), stop=stop).play()
    with pytest.raises(Stopped):
        player_of(FakeWire({}), Pause(1), stop=stop).play()


def test_a_program_is_cancelled_by_an_interrupt():
    stop = threading.Event()

    async def endless(player):
        stop.set()
        import anyio

        await anyio.sleep(60)

    with pytest.raises(Stopped):
        player_of(FakeWire({}), Program(endless, None), stop=stop).play()


def test_what_a_program_raises_is_its_outcome():
    async def failing(player):
        raise ValueError("odd")

    result = player_of(FakeWire({}), Program(failing, {"lost": 0})).play()
    assert ("failing", "raised", "absent", "'ValueError'") in mismatches(result)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Stopped(), Stopped),
        (CannotPlay("x"), CannotPlay),
        (ExceptionGroup("g", [CredentialsExpired("x")]), CredentialsExpired),
    ],
)
def test_what_ends_a_run_also_ends_it_inside_a_program(error, kind):
    with pytest.raises(kind):
        _raised(error)


def test_denied_access_of_our_own_client_ends_the_scenario_as_not_run():
    with pytest.raises(CannotPlay):
        _raised(ServiceError(DENIED[1], code=DENIED[0]))


def test_the_control_plane_is_asked_four_times_a_second_and_the_data_plane_at_will():
    slept = []
    pacer = Pacer(slept.append, lambda: 100.0)
    for _ in range(3):
        pacer.wait_for_turn("CreateStream")
    pacer.wait_for_turn("PutRecords")
    assert slept == [0.0, 0.25, 0.5]
