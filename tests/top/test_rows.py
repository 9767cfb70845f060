"""Rows add up at every entry of a recording, for every kind of owner."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from allocsim import load, replay, top
from allocsim.analysis.top import top_of_run
from allocsim.errors import RecordingError
from allocsim.fitting import Task, model_of, run_by_law
from allocsim.ownership import BY, CATEGORIES, RULES
from allocsim.ownership.blocks import blocks_of
from allocsim.phantom import find_gpu
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
def test_blocks_in_use_of_every_recording_add_up_to_allocated_bytes(path: Path) -> None:
    recording = load(path)
    held = held_after_every_entry(recording)
    entries = len(recording.devices[0])
    for at in (None, entries // 3, 4 * entries // 5):
        result = top(recording, at, by="category")
        assert result.at.entry is not None
        assert result.allocated_bytes == held[result.at.entry]
        assert sum(each.bytes for each in result.rows) == result.allocated_bytes
        assert sum(result.categories.values()) == result.allocated_bytes
        if at is None:
            assert result.categories.get("unknown", 0) < 0.05 * result.allocated_bytes


@pytest.mark.parametrize("by", BY)
def test_rows_of_every_kind_add_up(by: str) -> None:
    result = top(load(QUICK[2]), by=by)
    assert result.at.what == "oom"
    assert sum(row.bytes for row in result.rows) == result.allocated_bytes
    assert sum(row.blocks for row in result.rows) == result.blocks
    assert sum(holding.bytes for holding in result.holdings) == result.allocated_bytes
    assert all(sum(row.categories.values()) == row.bytes for row in result.rows)
    assert [row.bytes for row in result.rows] == sorted(
        (r.bytes for r in result.rows), reverse=True
    )


def test_pending_memory_is_reported_beside_the_owners() -> None:
    recording = load(QUICK[0])
    trace = recording.devices[0]
    (blocks,) = (
        blocks_of(prepared.trace, prepared.start, replay(recording).devices[0].timeline)
        for prepared in prepare(recording)
    )
    waits = int(np.flatnonzero(blocks.completed - blocks.freed > 10)[0])
    result = top(recording, int(blocks.freed[waits]), by="stream")
    assert result.pending_blocks >= 1
    assert result.pending_bytes >= int(blocks.size[waits])
    assert result.at.entry is not None and result.at.entry < len(trace)


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
    page = (TRACES.parent / "docs" / "commands" / "top.md").read_text()
    table = page.partition("<!-- rules -->")[2].partition("<!-- end of rules -->")[0]
    rows = groupby(RULES, lambda rule: rule.reason)
    cells = ((", ".join(rule.category for rule in rules), reason) for reason, rules in rows)
    result = "".join(f"| {categories} | {reason} |\n" for categories, reason in cells)
    assert table == f"\n| category | because |\n|---|---|\n{result}"


@pytest.mark.parametrize("batch", [1, 2])
def test_class_token_is_a_parameter_also_if_its_gradient_is_a_part_of_another(batch: int) -> None:
    """The gradient of a single image's class token is the first row of a larger tensor.

    torchvision publishes 88,224,232 parameters for ViT-B/32, and the model has no buffers.
    """
    task = Task(model=model_of("ViT-B/32"), batch=batch, dtype="autocast-bf16")
    ran = run_by_law(task, find_gpu("H200"))
    found = top_of_run(ran.prepared, ran.device_run, ran.busiest, by="category").categories
    assert "buffers" not in found
    published = 4 * 88_224_232
    assert published <= found["parameters"] < published + 512
