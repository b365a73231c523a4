"""Does the package describe itself correctly, wherever its repository is published?"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[2]
hook = run_path(str(ROOT / "hatch_build.py"))
HOME = "https://git.example.org/team/shardline"


@pytest.fixture
def clone(tmp_path):
    """A repository with the sources of the metadata, and no remote yet."""
    place = tmp_path / "clone"
    (place / "src" / "shardline").mkdir(parents=True)
    for name in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "hatch_build.py",
        "build_native.py",
        "src/shardline/__init__.py",
    ):
        shutil.copy(ROOT / name, place / name)
    subprocess.run(["git", "init", "--quiet", str(place)], check=True)
    return place


def run(place, *command):
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def metadata_of(place):
    return json.loads(run(place, sys.executable, "-m", "hatchling", "metadata"))


def links_of(metadata):
    return re.findall(r"\]\(([^)]+)\)", metadata["readme"]["text"])


def test_the_summary_names_both_halves():
    summary = re.search(r'^description = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert "producer" in summary
    assert "consumer" in summary
    assert len(summary) < 512, "the limit of PyPI"


def test_a_published_clone_gives_urls_and_absolute_links(clone):
    run(clone, "git", "remote", "add", "origin", f"{HOME}.git")
    metadata = metadata_of(clone)
    assert metadata["urls"] == {
        "Source": HOME,
        "Documentation": f"{HOME}/blob/HEAD/docs/index.md",
        "Changelog": f"{HOME}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{HOME}/issues",
    }
    links = links_of(metadata)
    assert f"{HOME}/blob/HEAD/docs/tutorial.md" in links
    assert len(links) > 15
    assert [link for link in links if not link.startswith("https://")] == []
    for link in links:
        assert (ROOT / re.sub(rf"^{HOME}/(blob|raw)/HEAD/", "", link)).exists(), link
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", metadata["readme"]["text"])
    assert pictures == [f"{HOME}/raw/HEAD/docs/pictures/{name}" for name in ("demo.svg", "console.png", "peers.svg")]


def test_a_clone_without_a_public_remote_promises_nothing(clone):
    for remote in (None, "/srv/git/shardline"):
        if remote:
            run(clone, "git", "remote", "add", "origin", remote)
        metadata = metadata_of(clone)
        assert metadata.get("urls", {}) == {}
        assert links_of(metadata) == []
        assert "The tutorial continues from here." in metadata["readme"]["text"]


def test_a_source_distribution_keeps_its_address(clone, tmp_path):
    run(clone, "git", "remote", "add", "origin", HOME)
    before = metadata_of(clone)
    run(clone, sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path))
    [archive] = tmp_path.glob("*.tar.gz")
    run(tmp_path, "tar", "--extract", "--gzip", "--file", archive.name)
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    assert not (unpacked / ".git").exists()
    after = metadata_of(unpacked)
    assert (after["urls"], links_of(after)) == (before["urls"], links_of(before))


def test_the_remote_of_an_enclosing_repository_does_not_count(clone):
    run(clone, "git", "remote", "add", "origin", HOME)
    inner = clone / "vendored"
    inner.mkdir()
    assert hook["origin_of"](inner) == ""
    assert hook["origin_of"](clone) == HOME


@pytest.mark.parametrize(
    ("remote", "home"),
    [
        ("https://git.example.org/team/shardline", HOME),
        ("https://git.example.org/team/shardline.git/", HOME),
        ("https://user:secret@Git.Example.org:8443/team/shardline.git", HOME),
        ("git@git.example.org:team/shardline.git", HOME),
        ("ssh://git@git.example.org:22/team/shardline.git", HOME),
        ("http://git.example.org/team/shardline", None),
        ("https://localhost/team/shardline", None),
        ("https://127.0.0.1/team/shardline", None),
        ("file:///srv/git/shardline", None),
        ("/srv/git/shardline.git", None),
        ("../shardline", None),
        ("", None),
    ],
)
def test_the_home_of_a_remote(remote, home):
    assert hook["home_of"](remote) == home


def test_code_is_left_alone():
    readme = "[a](b.md)\n```python\nrows[0](x)\n```\n[c](#d) [e](https://f.example/)\n"
    assert hook["described"](readme, "https://h.example/r") == (
        "[a](https://h.example/r/blob/HEAD/b.md)\n```python\nrows[0](x)\n```\n[c](#d) [e](https://f.example/)\n"
    )
    assert hook["described"](readme, None).startswith("a\n```python\nrows[0](x)\n")
