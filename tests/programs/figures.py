"""Figures that the recorded programs printed, from traces/recordings/figures.json.

traces/record_all.py writes that file from real PyTorch; the model computes none of it.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from allocsim import load, replay
from allocsim.recording import Recording
from allocsim.simulation import DeviceRun

__all__ = ["RUNS", "baseline", "comparable", "of_program", "recording", "what_if"]

FOLDER = Path(__file__).parents[2] / "traces" / "recordings"
RUNS: dict[str, dict[str, Any]] = {
    row["name"]: row for row in json.loads((FOLDER / "figures.json").read_text())
}
"""Figures by name; `stats` is the program's memory_stats(), None if it ran out of memory."""


@lru_cache(maxsize=2)
def recording(name: str) -> Recording:
    """Return the committed recording of a run."""
    return load(FOLDER / f"{name}.npz.gz")


def baseline(run: dict[str, Any]) -> str:
    """Return the name of the run of the same program and release under the default settings."""
    return f"{run['program']}-default-torch{run['torch']}"


def what_if(run: dict[str, Any]) -> DeviceRun:
    """Return the what-if replay that predicts `run` from the program's default recording."""
    predicted = replay(recording(baseline(run)), run["conf"], device_memory=run["device_memory"])
    return predicted.devices[0]


def comparable(stats: dict[str, int]) -> dict[str, int]:
    """Return the statistics that do not change at the end of a program.

    A program prints its statistics before its last tensors are freed, and a recording ends after
    that, so freed counts, current values and fragmentation differ.  A call of empty_cache that
    released nothing is counted (num_sync_all_streams), but no recording has it.
    """
    last = (".current", ".freed")
    return {
        key: value
        for key, value in stats.items()
        if not key.endswith(last) and not key.startswith(("inactive_split", "num_sync"))
    }


def of_program(stats: dict[str, int], run: dict[str, Any]) -> dict[str, int]:
    """Return the `stats` of a replay that can be compared with the program's own."""
    known = comparable(run["stats"])
    return {key: value for key, value in comparable(stats).items() if key in known}
