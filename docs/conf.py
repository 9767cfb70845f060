"""Configuration of the documentation site; `make docs` builds it without a network.

`make docs` copies docs/, notebooks/, CONTRIBUTING.md and CHANGELOG.md into one source folder,
because Sphinx reads only files below its configuration. `python -m tests.api` adds the page of the
Python API.
"""

from __future__ import annotations

import re
from importlib.resources import files

from sphinx.application import Sphinx

import allocsim

REPOSITORY = "https://github.com/allocsim/allocsim"
"""The address in setup.py; a placeholder until the project is public."""

project = "allocsim"
author = "the allocsim authors"
copyright = "2026, the allocsim authors"
release = version = getattr(allocsim, "__version__", "")

extensions = ["myst_nb"]
exclude_patterns = ["notebooks/README.md"]
nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# Names of models and of options contain what looks like a link or an e-mail address.
myst_linkify_fuzzy_links = False

html_theme = "furo"
html_title = "allocsim"
html_static_path = ["_static"]
html_css_files = ["docs.css"]
html_favicon = "_static/favicon.svg"
html_copy_source = False
html_show_sourcelink = False
FONTS = {"font-stack": "system-ui, sans-serif", "font-stack--monospace": "ui-monospace, monospace"}
COLOURS = {
    "color-brand-primary": "accent",
    "color-brand-content": "accent",
    "color-foreground-primary": "ink",
    "color-background-primary": "page",
    "color-background-secondary": "panel",
}
"""Variables of furo, and the colours of allocsim's own pages that they get."""


def colours_of(block: str) -> dict[str, str]:
    """Return furo's variables with the colours of one block of allocsim's stylesheet."""
    ours = dict(re.findall(r"--([\w-]+): (#\w+)", block))
    return FONTS | {theirs: ours[name] for theirs, name in COLOURS.items()}


_light, _, _dark = (
    (files("allocsim.report") / "html" / "theme.css")
    .read_text()
    .partition(':root[data-theme="dark"]')
)
html_theme_options = {
    "light_css_variables": colours_of(_light),
    "dark_css_variables": colours_of(_dark),
}

OUTSIDE = re.compile(r"\]\((?:\.\./)+(?!notebooks/|CONTRIBUTING|CHANGELOG)([\w./-]+)")
BESIDE = re.compile(r"\]\((?:\.\./)*(?=notebooks/[\w-]+\.ipynb|CONTRIBUTING\.md|CHANGELOG\.md)")


def link_to_repository(_app: Sphinx, name: str, source: list[str]) -> None:
    """Point links that leave docs/ at the copied files, or else at the repository."""
    depth = name.count("/")

    def outside(found: re.Match[str]) -> str:
        climbs = found[0].count("../")
        if climbs <= depth:
            return found[0]
        return f"]({REPOSITORY}/blob/main/{found[1]}"

    text = OUTSIDE.sub(outside, source[0])
    text = BESIDE.sub("](" + "../" * depth, text)
    if name in {"CONTRIBUTING", "CHANGELOG"}:
        text = text.replace("](docs/", "](")
    source[0] = text


def setup(app: Sphinx) -> None:
    """Connect the hook."""
    app.connect("source-read", link_to_repository)
