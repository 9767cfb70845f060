"""Page of a snapshot without a history: complete, without requests, with every byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allocsim import top
from allocsim.analysis.picture import Still, still_of
from allocsim.recording import Recording
from allocsim.replaying import state_source
from allocsim.report.html import still_report
from allocsim.units import MIB
from allocsim.workload.recorder import Recorder

from .page import Page


def state() -> Recording:
    """Return blocks of two lines with holes between them, and a wholly free segment."""
    recorder = Recorder("1GiB")
    lines = [recorder.code("<net>.py", "forward", 3), recorder.code("adam.py", "step", 9)]
    live = [recorder.malloc(4 * MIB, lines[i % 2]) for i in range(9)]
    whole = recorder.malloc(100 * MIB, lines[0])
    for address in (live[1], live[2], live[7], whole):
        recorder.free(address, lines[0])
    recording = recorder.recording("test", {})
    (trace,) = recording.devices
    none: dict[str, Any] = {name: column[:0] for name, column in trace.columns().items()}
    return replace(recording, devices=(replace(trace, **none),), path="runs/state.pickle")


@pytest.fixture(scope="module")
def shown() -> tuple[Still, Page]:
    return page_of(state())


def page_of(recording: Recording) -> tuple[Still, Page]:
    """Return the parsed page."""
    still = still_of(recording, 0)
    source = state_source(recording, still.trace)
    tops = [top(recording, by=by) for by in ("line", "category")]
    return still, Page(still_report(still, source, source.largest_requests(), tops))


def table(page: Page, head: str) -> list[list[str]]:
    """Return the rows of the table whose first heading is `head`."""
    (found,) = (rows[1:] for rows in page.tables if rows[0][0] == head)
    return found


def test_still_report_is_well_formed_and_loads_nothing(shown: tuple[Still, Page]) -> None:
    _, page = shown
    assert (page.wrong, page.open) == ([], [])
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.asked} <= set(page.ids)
    assert "$" not in page.words


def test_still_report_kinds_add_up_to_reserved_memory(shown: tuple[Still, Page]) -> None:
    still, page = shown
    assert sum(still.kinds.values()) == still.instant.reserved
    kinds = dict(table(page, "memory"))
    assert kinds["requested and in use"] == "24.00 MiB", "six blocks of 4"
    assert kinds["idle in whole segments, which the allocator can release"] == "100.00 MiB"
    assert kinds["idle between live blocks of a segment"] == "16.00 MiB"


def test_free_blocks_are_listed_with_their_neighbours(shown: tuple[Still, Page]) -> None:
    """Five blocks of 4 MiB fill a segment of 20; two of the first segment were freed."""
    _, page = shown
    size, pool, before, behind = table(page, "hole")[0][1:]
    assert (size, pool) == ("8.00 MiB", "large")
    assert before == "4.00 MiB, <net>.py:3 forward", "as words, and no tags"
    assert behind == "4.00 MiB, adam.py:9 step"


def test_owners_are_those_of_top(shown: tuple[Still, Page]) -> None:
    _, page = shown
    by_line = next(rows for rows in page.tables if rows[0][0] == "line")
    assert [row[:2] for row in by_line[1:]] == [
        ["<net>.py:3 forward", "16.00 MiB"],
        ["adam.py:9 step", "8.00 MiB"],
    ]


def test_page_names_what_a_state_without_history_lacks(shown: tuple[Still, Page]) -> None:
    _, page = shown
    assert "140.00 MiB reserved in 3 segments, as the snapshot was taken" in page.words
    assert "nothing in it can be proved by a replay" in page.words


def test_page_of_a_state_without_free_blocks_says_so() -> None:
    recording = state()
    (trace,) = recording.devices
    idle = tuple(each for each in trace.segments if each.is_idle)
    _, page = page_of(replace(recording, devices=(replace(trace, segments=idle),)))
    assert "No free block is in a segment that is in use." in page.words
