"""The report in a real browser: quiet, quick, and it answers to mouse and keyboard.

Run with `-m slow` where Chromium and the `playwright` package are; skipped elsewhere.  Times are
loose bounds for a busy machine: what was measured is in docs/report.md.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allocsim.cli import main
from allocsim.trace.store import write_npz
from allocsim.workload.training import training

pytestmark = pytest.mark.slow

TRACES = Path(__file__).parents[2] / "traces"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
LONGEST_WAIT = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    driver = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a recording that ends out of memory."""
    file = tmp_path_factory.mktemp("report") / "small.html"
    recording = TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"
    assert main(["report", str(recording), "-o", str(file), "--no-what-if"]) == 0
    return file


class Opened:
    """A page that is ready, with all that it asked for and every error it had."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        size = {"width": 1280, "height": 900}
        self.page = browser.new_page(viewport=size, **options)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._log)
        began = time.monotonic()
        self.page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("body[data-ready]", timeout=LONGEST_WAIT)
        self.seconds = time.monotonic() - began

    def _log(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def settle(self) -> None:
        """Until the next frame has been drawn."""
        self.page.evaluate(
            "new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))"
        )

    def run(self, script: str) -> Any:
        return self.page.evaluate(script)


@pytest.fixture
def opened(browser: Any, small: Path) -> Iterator[Opened]:
    """A fresh page of the small report; it must end without an error or a request."""
    opened = Opened(browser, small)
    yield opened
    assert opened.errors == []
    assert opened.requests == [small.as_uri()]
    opened.page.close()


def test_it_opens_where_the_error_is(opened: Opened) -> None:
    assert opened.text("#time-readout").startswith(
        "Entry 26,059 (oom): reserved 5.08 GiB, requested 4.60 GiB, allocated 4.63 GiB, "
    )
    assert opened.text("#state-text").startswith(
        "After entry 26,059 (oom): 5.08 GiB reserved in 84"
    )


def test_buttons_zoom_and_move(opened: Opened) -> None:
    for name, shown in [
        ("in", "Entries 6,516 to 19,548 of 26,064"),
        ("left", "Entries 0 to 13,032 of 26,064"),
        ("right", "Entries 6,516 to 19,548 of 26,064"),
        ("all", "Entries 0 to 26,064 of 26,064"),
    ]:
        opened.page.click(f'[data-view="{name}"]')
        opened.settle()
        assert opened.text("#view-text") == shown


def test_the_page_says_what_was_decimated(opened: Opened) -> None:
    assert "lowest and the highest of 8 entries; none is skipped" in opened.text("#decimated")
    for _ in range(3):
        opened.page.click('[data-view="in"]')
    opened.settle()
    assert opened.text("#decimated") == "Every entry is drawn."
    assert "a pixel is " in opened.text("#map-note")


def test_dragging_over_the_timeline_zooms_both_pictures(opened: Opened) -> None:
    box = opened.page.locator("#timeline .u-over").bounding_box()
    y = box["y"] + 60
    opened.page.mouse.move(box["x"] + box["width"] * 0.25, y)
    opened.page.mouse.down()
    opened.page.mouse.move(box["x"] + box["width"] * 0.5, y, steps=5)
    opened.page.mouse.up()
    opened.settle()
    low, high = opened.run("[view.x0, view.x1]")
    assert (low, high) == pytest.approx((26_064 * 0.25, 26_064 * 0.5), abs=100)
    opened.page.dblclick("#timeline .u-over")
    opened.settle()
    assert opened.run("[view.x0, view.x1]") == [0, 26_064]


def test_a_click_on_the_map_chooses_a_block(opened: Opened) -> None:
    opened.page.locator("#map-canvas").scroll_into_view_if_needed()
    box = opened.page.locator("#map-canvas").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.74)
    opened.page.wait_for_selector("#tip:not([hidden])")
    assert re.search(r"Size: [\d.]+ MiB \([\d,]+ bytes\), [\d,]+ asked for", opened.text("#tip"))
    opened.page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.74)
    opened.settle()
    panel = opened.text("#block")
    assert re.search(r"Made\s+at entry [\d,]+", panel)
    assert "gpt.py:" in panel, "with its stack"
    assert opened.run("view.entry") == pytest.approx(26_064 * 0.3, abs=50)


def test_every_block_is_found_where_it_lies(opened: Opened) -> None:
    """Zoomed in on it, the middle of a block is that block."""
    for row in (0, 1_000, 4_567, 9_104):
        found = opened.run(
            f"""(() => {{ const b = data.blocks, i = {row};
            setX(b.born[i], b.completed[i]); setY(b.place[i], b.place[i] + b.size[i]);
            const x = ((b.born[i] + b.completed[i]) / 2 - view.x0) / (view.x1 - view.x0);
            const y = (b.place[i] + b.size[i] / 2 - view.y0) / (view.y1 - view.y0);
            return blockAt({{x, y}}); }})()"""
        )
        assert found == row


def test_the_map_is_worked_by_keys_alone(opened: Opened) -> None:
    opened.page.focus("#map-canvas")
    for key in ["ArrowDown"] * 24 + ["ArrowLeft"] * 20 + ["Enter"]:
        opened.page.keyboard.press(key)
    opened.settle()
    assert "asked for" in opened.text("#block")
    opened.page.keyboard.press("+")
    opened.settle()
    low, high = opened.run("[view.x0, view.x1]")
    assert high - low == 13_032
    opened.page.keyboard.press("0")
    opened.settle()
    assert opened.run("[view.x0, view.x1]") == [0, 26_064]


def test_the_moment_is_moved_by_keys_and_numbers(opened: Opened) -> None:
    opened.page.focus("#timeline")
    opened.page.keyboard.press("Home")
    opened.settle()
    assert opened.text("#state-text").startswith("After entry 0 (segment_alloc): ")
    opened.page.fill("#entry", "13695")
    opened.page.keyboard.press("Tab")
    opened.settle()
    text = opened.text("#state-text")
    assert text.startswith("After entry 13,695 (alloc): 5.46 GiB reserved in 96 segments, 3.87 GiB")
    assert "largest free block 360.00 MiB" in text, "as allocsim plot segments has it"


def test_blockers_lead_to_their_place_on_the_map(opened: Opened) -> None:
    opened.page.click('[data-block="25914"]')
    opened.settle()
    assert "73.62 MiB" in opened.text("#block")
    assert "at entry 25,914" in opened.text("#block")
    low, high = opened.run("[view.x0, view.x1]")
    assert low < 25_914 < high


def test_every_colouring_is_drawn(opened: Opened) -> None:
    seen = set()
    for name in ("state", "size", "owner"):
        opened.page.select_option("#colouring", name)
        opened.settle()
        seen.add(opened.run("document.getElementById('map-canvas').toDataURL().length"))
    assert len(seen) == 3
    assert "gpt.py" in opened.text("#map-legend")


def test_the_pictures_of_page_and_figure_agree(opened: Opened) -> None:
    """The share of the map that is in use, from its pixels, is that of the curves."""
    share = opened.run(
        """(() => { const rows = 100, columns = 200; shares(rows, columns, "state", 2);
        let sum = 0; const stride = columns + 2, acc = new Float64Array(columns);
        for (let r = 0; r < rows; r++) { let run = 0;
          for (let x = 0; x < columns; x++) {
            run += grid[((rows + 2) + r) * stride + x]; sum += acc[x] += run; } }
        return sum / rows / columns; })()"""
    )
    held = opened.run(
        "data.columns.allocated.reduce((a, b) => a + b) / data.n / (data.axis * data.unit)"
    )
    assert share == pytest.approx(held, rel=1e-9)


def test_dark_and_light(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert opened.run(background) == "rgb(20, 23, 26)"
    opened.page.click("#theme")
    opened.settle()
    assert opened.run(background) == "rgb(255, 255, 255)"
    assert opened.errors == []
    opened.page.close()


def test_without_scripts_the_tables_are_there(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, java_script_enabled=False)
    assert "Scripts are off" in opened.text("header")
    assert not opened.page.is_visible("#timeline")
    assert opened.page.is_visible("#tables table >> nth=0")
    assert "13,692 to 14,343" in opened.text("#tables")
    assert not opened.page.is_visible('[data-block="25914"]')
    opened.page.close()


def test_everything_that_can_be_used_has_a_name(opened: Opened) -> None:
    nameless = opened.run(
        """[...document.querySelectorAll("button, input, select, canvas[tabindex], [role]")]
        .filter(e => !(e.innerText || e.ariaLabel || e.labels?.length || e.id === "tip"
          || e.role === "status")).map(e => e.outerHTML)"""
    )
    assert nameless == []
    assert opened.run("document.querySelectorAll('table:not(:has(caption))').length") == 0


def test_a_million_entries(browser: Any, tmp_path: Path) -> None:
    recording, file = tmp_path / "million.npz", tmp_path / "million.html"
    write_npz(training(entries=1_000_000, ragged=True), recording)
    began = time.monotonic()
    assert main(["report", str(recording), "-o", str(file)]) == 0
    written = time.monotonic() - began
    opened = Opened(browser, file)
    drawn = opened.run(
        "(() => { const t = performance.now(); drawMap(); return performance.now() - t })()"
    )
    heap = opened.run("performance.memory.usedJSHeapSize / 1e6")
    print(
        f"written in {written:.1f} s, {file.stat().st_size / 1e6:.1f} MB, open in "
        f"{opened.seconds:.2f} s, map {drawn:.0f} ms, heap {heap:.0f} MB"
    )
    assert written < 30
    assert file.stat().st_size < 30_000_000
    assert opened.seconds < 5
    assert drawn < 500
    assert heap < 500
    assert opened.requests == [file.as_uri()]
    assert opened.errors == []
    opened.page.close()
