"""Do the pages match the table?"""

from tests.conformance.__main__ import parser
from tests.conformance.page import PAGES, written


def test_the_pages_have_the_table_and_its_cost():
    texts = [page.read_text() for page in PAGES]
    assert texts == [written(text) for text in texts], "run: python -m tests.conformance.page"
    for part in ("cost", "scenarios"):
        assert sum(f"<!-- end of {part} -->" in text for text in texts) == 1


def test_every_option_is_on_the_page():
    page = PAGES[0].read_text()
    options = {option for action in parser()._actions for option in action.option_strings if option.startswith("--")}
    missing = {option for option in options - {"--help", "--aws", "--endpoint"} if f"`{option}" not in page}
    assert missing == set()
