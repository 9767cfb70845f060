"""Check that a tag is the release that the tree describes.

    python .github/release.py v0.2.0

The version in allocsim/__init__.py, the one in CITATION.cff and the newest heading of CHANGELOG.md,
which needs a date, must be that of the tag.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """Return a sentence for each place that names another version than the tag."""
    version = tag.removeprefix("v")
    package = _first(r'^__version__ = "(.*)"', root / "allocsim" / "__init__.py")
    citation = _first(r"^version: (.*)", root / "CITATION.cff")
    heading = _first(r"^## (.*)", root / "CHANGELOG.md")
    found = []
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        found.append(f"{tag} is no release; expected a tag like v0.2.0")
    if package != version:
        found.append(f"allocsim/__init__.py has version {package}, expected {version}")
    if citation != version:
        found.append(f"CITATION.cff has version {citation}, expected {version}")
    if not re.fullmatch(rf"\[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d", heading):
        found.append(f"CHANGELOG.md begins with {heading!r}, expected [{version}] and a date")
    return found


def _first(pattern: str, path: Path) -> str:
    match = re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1] if match else "none"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: release.py TAG")
    wrong = problems(sys.argv[1])
    # None, because sys.exit("") is exit code 1.
    sys.exit("\n".join(wrong) or None)
