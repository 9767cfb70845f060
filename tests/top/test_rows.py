"""Rows add up at every entry of a recording, for every kind of owner."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from allocsim import load, replay, top
from allocsim.errors import RecordingError
from allocsim.ownership import BY, CATEGORIES, RULES
from allocsim.ownership.blocks import blocks_of
from allocsim.recording import Recording
from allocsim.replaying import prepare

TRACES = Path(__file__).parents[2] / "traces"
RECORDINGS = sorted([*TRACES.glob("*.pickle.gz"), *TRACES.glob("recordings/*.npz.gz")])
QUICK = [
    TRACES / "gpt2-side-stream-torch2.15.pickle.gz",
    TRACES / "recordings" / "cuda_graphs-tight-torch2.6.npz.gz",
    TRACES / "recordings" / "gpt2_training-oom-torch2.15.npz.gz",
]


def held_after_every_entry(recording: Recording) -> list[int]:
    """Return the bytes in use after each entry, which must equal the replay's allocated bytes."""
    (prepared,) = prepare(recording)
    timeline = replay(recording).devices[0].timeline
    blocks = blocks_of(prepared.trace, prepared.start, timeline)
    moved = np.zeros(len(prepared.trace) + 2, dtype=np.int64)
    np.add.at(moved, blocks.born + 1, blocks.size)
    np.add.at(moved, blocks.freed + 1, -blocks.size)
    held = np.cumsum(moved)[1:]
    # An entry may have several steps, and a request that waits is served before its frees.
    last = np.append(np.diff(timeline.entry) > 0, True)
    last &= timeline.entry >= np.maximum.accumulate(timeline.entry)
    assert (held[timeline.entry[last]] == timeline.allocated[last]).all()
    counted: list[int] = held.tolist()
    return counted


@pytest.mark.parametrize("path", QUICK, ids=lambda path: path.name)
def test_blocks_in_use_are_what_the_replay_has_allocated_after_every_entry(path: Path) -> None:
    assert max(held_after_every_entry(load(path))) > 0


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_so_they_are_in_every_recording(path: Path) -> None:
    recording = load(path)
    held = held_after_every_entry(recording)
    entries = len(recording.devices[0])
    for at in (None, entries // 3, 4 * entries // 5):
        told = top(recording, at, by="category")
        assert told.at.entry is not None
        assert told.allocated_bytes == held[told.at.entry]
        assert sum(each.bytes for each in told.rows) == told.allocated_bytes
        assert sum(told.categories.values()) == told.allocated_bytes
        if at is None:
            assert told.categories.get("unknown", 0) < 0.05 * told.allocated_bytes


@pytest.mark.parametrize("by", BY)
def test_rows_of_every_kind_add_up(by: str) -> None:
    told = top(load(QUICK[2]), by=by)
    assert told.at.what == "oom"
    assert sum(row.bytes for row in told.rows) == told.allocated_bytes
    assert sum(row.blocks for row in told.rows) == told.blocks
    assert sum(holding.bytes for holding in told.holdings) == told.allocated_bytes
    assert all(sum(row.categories.values()) == row.bytes for row in told.rows)
    assert [row.bytes for row in told.rows] == sorted((r.bytes for r in told.rows), reverse=True)


def test_what_waits_for_another_stream_is_beside_the_rows() -> None:
    recording = load(QUICK[0])
    trace = recording.devices[0]
    (blocks,) = (
        blocks_of(prepared.trace, prepared.start, replay(recording).devices[0].timeline)
        for prepared in prepare(recording)
    )
    waits = int(np.flatnonzero(blocks.completed - blocks.freed > 10)[0])
    told = top(recording, int(blocks.freed[waits]), by="stream")
    assert told.pending_blocks >= 1
    assert told.pending_bytes >= int(blocks.size[waits])
    assert told.at.entry is not None and told.at.entry < len(trace)


def test_the_moment_is_one_that_the_recording_has() -> None:
    recording = load(QUICK[2])
    entries = len(recording.devices[0])
    for at in (entries, -1):
        with pytest.raises(RecordingError, match=f"there is no entry {at}; expected 0 to"):
            top(recording, at)
    with pytest.raises(RecordingError, match="no out-of-memory error is recorded"):
        top(load(QUICK[0]), "oom")
    with pytest.raises(ValueError, match="by='owner' is not one of line, stack"):
        top(recording, by="owner")


def test_the_page_has_every_rule_with_its_reason() -> None:
    assert {rule.category for rule in RULES} <= set(CATEGORIES)
    page = (TRACES.parent / "docs" / "top.md").read_text()
    table = page.partition("<!-- rules -->")[2].partition("<!-- end of rules -->")[0]
    told = "".join(f"| {rule.category} | {rule.reason} |\n" for rule in RULES)
    assert table == f"\n| category | because |\n|---|---|\n{told}"
