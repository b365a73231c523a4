"""Does the bill of materials state the version of its subject?"""

import pytest
import sbom

import shardline


def bill(*components):
    return {"metadata": {"component": {"name": "shardline"}}, "components": list(components)}


def test_the_version_is_that_of_the_package():
    assert sbom.our_version() == shardline.__version__


def test_it_stands_in_the_bill():
    made = sbom.with_version(bill({"name": "anyio", "version": "4.5"}), "1.2")
    assert made["metadata"]["component"] == {"name": "shardline", "version": "1.2", "purl": "pkg:pypi/shardline@1.2"}


def test_a_component_without_a_version_is_no_entry():
    with pytest.raises(AssertionError, match="without a version: \\['anyio'\\]"):
        sbom.with_version(bill({"name": "anyio"}), "1.2")
