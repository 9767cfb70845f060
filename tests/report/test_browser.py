"""The report in a real browser: no requests, speed, mouse and keyboard.

Run with `-m slow` if Chromium and the `playwright` package are installed. Times are loose bounds
for a busy machine; docs/commands/report.md has measured ones.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocsim import load, top
from allocsim.cli import main
from allocsim.errors import OutOfMemoryError
from allocsim.recording import Recording
from allocsim.recording.store import write_npz
from allocsim.units import MIB
from allocsim.workload.programs import oom, training
from allocsim.workload.recorder import Recorder

from .opened import Opened
from .page import of_two_devices

pytestmark = pytest.mark.slow

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a recording that ends out of memory."""
    file = tmp_path_factory.mktemp("report") / "small.html"
    recording = TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"
    assert main(["report", str(recording), "-o", str(file), "--no-what-if"]) == 0
    return file


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of two devices; the second runs out of memory."""
    return written(of_two_devices(oom()), tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a full card: 1,700 segments."""
    recorder = Recorder("80GiB")
    line = recorder.code("net.py", "forward", 3)
    with recorder.program():
        for i in range(1_100):
            recorder.malloc((11 + i % 7 * 12) * MIB, line)
        for _ in range(1_200):
            recorder.malloc(MIB - 512, line)
    return written(recorder.recording("oom", {}), tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a program with many files, tags in a name, and a name of 600 letters."""
    recorder = Recorder("200MiB")
    lines = [
        recorder.code("<b>bold</b>.py", "</script><img src=x onerror=alert(1)>", 3),
        recorder.code("/very" * 60 + "/" + "x" * 300 + ".py", "f", 99),
        *(recorder.code(f"some/dir/file{i}.py", f"f{i}", i) for i in range(10)),
    ]
    with recorder.program():
        live = [recorder.malloc((3 + i % 7) * MIB, lines[i % 12]) for i in range(24)]
        for address in live[::3]:
            recorder.free(address, lines[0])
    return written(recorder.recording("oom", {}), tmp_path_factory.mktemp("strange"))


@pytest.fixture(scope="module")
def hundreds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a program that catches 300 errors."""
    recorder = Recorder("60MiB")
    line = recorder.code("loop.py", "step", 1)
    with recorder.program():
        live = [recorder.malloc(9 * MIB, line) for _ in range(6)]
        for address in live[::2]:
            recorder.free(address, line)
        for _ in range(300):
            with pytest.raises(OutOfMemoryError):
                recorder.malloc(12 * MIB, line)
    return written(recorder.recording("oom", {}), tmp_path_factory.mktemp("hundreds"))


def written(recording: Recording, folder: Path) -> Path:
    """Write the report of `recording`."""
    write_npz(recording, folder / "recording.npz")
    command = ["report", str(folder / "recording.npz"), "-o", str(folder / "page.html")]
    assert main([*command, "--no-what-if"]) == 0
    return folder / "page.html"


@pytest.fixture
def opened(browser: Any, small: Path) -> Iterator[Opened]:
    """Open a fresh page of the small report; it must end without an error or a request."""
    opened = Opened(browser, small)
    yield opened
    assert opened.errors == []
    assert opened.requests == [small.as_uri()]
    opened.page.close()


def test_page_opens_at_the_last_error(opened: Opened) -> None:
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


def test_page_reports_the_entries_per_pixel(opened: Opened) -> None:
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


def test_click_on_the_map_selects_a_block(opened: Opened) -> None:
    opened.page.locator("#map-canvas").scroll_into_view_if_needed()
    box = opened.page.locator("#map-canvas").bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.74)
    opened.page.wait_for_selector("#tip:not([hidden])")
    assert re.search(r"Size: [\d.]+ MiB \([\d,]+ bytes\), [\d,]+ requested", opened.text("#tip"))
    opened.page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.74)
    opened.settle()
    panel = opened.text("#block")
    assert re.search(r"Made\s+at entry [\d,]+", panel)
    assert "gpt.py:" in panel, "with its stack"
    assert opened.run("view.entry") == pytest.approx(26_064 * 0.3, abs=50)


def test_pointer_finds_every_block_of_the_map(opened: Opened) -> None:
    """In a zoomed view, pointing at the middle of a block selects that block."""
    for row in (0, 1_000, 4_567, 9_104):
        found = opened.run(
            f"""(() => {{ const b = data.blocks, i = {row};
            setX(b.born[i], b.completed[i]); setY(b.place[i], b.place[i] + b.size[i]);
            const x = ((b.born[i] + b.completed[i]) / 2 - view.x0) / (view.x1 - view.x0);
            const y = (b.place[i] + b.size[i] / 2 - view.y0) / (view.y1 - view.y0);
            return blockAt({{x, y}}); }})()"""
        )
        assert found == row


def test_map_works_with_keys_alone(opened: Opened) -> None:
    opened.page.focus("#map-canvas")
    for key in ["ArrowDown"] * 24 + ["ArrowLeft"] * 20 + ["Enter"]:
        opened.page.keyboard.press(key)
    opened.settle()
    assert "requested" in opened.text("#block")
    opened.page.keyboard.press("+")
    opened.settle()
    low, high = opened.run("[view.x0, view.x1]")
    assert high - low == 13_032
    opened.page.keyboard.press("0")
    opened.settle()
    assert opened.run("[view.x0, view.x1]") == [0, 26_064]


def test_moment_moves_by_keys_and_numbers(opened: Opened) -> None:
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


def owners(opened: Opened, column: int = 1) -> list[str]:
    """Return the visible cells of a column of the owners' table."""
    cells = opened.page.locator(f".owners tbody tr > :nth-child({column})")
    return [cell.inner_text() for cell in cells.all() if cell.is_visible()]


def test_page_begins_with_the_answer_in_a_browser(browser: Any, small: Path) -> None:
    """Verdict, owners and the beginning of the curve are visible without scrolling."""
    for width, height in ((1440, 900), (2560, 1300)):
        opened = Opened(browser, small, viewport={"width": width, "height": height})
        for selector in (".verdict", ".owners table", "#timeline"):
            box = opened.page.locator(selector).first.bounding_box()
            assert box["y"] + min(box["height"], 150) < height
        assert opened.run("document.documentElement.scrollWidth") == width
        opened.close()


def test_owners_are_sorted_by_any_column(opened: Opened) -> None:
    assert owners(opened)[:2] == ["gpt.py:32 <module>", "gpt.py:12 forward"]
    opened.page.click(".owners th button >> text=blocks")
    assert owners(opened, 4)[:3] == ["298", "192", "149"]
    opened.page.click(".owners th button >> text=blocks")
    assert owners(opened, 4)[-3:] == ["149", "192", "298"]
    opened.page.click(".owners th button >> text=line")
    assert owners(opened)[0] == "backward (autograd) of gpt.py:19 forward"
    assert opened.run("document.querySelectorAll('.owners [aria-sort]').length") == 2


def test_owners_are_searched_word_by_word(opened: Opened) -> None:
    assert opened.text(".owners-text") == "9 rows"
    opened.page.fill(".owners-find", "FORWARD activations")
    assert owners(opened) == [f"gpt.py:{line} forward" for line in (12, 19, 11, 17)]
    assert opened.text(".owners-text") == "4 of 9 rows, 2.13 GiB"
    opened.page.fill(".owners-find", "nobody")
    assert (owners(opened), opened.text(".owners-text")) == ([], "0 of 9 rows, 0 bytes")


def test_page_lists_owners_by_category_too(opened: Opened) -> None:
    opened.page.fill(".owners-find", "optimizer")
    opened.page.select_option(".owners-by", "category")
    assert owners(opened) == ["optimizer state"]
    opened.page.fill(".owners-find", "")
    assert owners(opened)[0] == "activations kept for backward"


def frame(name: str) -> str:
    """Return the selector of the widest flame graph box with this name."""
    return f'#flame-graph > svg[data-name="{name}"] >> nth=0'


def test_flame_graph_zooms_into_a_frame(opened: Opened) -> None:
    whole = opened.page.locator("#flame-graph").bounding_box()["width"]
    opened.page.click(frame("gpt.py:18 forward"))
    assert opened.text("#flame-text").startswith("gpt.py:18 forward: 1.36 GiB, 29.4%, ")
    for name in ("gpt.py:18 forward", "gpt.py:26 <module>"):
        width = opened.page.locator(frame(name)).bounding_box()["width"]
        assert width == pytest.approx(whole, abs=4), "and the line around it"
    inside = opened.page.locator(frame("gpt.py:12 forward")).bounding_box()["width"]
    assert inside / whole == pytest.approx(1.06 / 1.36, abs=0.01)
    assert not opened.page.is_visible(frame("adam.py:239 step"))
    opened.page.click("#flame-whole")
    assert opened.page.is_visible(frame("adam.py:239 step"))
    assert opened.page.locator(frame("gpt.py:18 forward")).bounding_box()["width"] < whole / 3


def test_frames_are_found_by_name_and_their_bytes_counted_once(opened: Opened) -> None:
    opened.page.fill("#flame-find", "ADAM.py")
    assert opened.text("#flame-text") == "3 frames, 1.22 GiB, 26.3%"
    assert opened.run("document.querySelectorAll('#flame-graph .found').length") == 3
    opened.page.fill("#flame-find", "nothing of that name")
    assert opened.text("#flame-text") == "0 frames, 0 bytes, 0.0%"
    opened.page.fill("#flame-find", "")
    assert opened.text("#flame-text") == ""


def test_flame_graph_works_with_keys_alone(opened: Opened) -> None:
    opened.page.focus("#flame-graph")
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "Enter"):
        opened.page.keyboard.press(key)
    assert opened.text("#flame-text").startswith("adam.py:239 step: ")
    assert not opened.page.is_visible(frame("gpt.py:18 forward"))
    opened.page.keyboard.press("ArrowUp")
    assert opened.text("#flame-text").startswith("gpt.py:32 <module>: ")
    opened.page.keyboard.press("Escape")
    assert opened.page.is_visible(frame("gpt.py:18 forward"))


def test_page_of_a_state_has_a_flame_graph(browser: Any, tmp_path: Path) -> None:
    recorder = Recorder("1GiB")
    line = recorder.code("net.py", "forward", 3)
    recorder.malloc(30 * MIB, line)
    recording = recorder.recording("oom", {})
    (trace,) = recording.devices
    none: dict[str, Any] = {name: column[:0] for name, column in trace.columns().items()}
    page = written(replace(recording, devices=(replace(trace, **none),)), tmp_path)
    opened = Opened(browser, page)
    opened.page.click(frame("net.py:3 forward"))
    assert opened.text("#flame-text") == "net.py:3 forward: 30.00 MiB, 100.0%, 1 block, unknown"
    opened.page.fill(".owners-find", "net")
    assert opened.text(".owners-text") == "1 of 1 row, 30.00 MiB"
    opened.close()


def test_map_draws_every_colouring(opened: Opened) -> None:
    seen = set()
    for name in ("state", "size", "owner", "category"):
        opened.page.select_option("#colouring", name)
        opened.settle()
        seen.add(opened.run("document.getElementById('map-canvas').toDataURL().length"))
    assert len(seen) == 4
    assert "optimizer state" in opened.text("#map-legend")


def test_areas_have_the_categories_of_every_moment(opened: Opened) -> None:
    recording = load(TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz")
    names = opened.run("data.categories.map((each) => each.name)")
    for entry in (100, 5_000, 13_700, 26_059):
        held = dict(zip(names, opened.run(f"bytesOfCategories({entry})"), strict=True))
        assert {name: size for name, size in held.items() if size} == dict(
            top(recording, entry, by="category").categories
        )


def test_mean_of_the_areas_is_the_mean_of_allocated_memory(opened: Opened) -> None:
    total = opened.run(
        "meansOf(500).reduce((sum, kind) => sum + kind.slice(0, 500).reduce((a, b) => a + b), 0)"
    )
    allocated = opened.run("data.columns.allocated.reduce((a, b) => a + b) / data.n")
    assert total / 500 == pytest.approx(allocated, rel=1e-9)


def test_area_of_a_category_has_its_colour(opened: Opened) -> None:
    """The lowest pixel at the end is of the first category, which holds most over the run."""
    pixel = opened.run(
        "[...areas.getContext('2d').getImageData(areas.width - 20, areas.height - 2, 1, 1).data]"
    )
    assert pixel[:3] == opened.run("rgb(categoryColour(0))")


def test_page_and_figure_draw_the_same_map(opened: Opened) -> None:
    """The used share of the map, from its pixels, equals that of the curves."""
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


def test_page_switches_from_dark_to_light(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert opened.run(background) == "rgb(20, 23, 26)"
    opened.page.click("#theme")
    opened.settle()
    assert opened.run(background) == "rgb(255, 255, 255)"
    assert opened.errors == []
    opened.page.close()


def test_page_without_scripts_shows_the_tables(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, java_script_enabled=False)
    assert "Scripts are off" in opened.text("header")
    assert not opened.page.is_visible("#timeline")
    assert opened.page.is_visible("#tables table >> nth=0")
    assert "13,692 to 14,343" in opened.text("#tables")
    assert not opened.page.is_visible('[data-block="25914"]')
    opened.page.close()


def test_page_without_scripts_shows_the_curve(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, java_script_enabled=False)
    box = opened.page.locator("#time .still svg").bounding_box()
    assert (box["width"] > 1000, box["height"]) == (True, 240)
    assert "backward" in opened.text("#time .legend")
    opened.close()


def test_curve_has_steps_and_phases_in_its_background(opened: Opened) -> None:
    assert not opened.page.is_visible("#time .still")
    assert "; step 7, backward; " in opened.text("#time-readout")
    names = (
        "[...new Set(phasesOf(1000).filter((kind) => kind > 0).map((kind) => data.phases[kind]))]"
    )
    assert sorted(opened.run(names)) == [
        *("backward", "forward", "optimizer", "setting up", "the program's own code"),
    ]
    shades = """(() => { const { left, top, height } = plot.bbox;
        const at = (entry) => [...plot.ctx.getImageData(Math.round(plot.valToPos(entry, "x", true)),
          top - 4, 1, 1).data].slice(0, 3);
        return [at(2000), at(6500), at(4400)]; })()"""
    orange, again, green = opened.run(shades)
    assert orange == again == [230, 159, 0], "both of the backward pass"
    assert green == [0, 158, 115], "the optimizer"
    opened.run("setX(8153, 8163)")
    opened.settle()
    assert opened.run("[8157, 8158].map(partText)") == [
        *("step 2, optimizer", "step 3, optimizer"),
    ]


def test_page_without_known_steps_has_no_bands(browser: Any, hundreds: Path) -> None:
    opened = Opened(browser, hundreds)
    assert opened.run("data.columns['step.start'].length") == 0
    assert "step" not in opened.text("#time-readout")
    opened.close()


def test_everything_that_can_be_used_has_a_name(opened: Opened) -> None:
    nameless = opened.run(
        """[...document.querySelectorAll("button, input, select, canvas[tabindex], [role]")]
        .filter(e => !(e.innerText || e.ariaLabel || e.labels?.length || e.id === "tip"
          || e.role === "status")).map(e => e.outerHTML)"""
    )
    assert nameless == []
    assert opened.run("document.querySelectorAll('table:not(:has(caption))').length") == 0


def test_entry_of_the_curve_lasts_until_the_next_entry(opened: Opened) -> None:
    """Pointing at a place and clicking it select the same entry."""
    opened.run("setX(13690, 13700)")
    opened.settle()
    for selector in ("#timeline .u-over", "#map-canvas"):
        x, y = opened.spot(selector, 0.58, 0.5)
        opened.page.mouse.move(x, y)
        assert opened.text("#time-readout").startswith("Entry 13,695 (alloc): ")
        opened.page.mouse.click(x, y)
        opened.settle()
        assert opened.text("#state-text").startswith("After entry 13,695 (alloc): ")
        opened.run("setEntry(0, false)")


def test_click_beside_all_blocks_selects_none(opened: Opened) -> None:
    opened.run("setBlock(0)")
    opened.settle()
    assert "requested" in opened.text("#block")
    opened.page.mouse.click(*opened.spot("#map-canvas", 0.1, 0.05))
    opened.settle()
    assert opened.text("#block").startswith("No block chosen")
    opened.run("setBlock(0)")
    opened.page.focus("#map-canvas")
    opened.page.keyboard.press("Escape")
    opened.settle()
    assert opened.text("#block").startswith("No block chosen")


def test_escape_closes_the_hover_box(opened: Opened) -> None:
    opened.page.mouse.move(*opened.spot("#map-canvas", 0.3, 0.74))
    opened.page.wait_for_selector("#tip:not([hidden])")
    opened.page.keyboard.press("Escape")
    assert not opened.page.is_visible("#tip")


def test_page_leaves_the_browsers_own_keys_alone(opened: Opened) -> None:
    for selector in ("#timeline", "#map-canvas"):
        taken = opened.run(
            f"""["+", "-", "0", "ArrowLeft"].filter((key) => {{
            const event = new KeyboardEvent("keydown", {{ key, ctrlKey: true, cancelable: true }});
            return !document.querySelector("{selector}").dispatchEvent(event); }})"""
        )
        assert taken == []
    opened.settle()
    assert opened.run("[view.x0, view.x1]") == [0, 26_064]


def test_block_chosen_in_the_table_is_shown_on_the_map(opened: Opened) -> None:
    """The map is far above the table, so a click there must scroll to it."""
    opened.page.locator("#state-blocks button").nth(3).click()
    opened.settle()
    assert opened.run("document.activeElement.id") == "map-canvas"
    assert opened.run("canvas.getBoundingClientRect().top") > 0
    assert "at entry 170" in opened.text("#block")


def test_addresses_are_zoomed_by_buttons(opened: Opened) -> None:
    """A touch screen has neither wheel nor keys."""
    whole = opened.run("data.axis")
    for name, low, high in [
        ("rows-in", 0.25, 0.75),
        ("higher", 0.5, 1),
        ("lower", 0.25, 0.75),
        ("rows-out", 0, 1),
    ]:
        opened.page.click(f'[data-view="{name}"]')
        opened.settle()
        assert opened.run("[view.y0, view.y1]") == pytest.approx([whole * low, whole * high])


def test_touch_scroll_releases_the_map(opened: Opened) -> None:
    opened.page.click('[data-view="in"]')
    opened.run(
        """for (const [type, clientX] of [["pointerdown", 300], ["pointermove", 350],
        ["pointercancel", 350], ["pointermove", 700]]) {
          canvas.setPointerCapture = () => {};
          canvas.dispatchEvent(new PointerEvent(type, { clientX, clientY: 100, button: 0 })); }"""
    )
    opened.settle()
    moved = 50 / opened.run("canvas.clientWidth") * 13_032
    assert opened.run("[moving, view.x0]") == [False, pytest.approx(6_516 - moved)]


def test_axis_labels_are_distinct_at_every_zoom(
    browser: Any, opened: Opened, strange: Path
) -> None:
    """At every zoom, axis labels are distinct, and no tick is at half an entry."""
    for span in ("16, 40", "data.axis - 16, data.axis", "1e6, 1.1e6", "0, data.axis"):
        opened.run(f"setY({span})")
        opened.settle()
        ticks = opened.run("[...document.querySelectorAll('#map-axis span')].map(e => e.innerText)")
        assert len(ticks) == len(set(ticks)) > 1
    short = Opened(browser, strange)
    short.run("setX(0, 10)")
    short.settle()
    ticks = short.run("plot.axes[0]._values")
    assert len(ticks) == len(set(ticks)) > 5
    short.close()


def test_legend_names_the_drawn_colours(opened: Opened) -> None:
    assert opened.run(
        "[...document.querySelectorAll('#time-legend span')].map(e => e.innerText)"
    ) == [
        *("reserved 5.08 GiB", "requested 4.60 GiB", "allocated 4.63 GiB", "ideal 4.66 GiB"),
        "device memory, 5.47 GiB",
        *("driver gave memory", "driver got it back", "out of memory", "the moment chosen"),
        *("setting up", "the program's own code", "forward", "backward", "optimizer"),
    ]
    words = "allocated 4.63 GiB waiting 0 bytes free 462.32 MiB"
    assert opened.text("#state-legend").split() == words.split()


def test_legends_give_the_bytes_at_the_moment(opened: Opened) -> None:
    """For every colouring, the sizes add up to reserved memory."""
    whole = 5.08 * 1024
    for colouring in ("state", "size", "owner", "category"):
        opened.page.select_option("#colouring", colouring)
        opened.settle()
        assert opened.text("#map-legend").startswith("After entry 26,059: ")
        *kinds, free, nothing = opened.page.locator("#map-legend span").all_inner_texts()
        assert (free, nothing) == ("reserved, free 462.32 MiB", "not reserved")
        factor = {"GiB": 1024, "MiB": 1, "KiB": 1 / 1024, "bytes": 0}
        sizes = [kind.split()[-2:] for kind in kinds]
        held = sum(float(size) * factor[unit] for size, unit in sizes)
        assert held == pytest.approx(whole - 462.32, abs=10)


def test_page_shows_names_of_any_kind_and_length(browser: Any, strange: Path) -> None:
    opened = Opened(browser, strange)
    opened.page.select_option("#colouring", "owner")
    opened.settle()
    assert "other lines" in opened.text("#map-legend")
    for x in (0.1, 0.4, 0.6, 0.97):
        for y in (0.03, 0.5, 0.97):
            opened.page.mouse.move(*opened.spot("#map-canvas", x, y))
            box = opened.run("document.getElementById('tip').getBoundingClientRect().toJSON()")
            assert box["left"] >= 0
            assert box["right"] <= 1280
            assert box["bottom"] <= 900
    for row, line in [
        (0, "<b>bold</b>.py:3 </script><img"),
        (1, "…"),
        (11, "some/dir/file9.py:9 f9"),
    ]:
        opened.run(f"setBlock({row})")
        opened.settle()
        assert line in opened.text("#block dl"), "its own line, also beyond the six of the legend"
    assert opened.run("document.querySelectorAll('b:not(#map-axis b), img').length") == 0
    assert opened.run("document.documentElement.scrollWidth") == 1280
    opened.close()


def test_hundreds_of_errors_leave_the_pictures_readable(browser: Any, hundreds: Path) -> None:
    opened = Opened(browser, hundreds)
    assert "Not listed: 280 earlier errors." in opened.text("#ooms")
    alarm = """(() => { const c = canvas.getContext("2d"), { width, height } = canvas;
        const rows = (y) => c.getImageData(0, y, width, 10).data;
        const reds = (pixels) => pixels.filter((v, i) => i % 4 === 0 && v > pixels[i + 2] + 30);
        return [reds(rows(0)).length > 250, reds(rows(height / 2)).length]; })()"""
    assert opened.run(alarm) == [True, 0], "marked at the top, and nowhere else"
    opened.close()


def test_page_of_a_run_without_memory_works(browser: Any, tmp_path: Path) -> None:
    """The only entry is the error."""
    recorder = Recorder("60MiB")
    with recorder.program():
        recorder.malloc(100 * MIB, recorder.code("big.py", "f", 1))
    opened = Opened(browser, written(recorder.recording("oom", {}), tmp_path))
    assert opened.text("#state-text").startswith("After entry 0 (oom): 0 bytes reserved in 0 seg")
    for button in opened.page.locator(
        "[data-view], [data-step], #to-peak, #ooms [data-entry]"
    ).all():
        button.click()
    opened.page.mouse.click(*opened.spot("#map-canvas", 0.5, 0.5))
    opened.settle()
    assert all(isinstance(value, int | float) for value in opened.run("Object.values(view)"))
    assert "NaN" not in opened.text("body")
    for ticks in opened.run("""[plot.axes[0]._values, plot.axes[1]._values,
        [...document.querySelectorAll("#map-axis span")].map(e => e.innerText)]"""):
        assert len(ticks) == len(set(ticks)) > 1
    opened.close()


def test_page_uses_the_singular_for_one_item(browser: Any, tmp_path: Path) -> None:
    recorder = Recorder("60MiB")
    with recorder.program():
        recorder.malloc(512, recorder.code("one.py", "f", 1))
    opened = Opened(browser, written(recorder.recording("oom", {}), tmp_path))
    opened.run("setBlock(0)")
    opened.settle()
    assert "2.00 MiB reserved in 1 segment, 512 bytes allocated in 1 block," in opened.text(
        "#state"
    )
    assert "2 entries, 1 block." in opened.text("#tables")
    assert re.search(r"\b1 (entries|blocks|segments|errors)\b", opened.text("body")) is None
    opened.close()


def test_strip_has_every_segment_of_a_full_card(browser: Any, full: Path) -> None:
    """At any width, each segment has its own pixels, and its pool has a name."""
    for width in (390, 1440, 2560):
        opened = Opened(browser, full, viewport={"width": width, "height": 900})
        assert "in 1,700 segments" in opened.text("#state-text")
        assert opened.run("strip.pieces.length") == 1_700
        assert opened.run("Math.min(...strip.pieces.map((piece) => piece.wide))") >= 3
        assert opened.run("document.documentElement.scrollWidth") == width
        names = opened.page.locator("#state-strip figcaption").all_inner_texts()
        assert [name.partition(":")[0] for name in names] == ["large", "small"]
        assert "1.17 GiB in 600 segments" in names[1]
        runs = """(() => { const [canvas] = document.querySelectorAll("#state-strip canvas");
            const row = canvas.getContext("2d").getImageData(0, 8, canvas.width, 1).data;
            const own = strip.pieces.filter((piece) => piece.canvas === canvas
              && piece.at + piece.wide < piece.width).length;
            let gaps = 0;
            for (let x = 1; x < canvas.width; x++) gaps += !row[x * 4 + 3] && row[x * 4 - 1] > 0;
            return [gaps, own]; })()"""
        gaps, own = opened.run(runs)
        assert own > 5
        assert gaps == pytest.approx(own, abs=1)
        opened.close()


def test_strip_describes_and_shows_a_segment(opened: Opened) -> None:
    opened.page.mouse.move(*opened.spot("#state-strip canvas >> nth=0", 0.1, 0.05))
    assert re.match(r"0x7\w+: large: 694.00 MiB in 1 segment, ", opened.text("#strip-text"))
    opened.page.focus("#state-strip")
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowLeft", "Enter"):
        opened.page.keyboard.press(key)
    opened.settle()
    piece = opened.run("strip.pieces[1].range.size")
    low, high = opened.run("[view.y0, view.y1]")
    assert high - low == piece
    assert opened.run("document.activeElement.id") == "map-canvas"


def test_strip_follows_the_width_of_the_page(opened: Opened) -> None:
    opened.page.set_viewport_size({"width": 600, "height": 900})
    opened.settle()
    opened.settle()
    assert opened.run("document.documentElement.scrollWidth") == 600
    assert opened.run("strip.pieces[0].width") < 600


@pytest.fixture(scope="module")
def cured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the report of a recording with a line to paste."""
    folder = tmp_path_factory.mktemp("cured")
    write_npz(oom(), folder / "oom.npz")
    assert main(["report", str(folder / "oom.npz"), "-o", str(folder / "page.html")]) == 0
    return folder / "page.html"


CONF = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.mark.parametrize("before", ["", "Object.defineProperty(navigator, 'clipboard', {});"])
def test_button_copies_the_line_to_paste(browser: Any, cured: Path, before: str) -> None:
    """Also if the browser refuses clipboard access, as it may for a file."""
    note = "document.addEventListener('copy', () => { window.old = String(getSelection()); });"
    opened = Opened(browser, cured, before + note)
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.page.click(".paste .copy")
    opened.page.wait_for_selector(".paste .copy >> text=Copied")
    line = opened.text(".paste code")
    assert line.startswith(f"export {CONF}=")
    assert "Proved: a replay under this setting" in opened.text(".proof")
    if before:
        assert opened.run("window.old") == line
    else:
        assert opened.run("navigator.clipboard.readText()") == line
    opened.page.wait_for_selector(".paste .copy >> text=/^Copy$/")
    opened.close()


def test_page_opens_at_the_moment_in_its_link(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, fragment="#entry=13695")
    assert opened.text("#state-text").startswith("After entry 13,695 (alloc): 5.46 GiB reserved")
    opened.run("location.hash = '#entry=26059'")
    opened.until("view.entry === 26059")
    for nonsense in ("#entry=", "#entry=-5", "#entry=x", "#owners"):
        opened.run(f"location.hash = '{nonsense}'")
        opened.settle()
        assert opened.run("view.entry") == 26_059
    opened.run("location.hash = '#entry=99999999'")
    opened.until("view.entry === 26063")
    opened.close()


def test_address_of_the_page_has_the_selected_moment(opened: Opened) -> None:
    assert opened.run("location.hash") == ""
    opened.page.fill("#entry", "13695")
    opened.page.keyboard.press("Tab")
    opened.until("location.hash === '#entry=13695'")
    opened.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.page.click("#share")
    opened.page.wait_for_selector("#share >> text=Copied")
    link = opened.run("navigator.clipboard.readText()")
    assert link == opened.page.url
    assert link.endswith(".html#entry=13695")


def test_page_links_errors_and_blockers_to_their_moments(opened: Opened) -> None:
    opened.run("setEntry(0)")
    opened.page.click("#ooms a >> text=Show entry 26,059")
    opened.settle()
    assert opened.run("view.entry") == 26_059
    assert opened.run("document.activeElement.id") == "entry-slider"
    opened.page.click("#ooms td a >> text=25,914")
    opened.settle()
    assert opened.text("#state-text").startswith("After entry 25,914 (alloc): ")


def test_page_has_a_tab_for_each_device(browser: Any, two: Path) -> None:
    opened = Opened(browser, two)
    chosen = "document.querySelector('[data-tab][aria-selected=true]').dataset.tab"
    assert opened.run(chosen) == "1", "the one that failed"
    assert opened.run("[...loaded.keys()]") == [1], "the other is not unpacked unasked"
    assert "tried" in opened.text("#ooms")
    assert "of 16" in opened.text("#view-text")
    opened.run("setEntry(3)")
    opened.page.click("#tab-0")
    opened.until("data.device === 0")
    opened.settle()
    assert opened.text("#ooms").endswith("No request failed.")
    assert "of 8" in opened.text("#view-text")
    assert opened.run("document.getElementById('entry').max") == "7"
    opened.until("location.hash.startsWith('#device=0&entry=')")
    opened.page.keyboard.press("ArrowRight")
    opened.until("data.device === 1")
    assert opened.run("view.entry") == 3, "as it was left"
    assert opened.run("document.documentElement.scrollWidth") == 1280
    opened.close()


def test_link_names_its_device(browser: Any, two: Path) -> None:
    opened = Opened(browser, two, fragment="#device=0&entry=5")
    assert opened.run("[data.device, view.entry]") == [0, 5]
    links = opened.run("[...document.querySelectorAll('#ooms a')].map(a => a.getAttribute('href'))")
    assert len(links) > 0
    assert all(link.startswith("#device=1&entry=") for link in links)
    opened.run("location.hash = '#device=1&entry=2'")
    opened.until("data.device === 1 && view.entry === 2")
    opened.run("location.hash = '#device=7'")
    opened.settle()
    assert opened.run("data.device") == 1, "there is no such device"
    opened.close()


def test_page_without_scripts_shows_every_device(browser: Any, two: Path) -> None:
    opened = Opened(browser, two, java_script_enabled=False)
    names = opened.page.locator("#ooms .device-name").all()
    assert [name.inner_text() for name in names if name.is_visible()] == ["Device 0", "Device 1"]
    assert not opened.page.is_visible("#tab-0")
    opened.close()


def test_wall_time_is_an_axis_too(opened: Opened) -> None:
    """The moment is kept, and positions are those of the same entries."""
    assert opened.text("#time-readout").endswith("; 995.06 ms")
    opened.page.select_option("#axis", "time")
    opened.settle()
    assert opened.text("#view-text") == "0 µs to 1.03 s, entries 0 to 26,064 of 26,064"
    assert opened.run("view.entry") == 26_059
    assert "wall time since the first entry (ms)" in opened.run("plot.axes[0].label")
    assert re.search(r"a pixel is \d+ µs wide", opened.text("#map-note"))
    for row in (0, 1_000, 4_567, 9_104):
        found = opened.run(
            f"""(() => {{ const b = data.blocks, i = {row};
            const from = xAt(b.born[i]), to = xAt(b.completed[i]);
            setX(from, to); setY(b.place[i], b.place[i] + b.size[i]);
            const x = ((from + to) / 2 - view.x0) / (view.x1 - view.x0);
            const y = (b.place[i] + b.size[i] / 2 - view.y0) / (view.y1 - view.y0);
            return blockAt({{x, y}}); }})()"""
        )
        assert found == row
    opened.run("setX(xAt(13690), xAt(13700))")
    opened.page.select_option("#axis", "entries")
    opened.settle()
    same = pytest.approx([13_690, 13_700], abs=3)  # some entries have the same microsecond
    assert opened.run("[view.x0, view.x1]") == same


def test_page_finds_an_entry_by_its_time(opened: Opened) -> None:
    """The time of an entry selects that entry, and times increase."""
    opened.page.select_option("#axis", "time")
    wrong = opened.run(
        """[...data.columns.time].filter((time, i) => {
          const found = entryAt(time);
          return data.columns.time[found] !== time || found < i; }).length"""
    )
    assert wrong == 0
    opened.page.click("#timeline .u-over", position={"x": 600, "y": 50})
    opened.settle()
    entry = opened.run("view.entry")
    assert opened.run(f"xAt({entry}) <= plot.posToVal(600, 'x')")
    assert opened.run(f"plot.posToVal(600, 'x') <= xAt({entry} + 1)")


def test_page_without_recorded_times_offers_no_wall_time(browser: Any, hundreds: Path) -> None:
    opened = Opened(browser, hundreds)
    assert not opened.page.is_visible("#axis")
    opened.close()


PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
}


def test_page_on_a_phone_scrolls_downwards_only(browser: Any, small: Path, strange: Path) -> None:
    for file in (small, strange):
        opened = Opened(browser, file, **PHONE)
        opened.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        opened.run("setBlock(1)")
        opened.settle()
        assert opened.run("document.documentElement.scrollWidth") == 390
        beyond = opened.run(
            """[...document.querySelectorAll("button, select, input, canvas:not(.bar), caption, p")]
            .filter(e => !e.closest("td, th") && e.getBoundingClientRect().right > 391)
            .map(e => e.outerHTML.slice(0, 80))"""
        )
        assert beyond == []
        assert len(opened.run("plot.axes[0]._values")) > 2
        opened.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_have_enough_contrast(browser: Any, small: Path, scheme: str) -> None:
    """Contrast is 4.5 to 1 for text (WCAG 2), and 3 to 1 for swatches and curves with meaning."""
    opened = Opened(browser, small, color_scheme=scheme)
    ratios = opened.run(
        """(() => { const light = (name) => rgb(colour(name)).map((v) => v / 255)
          .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
          .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
          return (x + 0.05) / (y + 0.05); };
        const text = ["ink", "soft", "accent"].flatMap((a) => ["page", "panel"]
          .map((b) => [a, b, ratio(a, b) / 4.5]));
        const marks = ["reserved", "allocated", "requested", "ideal", "alarm"]
          .map((a) => [a, "page", ratio(a, "page") / 3]);
        return [...text, ...marks].filter(([, , share]) => share < 1); })()"""
    )
    assert ratios == []
    opened.close()


def test_printed_page_is_light_and_complete(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, color_scheme="dark")
    opened.run(
        """(() => { const note = () => { window.paper = [document.documentElement.dataset.theme,
          plot.width, canvas.clientWidth < 700,
          document.querySelectorAll("#tables details[open]").length]; };
        addEventListener("beforeprint", () => queueMicrotask(() => queueMicrotask(note))); })()"""
    )
    opened.page.pdf(format="A4")
    assert opened.run("paper") == ["light", 700, True, 2]
    opened.settle()
    after = "[document.documentElement.dataset.theme, plot.width, canvas.clientWidth > 1000]"
    assert opened.run(after) == ["dark", 1248, True]
    assert opened.run("document.querySelectorAll('#tables details[open]').length") == 0
    opened.close()


def test_printed_page_has_the_address_map(browser: Any, small: Path) -> None:
    """Browsers print drawn images, but not pixels set with putImageData."""
    opened = Opened(browser, small)
    opened.run(
        """(() => { const { drawImage } = CanvasRenderingContext2D.prototype;
        CanvasRenderingContext2D.prototype.drawImage = function (...all) {
          if (this.canvas === canvas) window.printed = [...all[0].getContext("2d")
            .getImageData(5, all[0].height - 3, 1, 1).data];
          return drawImage.apply(this, all); }; })()"""
    )
    opened.page.pdf(format="A4")
    red, _, blue, _ = opened.run("printed")
    assert blue > red + 50, "allocated, at the lowest address"
    opened.close()


def test_page_shows_tables_if_the_browser_cannot_decompress(browser: Any, small: Path) -> None:
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(small.as_uri())
    page.wait_for_selector("text=The pictures cannot be drawn in this browser")
    assert not page.is_visible("#timeline")
    assert page.is_visible("#tables table >> nth=0")
    page.close()


def test_links_of_the_page_work_without_scripts(browser: Any, small: Path) -> None:
    opened = Opened(browser, small, java_script_enabled=False)
    targets = [link.get_attribute("href") for link in opened.page.locator("nav a:visible").all()]
    assert targets == ["#owners", "#time", "#overview", "#stacks", "#ooms", "#what-if", "#tables"]
    assert all(opened.page.is_visible(target) for target in targets)
    opened.close()


def test_new_moment_keeps_the_pixels_of_the_map(opened: Opened) -> None:
    """The map's pixels (sums over a million blocks) are kept when only a line moves."""
    opened.run("window.before = painted.image")
    opened.page.focus("#entry-slider")
    opened.page.keyboard.press("ArrowLeft")
    opened.settle()
    assert opened.run("view.entry") == 26_058
    assert opened.run("painted.image === before")
    opened.page.click('[data-view="in"]')
    opened.settle()
    assert not opened.run("painted.image === before")


def test_page_of_a_million_entries_opens_and_draws_in_time(browser: Any, tmp_path: Path) -> None:
    recording, file = tmp_path / "million.npz", tmp_path / "million.html"
    write_npz(training(entries=1_000_000, ragged=True), recording)
    began = time.monotonic()
    assert main(["report", str(recording), "-o", str(file)]) == 0
    written = time.monotonic() - began
    opened = Opened(browser, file)
    drawn = opened.run(
        """(() => { painted.key = ""; const began = performance.now(); drawMap();
        return performance.now() - began; })()"""
    )
    heap = opened.run("performance.memory.usedJSHeapSize / 1e6")
    print(
        f"written in {written:.1f} s, {file.stat().st_size / 1e6:.1f} MB, open in "
        f"{opened.seconds:.2f} s, map {drawn:.0f} ms, heap {heap:.0f} MB"
    )
    assert written < 30
    assert file.stat().st_size < 15_000_000
    assert opened.seconds < 5
    assert drawn < 500
    assert heap < 500
    assert opened.requests == [file.as_uri()]
    assert opened.errors == []
    opened.page.close()
