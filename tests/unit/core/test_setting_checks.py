"""Is a wrong setting refused, with its name, its value and the allowed values?"""

from math import inf, nan

import pytest

from shardline import UsageError
from shardline.core.setting_checks import check_choice, check_number


@pytest.mark.parametrize("value", [1, 2.5, 5.0])
def test_a_number_in_its_range_is_allowed(value):
    check_number("rate", value, 1.0, 5.0)


@pytest.mark.parametrize("value", [0.9, 5.1, nan, inf, True, "2", None])
def test_any_other_value_is_refused(value):
    with pytest.raises(UsageError, match="rate must be a number from 1 to 5, not"):
        check_number("rate", value, 1.0, 5.0)


@pytest.mark.parametrize("value", [1.5, 0, False])
def test_a_whole_number_is_no_other(value):
    with pytest.raises(UsageError, match="count must be a whole number, 1 or more, or None, not"):
        check_number("count", value, 1, inf, whole=True, optional=True)


def test_none_stands_for_an_optional_one_and_a_whole_number_may_be_large():
    check_number("count", None, 1, inf, whole=True, optional=True)
    check_number("count", 10**30, 1, inf, whole=True)


def test_a_choice_is_one_of_its_words():
    check_choice("ack", "auto", "auto", "manual")
    with pytest.raises(UsageError, match="ack must be 'auto' or 'manual', not 'never'"):
        check_choice("ack", "never", "auto", "manual")
