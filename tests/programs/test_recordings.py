"""Replays of the committed recordings, and predictions of runs under other settings.

The true figures are in traces/recordings/figures.json: the statistics that each run printed, or the
text of its error.  `make test-slow` runs the longer recordings.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from allocsim import replay
from allocsim.core import NEWEST
from tests.programs.figures import FOLDER, RUNS, baseline, comparable, of_program, recording
from tests.programs.figures import what_if as predict
from traces.record_all import readme

LONG = 15_000
"""Number of entries from which a replay is a slow test."""

PREDICTED = {
    name: run
    for name, run in RUNS.items()
    if baseline(run) in RUNS and name != baseline(run) and not run["arguments"]
}
"""Runs of programs that were also recorded under the default settings."""


def parameters(names: Iterable[str]) -> list[Any]:
    def parameter(name: str) -> Any:
        run = RUNS[name]
        is_slow = run["entries"] > LONG or (name in PREDICTED and run["torch"] != NEWEST)
        marks = [pytest.mark.slow] if is_slow else []
        return pytest.param(RUNS[name], marks=marks, id=name)

    return [parameter(name) for name in names]


def committed() -> list[str]:
    return [name for name in RUNS if (FOLDER / f"{name}.npz.gz").exists()]


def test_nothing_lies_there_that_the_figures_do_not_tell() -> None:
    found = {path.name.removesuffix(".npz.gz") for path in FOLDER.glob("*.npz.gz")}
    assert found <= set(RUNS)
    assert {baseline(run) for run in PREDICTED.values()} <= found


def test_the_page_tells_where_each_comes_from() -> None:
    assert (FOLDER / "README.md").read_text() == readme(list(RUNS.values()))


@pytest.mark.parametrize("run", parameters(committed()))
def test_it_comes_out_whole(run: dict[str, Any]) -> None:
    """All addresses, entries, segments and statistics that the program printed are equal."""
    made = recording(run["name"])
    assert made.provenance is not None
    assert made.provenance.is_phantom
    assert made.provenance.release == run["torch"]
    result = replay(made)
    device = result.devices[0]
    assert device.fidelity is not None
    assert device.fidelity.first_mismatch is None
    assert device.fidelity.addresses_matched == run["allocations"]
    assert device.entries == run["entries"]
    assert device.device_memory == run["device_memory"]
    assert [oom.message for oom in device.ooms] == [t for t in [run["oom_text"]] if t]
    if run["stats"]:
        assert of_program(device.stats, run) == comparable(run["stats"])


@pytest.mark.parametrize("run", parameters(PREDICTED))
def test_the_default_recording_predicts_it(run: dict[str, Any]) -> None:
    """Peaks, driver calls, retries and totals, or the error, are as in real PyTorch."""
    device = predict(run)
    if run["oom_text"]:
        assert [oom.message for oom in device.ooms] == [run["oom_text"]]
        return
    assert device.peak_reserved_bytes == run["stats"]["reserved_bytes.all.peak"]
    assert of_program(device.stats, run) == comparable(run["stats"])
    assert not device.ooms
