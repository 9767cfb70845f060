"""CUDA graphs on an H200 with PyTorch 2.11.

Entries name no pool, and the driver reuses addresses.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim import load, replay
from allocsim.recording import Recording

PROGRAMS = Path(__file__).parents[2] / "traces" / "h200" / "programs"

PEAKS = {
    "default": ("", 2_571_108_352),
    "expandable": ("expandable_segments:True", 2_422_210_560),
    "gc": ("garbage_collection_threshold:0.6,per_process_memory_fraction:0.12", 2_571_108_352),
    "max-split": ("max_split_size_mb:64", 2_816_475_136),
    "roundup": ("roundup_power2_divisions:4", 2_707_423_232),
}
"""(conf, measured reserved_bytes.all.peak), by setting."""


def recording(setting: str) -> Recording:
    return load(PROGRAMS / f"cuda_graphs-{setting}.npz.gz")


@pytest.mark.parametrize("setting", PEAKS)
def test_replay_of_each_recording_is_exact(setting: str) -> None:
    [run] = replay(recording(setting)).devices
    assert run.fidelity is not None
    assert run.fidelity.first_mismatch is None
    assert run.fidelity.is_exact
    assert run.peak_reserved_bytes == PEAKS[setting][1]


@pytest.mark.parametrize("setting", PEAKS)
def test_what_ifs_of_the_default_run_have_the_measured_peaks(setting: str) -> None:
    conf, peak = PEAKS[setting]
    [run] = replay(recording("default"), conf).devices
    assert run.peak_reserved_bytes == peak
