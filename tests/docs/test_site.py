"""Does the site that mkdocs builds have a logo, and links to the repository and to the source of each page?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOME = "https://git.example.org/team/shardline"
MKDOCS = Path(sys.executable).parent / "mkdocs"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    if not MKDOCS.exists() and "CI" not in os.environ:
        pytest.skip("mkdocs is not installed: make docs installs it")
    subprocess.run(
        [str(MKDOCS), "build", "--strict", "--quiet", "--site-dir", str(place)],
        cwd=ROOT,
        env=os.environ | {"SHARDLINE_REPOSITORY": HOME, "NO_MKDOCS_2_WARNING": "1"},
        timeout=120,
        check=True,
    )
    return place


def test_every_page_can_be_edited(site):
    for page in ("index", "guides/testing/faults", "reference/api/producer"):
        path = site / (f"{page}.html" if page == "index" else f"{page}/index.html")
        assert f'href="{HOME}/edit/main/docs/{page}.md"' in path.read_text(), page


def test_the_header_has_a_logo_and_the_repository(site):
    home = (site / "index.html").read_text()
    assert 'src="logo.svg"' in home
    assert f'href="{HOME}" title="Go to repository"' in home
    assert (site / "logo.svg").is_file()


def test_no_page_of_the_reference_is_huge(site):
    sizes = {path.parent.name: len(path.read_bytes()) for path in (site / "reference").rglob("index.html")}
    assert len(sizes) > 40
    assert max(sizes.values()) < 300_000, max(sizes, key=sizes.get)
