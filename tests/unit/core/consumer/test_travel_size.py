"""How many records travel to a handler's process at a time?"""

import pytest

from shardline.core.consumer.travel_size import TRAVEL_MAX_RECORDS, TravelSize


def test_the_size_doubles_while_the_handler_is_quick():
    size, sizes = TravelSize(), []
    for _ in range(11):
        sizes.append(size.limit)
        size.handle_returned(size.limit, size.limit * 0.000_01)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 128, 256, TRAVEL_MAX_RECORDS, TRAVEL_MAX_RECORDS]


@pytest.mark.parametrize(("duration", "limit"), [(0.08, 5), (0.8, 1), (8.0, 1), (0.0, 16)])
def test_the_records_of_a_message_take_at_most_50_ms(duration, limit):
    size = TravelSize()
    size.limit = 8
    size.handle_returned(8, duration)
    assert size.limit == limit


def test_a_message_whose_first_record_failed_says_nothing():
    size = TravelSize()
    size.limit = 8
    size.handle_returned(0, 1.0)
    assert size.limit == 8
