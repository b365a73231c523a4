"""Does the API reference have every public name, once, and the changelog the text of the repository's?"""

import re

from tests.docs import pages

import shardline
from shardline import deserializers, sync, testing

SHOWN = re.findall(r"^::: (\S+)$", pages.text_of("docs/api.md"), re.MULTILINE)
PUBLIC = {
    *(f"shardline.{name}" for name in shardline.__all__ if name != "__version__"),
    *(f"shardline.sync.{name}" for name in sync.__all__),
    *(f"shardline.testing.{name}" for name in testing.__all__),
    *(f"shardline.deserializers.{name}" for name in ("json_lines", "json_list", "netstrings")),
    "shardline.errors",
}


def test_every_public_name_is_there_once():
    assert sorted(SHOWN) == sorted(PUBLIC)
    for name in ("json_lines", "json_list", "netstrings"):
        assert callable(getattr(deserializers, name))


def test_every_public_class_and_function_says_what_it_is():
    for path in PUBLIC - {"shardline.errors", "shardline.TRIM_HORIZON", "shardline.LATEST"}:
        module, _, name = path.rpartition(".")
        found = getattr(__import__(module, fromlist=[name]), name)
        assert found.__doc__, path


def test_the_changelog_is_taken_in():
    assert pages.text_of("docs/changelog.md") == '--8<-- "CHANGELOG.md"\n'
