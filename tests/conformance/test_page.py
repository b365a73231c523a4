"""Does the page say what the table says?"""

from tests.conformance.__main__ import parser
from tests.conformance.page import PAGE, written


def test_the_page_has_the_table_and_its_cost():
    assert PAGE.read_text() == written(PAGE.read_text()), "run: python -m tests.conformance.page"


def test_every_option_is_on_the_page():
    options = {option for action in parser()._actions for option in action.option_strings if option.startswith("--")}
    missing = {option for option in options - {"--help", "--aws", "--endpoint"} if f"`{option}" not in PAGE.read_text()}
    assert missing == set()
