"""PyTorch's memory timeline: raw rows become requests, other forms are refused by name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from allocsim import replay
from allocsim.analysis.top import top
from allocsim.recording import Action, Recording, load
from allocsim.units import MIB
from tests.recording.test_hostile import refusal

PARAMETER, TEMPORARY, ACTIVATION, UNKNOWN = 0, 3, 4, 7


def write(path: Path, value: object) -> Path:
    path.write_bytes(gzip.compress(json.dumps(value).encode()))
    return path


def read(tmp_path: Path, rows: list[Any]) -> Recording:
    return load(write(tmp_path / "timeline.raw.json.gz", rows))


def test_timeline_rows_become_requests_and_frees(tmp_path: Path) -> None:
    recording = read(
        tmp_path,
        [
            [-1, 1, 8 * MIB, PARAMETER],
            [5_000, 2, 4 * MIB, ACTIVATION],
            [6_000, 2, 2 * MIB, TEMPORARY],
            [7_000, 4, -2 * MIB, TEMPORARY],
        ],
    )
    assert recording.layout == "memory timeline"
    run = replay(recording).devices[0]
    assert run.timeline.allocated.tolist() == [8 * MIB, 12 * MIB, 14 * MIB, 12 * MIB]


def test_timeline_version_keeps_its_block(tmp_path: Path) -> None:
    """An input that becomes an activation is the activation that is freed."""
    (trace,) = read(
        tmp_path,
        [
            [1_000, 2, MIB, UNKNOWN],
            [2_000, 2, MIB, ACTIVATION],
            [3_000, 3, -MIB, UNKNOWN],
            [3_000, 3, MIB, ACTIVATION],
            [4_000, 4, -MIB, ACTIVATION],
        ],
    ).devices
    allocs = trace.addr[trace.action == Action.ALLOC].tolist()
    assert trace.addr[trace.action == Action.FREE_COMPLETED].tolist() == allocs[:1]


def test_timeline_block_freed_without_request_existed_before(tmp_path: Path) -> None:
    recording = read(tmp_path, [[1_000, 2, MIB, 4], [2_000, 4, -512, TEMPORARY]])
    assert any("1 blocks (512 bytes) are freed" in note for note in recording.notes)
    assert [entry.action.text for entry in recording.devices[0]][:2] == ["alloc", "alloc"]


def test_timeline_categories_are_those_of_pytorch(tmp_path: Path) -> None:
    rows = [[-1, 1, (number + 1) * MIB, number] for number in range(8)]
    recording = read(tmp_path, rows)
    found = {row.category: row.bytes for row in top(recording, by="category").rows}
    assert found["parameters"] == 1 * MIB
    assert found["optimizer state"] == 2 * MIB
    assert found["inputs"] == 3 * MIB
    assert found["temporaries"] == 4 * MIB
    assert found["activations kept for backward"] == 5 * MIB
    assert found["gradients"] == 6 * MIB
    assert found["unknown"] == (7 + 8) * MIB


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1, 5, 512, 0], "row 1 of the timeline is [1, 5, 512, 0]"),
        ([1, 2, 512, 8], "row 1 of the timeline is"),
        ([1, 2, -512, 0], "moves -512 bytes by action 2"),
        ([1, 4, 512, 0], "moves 512 bytes by action 4"),
        ([1, 2, 10**400, 0], "row 1 of the timeline is"),
        ([1, 2, 512], "row 1 of the timeline is a list of 3"),
        ("x", "row 1 of the timeline is 'x'"),
        ([1, 2, 1.5, 0], "row 1 of the timeline is a list of 4"),
    ],
)
def test_invalid_row_is_named(row: object, message: str, tmp_path: Path) -> None:
    text = refusal(write(tmp_path / "a", [[1, 2, 512, 0], row]))
    assert message in text
    assert "expected [nanoseconds, action 1 to 4, bytes, category 0 to 7]" in text


def test_timeline_version_of_another_size_is_refused(tmp_path: Path) -> None:
    rows = [[1, 2, 512, 0], [1, 3, -512, 0], [1, 3, 1024, 4]]
    assert "another size than the old one" in refusal(write(tmp_path / "a", rows))


def test_sums_by_category_are_refused_with_their_peak(tmp_path: Path) -> None:
    sums = [[1, 2], [[0, MIB, 0, 0], [0, MIB, 3 * MIB, 0]]]
    text = refusal(write(tmp_path / "a", sums))
    assert "is a memory timeline as sums by category (2 moments, at most 4.00 MiB in all)" in text
    assert "export the rows" in text
