"""Tests of ``dead_letter_files``."""

import base64
from pathlib import Path

import pytest

from shardline.cli.error_messages import WrongUsage
from shardline.codec.record_lines import PlainRecord, line_of
from shardline.console.dead_letter_files import DeadLetterPlace, newest_dead_letters, parse_places
from shardline.errors import UsageError


def test_a_place_is_a_file_or_a_stream():
    assert parse_places(["billing=failed.jsonl", "audit=stream:orders-failed"]) == {
        "billing": DeadLetterPlace(Path("failed.jsonl")),
        "audit": DeadLetterPlace(stream="orders-failed"),
    }


@pytest.mark.parametrize("option", ["failed.jsonl", "=failed.jsonl", "billing=", "billing=stream:"])
def test_other_places_are_refused(option):
    with pytest.raises(WrongUsage, match="GROUP=FILE or GROUP=stream:NAME"):
        parse_places([option])


def test_the_newest_come_first_and_a_long_file_is_cut(tmp_path):
    path = tmp_path / "failed.jsonl"
    lines = [line_of(PlainRecord(f"user-{number}", b"\xff" * 9), message="no price") for number in range(60)]
    path.write_bytes(b"".join(lines) + b"broken\n")
    found = newest_dead_letters(path)
    assert [letter["key"] for letter in found["letters"]] == [f"user-{number}" for number in range(59, 9, -1)]
    assert (found["unreadable"], found["more"]) == (1, True)
    first = found["letters"][0]
    assert (first["message"], base64.b64decode(first["base64"])) == ("no price", b"\xff" * 9)


def test_only_the_end_of_a_large_file_is_read(tmp_path):
    path = tmp_path / "failed.jsonl"
    path.write_bytes(b"x" * 3_000_000 + b"\n" + line_of(PlainRecord("last", b"1")))
    found = newest_dead_letters(path)
    assert ([letter["key"] for letter in found["letters"]], found["unreadable"], found["more"]) == (["last"], 0, True)


def test_a_missing_file_has_no_letters_and_another_problem_is_named(tmp_path):
    assert newest_dead_letters(tmp_path / "none.jsonl")["letters"] == []
    with pytest.raises(UsageError, match="cannot be read"):
        newest_dead_letters(tmp_path)


@pytest.mark.parametrize(("size", "count"), [(5_000_000, 2), (10 * 1024 * 1024, 1), (700_000, 1)])
def test_large_letters_are_shown_too(tmp_path, size, count):
    path = tmp_path / "failed.jsonl"
    path.write_bytes(b"".join(line_of(PlainRecord(f"user-{number}", b"\xff" * size)) for number in range(4)))
    found = newest_dead_letters(path)
    assert [letter["key"] for letter in found["letters"]] == ["user-3", "user-2"][:count]
    assert (found["more"], found["unreadable"], found["letters"][0]["size"]) == (True, 0, size)
