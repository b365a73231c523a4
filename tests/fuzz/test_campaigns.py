"""Do the campaigns cover the input that they claim to, and can each failure that they report be reproduced?"""

import logging
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import server_campaign
from campaign import replay_of

from shardline.server.model.inputs import INPUTS

HERE = Path(__file__).parent


@pytest.fixture
def quiet():
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def test_there_is_a_value_for_every_member_of_every_operation():
    known = {one.encode_name for kind in INPUTS.values() for one in msgspec.structs.fields(kind)}
    assert known == server_campaign.MEMBERS.keys()


def test_the_server_is_met_many_times_in_a_moment(quiet):
    assert server_campaign.campaign(2.0, seed=1) > server_campaign.WARM_UP + 10


def test_growth_is_seen_also_in_a_short_campaign(quiet, monkeypatch):
    sizes = iter([0, server_campaign.GROWTH_MAX_KIB])
    monkeypatch.setattr(server_campaign, "most_memory", lambda: next(sizes))
    with pytest.raises(AssertionError, match="it grew by"):
        server_campaign.campaign(0.1, seed=1)


@pytest.mark.parametrize("script", ["campaign.py", "server_campaign.py"])
@pytest.mark.parametrize("seconds", ["0", "-1", "x"])
def test_a_campaign_has_a_length(script, seconds):
    line = [sys.executable, str(HERE / script), f"--seconds={seconds}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"argument --seconds: {seconds!r} is no time: it is whole seconds, 1 or more" in done.stderr


def test_what_was_found_comes_with_its_replay():
    told = "==1== ERROR\nTest unit written to /findings/wire-crash-1\nBase64: eA==\n"
    assert replay_of("wire", told) == [
        "replay: .venv/bin/python tests/fuzz/campaign.py --child wire /findings/wire-crash-1"
    ]
    assert replay_of("wire", "ImportError") == []
