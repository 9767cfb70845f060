"""Text of a recording never becomes a tag, attribute, script or request of a page."""

from __future__ import annotations

import pickle
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from allocsim.cli import main
from tests.cli.test_hostile_names import hostile

from .opened import Opened

INJECTED = (
    "</script><script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    '" onmouseover="window.owned=1" x=\'',
    "<!--<script>",
    "]]></style><svg/onload=window.owned=1>",
    "javascript:window.owned=1",
    "&lt;script&gt;window.owned=1&lt;/script&gt;",
    "${window.owned=1}`\\\u2028\u2029",
)


class Tags(HTMLParser):
    """Tags of a page, and their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def page_of(text: str, folder: Path) -> Path:
    path = folder / "a<b>&.pickle"
    path.write_bytes(pickle.dumps(hostile(text), 4))
    assert main(["report", str(path), "-o", str(folder / "page.html")]) == 0
    return folder / "page.html"


@pytest.mark.parametrize("number", range(len(INJECTED)))
def test_hostile_page_has_the_tags_of_a_harmless_page(number: int, tmp_path: Path) -> None:
    plain = Tags(page_of("plain", tmp_path).read_text())
    found = Tags(page_of(INJECTED[number], tmp_path).read_text())
    assert found.tags == plain.tags
    assert found.attributes == plain.attributes


def test_page_policy_forbids_fetching_and_sending(tmp_path: Path) -> None:
    page = page_of("plain", tmp_path).read_text()
    policy = page.partition('http-equiv="Content-Security-Policy" content="')[2].partition('"')[0]
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy
    assert "unsafe-eval" not in policy
    assert page.index("Content-Security-Policy") < page.index("<style")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(INJECTED)))
def test_browser_shows_hostile_names_as_text(number: int, browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, page_of(INJECTED[number], tmp_path))
    opened.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for name in opened.run("[...document.querySelectorAll('#colouring option')].map(o => o.value)"):
        opened.page.select_option("#colouring", name)
        opened.settle()
    opened.run("setBlock(1)")
    for x in (0.1, 0.5, 0.9):
        opened.page.mouse.move(*opened.spot("#map-canvas", x, 0.5))
    opened.settle()
    assert opened.run("window.owned") is None
    assert opened.run("document.querySelectorAll('img, svg[onload], [onmouseover]').length") == 0
    assert INJECTED[number][:12] in opened.text("body")
    opened.close()
