"""Memory of all ranks (processes) of a distributed job, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from allocsim._repr import printable
from allocsim.analysis.ranks import RankRun, Ranks
from allocsim.report.layout import WIDTH, fields, paragraph, plural, row
from allocsim.units import format_size

_ROWS = 10
_FIGURES = "{:>6} {:>11} {:>11} {:>11} {:>8} {:>5}  "
_HEADS = ("rank", "reserved", "allocated", "unused", "retries", "OOMs")
_RANK = (
    "rank path device torch_version entries peak_reserved_bytes=reserved_bytes "
    "peak_allocated_bytes=allocated_bytes unused_bytes num_alloc_retries=retries num_ooms=ooms "
    "is_as_recorded smallest_device_bytes=smallest_device"
)
_APART = 1.02
"""Ratio of the largest peak to the mean peak of all ranks, below which the ranks count as equal."""


def text(found: Ranks, count: int | None = None) -> str:
    """Return the text of `allocsim ranks`.

    count: number of ranks to list; 0 for all, None for as many as fit one screen.
    """
    lines = [*_verdict(found), *_imbalance_rows(found), ""]
    lines.append(f"{_FIGURES.format(*_HEADS)}file")
    runs = sorted(found.runs, key=lambda run: (-run.reserved_bytes, run.rank or 0))
    shown = runs[: (_ROWS if count is None else count) or None]
    lines += map(_row, shown)
    rest = runs[len(shown) :]
    if rest:
        low, high = (format_size(each.reserved_bytes) for each in (rest[-1], rest[0]))
        lines.append(f"{'':6} {len(rest):,} more, {low} to {high} reserved (-n 0)")
    for refused in found.refused:
        lines += paragraph(f"not read: {refused.error}", 0)
    for note in found.notes:
        lines += paragraph(f"note: {note}", 0)
    return "\n".join(lines) + "\n"


def _verdict(found: Ranks) -> list[str]:
    first, middle = found.decides, found.median_bytes
    size = format_size(first.reserved_bytes)
    text = f"rank {first.rank} needs the most: {size} reserved at the peak"
    if first.reserved_bytes > middle:
        more = format_size(first.reserved_bytes - middle)
        text += f", {more} more than the median rank"
    lines = row("Verdict", text)
    of = len(found.runs) + len(found.refused)
    read = f"{len(found.runs):,} of {plural(of, 'recording')}"
    conf = "" if found.conf is None else f", under {found.conf or 'the defaults'}"
    lines += row("Ranks", f"{read}{conf}")
    if found.smallest_device is not None:
        lines += row("Smallest device", f"{format_size(found.smallest_device)} for every rank")
    if found.failed:
        named = ", ".join(str(run.rank) for run in found.failed[:_ROWS])
        more = f" and {len(found.failed) - _ROWS} more" if len(found.failed) > _ROWS else ""
        ranks = "rank" if len(found.failed) == 1 else "ranks"
        lines += row("Out of memory", f"{ranks} {named}{more}")
    return lines


def _imbalance_rows(found: Ranks) -> list[str]:
    low, high = (format_size(run.reserved_bytes) for run in (found.least, found.decides))
    text = f"{low} to {high} reserved; the maximum is {found.imbalance:.2f} times the mean"
    text += f", for allocated memory {found.allocated_imbalance:.2f} times"
    lines = row("Imbalance", text)
    if found.imbalance < _APART:
        return lines
    if found.allocated_imbalance < _APART:
        return lines + row(
            "", "the ranks request the same: the cause is fragmentation, see allocsim tune"
        )
    return lines + row("", "the ranks request different amounts: see allocsim compare")


def _row(run: RankRun) -> str:
    figures = _FIGURES.format(
        run.rank,
        format_size(run.reserved_bytes),
        format_size(run.allocated_bytes),
        format_size(run.unused_bytes),
        "" if run.retries is None else f"{run.retries:,}",
        "" if run.ooms is None else f"{run.ooms:,}",
    )
    width = WIDTH - len(figures)
    path = printable(run.path)
    return figures + (path if len(path) <= width else f"…{path[-(width - 1) :]}")


def document(found: Ranks) -> dict[str, Any]:
    return {
        **fields(found, "decides=decides.rank peak_reserved_bytes=decides.reserved_bytes"),
        **fields(found, "median_reserved_bytes=median_bytes imbalance allocated_imbalance"),
        "smallest_device_bytes": found.smallest_device,
        "out_of_memory": [run.rank for run in found.failed],
        "conf": found.conf,
        "ranks": [fields(run, _RANK) for run in found.runs],
        "refused": [asdict(each) for each in found.refused],
        "notes": list(found.notes),
    }
