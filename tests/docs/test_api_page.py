"""Does the API reference have every public name, once, and a page for each class? Is the changelog the repository's?"""

import inspect
import re

from tests.docs import pages

import shardline
from shardline import awslambda, deserializers, events, exactly_once, health, middleware, sinks, stores, sync, testing

FOLDER = "docs/reference/api"
INDEX = pages.text_of(f"{FOLDER}/index.md")
PAGES = {path.stem: path.read_text() for path in (pages.ROOT / FOLDER).glob("*.md") if path.stem != "index"}
SHOWN = {name: re.findall(r"^::: (\S+)$", text, re.MULTILINE) for name, text in PAGES.items()}
PUBLIC = {
    *(f"shardline.{name}" for name in shardline.__all__ if name != "__version__"),
    *(f"shardline.sync.{name}" for name in sync.__all__),
    *(f"shardline.sinks.{name}" for name in sinks.__all__),
    *(f"shardline.health.{name}" for name in health.__all__),
    *(f"shardline.awslambda.{name}" for name in awslambda.__all__),
    *(f"shardline.testing.{name}" for name in testing.__all__),
    *(f"shardline.exactly_once.{name}" for name in exactly_once.__all__),
    *(f"shardline.middleware.{name}" for name in middleware.__all__),
    *(f"shardline.deserializers.{name}" for name in ("json_lines", "json_list", "netstrings", "length_prefixed")),
    "shardline.errors",
    "shardline.events",
    "shardline.stores",
}
MODULES = {"shardline.errors", "shardline.events", "shardline.stores"}
ALIASES = {f"shardline.middleware.{side}Middleware" for side in ("Producer", "Consumer")}
VALUES = {"shardline.TRIM_HORIZON", "shardline.LATEST", "shardline.testing.MakeStore", *ALIASES}


def found_at(path):
    module, _, name = path.rpartition(".")
    return getattr(__import__(module, fromlist=[name]), name)


def test_every_public_name_is_there_once():
    assert sorted(name for names in SHOWN.values() for name in names) == sorted(PUBLIC)
    for name in ("json_lines", "json_list", "netstrings", "length_prefixed"):
        assert callable(getattr(deserializers, name))


def test_every_public_class_and_function_says_what_it_is():
    for path in PUBLIC - MODULES - VALUES:
        assert found_at(path).__doc__, path
    for module in (events, stores):
        for name in module.__all__:
            found = getattr(module, name)
            assert found.__doc__ or not (inspect.isclass(found) or inspect.isfunction(found)), name


def test_the_index_names_every_public_module():
    named = set(re.findall(r"^\| `(shardline[._a-z]*)` \|", INDEX, re.MULTILINE))
    assert named == {
        "shardline",
        "shardline.sync",
        "shardline.testing",
        "shardline.deserializers",
        "shardline.exactly_once",
        "shardline.middleware",
        "shardline.awslambda",
        "shardline.sinks",
        "shardline.health",
        *MODULES,
    }
    policy = pages.text_of("CONTRIBUTING.md")
    assert [module for module in named if f"`{module}`" not in policy] == []


def test_a_page_shows_one_class_unless_it_shows_exceptions():
    for page, names in SHOWN.items():
        classes = [name for name in names if inspect.isclass(found_at(name))]
        assert len([name for name in classes if not issubclass(found_at(name), BaseException)]) <= 1, page
        assert page == "errors" or not any(issubclass(found_at(name), BaseException) for name in classes)


def test_the_index_has_one_line_for_every_page():
    assert sorted(re.findall(r"^\| \[.+\]\(([\w-]+)\.md\) \| .{10,} \|$", INDEX, re.MULTILINE)) == sorted(PAGES)


def test_the_changelog_is_taken_in():
    assert pages.text_of("docs/changelog.md") == '--8<-- "CHANGELOG.md"\n'
