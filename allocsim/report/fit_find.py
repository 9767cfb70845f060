"""Answers of `allocsim fit --find`: the largest size that fits, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from allocsim.fitting import Estimate, Fewest, Frontier, Largest, Ran, Task, TriedSize
from allocsim.phantom import Gpu
from allocsim.report.fit import bar_of, note_rows, retries
from allocsim.report.layout import LABEL, exact_size, fields, plural, row, table
from allocsim.units import format_range, format_size

Found = Largest | Fewest | Frontier


def document(task: Task, gpu: Gpu, found: Found) -> dict[str, Any]:
    if isinstance(found, Frontier):
        rows = [{"at": {found.other: value}, **_document_of(each)} for value, each in found.rows]
        given = {
            "find": [found.name, found.other],
            "engine": found.rows[0][1].engine,
            "program": task.text_with(f"{found.name} and {found.other} of the frontier"),
            "frontier": rows,
        }
    else:
        given = {
            "find": found.name if isinstance(found, Largest) else "gpus",
            "engine": found.engine,
            "program": task.text,
            **_document_of(found),
        }
    return {
        "fits": found.fits,
        "gpu": gpu.name,
        "device_memory": gpu.memory,
        **given,
        "notes": list(found.notes),
    }


def _document_of(found: Largest | Fewest) -> dict[str, Any]:
    answer: dict[str, Any] = (
        {"fewest": found.ranks} if isinstance(found, Fewest) else {"largest": found.value or None}
    )
    return answer | {
        **fields(found.fitting, "peak_reserved_bytes peak_allocated_bytes"),
        "tried": [asdict(each) for each in found.tried],
    }


def text(task: Task, gpu: Gpu, found: Found) -> str:
    if isinstance(found, Frontier):
        return _frontier_text(task, gpu, found)
    name = found.name if isinstance(found, Largest) else "gpus"
    lines = row("Verdict", _verdict(gpu, found))
    if found.fitting is not None:
        where = "" if isinstance(found, Largest) else ", on the first card"
        lines += _memory_rows(found.fitting, gpu, where)
        if isinstance(found, Largest):
            task = task.at(name, found.value)
        else:
            task = replace(task, ranks=found.ranks or 1)
    lines += row("Program", task.text)
    return "\n".join([*lines, *note_rows(found.notes), "", *_tried(name, found.tried)]) + "\n"


def _verdict(gpu: Gpu, found: Largest | Fewest) -> str:
    if isinstance(found, Fewest):
        if found.fitting is None:
            return f"it does not fit on up to {found.tried[-1].value:,} x {gpu.name}"
        return f"{found.ranks} x {gpu.name} are the fewest that fit, among powers of two"
    name, more = found.name, found.value + found.step
    if found.fitting is None:
        return f"not even {name}={found.step} fits {gpu.name}"
    if found.failing is None:
        return f"{name}={found.value:,} fits {gpu.name}, and is the maximum of the model"
    return f"{name}={found.value:,} is the largest that fits {gpu.name}; {more:,} does not"


def _memory_rows(ran: Ran | Estimate, gpu: Gpu, where: str) -> list[str]:
    peak = ran.peak_reserved_bytes
    if isinstance(ran, Estimate):
        what = f"{format_range(*ran.process_bytes)} on the card{where}"
    else:
        what = f"{exact_size(peak)} reserved at the peak{where}{retries(ran)}"
    return [*row("Memory", what), " " * LABEL + bar_of(peak, gpu.room)]


def _tried(name: str, tried: Sequence[TriedSize]) -> list[str]:
    rows: list[tuple[str, ...]] = [(name, "reserved", "")]
    for each in tried:
        on = ("fits" if each.fits else "runs out of memory") if each.is_limited else "without limit"
        rows.append((f"{each.value:,}", format_size(each.peak_reserved_bytes), on))
    lines = ["  " + line for line in table(rows, (10, 14, 22))]
    return [*row("Run", plural(len(tried), "program")), *lines]


def _frontier_text(task: Task, gpu: Gpu, found: Frontier) -> str:
    at = [f"{largest.value:,} at {found.other}={value:,}" for value, largest in found.rows]
    verdict = f"the largest {found.name} that fits {gpu.name}: {', '.join(at)}"
    if not found.fits:
        verdict = f"no {found.name} fits {gpu.name} at any of these values of {found.other}"
    lines = row("Verdict", verdict)
    lines += row("Program", task.text_with(f"{found.name} and {found.other} as below"))
    rows: list[tuple[str, ...]] = [(found.other, found.name, "reserved", "to spare", "next value")]
    rows += [_frontier_row(gpu, value, largest) for value, largest in found.rows]
    lines += [*note_rows(found.notes), "", *table(rows, (9, 10, 14, 14, 22)), ""]
    n_programs = sum(len(largest.tried) for _, largest in found.rows)
    return "\n".join([*lines, *row("Run", plural(n_programs, "program")), ""])


def _frontier_row(gpu: Gpu, value: int, found: Largest) -> tuple[str, ...]:
    following = f"{found.value + found.step:,} "
    following += "runs out of memory" if found.failing is not None else "is not possible"
    if found.fitting is None:
        return f"{value:,}", "none", "", "", following
    peak = found.fitting.peak_reserved_bytes
    sizes = format_size(peak), format_size(gpu.room - peak)
    return (f"{value:,}", f"{found.value:,}", *sizes, following)
