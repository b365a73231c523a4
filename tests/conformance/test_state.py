"""Does a run that was killed know its finished scenarios and its streams?"""

import pytest
from tests.conformance.expectation import Mismatch
from tests.conformance.player import Played, Result
from tests.conformance.scenario import Call, Scenario, ok
from tests.conformance.state import RunState, StateError, digest_of

SCENARIO = Scenario("s", "t", (Call("ListStreams", {}, ok({})),))
RESULT = Result("s", (Played("ListStreams", {"status": 200}, (Mismatch("body", "{}", "absent"),)),))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "below" / "state.json"


def test_everything_is_there_again(path):
    state = RunState(path, "here")
    state.note_stream("a", "s")
    state.note_stream("b", "s")
    state.forget_stream("a")
    assert state.begin("s") == ""
    state.finish(SCENARIO, RESULT)
    again = RunState.load(path, "here")
    assert (again.run_id, again.streams, again.finished) == (state.run_id, {"b": "s"}, ("s",))
    assert again.result_of(SCENARIO) == RESULT
    assert again.begin("s") == "-2"


def test_a_scenario_that_has_changed_is_played_again(path):
    state = RunState(path, "here")
    state.finish(SCENARIO, RESULT)
    changed = Scenario("s", "t", (Call("ListStreams", {"Limit": 1}, ok({})),))
    assert state.result_of(changed) is None
    assert digest_of(SCENARIO) == digest_of(Scenario("s", "another title", SCENARIO.steps))


def test_there_is_nothing_to_go_on_with_after_the_end(path):
    state = RunState(path, "here")
    state.note_stream("a", "s")
    state.end()
    assert RunState.load(path, "here") is None


def test_the_state_of_another_account_is_refused(path):
    RunState(path, "here").note_stream("a", "s")
    with pytest.raises(StateError, match="is of here"):
        RunState.load(path, "elsewhere")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run_id": 7}'])
def test_a_file_that_cannot_be_read_is_refused(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(StateError, match="cannot be read"):
        RunState.load(path, "here")


def test_a_state_without_a_file_keeps_nothing():
    state = RunState(None, "here")
    state.note_stream("a", "s")
    state.end()
    assert state.streams == {"a": "s"}
