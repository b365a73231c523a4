"""Is a recording free of secrets, and is a server that answers differently detected?

Every recording in ``recordings/`` is compared with the embedded server. If there is none yet, the comparison is tested
with one that is made here.
"""

import json

import pytest
from tests.conformance import recording, sites
from tests.conformance.expectation import ANY_TEXT, TIME, Mismatch
from tests.conformance.known import KNOWN, Difference, judge
from tests.conformance.player import Played, Player, Result, Run
from tests.conformance.recording import RECORDINGS, RecordingError, against, load, recording_of, write
from tests.conformance.scenario import Call, Scenario, ok
from tests.conformance.table import SCENARIOS

RESULTS = [Result("a", (Played("ListStreams", {"status": 200}),)), Result("b", (), not_run="denied")]


def differences(kept):
    """Return where the embedded server differs from a recording."""
    for name in kept["scenarios"]:
        scenario = SCENARIOS.get(name)
        if scenario is None:
            yield Difference(name, 0, "scenario", Mismatch("the scenario", "in the table", "absent: record again"))
            continue
        with sites.embedded() as site:
            result = Player(site, scenario, Run("recorded")).play()
        for at, label, mismatch in against(kept, scenario, result):
            yield Difference(name, at, label, mismatch)


def test_the_embedded_server_answers_as_every_recording_says():
    for path in sorted(RECORDINGS.glob("*.json")):
        kept = load(path)
        judgement = judge(
            differences(kept), KNOWN.get(f"recording {path.stem}", ()), list(kept["scenarios"]), SCENARIOS
        )
        assert [str(one) for one in judgement.unknown] == [], path.name
        assert [str(one) for one in judgement.vanished] == [], path.name


def test_a_recording_of_one_endpoint_is_compared_with_another(tmp_path):
    names = ("stream-missing", "put-records", "tags")
    results = []
    for name in names:
        with sites.embedded() as site:
            results.append(Player(site, SCENARIOS[name], Run("first")).play())
    path = tmp_path / "one.json"
    write(path, recording_of(results, endpoint="a stand-in", date="2026-11-17"), ["-first-"])
    kept = load(path)
    assert list(differences(kept)) == []
    step = kept["scenarios"]["put-records"][0]
    step["outcome"]["body"]["Records"][1]["ShardId"] = "shardId-000000000007"
    [found] = differences(kept)
    assert (found.scenario, found.at, found.mismatch.field) == ("put-records", 1, "body.Records[1].ShardId")
    kept["scenarios"]["no-such"] = kept["scenarios"].pop("tags")
    assert [one.mismatch.got for one in differences(kept)][1:] == ["absent: record again"]


def test_a_recording_keeps_the_text_that_was_not_known_and_hides_what_varies(tmp_path):
    scenario = Scenario(
        "x",
        "t",
        (
            Call(
                "DescribeStreamSummary",
                {"StreamName": "$nothing"},
                {"status": 400, "error": {"__type": ANY_TEXT, "message": ANY_TEXT}},
            ),
        ),
    )
    with sites.embedded() as site:
        result = Player(site, scenario, Run("first")).play()
    write(tmp_path / "x.json", recording_of([result], endpoint="e", date="d"), [])
    [step] = load(tmp_path / "x.json")["scenarios"]["x"]
    assert step["outcome"]["error"]["message"] == "Stream $nothing under account $account not found."


def test_scenarios_that_were_not_run_are_not_recorded():
    assert list(recording_of(RESULTS, endpoint="e", date="d")["scenarios"]) == ["a"]


def test_the_order_is_that_of_the_results_and_the_bytes_are_the_same_each_time(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / name, recording_of(RESULTS, endpoint="e", date="d"), [])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_secret_is_never_written(tmp_path):
    results = [Result("a", (Played("ListStreams", {"body": "of 123456789012"}),))]
    with pytest.raises(RecordingError, match="account or a secret"):
        write(tmp_path / "x.json", recording_of(results, endpoint="e", date="d"), ["", "123456789012"])
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", json.dumps({"version": 99, "scenarios": {}}), '{"version": 1, "scenarios": 7}']
)
def test_a_file_that_is_no_recording_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RecordingError):
        load(tmp_path / "x.json")


def test_a_table_that_has_changed_since_is_reported():
    kept = recording_of(RESULTS, endpoint="e", date="d")
    scenario = Scenario("a", "t", (Call("DescribeLimits", {}, ok({"T": TIME})),))
    [(_, _, mismatch)] = against(kept, scenario, RESULTS[0])
    assert "record again" in mismatch.got
    assert against(kept, Scenario("other", "t", ()), RESULTS[0]) == []
    assert kept["version"] == recording.VERSION
