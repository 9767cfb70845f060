"""Tables that compare allocsim with the measurements in the folder of a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allocsim.recommend.offer import H200 as H200_TIMES
from allocsim.recommend.offer import interpolated
from allocsim.units import MIB
from benchmarks.driver_times import lines_of, times_of
from benchmarks.real_gpu.cases import case_lines
from benchmarks.real_gpu.kernels import kernel_lines
from benchmarks.real_gpu.predictions import case_rows
from benchmarks.real_gpu.programs import program_lines, programs_of, worst_text
from benchmarks.real_gpu.tables import table

__all__ = ["comparison_lines", "sections", "summary"]

_TITLES = {
    "programs": "Programs under several settings",
    "cases": "Training and serving over the phantom",
    "kernels": "Kernels over the phantom",
    "driver times": "Time in driver calls",
    "driver calls": "Driver calls alone",
    "cross-check": "Cross-check",
}


def sections(folder: Path, predicted: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the lines of each table by name; parts that the folder lacks are left out.

    predicted: result of `predictions_of`; if it is empty, cases and kernels are left out.
    """
    found = {}
    if list(folder.rglob("*.npz.gz")):
        found["programs"] = program_lines(programs_of(folder))
    cases, kernels = case_rows(folder), folder / "kernels.json"
    if cases and predicted.get("cases"):
        found["cases"] = case_lines(cases, predicted["cases"])
    if kernels.exists() and predicted.get("kernels"):
        found["kernels"] = kernel_lines(json.loads(kernels.read_text()), predicted["kernels"])
    if timed := times_of(folder):
        found["driver times"] = lines_of(timed)
    driver = folder / "driver.json"
    if driver.exists():
        found["driver calls"] = _driver(json.loads(driver.read_text()))
    crosscheck = folder / "crosscheck.json"
    if crosscheck.exists():
        found["cross-check"] = _crosscheck(json.loads(crosscheck.read_text()))
    return found


def summary(folder: Path) -> str:
    """Return sentences on the replays and what-ifs of a folder."""
    programs = programs_of(folder)
    return (
        f"On an H200, {programs.whole} replays equal their recording and {programs.exact} peaks "
        f"predicted for other settings are exact.{worst_text(programs.tried)} "
        "[Every run](https://allocsim.github.io/allocsim/evidence/real-gpu.html)."
    )


def comparison_lines(folder: Path, predicted: Mapping[str, Any]) -> list[str]:
    """Return the lines of all tables of a folder, with titles."""
    lines = []
    for name, section in sections(folder, predicted).items():
        lines += [f"## {_TITLES[name]}", "", *section, ""]
    return lines or [f"{folder} holds nothing to compare"]


def _crosscheck(found: Mapping[str, Any]) -> list[str]:
    divergence = found["divergence"]
    ended = "no divergence" if divergence is None else "a divergence (crosscheck.json)"
    return [f"{found['operations']:,} operations, {ended}."]


def _driver(found: Mapping[str, Any]) -> list[str]:
    """Return a table of the measured times of driver calls and of those that allocsim assumes."""
    rows = []
    for row in found["cuMemAlloc"]:
        cells = [f"{row['mib']:,}"]
        for name, points in (("malloc_ns", H200_TIMES.malloc), ("free_ns", H200_TIMES.free)):
            measured = row[name]["median"] / 1000
            known = interpolated(points, row["mib"] * MIB)
            cells += [f"{measured:,.1f}", f"{known:,.1f}"]
        rows.append(cells)
    lines = [f"{found['name']}, driver {found['driver_text']}, against {H200_TIMES.name}.", ""]
    head = ("MiB", "cuMemAlloc, us", "table", "cuMemFree, us", "table")
    return lines + table(head, rows)
