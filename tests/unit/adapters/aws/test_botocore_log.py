"""Are botocore's DEBUG records dropped while it fetches credentials, and only these?"""

import logging
import threading

import pytest

from shardline.adapters.aws.botocore_log import keeping_secrets


@pytest.fixture
def spoken(caplog):
    caplog.set_level(logging.DEBUG)
    return caplog


def names(spoken):
    return [record.getMessage() for record in spoken.records]


def test_what_this_thread_says_at_debug_is_kept_back(spoken):
    parsers = logging.getLogger("botocore.parsers")
    parsers.debug("before")
    with keeping_secrets():
        parsers.debug("a secret")
        with keeping_secrets():
            parsers.debug("a secret, deeper")
        parsers.debug("a secret again")
        parsers.info("of use")
        logging.getLogger("botocore.regions").debug("harmless")
    parsers.debug("after")
    assert names(spoken) == ["before", "of use", "harmless", "after"]


def test_what_other_threads_say_comes_out(spoken):
    with keeping_secrets():
        other = threading.Thread(target=logging.getLogger("botocore.endpoint").debug, args=["theirs"])
        other.start()
        other.join()
    assert names(spoken) == ["theirs"]


def test_it_holds_again_after_an_exception_and_after_logging_was_reconfigured(spoken):
    endpoint = logging.getLogger("botocore.endpoint")
    with pytest.raises(ValueError, match="x"), keeping_secrets():
        raise ValueError("x")
    endpoint.debug("between")
    endpoint.filters.clear()
    with keeping_secrets():
        endpoint.debug("a secret")
    assert names(spoken) == ["between"]
    assert len(endpoint.filters) == 1


def test_a_warning_comes_without_the_answer_that_its_exception_quotes(spoken):
    credentials = logging.getLogger("botocore.credentials")
    with keeping_secrets():
        credentials.warning("the refresh failed", exc_info=ValueError("a secret"))
    assert "the refresh failed" in spoken.text
    assert "a secret" not in spoken.text
