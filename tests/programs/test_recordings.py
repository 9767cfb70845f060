"""Every committed recording of a program, to the last entry, and what each default recording
predicts of the same program's runs under other settings.

The truth is in traces/recordings/figures.json: the statistics that each run printed, the text
of its error.  The longer ones are left to `make test-slow`.
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
"""Entries from which a replay is left to the slow tests."""

PREDICTED = {
    name: run
    for name, run in RUNS.items()
    if baseline(run) in RUNS and name != baseline(run) and not run["arguments"]
}
"""Runs of a program that was recorded under the defaults as well."""


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
    """Every address, entry and segment; every statistic that the program printed."""
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
    """Peaks, driver calls, retries and totals of what real PyTorch then did; or its error."""
    device = predict(run)
    if run["oom_text"]:
        assert [oom.message for oom in device.ooms] == [run["oom_text"]]
        return
    assert device.peak_reserved_bytes == run["stats"]["reserved_bytes.all.peak"]
    assert of_program(device.stats, run) == comparable(run["stats"])
    assert not device.ooms
