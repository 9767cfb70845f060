"""Defects that the checks of a recording find."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from allocsim.recording import Defect, find_defects, load
from allocsim.recording.snapshot import read_snapshot
from allocsim.units import MIB
from tests.recording.history import BASE, History, training_step, write


def findings(snapshot: object) -> tuple[Defect, ...]:
    return find_defects(read_snapshot("x", snapshot, 1 << 20))


def texts(snapshot: object, severity: str) -> str:
    return "\n".join(f.text for f in findings(snapshot) if f.severity == severity)


def test_find_defects_finds_nothing_in_a_valid_recording(tmp_path: Path) -> None:
    assert find_defects(load(write(training_step().snapshot(), tmp_path / "a"))) == ()


def test_recording_that_starts_mid_run_is_a_note() -> None:
    snapshot = training_step().snapshot()
    del snapshot["device_traces"][0][:4]
    (finding,) = findings(snapshot)
    assert finding.severity == "note"
    assert finding.text == (
        "the recording starts mid-run: 2 segments (22.00 MiB) with 3.00 MiB in use existed "
        "before the first entry"
    )


def test_ring_that_lost_its_beginning_is_a_note() -> None:
    snapshot = training_step().snapshot()
    del snapshot["device_traces"][0][:5]
    notes = [f for f in findings(snapshot) if "lost its beginning" in f.text]
    assert [note.entry for note in notes] == [0]


def test_ring_of_one_entry_is_an_error() -> None:
    history = training_step()
    snapshot = history.snapshot()
    del snapshot["device_traces"][0][:-1]
    assert "kept a single entry of a longer run" in texts(snapshot, "error")


def test_state_only_recording_is_an_error() -> None:
    snapshot = training_step().snapshot()
    snapshot["device_traces"] = []
    assert "the state only (2 segments)" in texts(snapshot, "error")
    assert "the state only" in texts(training_step().state(), "error")
    assert "is empty" in texts(History().snapshot(), "error")


def test_time_that_decreases_is_a_note() -> None:
    snapshot = training_step().snapshot()
    snapshot["device_traces"][0][5]["time_us"] = 3
    (finding,) = findings(snapshot)
    assert (finding.severity, finding.entry) == ("note", 5)
    assert "time_us goes back 1 times" in finding.text


def test_fields_of_no_single_release_are_a_note() -> None:
    snapshot = training_step().snapshot()
    del snapshot["allocator_settings"]
    assert "no release of PyTorch writes" in texts(snapshot, "note")


def damaged(change: str) -> Any:
    history = training_step()
    if change == "alloc over a block":
        history.alloc(4000)
        history.entries[-1]["addr"] -= 512
        history.segments[BASE][2][1][0] -= 512
        history.segments[BASE][2][0][1] -= 512
        history.segments[BASE][2][1][1] += 512
    snapshot = history.snapshot()
    small, large = snapshot["segments"]
    entries = snapshot["device_traces"][0]
    if change == "overlapping segments":
        large["address"] = small["address"] + MIB
    elif change == "overlapping blocks":
        small["blocks"][1]["address"] -= 512
    elif change == "short segment":
        small["blocks"].pop()
    elif change == "odd address":
        entries[1]["addr"] += 7
    elif change == "free of nothing":
        entries[4]["addr"] += 512
    return snapshot


@pytest.mark.parametrize(
    ("change", "text", "entry"),
    [
        ("overlapping segments", "lies inside the one at", None),
        ("overlapping blocks", "expected one at", None),
        ("short segment", "hold 2048 bytes, its size is 2097152", None),
        ("odd address", "no multiples of 512", 1),
        ("free of nothing", "is requested, but none is pending after it", 4),
        ("alloc over a block", "4000 bytes are allocated at .*, over the block at", 8),
    ],
)
def test_contradicting_data_is_an_error(change: str, text: str, entry: int | None) -> None:
    (finding,) = [f for f in findings(damaged(change)) if f.severity == "error"]
    assert finding.text.startswith("the data contradicts itself and cannot be a recording: ")
    assert finding.entry == entry
    assert finding.device == 0
    assert re.search(text, finding.text)


def test_unrounded_sizes_of_old_releases_are_only_notable() -> None:
    snapshot = training_step().snapshot("2.1")
    for entry in snapshot["device_traces"][0]:
        entry["addr"] += 8
    for segment in snapshot["segments"]:
        segment["address"] += 8
        for block in segment["blocks"]:
            block["address"] += 8
    assert "no multiples of 512" in texts(snapshot, "note")
    assert not texts(snapshot, "error")


def test_segment_beyond_64_bits_is_an_error() -> None:
    """Release 2.0 wrote no block addresses; they follow from the order."""
    snapshot = training_step().snapshot()
    segment = snapshot["segments"][0]
    segment["address"] = (1 << 64) - segment["blocks"][0]["size"]
    for block in segment["blocks"]:
        del block["address"]
    assert "beyond the last address that 64 bits can name" in texts(snapshot, "error")
