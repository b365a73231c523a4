"""The shard and the code of events, as log records have them."""

import pytest

from shardline import events
from shardline.adapters.sinks.log_context import log_context, shard_and_code
from shardline.events import EventSource, Failure, FailureKind

DENIED = Failure(FailureKind.DENIED, "AccessDeniedException", "not you")


@pytest.mark.parametrize(
    ("event", "shard_id", "code"),
    [
        (events.ReadFailed("s-1", "GetRecords", DENIED, 1.0), "s-1", "AccessDeniedException"),
        (events.StoreFailed(DENIED, 1), None, "AccessDeniedException"),
        (events.SubscriptionEnded("s-1", None, 1.0), "s-1", None),
        (events.RecordsRetried(5, None, "Throttled", "a"), None, "Throttled"),
        (events.HandlingStopped("s-1", "4", 0, 3, 2, "KeyError", "m", "x"), "s-1", "KeyError"),
        (events.RequestAnswered(1, 1, 1, 0.1, 0, None), None, None),
        (events.RecordsHandedOut("s-1", 1), "s-1", None),
        (events.Stalled(2.0), None, None),
    ],
)
def test_the_shard_and_the_code_of_an_event(event, shard_id, code):
    assert shard_and_code(event) == (shard_id, code)


def test_every_name_is_always_there():
    assert log_context(EventSource("producer", "orders")) == {
        "stream": "orders",
        "group": None,
        "worker": None,
        "shard_id": None,
        "code": None,
    }
    assert log_context(EventSource("consumer", "orders", "billing", "w"), "s-1", "C") == {
        "stream": "orders",
        "group": "billing",
        "worker": "w",
        "shard_id": "s-1",
        "code": "C",
    }
