"""Does an unlisted difference fail, and a listed one that no longer occurs?"""

from tests.conformance.expectation import Mismatch
from tests.conformance.known import KNOWN, NOT_PLAYED, Difference, Known, judge
from tests.conformance.table import SCENARIOS


def difference(scenario="put", at=2, label="PutRecord", field="error.message", got="'x'"):
    return Difference(scenario, at, label, Mismatch(field, "'y'", got))


def test_a_difference_is_known_if_all_patterns_match():
    for entry in (Known("put", "2 PutRecord", "error.message", "w"), Known("p*", "* PutRecord", "*", "w", got="'x'")):
        assert judge([difference()], [entry], ["put"], ["put"]).known == (difference(),)
    for entry in (
        Known("get", "*", "*", "w"),
        Known("put", "3 *", "*", "w"),
        Known("put", "*", "body", "w"),
        Known("put", "*", "*", "w", got="z"),
    ):
        assert judge([difference()], [entry], [], ["put"]).unknown == (difference(),)


def test_what_is_listed_and_no_longer_shows_is_reported():
    entry = Known("put", "*", "*", "w")
    assert judge([], [entry], ["put"], ["put"]).vanished == (entry,)
    assert judge([], [entry], [], ["put"]).vanished == ()
    assert judge([difference()], [entry], ["put"], ["put"]).vanished == ()


def test_what_depends_on_timing_may_vanish():
    assert judge([], [Known("put", "*", "*", "w", sometimes=True)], ["put"], ["put"]).vanished == ()


def test_what_is_about_many_scenarios_has_vanished_only_if_all_were_played():
    entry = Known("p*", "*", "*", "w")
    assert judge([], [entry], ["put"], ["put", "post"]).vanished == ()
    assert judge([], [entry], ["put", "post"], ["put", "post"]).vanished == (entry,)


def test_a_difference_is_one_line():
    line = str(difference(got="'a\\nb'"))
    assert line == "put | step 2 PutRecord | error.message | expected 'y' | got 'a\\nb'"


def test_every_listed_difference_says_why_and_is_about_scenarios_that_there_are():
    for listed in KNOWN.values():
        for entry in listed:
            assert entry.why
            assert entry.sometimes or judge([], [entry], SCENARIOS, SCENARIOS).vanished == (entry,)
    for skipped in NOT_PLAYED.values():
        assert all(judge([], [Known(pattern, "*", "*", "w")], SCENARIOS, SCENARIOS).vanished for pattern in skipped)
