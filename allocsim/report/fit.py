"""Answer of `allocsim fit`: does a model fit a card?  As text and as JSON.

All sizes come from the simulated run of the model.  A size that is only known as a range is shown
as a range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from allocsim.analysis.top import Top
from allocsim.fitting import Fewest, Fit, Frontier, Largest, Ran, Task, TriedSize
from allocsim.phantom import Gpu
from allocsim.report.layout import LABEL, WIDTH, exact_size, number, plural, row, table
from allocsim.report.recommendation import paste_line
from allocsim.report.spill import spill_document, spill_rows
from allocsim.units import format_size

_IDLE = "reserved and not allocated"
_BAR = WIDTH - LABEL - 26


def fit_text(fit: Fit, top: Top, spilled: Top | None = None, failed: Top | None = None) -> str:
    """Return the text of `allocsim fit` for one card.

    top: memory at the peak, by category.
    spilled: memory requested after the card was full; None if all memory is on the card.
    failed: memory at the failed request; None if none failed.
    """
    ran = fit.ran
    lines = row("Verdict", fit.headline())
    lines += _failed(fit, failed)
    before = "" if fit.failure is None else ", before memory ran out"
    memory = f"{exact_size(ran.peak_reserved_bytes)} reserved at the peak, "
    memory += f"{format_size(ran.peak_allocated_bytes)} allocated{before}"
    lines += row("Memory", memory + _retries(ran))
    lines += [" " * LABEL + _bar(ran.peak_reserved_bytes, fit.room_bytes)]
    lines += [] if fit.lent is None else spill_rows(fit.lent, spilled)
    low, high = fit.process_bytes
    lines += row(
        "Process",
        f"{format_size(low)} to {format_size(high)} with the CUDA context and its libraries, which "
        "depend on the driver and the kernels",
    )
    lines += _held_by(fit, top) if failed is None else _held_at_failure(fit, failed)
    lines.append("")
    if not fit.fits and fit.recommendation is not None:
        lines += paste_line(fit.recommendation)
    lines += _grounds(fit)
    lines += _notes(fit.notes)
    return "\n".join(lines) + "\n"


def _notes(notes: Sequence[str]) -> list[str]:
    return [line for note in notes for line in row("Note", note)]


def _retries(ran: Ran) -> str:
    """Return a note on retries: emptied caches, which cost time; [] without retries."""
    count = ran.device_run.stats["num_alloc_retries"]
    return f"; {plural(count, 'retry', 'retries')} emptied the cache" if count else ""


def _failed(fit: Fit, failed: Top | None) -> list[str]:
    failure = fit.failure
    if failure is None:
        return []
    where = "" if failed is None else _where(failed)
    then = f"{format_size(failure.reserved_bytes)} reserved and "
    then += f"{format_size(failure.allocated_bytes)} allocated then"
    tried = format_size(failure.tried_bytes)
    return row("Fails", f"{where}at a request that needs {tried}; {then}")


def _where(top: Top) -> str:
    """Return the step and phase of the peak, e.g. "in step 2, backward, "; "" if unknown."""
    parts = [f"step {top.at.step}"] * bool(top.at.step) + [top.at.phase] * bool(top.at.phase)
    return f"in {', '.join(parts)}, " if parts else ""


def _bar(used: int, room: int) -> str:
    """Return a bar of `used` bytes of `room`, e.g. "█████░░░░░ 19.85 GiB of 23.15 GiB"."""
    full = min(round(_BAR * used / max(room, 1)), _BAR)
    of = f"{format_size(used)} of {format_size(room)}"
    return "█" * full + "░" * (_BAR - full) + f" {of}"


def _held_by(fit: Fit, top: Top) -> list[str]:
    what = f"{_where(top) or 'at the peak, '}{format_size(top.allocated_bytes)} allocated:"
    return _held(what, _breakdown(fit.ran.peak_reserved_bytes, top))


def _held_at_failure(fit: Fit, failed: Top) -> list[str]:
    assert fit.failure is not None
    what = (
        f"at the failed request, {_where(failed)}{format_size(failed.allocated_bytes)} allocated:"
    )
    return _held(what, _breakdown(fit.failure.reserved_bytes, failed))


def _held(what: str, breakdown: dict[str, int]) -> list[str]:
    lines = row("Held by", what)
    reserved = max(sum(breakdown.values()), 1)
    for name, size in breakdown.items():
        lines.append(f"{format_size(size):>{LABEL + 10}} {size / reserved:5.0%}  {name}")
    return lines


def _breakdown(reserved: int, top: Top) -> dict[str, int]:
    """Return the allocated bytes by category, and the unused bytes of `reserved`."""
    return {**top.categories, _IDLE: reserved - top.allocated_bytes}


def _grounds(fit: Fit) -> list[str]:
    """Return lines about the model and its options, and about how the answer was computed."""
    ran = fit.ran
    lines = row("Program", fit.program if fit.task is None else f"{fit.task.text}")
    found = ran.as_recorded.fidelity
    proof = ""
    if found is not None:
        proof = f"; {number(found.entries_matched)} of {number(found.entries)} entries replay as "
        proof += "recorded"
    by = f"PyTorch {ran.torch_version} on a phantom {ran.gpu.name}, {ran.seconds:.0f} s{proof}"
    if ran.engine == "laws":
        law = f"laws of PyTorch {ran.torch_version}, transformers {ran.transformers}"
        return lines + row("Computed by", f"{law}, without running the program")
    return lines + row("Run by", by)


def fit_document(
    fit: Fit, top: Top, spilled: Top | None = None, failed: Top | None = None
) -> dict[str, Any]:
    """Return the document of `allocsim fit --json` for one card; parameters as in `fit_text`."""
    return _document(fit) | {
        "breakdown": _breakdown(fit.ran.peak_reserved_bytes, top),
        "failure": _failure(fit, failed),
        **_spill(fit, spilled),
        "at": {"step": top.at.step or None, "phase": top.at.phase or None},
        "program": fit.program,
    }


def _failure(fit: Fit, failed: Top | None) -> dict[str, Any] | None:
    failure = fit.failure
    if failure is None or failed is None:
        return None
    return {
        "entry": failure.entry,
        "step": failed.at.step or None,
        "phase": failed.at.phase or None,
        "tried_bytes": failure.tried_bytes,
        "reserved_bytes": failure.reserved_bytes,
        "allocated_bytes": failure.allocated_bytes,
        "breakdown": _breakdown(failure.reserved_bytes, failed),
    }


def _spill(fit: Fit, spilled: Top | None) -> dict[str, Any]:
    if fit.lent is None or fit.lent.spill is None:
        return {}
    return {
        "spill": {"runs": fit.runs_on_loan, **spill_document(fit.lent, fit.lent.spill, spilled)}
    }


def _document(fit: Fit) -> dict[str, Any]:
    ran, oom = fit.ran, fit.ran.oom
    best = None if fit.recommendation is None else fit.recommendation.best
    return {
        "fits": fit.fits,
        "gpu": ran.gpu.name,
        "device_memory": ran.gpu.memory,
        "context_memory": ran.gpu.context_memory,
        "peak_reserved_bytes": ran.peak_reserved_bytes,
        "peak_allocated_bytes": ran.peak_allocated_bytes,
        "peak_reserved_bytes_keeping_up": _reserved(fit.keeping_up),
        "peak_reserved_bytes_skewed": _reserved(fit.skewed),
        "needed_bytes": fit.needed_bytes,
        "unlimited_peak_reserved_bytes": _unlimited(fit),
        "num_alloc_retries": ran.device_run.stats["num_alloc_retries"],
        "process_bytes": list(fit.process_bytes),
        "engine": ran.engine,
        "torch_version": ran.torch_version,
        "transformers": ran.transformers,
        "conf": fit.conf,
        "oom": None if oom is None else {"entry": oom.entry, "message": oom.message},
        "helps": None if best is None else best.setting.conf,
        "seconds": round(ran.seconds, 3),
        "notes": list(fit.notes),
    }


def _unlimited(fit: Fit) -> int | None:
    """Return the reserved bytes at the peak on an unlimited card; None if the program fits."""
    return _reserved(fit.unlimited)


def _reserved(there: Ran | None) -> int | None:
    """Return the reserved bytes at the peak of a run; None without a run, or if it failed."""
    return None if there is None or there.is_out_of_memory else there.peak_reserved_bytes


def fits_text(fits: Sequence[Fit]) -> str:
    """Return the text of `allocsim fit` for several cards."""
    rows: list[tuple[str, ...]] = [("card", "memory", "needs", "to spare", "")]
    for fit in fits:
        verdict = "fits" if fit.fits else "does not"
        peak = fit.needed_bytes or fit.ran.peak_reserved_bytes
        sizes = (format_size(fit.gpu.memory), format_size(peak), _signed(fit.spare_bytes))
        rows.append((fit.gpu.name, *sizes, verdict))
    lines = table(rows, (30, 13, 13, 13, 11))
    first = fits[0]
    notes = dict.fromkeys(note for fit in fits for note in fit.notes)
    lines += ["", *row("Program", first.task.text if first.task else first.program)]
    return "\n".join([*lines, *_notes(list(notes)), ""])


def _signed(size: int) -> str:
    return format_size(size) if size >= 0 else f"-{format_size(-size)}"


def fits_document(fits: Sequence[Fit]) -> dict[str, Any]:
    """Return the document of `allocsim fit --json` for several cards, with the first that fits."""
    first = next((fit for fit in fits if fit.fits), fits[0])
    return _document(first) | {"cards": [_document(fit) for fit in fits], "program": first.program}


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
    return "\n".join([*lines, *_notes(found.notes), "", *_tried(name, found.tried)]) + "\n"


def _memory_of(ran: Ran, gpu: Gpu, where: str = "") -> list[str]:
    """Return a row with the peak of a successful run, and its bar of the memory of `gpu`.

    ran: run on `gpu`, or on an unlimited card.
    where: step and phase of the peak, as in `_where`.
    """
    peak = ran.peak_reserved_bytes
    lines = row("Memory", f"{exact_size(peak)} reserved at the peak{where}{_retries(ran)}")
    return [*lines, " " * LABEL + _bar(peak, gpu.room)]


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
    lines += [*_notes(found.notes), "", *table(rows, (9, 10, 14, 14, 22)), ""]
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
    return "\n".join([*lines, *_notes(found.notes), "", *_tried("gpus", found.tried)]) + "\n"


def fewest_document(task: Task, gpu: Gpu, found: Fewest) -> dict[str, Any]:
    """Return the document of `allocsim fit --find gpus --json`."""
    answer = {"find": "gpus", "fewest": found.ranks}
    return _search_document(task, gpu, answer, found)
