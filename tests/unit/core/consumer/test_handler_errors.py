"""Tests of ``shardline.core.consumer.handler_errors``."""

import json

import pytest

from shardline.core.consumer.handler_errors import ErrorSummary, summarize_error
from shardline.model.record import Record

ORDER = Record(b'{"name": "Ada Lovelace", "card": 4111, "mail": "ada@example.com", "amount": -5}', "customer-17")


def message(error, *records):
    return summarize_error(error, records).message


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("who pays?", "who pays?"),
        ("card 4111 was refused", "… … was refused"),
        ("no such customer: customer-17", "no such …: …"),
        ("ADA LOVELACE owes us", "… … owes us"),
        ("ada@example.com bounced.", "… bounced."),
        ("is -5 allowed", "is … allowed"),
        ("two\nlines\tand   blanks", "two lines … blanks"),
        ("", ""),
    ],
)
def test_words_of_the_record_are_left_out(raised, shown):
    record = ORDER if "and " not in raised else Record(b"and", None)
    assert message(ValueError(raised), record) == shown


def test_a_missing_field_is_named_and_a_bad_value_is_not():
    with pytest.raises(KeyError) as missing:
        json.loads(ORDER.data)["price"]
    assert message(missing.value, ORDER) == "'price'"
    with pytest.raises(ValueError, match="Lovelace") as bad:
        int(json.loads(ORDER.data)["name"])
    assert message(bad.value, ORDER) == "invalid literal for int() with base 10: '… …'"


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        ("cannot reach postgres://app:hunter2@db/orders", "cannot reach postgres://…@db/orders"),
        ("refused: password=hunter2 for app", "refused: password=… for app"),
        ('{"api_key": "hunter2"}', '{"api_key": …'),
        ("Authorization: hunter2", "Authorization: …"),
    ],
)
def test_passwords_are_left_out(raised, shown):
    assert message(ValueError(raised), Record(b"x", None)) == shown


def test_a_message_that_cannot_be_compared_is_left_out():
    large = Record(b"x" * 1_048_577, "k")
    assert message(ValueError("secret words"), large) == ""
    assert message(ValueError("secret words"), Record(b"x" * 1_048_576, "k")) == "secret words"


def test_a_long_message_is_cut():
    shown = message(ValueError("word " * 1000), ORDER)
    assert len(shown) == 200
    assert shown.endswith("…")


def test_an_exception_whose_text_fails_is_described():
    class Broken(Exception):  # noqa: N818 - as users name them
        def __str__(self):
            raise RuntimeError("no text")

    assert summarize_error(Broken(), [ORDER]) == ErrorSummary("Broken", "the exception's text cannot be shown", "")


def test_the_place_is_the_first_line_that_is_not_ours():
    def handle(data):
        json.loads(data)

    with pytest.raises(ValueError, match="Expecting") as failed:
        handle(b"no json")
    assert "test_handler_errors.py:" in summarize_error(failed.value, [ORDER]).place

    with pytest.raises(ValueError, match="Expecting") as failed:
        exec(compile("handle(b'no json')", "ours.py", "exec"), {"__name__": "shardline.aio", "handle": handle})
    error = failed.value
    error.__traceback__ = error.__traceback__.tb_next  # begins where our code calls the handler
    place = summarize_error(error, [ORDER]).place
    assert place.endswith(")")
    assert ".handle (test_handler_errors.py:" in place


def test_an_error_of_our_own_is_placed_in_our_code():
    with pytest.raises(TypeError) as failed:
        exec("None + 1", {"__name__": "shardline"})
    error = failed.value
    error.__traceback__ = error.__traceback__.tb_next
    assert summarize_error(error, []).place == "<module> (<string>:1)"


def test_a_message_that_utf_8_has_no_bytes_for_can_be_logged():
    summary = summarize_error(ValueError("bad \udcff byte"), [])
    assert summary.message == r"bad \udcff byte"
    summary.message.encode()
