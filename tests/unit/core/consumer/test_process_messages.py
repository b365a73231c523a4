"""Which records go to a handler's process in one message, and which are done if the process dies or hangs?"""

import pytest

from shardline.core.clock import NEVER
from shardline.core.consumer import process_messages
from shardline.core.consumer.cursor import Cursor
from shardline.core.consumer.process_messages import Handled, MessageWatch, split_messages
from shardline.model.record import Record


def records(*sizes):
    return [Record(bytes(size), "k") for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "messages"),
    [
        ([], [0]),
        ([5], [1]),
        ([3, 3, 3], [3]),
        ([4, 6, 4], [2, 1]),
        ([50, 50, 1], [1, 1, 1]),
        ([1, 50, 1, 1], [1, 1, 2]),
        ([0] * 25, [12, 12, 1]),
    ],
    ids=["none", "one", "fit", "the third does not fit", "large ones alone", "a large one between", "empty ones count"],
)
def test_a_message_has_a_limited_number_of_bytes_or_one_record(monkeypatch, sizes, messages):
    monkeypatch.setattr(process_messages, "MESSAGE_MAX_BYTES", 11)
    given = records(*sizes)
    found = split_messages(given)
    assert [len(message) for message in found] == messages
    assert [record for message in found for record in message] == given


def test_the_records_before_the_one_in_the_handler_are_done():
    watch = MessageWatch(1.0, 0.0)
    assert watch.handled == Handled(0, has_failed=True), "the first record has failed if the process had not begun"
    for begun in (1, 2, 3):
        watch.handle_progress(begun, 0.1 * begun)
        assert watch.handled == Handled(begun - 1, has_failed=True)


def test_a_process_hangs_if_one_record_takes_too_long():
    watch = MessageWatch(1.0, 10.0)
    assert (watch.next_deadline(), watch.is_hung(10.99), watch.is_hung(11.0)) == (11.0, False, True)
    watch.handle_progress(1, 10.5)
    watch.handle_progress(1, 11.2)  # no progress
    assert (watch.next_deadline(), watch.is_hung(11.4), watch.is_hung(11.5)) == (11.5, False, True)
    watch.handle_progress(2, 11.5)
    assert not watch.is_hung(12.4)


def test_without_a_timeout_no_process_hangs():
    watch = MessageWatch(None, 0.0)
    assert (watch.next_deadline(), watch.is_hung(1e12)) == (NEVER, False)


@pytest.mark.parametrize(("handled", "place"), [(Handled(3, has_failed=False), 5), (Handled(1, has_failed=True), 4)])
def test_the_cursor_moves_behind_the_failed_record(handled, place):
    cursor = Cursor(records(1, 1, 1, 1, 1, 1), None)
    handled.report(cursor, 2)
    assert cursor.place == place
