"""A cure in words: the settings tried, and the line to paste.

Rule: a line to paste is printed only with what proved it, and with what it leaves open.
"""

from __future__ import annotations

import shlex

from allocsim.engine import Run
from allocsim.report.page import number, paragraph, plural, row, table
from allocsim.tuning import Cure, Trial
from allocsim.units import format_size

__all__ = ["remedy_lines"]

_WIDTHS = (38, 16, 15, 9)


def remedy_lines(run: Run, cure: Cure) -> list[str]:
    """The table of trials and the setting to paste, or that none helps."""
    where = "no limit" if run.device_memory is None else format_size(run.device_memory)
    rows = [
        ("", "out of memory", "peak reserved", "retries"),
        _cells("  as replayed above", cure.baseline),
    ]
    for trial in cure.trials:
        mark = "* " if trial is cure.best else "  "
        rows.append(_cells(mark + (trial.conf or "(defaults)"), trial))
    lines = [f"Settings tried, a replay each (device memory: {where})", ""]
    lines += [*table(rows, _WIDTHS), ""]
    return lines + (_nothing(cure) if cure.best is None else _something(cure, cure.best))


def _cells(name: str, trial: Trial) -> tuple[str, str, str, str]:
    outcome = "no" if trial.oom_entry is None else f"entry {number(trial.oom_entry)}"
    return (
        name,
        outcome,
        format_size(trial.peak_reserved_bytes),
        number(trial.num_alloc_retries),
    )


def _nothing(cure: Cure) -> list[str]:
    if cure.baseline.goes_through:
        return row("To paste", "nothing: no setting tried lowers the peak by 5 % or more.")
    return row("To paste", "nothing: no setting tried lets every request through.")


def _something(cure: Cure, best: Trial) -> list[str]:
    line = f"export PYTORCH_CUDA_ALLOC_CONF={shlex.quote(best.conf)}"
    lines = row("To paste", line if best.conf else "unset PYTORCH_CUDA_ALLOC_CONF")
    peak, before = best.peak_reserved_bytes, cure.baseline.peak_reserved_bytes
    retries = plural(best.num_alloc_retries, "retry", "retries")
    if cure.baseline.goes_through:
        proof = f"reserves at most {format_size(peak)} instead of {format_size(before)}"
    else:
        proof = f"answers every request, the failed one too; {format_size(peak)} at its peak"
    lines += paragraph(f"Proved: a replay under it {proof}, {retries}.")
    if cure.entries_left is not None:
        left = plural(cure.entries_left, "entry", "entries")
        lines += paragraph(
            f"Not proved: what comes later; the recording ends {left} after that request."
        )
    if "expandable_segments:True" in best.conf:
        lines += paragraph("expandable_segments is not available on Windows, WSL and Jetson.")
    return lines
