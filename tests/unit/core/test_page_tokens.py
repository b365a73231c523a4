"""Does a listing continue?"""

import pytest

from shardline.core.error_codes import Failure, FailureKind
from shardline.core.page_tokens import PAGES_MAX, PageTokens

ENDLESS = Failure(FailureKind.TRANSIENT, "BadShardList", "the pages of the shard list do not end")


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_it_is_the_last_page(token):
    assert PageTokens().follow(token) is None


def test_a_token_that_comes_again_is_no_way_to_the_end():
    tokens = PageTokens()
    assert [tokens.follow(token) for token in "aba"] == ["a", "b", ENDLESS]


def test_nor_are_more_pages_than_any_stream_has():
    tokens = PageTokens()
    assert [tokens.follow(str(number)) for number in range(PAGES_MAX)] == [str(number) for number in range(PAGES_MAX)]
    assert tokens.follow("another") == ENDLESS
    assert tokens.follow(None) is None
