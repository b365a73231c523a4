"""Credentials as a value."""

import pytest

from shardline.errors import UsageError
from shardline.model.credentials import Credentials


def test_neither_repr_nor_str_shows_a_secret():
    credentials = Credentials("AKIDEXAMPLE", "very-secret", "token-secret")
    for shown in (repr(credentials), str(credentials), f"{credentials}", repr([credentials])):
        assert "AKIDEXAMPLE" in shown
        assert "secret" not in shown


def test_a_session_token_is_optional():
    assert Credentials("AKIDEXAMPLE", "s").session_token is None
    assert Credentials("AKIDEXAMPLE", "s", "t").session_token == "t"
    assert Credentials("AKIDEXAMPLE", "s", "").session_token == ""


@pytest.mark.parametrize("value", ["", None, 5, b"bytes-secret"])
@pytest.mark.parametrize("field", ["access_key", "secret_key"])
def test_a_wrong_key_is_refused_by_its_name_without_its_value(field, value):
    fields = {"access_key": "AKIDEXAMPLE", "secret_key": "very-secret"} | {field: value}
    with pytest.raises(UsageError, match=f"^{field} must be a str") as caught:
        Credentials(**fields)
    assert "secret" not in str(caught.value).replace("secret_key", "")


@pytest.mark.parametrize("value", [5, b"token-secret", ["token-secret"]])
def test_a_wrong_token_is_refused_without_its_value(value):
    with pytest.raises(UsageError, match=r"^session_token must be a str with at least one character$"):
        Credentials("AKIDEXAMPLE", "s", value)


@pytest.mark.parametrize("value", ["line\n", "\x00", "tab\t", "\x7f", "\ud800"])
@pytest.mark.parametrize("field", ["access_key", "secret_key", "session_token"])
def test_what_no_header_can_carry_is_refused_without_its_value(field, value):
    fields = {"access_key": "AKIDEXAMPLE", "secret_key": "s"} | {field: "very-hidden" + value}
    with pytest.raises(UsageError, match=f"^{field} contains a control character") as caught:
        Credentials(**fields)
    assert "very-hidden" not in str(caught.value)
