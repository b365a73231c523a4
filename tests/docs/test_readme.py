"""Does the README keep its order and its length, and do its examples work unchanged?

``test_first_steps.py`` follows its commands in a new home directory. ``benchmarks/bench_report.py`` writes its figures.
"""

import re

from tests.docs import pages
from tests.docs.programs import run

from shardline import deaggregate

README = "README.md"
BLOCKS = pages.blocks_of(README, "python")
SECTIONS = ["Install", "Produce and consume", "Why", "Figures", "Status", "Links"]


def test_the_readme_is_short_and_in_order():
    text = pages.text_of(README)
    assert len(text.splitlines()) < 150
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    before = text.partition("## Install")[0]
    sentence, picture = before.index("Shardline is a Python library"), before.index("](docs/pictures/demo.svg)")
    assert sentence < picture


def test_the_async_example(local_kinesis, tmp_path):
    code = pages.block_with(BLOCKS, "asyncio.run(main())")
    printed = run(code, local_kinesis, tmp_path)
    assert re.fullmatch(r"shardId-00000000000[01]\ncustomer-7 b'{\"order\": 1}'\n", printed)
    again = run(code, local_kinesis, tmp_path)
    assert len(again.splitlines()) == 2, "the group reads only what is new"


def test_the_blocking_example(local_kinesis, tmp_path):
    assert run(pages.block_with(BLOCKS, "from shardline.sync import"), local_kinesis, tmp_path) == "2 delivered\n"
    stored = deaggregate(local_kinesis.streams["orders"].records)
    assert sorted(record.data for record in stored) == [b'{"order": 2}', b'{"order": 3}']
    assert [record.key for record in stored if record.data == b'{"order": 2}'] == ["customer-7"]


def test_every_python_block_was_run():
    assert len(BLOCKS) == 2


def test_the_two_commands_that_do_their_own_set_up_are_in_it_and_ci_runs_them():
    text, ci = pages.prose_of(README), pages.text_of(".ci/run")
    for target in ("demo", "test"):
        assert f"`make {target}`" in text
        assert re.search(rf"\bmake (--no-print-directory )?{target}\b", ci), target


def test_the_status_says_what_has_not_been_shown():
    status = pages.section_of(README, "## Status")
    assert "beta" in status
    assert "has not been shown to work on AWS" in status
    assert "pre-alpha" not in pages.text_of(README).lower()
    assert '"Development Status :: 4 - Beta"' in pages.text_of("pyproject.toml")
