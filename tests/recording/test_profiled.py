"""Files of one real run in every format of PyTorch's profiler agree with each other.

`traces/profiled` has the small files; with ALLOCSIM_TORCH_PYTHON, the run is repeated.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from allocsim import explain, replay
from allocsim.analysis.top import top
from allocsim.errors import UnavailableError
from allocsim.recording import figures_in, load
from tests.pythons import NEEDS_TORCH, PYTHONS
from tests.recording.test_hostile import refusal
from traces.profiled.compare import compared
from traces.profiled.record import PROGRAM, profiled

KEPT = Path(__file__).parents[2] / "traces" / "profiled"
STATS: dict[str, Any] = json.loads((KEPT / "stats-torch2.15.json").read_text())


def test_profiler_trace_replays_to_the_reserved_bytes() -> None:
    run = replay(load(KEPT / "trace-torch2.15.json.xz")).devices[0]
    assert run.peak_reserved_bytes == STATS["reserved_bytes.all.peak"]
    assert run.peak_allocated_bytes == STATS["allocated_bytes.all.peak"]
    for name in ("segment.all.allocated", "allocation.all.allocated", "num_ooms"):
        assert run.stats[name] == STATS[name]


def test_profiler_trace_has_lines_and_the_card() -> None:
    recording = load(KEPT / "trace-torch2.15.json.xz")
    assert recording.provenance is not None
    assert "4090" in recording.provenance.device_name
    lines = {row.owner for row in top(recording).rows}
    assert any("program.py" in line for line in lines)


def test_timeline_replays_to_the_allocated_bytes() -> None:
    """The freed block and its place are guesses, so reserved memory may differ."""
    run = replay(load(KEPT / "timeline-torch2.15.json.xz")).devices[0]
    assert run.peak_allocated_bytes == STATS["allocated_bytes.all.peak"]
    reserved = STATS["reserved_bytes.all.peak"]
    assert 0.9 * reserved <= run.peak_reserved_bytes <= reserved


def test_profiler_trace_and_timeline_agree_on_categories() -> None:
    """The rules of `top` against PyTorch's own categories."""
    by_rules = load(KEPT / "trace-torch2.15.json.xz")
    as_told = load(KEPT / "timeline-torch2.15.json.xz")
    found, result = (
        {row.category: row.bytes for row in top(each, by="category").rows}
        for each in (by_rules, as_told)
    )
    for category in ("parameters", "gradients", "optimizer state"):
        assert found[category] == result[category]


def test_memory_summary_gives_the_reserved_bytes() -> None:
    found = figures_in((KEPT / "summary-torch2.15.txt").read_text())
    assert found is not None
    (peak,) = (each for each in found.figures if each.name == "peak_reserved_bytes")
    assert abs(peak.value - STATS["reserved_bytes.all.peak"]) < 1024


def test_other_text_is_refused_by_its_contents() -> None:
    assert "figures of torch.cuda.memory_stats()" in refusal(KEPT / "stats-torch2.15.json")
    assert "a table of torch.cuda.memory_summary()" in refusal(KEPT / "summary-torch2.15.txt")


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_files_of_one_profiled_run_agree(python: str, tmp_path: Path) -> None:
    try:
        out = profiled(python, tmp_path)
    except UnavailableError as error:
        pytest.skip(str(error))
    stats = json.loads((out / "stats.json").read_text())
    whole = replay(load(out / "snapshot.pickle")).devices[0]
    assert whole.fidelity is not None
    assert whole.fidelity.is_exact
    page = replay(load(out / "trace_plot.html")).devices[0]
    assert page.fidelity == whole.fidelity
    by_size = replay(load(out / "trace.json")).devices[0]
    for run in (whole, page, by_size):
        assert run.peak_reserved_bytes == stats["reserved_bytes.all.peak"]
        assert run.peak_allocated_bytes == stats["allocated_bytes.all.peak"]
    timeline = replay(load(out / "timeline.raw.json.gz")).devices[0]
    assert timeline.peak_allocated_bytes == stats["allocated_bytes.all.peak"]
    state = load(out / "segments.json")
    assert state.layout == "segment list"
    assert state.devices[0].segments == load(out / "snapshot.pickle").devices[0].segments
    assert "sums by category" in refusal(out / "timeline.json")
    assert explain((out / "summary.txt").read_text())


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_profiler_events_equal_the_snapshot_of_the_run(python: str, tmp_path: Path) -> None:
    """For any release, also for a recording that begins mid-run."""
    try:
        found = compared(python, tmp_path)
    except UnavailableError as error:
        pytest.skip(str(error))
    assert found.events > 200
    assert found.alike == found.events
    assert found.late_events > 200
    assert found.late_alike == found.late_events
    assert found.peaks == found.torch_peaks
    assert found.late_peak == found.torch_late_peak
    assert "all of CPU; expected some of CUDA or HIP" in found.cpu


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
def test_profiler_trace_of_a_cpu_run_is_refused(python: str, tmp_path: Path) -> None:
    subprocess.run([python, PROGRAM, tmp_path, "cpu"], check=True)
    assert "all of CPU; expected some of CUDA or HIP" in refusal(tmp_path / "trace.json")
    run = replay(load(tmp_path / "timeline.raw.json.gz")).devices[0]
    assert run.peak_allocated_bytes > 0
