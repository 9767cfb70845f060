"""Tables of a card's folder, for the parts that are in it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.driver_times import lines_of, times_of
from benchmarks.real_gpu.programs import program_lines

__all__ = ["comparison_lines"]


def comparison_lines(folder: Path) -> list[str]:
    return [*program_lines(folder), "", *lines_of(times_of(folder))]
