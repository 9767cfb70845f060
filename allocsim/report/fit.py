"""Answer of `allocsim fit`: does a model fit a card?  As text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from allocsim.analysis.top import Top
from allocsim.fitting import BY_LAW, WARNING, Advice, Change, Estimate, Fit, Ran
from allocsim.report.answer import Part, answer_of, paste_line
from allocsim.report.fit_served import NO_RUN
from allocsim.report.layout import LABEL, WIDTH, exact_size, fields, plural, row, rows, table
from allocsim.report.spill import spill_document, spill_rows
from allocsim.units import format_range, format_size

_CARD = "gpu=gpu.name device_memory=gpu.memory context_memory=gpu.context_memory"
_IDLE = "reserved and not allocated"
_BAR = WIDTH - LABEL - 26
_VISIBLE = 100
"""Divisor: parts below 1/100 of the memory are not shown."""
_READ = "; ignored "
"""Words of a note on ignored configuration keys; a note with these words is always shown."""
_MOST_READ = 8
"""Largest number of lines shown of the note on ignored configuration keys; JSON has all."""
_RELEASE = "transformers "
"""First words of the note that the laws (formulas) are for another version of transformers.

This note is shown before others.
"""
_MORE = "--json: every figure and note"


def text(
    fits: Sequence[Fit | Estimate],
    advice: Advice | None = None,
    top: Top | None = None,
    spilled: Top | None = None,
    failed: Top | None = None,
) -> str:
    """Return the text of `allocsim fit`: at most a screen for one card, a table for several.

    fits: answer for each card.
    advice: changes that would change the verdict; None for a user's own program.
    top: memory at the peak, by category; None for an estimate.
    spilled: memory requested after the driver began to use host memory; None if it used none.
    failed: memory at the failed request; None if none failed.
    """
    if len(fits) > 1:
        return _text_of_cards(fits)
    (fit,) = fits
    stored = "" if advice is None else _stored(advice)
    warnings = note_rows(fit.notes, is_warning=True)
    parts = [Part(warnings), Part(row("Verdict", fit.headline() + stored))]
    changes = Part([] if advice is None else _changes(advice), starts=True)
    if isinstance(fit, Estimate):
        parts += [*_estimated(fit), changes, *_remarks(fit.notes)]
        return str(answer_of(parts, _MORE))
    assert top is not None
    ran = fit.ran
    before = "" if fit.failure is None else ", before memory ran out"
    memory = f"{exact_size(ran.peak_reserved_bytes)} reserved at the peak, "
    memory += f"{format_size(ran.peak_allocated_bytes)} allocated{before}"
    bar = " " * LABEL + bar_of(ran.peak_reserved_bytes, fit.room_bytes)
    parts += [
        Part(_failed(fit, failed), rank=5),
        Part([*row("Memory", memory + retries(ran)), bar]),
        Part([] if fit.lent is None else spill_rows(fit.lent, spilled)),
        Part(row("Process", f"{format_range(*fit.process_bytes)} with the CUDA context"), rank=4),
        Part(_held_by(fit, top, failed), rank=3),
    ]
    parts.append(changes)
    if not fit.fits and fit.recommendation is not None and fit.recommendation.best is not None:
        parts.append(Part(paste_line(fit.recommendation), starts=True))
    parts += [*_grounds(fit), *_remarks(fit.notes)]
    return str(answer_of(parts, _MORE))


def _stored(advice: Advice) -> str:
    text, other = f"; {advice.stored}", advice.alternative
    if other is None:
        return text
    verdict = "fits" if other.fits else "does not fit"
    how = "fp32 master weights" if other.task.autocast_dtype else f"all in {other.task.dtype}"
    return f"{text}; with {how} ({other.options}) it {verdict}"


def _changes(advice: Advice) -> list[str]:
    texts = []
    for change in advice.changes:
        size = format_size(change.peak_reserved_bytes)
        by = ", by formula" * (change.engine == "formula")
        texts.append(f"{change.options}: {size}{by}, {change.effect}")
    return rows("Make it fit", texts)


def _remarks(notes: Sequence[str]) -> list[Part]:
    shown = (note for note in notes if not note.startswith((BY_LAW, WARNING)))
    parts = []
    for i, note in enumerate(shown):
        lines = row("Note", note)
        if _READ in note:
            if len(lines) > _MOST_READ:
                lines[_MOST_READ - 1 :] = row("", "... and more (--json)")
            parts.append(Part(lines))
        else:
            parts.append(Part(lines, rank=2 if note.startswith(_RELEASE) else 4 + i))
    return parts


def _estimated(found: Estimate) -> list[Part]:
    low, high = found.process_bytes
    lines = row("Memory", f"{format_range(low, high)} on the card:")
    for each in found.parts:
        if each.high * _VISIBLE >= high:
            lines.append(f"{format_range(each.low, each.high):>{LABEL + 24}}  {each.name}")
    return [
        Part(lines),
        Part(row("Program", found.task.text), starts=True),
        Part(row("Computed by", f"formula: {found.source}"), rank=2),
        Part(row("Why", found.reason) if found.reason else (), rank=1),
    ]


def note_rows(notes: Sequence[str], *, is_warning: bool = False) -> list[str]:
    """Return report lines for the warnings among `notes`, or for all other notes.

    is_warning: True for the notes that are warnings, False for all others.
    """
    label, start = ("Warning", len(WARNING)) if is_warning else ("Note", 0)
    chosen = (each[start:] for each in notes if each.startswith(WARNING) == is_warning)
    return [line for each in chosen for line in row(label, each)]


def retries(ran: Ran) -> str:
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
    parts = [f"step {top.at.step}"] * bool(top.at.step) + [top.at.phase] * bool(top.at.phase)
    return f"in {', '.join(parts)}, " if parts else ""


def bar_of(used: int, room: int) -> str:
    """Return a bar of `used` bytes of `room`, e.g. "█████░░░░░ 19.85 GiB of 23.15 GiB"."""
    full = min(round(_BAR * used / max(room, 1)), _BAR)
    of = f"{format_size(used)} of {format_size(room)}"
    return "█" * full + "░" * (_BAR - full) + f" {of}"


def _held_by(fit: Fit, top: Top, failed: Top | None) -> list[str]:
    at, held, reserved = _where(top) or "at the peak, ", top, fit.ran.peak_reserved_bytes
    if fit.failure is not None and failed is not None:
        at, held = f"at the failed request, {_where(failed)}", failed
        reserved = fit.failure.reserved_bytes
    lines = row("Held by", f"{at}{format_size(held.allocated_bytes)} allocated:")
    parts = _breakdown(reserved, held)
    total = max(sum(parts.values()), 1)
    for name, size in parts.items():
        if size * _VISIBLE >= total:
            lines.append(f"{format_size(size):>{LABEL + 10}} {size / total:5.0%}  {name}")
    return lines


def _breakdown(reserved: int, top: Top) -> dict[str, int]:
    return {**top.categories, _IDLE: reserved - top.allocated_bytes}


def _grounds(fit: Fit) -> list[Part]:
    ran = fit.ran
    text = fit.program if fit.task is None else fit.task.text
    if ran.engine == "laws":
        drift = "" if fit.drift is None else f" ({fit.drift.text} in other releases)"
        by = f"laws of PyTorch {ran.torch_version}, transformers {ran.transformers}{drift}, "
        by += "recorded over a phantom A100; --engine program runs the program itself"
        line = row("Computed by", by)
    else:
        found, proof = ran.as_recorded.fidelity, ""
        if found is not None:
            proof = f"; {found.entries_matched:,} of {found.entries:,} entries replay "
            proof += "as recorded"
        where = f"on a phantom {ran.gpu.name}, {ran.seconds:.0f} s"
        line = row("Run by", f"PyTorch {ran.torch_version} {where}{proof}")
    return [Part(row("Program", text), rank=1, starts=True), Part(line, rank=2)]


def document(
    fits: Sequence[Fit | Estimate],
    advice: Advice | None = None,
    top: Top | None = None,
    spilled: Top | None = None,
    failed: Top | None = None,
) -> dict[str, Any]:
    """Return the JSON document of `allocsim fit`; the parameters are those of `text`."""
    if len(fits) > 1:
        first = next((fit for fit in fits if fit.fits), fits[0])
        return _document(first) | {"cards": list(map(_document, fits)), "program": _program(first)}
    (fit,) = fits
    if isinstance(fit, Estimate):
        unknown = {"failure": None, "at": {"step": None, "phase": None}}
        return _document(fit) | unknown | {"program": fit.task.text} | _advice(advice)
    assert top is not None
    spill = {}
    if fit.lent is not None and fit.lent.spill is not None:
        owners = spill_document(fit.lent, fit.lent.spill, spilled)
        spill = {"spill": {"runs": fit.runs_on_loan, **owners}}
    return {
        **_document(fit),
        **_advice(advice),
        "breakdown": _breakdown(fit.ran.peak_reserved_bytes, top),
        "failure": _failure(fit, failed),
        **spill,
        "at": {"step": top.at.step or None, "phase": top.at.phase or None},
        "program": fit.program,
    }


def _advice(advice: Advice | None) -> dict[str, Any]:
    if advice is None:
        return {"stored": None, "alternative": None, "changes": []}
    other = advice.alternative
    return {
        "stored": advice.stored,
        "alternative": None if other is None else _change(other),
        "changes": list(map(_change, advice.changes)),
    }


def _change(change: Change) -> dict[str, Any]:
    return fields(change, "options effect fits peak_reserved_bytes spare_bytes engine gpu=gpu.name")


def _failure(fit: Fit, failed: Top | None) -> dict[str, Any] | None:
    failure = fit.failure
    if failure is None or failed is None:
        return None
    return {
        **asdict(failure),
        "step": failed.at.step or None,
        "phase": failed.at.phase or None,
        "breakdown": _breakdown(failure.reserved_bytes, failed),
    }


def _document(fit: Fit | Estimate) -> dict[str, Any]:
    if isinstance(fit, Estimate):
        return _estimate_document(fit)
    ran, oom = fit.ran, fit.ran.oom
    best = None if fit.recommendation is None else fit.recommendation.best
    peak = fit.needed_bytes or ran.peak_reserved_bytes
    return {
        "fits": fit.fits,
        **fields(ran, _CARD),
        **fields(ran, "peak_reserved_bytes peak_allocated_bytes"),
        "peak_reserved_bytes_keeping_up": _reserved(fit.keeping_up),
        "peak_reserved_bytes_skewed": _reserved(fit.skewed),
        "needed_bytes": fit.needed_bytes,
        "unlimited_peak_reserved_bytes": _reserved(fit.unlimited),
        "num_alloc_retries": ran.device_run.stats["num_alloc_retries"],
        "process_bytes": list(fit.process_bytes),
        **({} if fit.drift is None else {"ranges": {"reserved": list(fit.drift.of(peak))}}),
        **fields(ran, "engine torch_version transformers"),
        "conf": fit.conf,
        "oom": None if oom is None else fields(oom, "entry message"),
        "helps": None if best is None else best.setting.conf,
        "seconds": round(ran.seconds, 3),
        "notes": list(fit.notes),
    }


def _estimate_document(found: Estimate) -> dict[str, Any]:
    # A key that cannot hold a range has its upper end.
    return NO_RUN | {
        "fits": found.fits,
        **fields(found, _CARD),
        **fields(found, "peak_reserved_bytes peak_allocated_bytes needed_bytes"),
        "process_bytes": list(found.process_bytes),
        "engine": found.engine,
        "notes": [*filter(None, [found.reason]), *found.notes],
        "breakdown": {each.name: each.high for each in found.parts},
        "ranges": {each.name: [each.low, each.high] for each in found.parts},
        "source": found.source,
    }


def _reserved(there: Ran | None) -> int | None:
    return None if there is None or there.is_out_of_memory else there.peak_reserved_bytes


def _text_of_cards(fits: Sequence[Fit | Estimate]) -> str:
    reasons = [fit.reason for fit in fits if isinstance(fit, Estimate)]
    rows: list[tuple[str, ...]] = [("card", "memory", "needs", *["to spare"] * (not reasons), "")]
    for fit in fits:
        verdict = {True: "fits", None: "may not", False: "does not"}[fit.fits]
        memory = format_size(fit.gpu.memory)
        sizes = [format_range(*fit.process_bytes)]
        if not reasons and isinstance(fit, Fit):
            peak = fit.needed_bytes or fit.ran.peak_reserved_bytes
            sizes = [format_size(peak), _signed(fit.spare_bytes)]
        rows.append((fit.gpu.name, memory, *sizes, verdict))
    widths = (30, 12, 27, 11) if reasons else (30, 13, 13, 13, 11)
    lines = table(rows, widths)
    lines += ["", *row("Program", _program(fits[0]))]
    if reasons:
        lines += row("Ranges", f"by formula, where {reasons[0]}")
    notes = dict.fromkeys(note for fit in fits for note in fit.notes)
    warnings = note_rows(list(notes), is_warning=True)
    return "\n".join([*warnings, *lines, *note_rows(list(notes)), ""])


def _program(fit: Fit | Estimate) -> str:
    if fit.task is not None:
        return fit.task.text
    assert isinstance(fit, Fit)
    return fit.program


def _signed(size: int) -> str:
    return format_size(size) if size >= 0 else f"-{format_size(-size)}"
