"""Are only the streams of this program deleted?"""

import contextlib
import json
import threading

import pytest
from tests.conformance.player import Player, Run
from tests.conformance.run import Runner, clean, delete, leftovers
from tests.conformance.scenario import Call, Pause, Scenario, ok
from tests.conformance.sites import Site
from tests.conformance.state import RunState
from tests.conformance.wire import Raw, WireError

MINE = "shardline-conformance-1-a"


class FakeKinesis:
    """The part of the service that a deletion needs."""

    def __init__(self, streams, deletions=1):
        self.streams = dict(streams)
        self.deleted = []
        self._deletions = deletions

    @staticmethod
    def credentials():
        return None

    def send(self, request):
        members = json.loads(request.body)
        name = members.get("StreamName")
        if request.operation == "ListStreams":
            names = sorted(one for one in self.streams if one > members["ExclusiveStartStreamName"])[:2]
            more = any(one > names[-1] for one in self.streams) if names else False
            return self._answer({"StreamNames": names, "HasMoreStreams": more})
        if name not in self.streams:
            return Raw(400, {}, b'{"__type": "ResourceNotFoundException", "message": "not found"}')
        if request.operation == "ListTagsForStream":
            return self._answer({"Tags": [{"Key": key, "Value": value} for key, value in self.streams[name].items()]})
        if request.operation == "DeleteStream":
            self.deleted.append(name)
            if len(self.deleted) >= self._deletions:
                del self.streams[name]
            return self._answer(None)
        return self._answer({"StreamDescriptionSummary": {"StreamStatus": "ACTIVE"}})

    @staticmethod
    def _answer(body):

        return Raw(200, {}, b"" if body is None else json.dumps(body).encode())


def site_of(fake):
    return Site("fake", fake, "r", "1", advance=lambda _: None, poll_pause=0.01, patience=0.3)


def test_a_stream_of_another_name_is_never_deleted():
    fake = FakeKinesis({"orders": {}})
    player = Player(site_of(fake), Scenario("s", "t", ()), Run("1"))
    with pytest.raises(AssertionError, match="no stream of this program"):
        delete(player, "orders")
    with pytest.raises(AssertionError):
        clean(site_of(fake), RunState(None, "e"), ["orders"])
    assert fake.deleted == []


def test_streams_are_found_by_name_and_tag_page_by_page():
    tag = {"shardline-conformance": "7"}
    fake = FakeKinesis(
        {
            "a": tag,
            "shardline-conformance-1": tag,
            "shardline-conformance-2": {},
            "shardline-conformance-3": tag,
            "shardline-conformance-4": tag,
            "z": tag,
        }
    )
    found = leftovers(site_of(fake))
    assert [one.name for one in found] == [f"shardline-conformance-{number}" for number in (1, 3, 4)]
    assert {one.run_id for one in found} == {"7"}


def test_deleting_is_repeated_until_the_stream_is_gone():
    fake = FakeKinesis({MINE: {}}, deletions=3)
    state = RunState(None, "e")
    state.note_stream(MINE, "s")
    assert clean(site_of(fake), state, [MINE]) == ()
    assert fake.deleted == [MINE] * 3
    assert state.streams == {}


def test_a_stream_that_stays_is_named_and_remembered():
    fake = FakeKinesis({MINE: {}}, deletions=10**9)
    state, said = RunState(None, "e"), []
    state.note_stream(MINE, "s")
    assert clean(site_of(fake), state, [MINE], said.append) == (MINE,)
    assert said == [f"the stream {MINE} is still there"]
    assert state.streams == {MINE: "s"}


def open_fake(fake):

    return lambda: contextlib.nullcontext(site_of(fake))


def test_a_lost_connection_breaks_the_run_off():
    class Lost:
        @staticmethod
        def credentials():
            return None

        def send(self, _):
            raise WireError("no answer")

    runner = Runner(open_fake(Lost()), RunState(None, "e"), jobs=2)
    outcome = runner.play([Scenario(name, "t", (Call("A", {}, ok()),)) for name in ("one", "two")])
    assert outcome.results == {}
    assert outcome.broken_off == "the connection is lost: no answer"


def test_an_interrupt_keeps_what_is_finished():
    stop = threading.Event()
    fake = FakeKinesis({MINE: {}})
    runner = Runner(open_fake(fake), RunState(None, "e"), jobs=1, stop=stop, on_result=lambda *_: stop.set())
    one = Scenario("one", "t", (Pause(1),), seconds=9)
    outcome = runner.play([Scenario("two", "t", (Pause(1),)), one])
    assert list(outcome.results) in (["one"], ["two"])
    assert outcome.broken_off == "interrupted"


def test_a_mistake_of_ours_stops_the_other_scenarios():
    class Broken:
        @staticmethod
        def credentials():
            return None

        def send(self, _):
            raise ValueError("a mistake")

    stop = threading.Event()
    runner = Runner(open_fake(Broken()), RunState(None, "e"), jobs=1, stop=stop)
    with pytest.raises(ValueError, match="a mistake"):
        runner.play([Scenario(name, "t", (Call("A", {}, ok()),)) for name in ("one", "two")])
    assert stop.is_set()
