"""What the recorded runs said of themselves: traces/recordings/figures.json, written by
traces/record_all.py from real PyTorch, never by the model."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from allocsim import load, replay
from allocsim.engine import DeviceRun
from allocsim.trace import Recording

__all__ = ["RUNS", "baseline", "comparable", "of_program", "recording", "what_if"]

FOLDER = Path(__file__).parents[2] / "traces" / "recordings"
RUNS: dict[str, dict[str, Any]] = {
    row["name"]: row for row in json.loads((FOLDER / "figures.json").read_text())
}
"""By name; `stats` is the program's own memory_stats(), None where it ran out of memory."""


@lru_cache(maxsize=2)
def recording(name: str) -> Recording:
    """The committed recording of that run."""
    return load(FOLDER / f"{name}.npz.gz")


def baseline(run: dict[str, Any]) -> str:
    """The name of the run of the same program and release under the default settings."""
    return f"{run['program']}-default-torch{run['torch']}"


def what_if(run: dict[str, Any]) -> DeviceRun:
    """What the program's default recording predicts of `run`."""
    predicted = replay(recording(baseline(run)), run["conf"], device_memory=run["device_memory"])
    return predicted.devices[0]


def comparable(stats: dict[str, int]) -> dict[str, int]:
    """The statistics that the end of a program leaves alone.

    A program prints them before its last tensors go, a recording ends after: what was freed
    since, what is there now, and how split the rest is, are of another moment.  A call of
    empty_cache that released nothing was counted (num_sync_all_streams), but is in no recording.
    """
    last = (".current", ".freed")
    return {
        key: value
        for key, value in stats.items()
        if not key.endswith(last) and not key.startswith(("inactive_split", "num_sync"))
    }


def of_program(stats: dict[str, int], run: dict[str, Any]) -> dict[str, int]:
    """`stats` of a replay, as far as the program's own can be compared with them."""
    told = comparable(run["stats"])
    return {key: value for key, value in comparable(stats).items() if key in told}
