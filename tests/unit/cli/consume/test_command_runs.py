"""How are a command's end and its records described?"""

import signal

import pytest

from shardline.cli.consume.command_runs import shown_ending, shown_records
from shardline.model.record import Record

RECORD = Record(b"x", "k", None, "4959", 2, "shardId-000000000000")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "failed with exit code 3"),
        (-signal.SIGKILL, "was ended by SIGKILL"),
        (-(signal.SIGRTMIN + 1), f"was ended by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_an_ending_is_an_exit_code_or_a_signal(code, text):
    assert shown_ending(code) == text


def test_records_are_named_by_the_first_one():
    assert shown_records([RECORD]) == "record 4959:2 of shardId-000000000000"
    assert shown_records([RECORD] * 3) == "3 records from 4959:2 of shardId-000000000000"
