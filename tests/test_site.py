"""The documentation site: every page is reachable, and the built site works offline.

The site is built and opened in Chromium with `-m slow`, if the packages of the group `docs`,
playwright and Chromium are installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import api
from .report.conftest import CHROMIUM, OPTIONS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WIDTHS = (390, 1440)


def test_every_page_is_in_a_toctree() -> None:
    listed = set()
    for page in DOCS.rglob("*.md"):
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.M | re.S):
            for line in tree.splitlines():
                name = re.sub(r".*<(.*)>", r"\1", line.strip())
                if name and not name.startswith(":"):
                    entry = os.path.normpath(page.parent.relative_to(DOCS) / name)
                    listed.add(Path(entry).as_posix())
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("*.ipynb")}
    made = {"CONTRIBUTING", "CHANGELOG", "reference/api"}
    assert listed == (pages | notebooks | made) - {"index"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built as by `make docs`."""
    for package in ("furo", "myst_nb"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    source = folder / "source"
    shutil.copytree(DOCS, source)
    shutil.copytree(ROOT / "notebooks", source / "notebooks")
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source)
    api.main([str(source)])
    command = ["-m", "sphinx", "-q", "-W", "-b", "html", str(source), str(folder / "html")]
    subprocess.run([sys.executable, *command], check=True)
    return folder / "html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["index", "commands/fit", "evidence/index"])
def test_pages_fit_the_width_and_load_nothing_from_the_network(
    site: Path, browser: Any, name: str, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((site / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert all(url.startswith(("file:", "data:")) for url in requests)


@pytest.mark.slow
def test_dark_mode_follows_the_system(site: Path, browser: Any) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto((site / "index.html").as_uri())
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == len(("light", "dark"))


@pytest.mark.slow
def test_search_works_without_a_server(site: Path, browser: Any) -> None:
    page = browser.new_page()
    page.goto((site / "search.html").as_uri() + "?q=record_stream")
    page.wait_for_selector("#search-results li a")
    assert "allocator" in page.inner_text("#search-results").lower()
