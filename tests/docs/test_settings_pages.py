"""Do the settings pages match the code, and does every setting have an entry?"""

from pathlib import Path

import pytest
from tests.docs import pages

from shardline import Client, Consumer, ConsumerConfig, Producer, ProducerConfig

FOLDER = "docs/reference/settings"
SETTINGS = pages.script("docs/settings.py")


def test_the_pages_are_current():
    assert {f"{FOLDER}/{name}": text for name, text in SETTINGS.written().items()} == {
        page: pages.text_of(page) for page in pages.pages_in(FOLDER)
    }, "run: python docs/settings.py"


def test_every_setting_has_an_entry_and_every_entry_a_setting():
    assert SETTINGS.undocumented() == set()


def test_a_missing_entry_is_seen():
    SETTINGS.CLIENT["no_such_argument"] = SETTINGS.CLIENT.pop("region")
    try:
        assert SETTINGS.undocumented() == {"region", "no_such_argument"}
    finally:
        SETTINGS.CLIENT["region"] = SETTINGS.CLIENT.pop("no_such_argument")


def test_every_setting_has_advice():
    for group in [*SETTINGS.PRODUCER, *SETTINGS.CONSUMER]:
        for name, advice in group.settings.items():
            assert advice, name
            assert all(one.text.endswith(".") for one in advice), name


def test_no_setting_is_listed_twice():
    for groups in (SETTINGS.PRODUCER, SETTINGS.CONSUMER):
        names = [name for group in groups for name in group.settings]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("page", ["docs/reference/settings.md", *pages.pages_in(FOLDER)])
def test_the_examples(page, kinesis):
    [block] = pages.blocks_of(page, "python")
    names = pages.run_block([block], "import").__dict__
    made = [
        one for one in names.values() if isinstance(one, (Client, Consumer, Producer, ConsumerConfig, ProducerConfig))
    ]
    assert made, Path(page).name
