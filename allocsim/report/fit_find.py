"""Answers of `allocsim fit --find`: the largest size that fits, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from allocsim.fitting import Estimate, Fewest, Frontier, Largest, Ran, Task, TriedSize
from allocsim.phantom import Gpu
from allocsim.report.fit import bar_of, note_rows, retries
from allocsim.report.layout import LABEL, exact_size, number, plural, row, table
from allocsim.units import format_range, format_size


def largest_fit_text(task: Task, gpu: Gpu, found: Largest) -> str:
    """Return the text of `allocsim fit --find`."""
    name = found.name
    more = found.value + found.step
    if found.fitting is None:
        verdict = f"not even {name}={found.step} fits {gpu.name}"
    elif found.failing is None:
        verdict = f"{name}={found.value:,} fits {gpu.name}, and is the maximum of the model"
    else:
        verdict = f"{name}={found.value:,} is the largest that fits {gpu.name}; {more:,} does not"
    lines = row("Verdict", verdict)
    if found.fitting is not None:
        lines += _memory_of(found.fitting, gpu)
        task = task.at(name, found.value)
    lines += row("Program", task.text)
    return "\n".join([*lines, *note_rows(found.notes), "", *_tried(name, found.tried)]) + "\n"


def _memory_of(ran: Ran | Estimate, gpu: Gpu, where: str = "") -> list[str]:
    """Return a row with the peak of a successful run, and its bar of the memory of `gpu`.

    ran: run on `gpu`, or on an unlimited card.
    where: step and phase of the peak, as in `_where`.
    """
    peak = ran.peak_reserved_bytes
    if isinstance(ran, Estimate):
        what = f"{format_range(*ran.process_bytes)} on the card{where}"
    else:
        what = f"{exact_size(peak)} reserved at the peak{where}{retries(ran)}"
    lines = row("Memory", what)
    return [*lines, " " * LABEL + bar_of(peak, gpu.room)]


def _tried(name: str, tried: Sequence[TriedSize]) -> list[str]:
    """Return a table of the runs of a search; `name` is the searched size, e.g. "batch"."""
    rows: list[tuple[str, ...]] = [(name, "reserved", "")]
    for each in tried:
        on = ("fits" if each.fits else "runs out of memory") if each.is_limited else "without limit"
        rows.append((number(each.value), format_size(each.peak_reserved_bytes), on))
    lines = ["  " + line for line in table(rows, (10, 14, 22))]
    return [*row("Run", plural(len(tried), "program")), *lines]


def largest_fit_document(task: Task, gpu: Gpu, found: Largest) -> dict[str, Any]:
    """Return the document of `allocsim fit --find --json`."""
    answer = {"find": found.name, "largest": found.value or None}
    return _search_document(task, gpu, answer, found)


def _search_document(
    task: Task, gpu: Gpu, answer: dict[str, Any], found: Largest | Fewest
) -> dict[str, Any]:
    """Return the JSON keys that all searches share, after those of `answer`.

    answer: name of the searched size, and its result.
    """
    fitting = found.fitting
    return {
        "fits": fitting is not None,
        **answer,
        "gpu": gpu.name,
        "device_memory": gpu.memory,
        "peak_reserved_bytes": None if fitting is None else fitting.peak_reserved_bytes,
        "peak_allocated_bytes": None if fitting is None else fitting.peak_allocated_bytes,
        "engine": found.engine,
        "program": task.text,
        "tried": _tried_plain(found.tried),
        "notes": list(found.notes),
    }


def _tried_plain(tried: Sequence[TriedSize]) -> list[dict[str, Any]]:
    return [
        {
            "value": each.value,
            "fits": each.fits,
            "is_limited": each.is_limited,
            "peak_reserved_bytes": each.peak_reserved_bytes,
        }
        for each in tried
    ]


def frontier_text(task: Task, gpu: Gpu, found: Frontier) -> str:
    """Return the text of `allocsim fit --find batch,seq`."""
    at = [f"{largest.value:,} at {found.other}={value:,}" for value, largest in found.rows]
    verdict = f"the largest {found.name} that fits {gpu.name}: {', '.join(at)}"
    if not found.fits:
        verdict = f"no {found.name} fits {gpu.name} at any of these values of {found.other}"
    lines = row("Verdict", verdict)
    lines += row("Program", task.text_with(f"{found.name} and {found.other} as below"))
    rows: list[tuple[str, ...]] = [(found.other, found.name, "reserved", "to spare", "next value")]
    rows += [_frontier_row(gpu, value, largest) for value, largest in found.rows]
    lines += [*note_rows(found.notes), "", *table(rows, (9, 10, 14, 14, 22)), ""]
    return "\n".join([*lines, *row("Run", plural(_count(found), "program")), ""])


def _frontier_row(gpu: Gpu, value: int, found: Largest) -> tuple[str, ...]:
    following = f"{found.value + found.step:,} "
    following += "runs out of memory" if found.failing is not None else "is not possible"
    if found.fitting is None:
        return number(value), "none", "", "", following
    peak = found.fitting.peak_reserved_bytes
    sizes = format_size(peak), format_size(gpu.room - peak)
    return (number(value), number(found.value), *sizes, following)


def _count(found: Frontier) -> int:
    """Return the number of programs run for all points of the frontier."""
    return sum(len(largest.tried) for _, largest in found.rows)


def frontier_document(task: Task, gpu: Gpu, found: Frontier) -> dict[str, Any]:
    """Return the document of `allocsim fit --find batch,seq --json`."""
    return {
        "fits": found.fits,
        "find": [found.name, found.other],
        "gpu": gpu.name,
        "device_memory": gpu.memory,
        "engine": found.rows[0][1].engine,
        "program": task.text_with(f"{found.name} and {found.other} of the frontier"),
        "frontier": [
            {"at": {found.other: value}, **_largest(largest)} for value, largest in found.rows
        ],
        "notes": list(found.notes),
    }


def _largest(found: Largest) -> dict[str, Any]:
    """Return one point of a frontier as JSON."""
    fitting = found.fitting
    return {
        "largest": found.value or None,
        "peak_reserved_bytes": None if fitting is None else fitting.peak_reserved_bytes,
        "peak_allocated_bytes": None if fitting is None else fitting.peak_allocated_bytes,
        "tried": _tried_plain(found.tried),
    }


def fewest_text(task: Task, gpu: Gpu, found: Fewest) -> str:
    """Return the text of `allocsim fit --find gpus`."""
    if found.fitting is None:
        lines = row("Verdict", f"it does not fit on up to {found.tried[-1].value:,} x {gpu.name}")
    else:
        lines = row(
            "Verdict", f"{found.ranks} x {gpu.name} are the fewest that fit, among powers of two"
        )
        lines += _memory_of(found.fitting, gpu, ", on the first card")
        task = replace(task, ranks=found.ranks or 1)
    lines += row("Program", task.text)
    return "\n".join([*lines, *note_rows(found.notes), "", *_tried("gpus", found.tried)]) + "\n"


def fewest_document(task: Task, gpu: Gpu, found: Fewest) -> dict[str, Any]:
    """Return the document of `allocsim fit --find gpus --json`."""
    answer = {"find": "gpus", "fewest": found.ranks}
    return _search_document(task, gpu, answer, found)
