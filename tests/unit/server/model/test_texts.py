"""Does the server send each text of the table in docs/tested/differences.md?"""

import pytest
from tests.interop.texts import TEXTS


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.when)
def test_the_server_says_what_the_table_says(make_server, text):
    server = make_server(**text.settings)
    *before, (operation, members) = text.calls
    for earlier, its_members in before:
        assert server.answer(earlier, **its_members).refusal is None
    if text.prepare is not None:
        members = members | text.prepare(server)
    refusal = server.service.handle(operation, members, server.now).refusal
    assert refusal is not None
    assert (refusal.code, refusal.message, refusal.status) == (text.code, text.text, 400)


def test_every_row_is_about_something_else_and_most_have_a_source():
    assert len({text.when for text in TEXTS}) == len(TEXTS)
    assert sum(not text.seen for text in TEXTS) <= 3
    assert all(url.startswith("https://") for text in TEXTS for url in text.seen)
