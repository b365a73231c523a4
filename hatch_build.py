"""Fills in the package metadata that depends on where the repository is published.

The links of the README lead to files of the repository. In the package's long description they need the address of
the repository in front of them, and so do the URLs of the project. The hook reads that address when the package is
built: it is the git remote "origin" of the clone. A clone without a public remote builds a package without URLs, and
its long description has plain text instead of links, so that no published page ever has a dead or a wrong link.

A source distribution carries the result, and hatchling uses that when it builds a wheel from it.
"""

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

from hatchling.metadata.plugin.interface import MetadataHookInterface

FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
RELATIVE_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?://)([^)\s]+)\)")
RELATIVE_LINK = re.compile(r"\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")
SSH_SHORT = re.compile(r"(?:[\w.-]+@)?([\w.-]+\.[\w-]+):(?!//)([\w./~-]+)")


class PublishedAddress(MetadataHookInterface):
    """Hatchling calls this for every package that it builds."""

    def update(self, metadata: dict[str, object]) -> None:
        home = home_of(origin_of(Path(self.root)))
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(readme, home)}
        metadata["urls"] = urls_of(home)


def origin_of(root: Path) -> str:
    """The git remote "origin" of this very directory, or an empty string."""
    if not (root / ".git").exists():
        return ""
    try:
        run = subprocess.run(
            ["git", "config", "--get", "remote.origin.url"],  # noqa: S607
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return run.stdout.strip()


def home_of(remote: str) -> str | None:
    """The https address of a remote, without credentials; None if the remote is a path or a host without a domain."""
    short = SSH_SHORT.fullmatch(remote)
    if short:
        host, path = short.groups()
    else:
        parts = urlsplit(remote)
        if parts.scheme not in {"https", "ssh", "git+ssh"}:
            return None
        host, path = parts.hostname or "", parts.path
    if not re.fullmatch(r"(?:[a-z0-9-]+\.)+[a-z]{2,}", host.lower()):
        return None
    return f"https://{host.lower()}/{path.strip('/').removesuffix('.git')}"


def urls_of(home: str | None) -> dict[str, str]:
    if home is None:
        return {}
    return {
        "Source": home,
        "Documentation": f"{home}/blob/HEAD/docs/index.md",
        "Changelog": f"{home}/blob/HEAD/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


def described(readme: str, home: str | None) -> str:
    """The README with absolute links, or without links and pictures. Blocks of code stay as they are."""
    picture = "" if home is None else rf"![\1]({home}/raw/HEAD/\2)"
    link = r"\1" if home is None else rf"[\1]({home}/blob/HEAD/\2)"
    return "".join(
        part if part.startswith("```") else RELATIVE_LINK.sub(link, RELATIVE_PICTURE.sub(picture, part))
        for part in FENCE.split(readme)
    )
