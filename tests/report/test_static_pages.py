"""Pages of `compare` and `ranks`: the whole answer, one scale, no scripts."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, compare, load, ranks
from allocsim.analysis.compare import Comparison
from allocsim.analysis.ranks import Ranks, Refused
from allocsim.report.html import compare_page, ranks_page
from allocsim.units import MIB, format_change, format_size

SIZED = Path(__file__).parents[2] / "traces" / "sized"
HOSTILE = '<script>alert("1")</script>'


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("job")
    for rank in range(5):
        gpu = CachingAllocator("8GiB", record_history=True)
        for block in [gpu.malloc((20 + 8 * rank) * MIB) for _ in range(3)][1:]:
            gpu.free(block)
        (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
    (folder / "rank9.pickle").write_bytes(b"half")
    return ranks([str(folder)], jobs=1)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(load(SIZED / "layers2.npz.gz"), load(SIZED / "layers3.npz.gz"))


@pytest.fixture(scope="module", params=["compare", "ranks"])
def page(request: pytest.FixtureRequest, found: Comparison, job: Ranks) -> str:
    return compare_page(found) if request.param == "compare" else ranks_page(job)


def test_static_page_loads_nothing_and_runs_no_scripts(page: str) -> None:
    elements = Elements(page).found
    policy = [each["content"] for tag, each in elements if tag == "meta" and "content" in each]
    assert "default-src 'none'; style-src 'unsafe-inline'" in policy
    assert not [tag for tag, _ in elements if tag in ("script", "link", "img", "iframe")]
    assert not [name for _, each in elements for name in each if name in ("src", "onload", "href")]


def points(line: str) -> list[tuple[float, float]]:
    return [tuple(map(float, each.split(",", 1))) for each in line.split()]  # type: ignore[misc]


def lines_of(page: str) -> list[list[tuple[float, float]]]:
    return [points(str(each["points"])) for tag, each in Elements(page).found if tag == "polyline"]


def test_ranks_page_draws_every_rank_on_one_scale(job: Ranks) -> None:
    page = ranks_page(job)
    reserved = lines_of(page)[::2]
    assert len(reserved) == len(job.runs) == 5
    heights = [90 - min(y for _, y in line) for line in reserved]
    peaks = [run.reserved_bytes for run in job.runs]
    for height, peak in zip(heights, peaks, strict=True):
        assert height == pytest.approx(1 + 88 * peak / max(peaks), abs=0.06)
    assert page.count('class="decides"') == 1


def test_ranks_page_has_a_row_for_every_rank_and_refused_file(job: Ranks) -> None:
    page = ranks_page(job)
    for run in job.runs:
        assert run.path in page
        assert f"<td>{format_size(run.allocated_bytes)}</td>" in page
    assert re.search(r"rank9\.pickle</th><td>[^<]*rank9\.pickle", page)


def test_rows_of_the_compare_page_add_up(found: Comparison) -> None:
    page = compare_page(found)
    changed = [each for each in found.changes if each.bytes]
    rows = re.findall(r'<tr><th scope="row">([^<]*)</th><td><svg', page)
    assert rows == [format_change(each.bytes) for each in changed]
    assert sum(each.bytes for each in changed) == found.allocated_change
    assert f"They add up to {format_change(found.allocated_change)}" in page
    first, second = lines_of(page)[::2]
    tallest = max(side.reserved.reserved for side in (found.a, found.b))
    for line, side in ((first, found.a), (second, found.b)):
        expected = 1 + 178 * side.reserved.reserved / tallest
        assert 180 - min(y for _, y in line) == pytest.approx(expected, abs=0.06)


def test_pages_escape_hostile_names(found: Comparison, job: Ranks) -> None:
    changes = tuple(replace(each, owner=HOSTILE, was=HOSTILE) for each in found.changes)
    pages = [
        compare_page(replace(found, changes=changes, a=replace(found.a, path=HOSTILE))),
        ranks_page(replace(job, refused=(Refused(HOSTILE, HOSTILE),), notes=(HOSTILE,))),
    ]
    for page in pages:
        assert HOSTILE not in page
        assert "&lt;script&gt;" in page
        assert not [tag for tag, _ in Elements(page).found if tag == "script"]


def test_states_have_no_curve(tmp_path: Path) -> None:
    paths = []
    for rank, size in enumerate((4, 40)):
        gpu = CachingAllocator("8GiB")
        gpu.malloc(size * MIB)
        paths.append(tmp_path / f"rank{rank}.pickle")
        paths[-1].write_bytes(pickle.dumps(gpu.snapshot() | {"device_traces": [[]]}, protocol=4))
    assert "hold a state only" in compare_page(compare(*map(load, paths)))
    assert "no history to draw" in ranks_page(ranks([str(tmp_path)], jobs=1))


@pytest.mark.slow
def test_browser_shows_static_pages_without_complaints(
    browser: Any, found: Comparison, job: Ranks, tmp_path: Path
) -> None:
    for page in (compare_page(found), ranks_page(job)):
        path = tmp_path / "page.html"
        path.write_text(page)
        shown = browser.new_page()
        said: list[str] = []
        shown.on("console", lambda message, said=said: said.append(message.text))
        shown.on("request", lambda request, said=said: said.append(request.url))
        shown.goto(path.as_uri())
        assert said == [path.as_uri()]
        assert shown.locator("svg").first.bounding_box()["height"] > 10
        shown.close()
