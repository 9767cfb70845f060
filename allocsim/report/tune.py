"""Result of `allocsim tune`, the search for the best setting: full text, JSON, short answer.

Bytes and calls were counted in replays; times are estimates of a cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from allocsim.analysis.tune import SettingRow, Tuning
from allocsim.editing import EditTrial
from allocsim.recommend import WhyNot
from allocsim.replaying import Trial
from allocsim.report.answer import (
    EXPANDABLE_NOTE,
    FITTED_NOTE,
    NAME,
    TABLES,
    Answer,
    Part,
    Tone,
    answer_of,
    later_requests,
    owners_part,
    paste_lines,
    paste_setting,
    recommendation_document,
    said_first,
    to_paste,
)
from allocsim.report.layout import exact_size, fields, paragraph, plural, row, rows, table, warned
from allocsim.report.run_sections import (
    costs_document,
    driver_note,
    tried_edit_rows,
    tried_edits_document,
)
from allocsim.report.spill import Loan, tuning_spill_document, tuning_spill_rows
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top

_WIDTHS = (40, 12, 8, 9, 11)
_MOST_ROWS = 12
_SHOWN_EDITS = 2
_ROW = (
    "conf memory_fraction peak_reserved_bytes peak_allocated_bytes min_device_memory_bytes "
    "device_without_retries_bytes=unrefused_device num_alloc_retries num_device_alloc "
    "num_device_free num_ooms retries_on_min_device=device_point.retries survives is_baseline "
    "is_as_recorded dropped_at same_as=same_as.conf error"
)
_SHELLS = (("bash", "bash"), ("powershell", "PowerShell"), ("cmd", "cmd"), ("python", "Python"))


def text(
    tuning: Tuning,
    loan: Loan | None = None,
    tried: Sequence[EditTrial] = (),
    top: Top | None = None,
) -> str:
    """Return the text of `allocsim tune -v`.

    loan: simulated card, and host memory that its driver adds to it; None without host memory.
    tried: edits of the program that were replayed, the best first.
    """
    lines = warned(tuning.warnings) + rows("Recordings", tuning.files)
    lines += row("Release", f"PyTorch {tuning.torch_version}")
    lines += rows("Device memory", _devices(tuning))
    for note in tuning.notes:
        lines += row("Note", note)
    lines += tuning_spill_rows(tuning, loan)
    if tried:
        lines += ["", *tried_edit_rows(tried, len(tried))]
    lines += ["", *_answer(tuning), "", *_rows(tuning), "", *_front(tuning), "", *_work(tuning)]
    lines += owners_part(top).lines
    return "\n".join(lines) + "\n"


def _devices(tuning: Tuning) -> list[str]:
    found = []
    for file, device, memory in tuning.parts:
        name = ""
        if len(tuning.parts) > 1:
            name = f"device {device}: "
            if len(tuning.files) > 1:
                name = f"{file.rpartition('/')[2]}, {name}"
        found.append(name + ("unknown: no limit" if memory is None else exact_size(memory)))
    return found


def _answer(tuning: Tuning) -> list[str]:
    base, best = tuning.baseline, tuning.best
    label = "As recorded" if base.is_as_recorded else "Baseline"
    unproved = "unproved: " if tuning.warnings else ""
    lines = row(label, f"{unproved}{base.setting}: {_row_figures(tuning, base)}")
    if tuning.warnings:
        return lines + row("Answer", f"withheld: {tuning.reason}.")
    if best is None or not tuning.helps:
        return [*lines, *row("Answer", f"nothing helps: {tuning.reason}."), *_further_rows(tuning)]
    lines += row("Best", f"{best.setting}: {_row_figures(tuning, best)}")
    lines += row("", f"{tuning.reason}.")
    bounds, above = tuning.bounds, tuning.bounds.above_ideal(best.peak_reserved_bytes)
    lines += row(
        "Ideal",
        f"{format_size(bounds.peak_live_bytes)} live at once, the least for any allocator: the "
        f"best is {format_size(above)} above that. With every place chosen in advance, "
        f"{format_size(bounds.packed_bytes)} are enough.",
    )
    for shell, text in paste_lines(best.setting).items():
        label = dict(_SHELLS).get(shell, "and call")
        # A line to paste is never wrapped.
        lines.append(f"{'  ' + label:16}{text}")
    if tuning.needs is not None:
        lines += paragraph(f"({tuning.needs})")
    if tuning.entries_left is not None:
        lines += paragraph(later_requests(tuning.entries_left, "the error"))
    if tuning.recommendation is not None and tuning.recommendation.best is not None:
        lines += paragraph(FITTED_NOTE) if tuning.recommendation.best.is_fitted else []
    if "expandable_segments:True" in best.conf:
        lines += paragraph(EXPANDABLE_NOTE)
    return lines + _further_rows(tuning)


def _further_rows(tuning: Tuning) -> list[str]:
    found = tuning.further
    if found is None:
        return []
    return row(
        "Not to paste",
        f"{found.setting}: {_row_figures(tuning, found)}. It is fitted to "
        f"{'this recording' if len(tuning.files) == 1 else 'these recordings'}, and not proved on "
        "a part that did not select it.",
    )


def _row_figures(tuning: Tuning, found: SettingRow) -> str:
    if found.error is not None:
        return found.error
    retries = plural(found.num_alloc_retries, "retry", "retries")
    if found.fails_at is not None:
        # A run that ended early may need more than it reserved until then.
        failed = f"out of memory at entry {found.fails_at:,}, after {retries}"
        return f"{failed} and {plural(found.num_ooms, 'failed request')}"
    text = f"{format_size(found.peak_reserved_bytes)} reserved at the peak, {retries}"
    low, high = found.peak_range or (0, 0)
    if low < high:
        text += f" (from {format_size(low)} to {format_size(high)}, by the initial state)"
    device = found.min_device_memory_bytes
    if device is not None:
        kind = "smallest device" if tuning.by_device else "smallest device without retries"
        text += f"; {kind}: {format_size(device)}"
    return text


def _rows(tuning: Tuning) -> list[str]:
    whole = [each for each in tuning.rows if each.is_whole]
    shown = whole[:_MOST_ROWS]
    if tuning.baseline not in shown:
        shown.append(tuning.baseline)
    memory = "device" if tuning.by_device else "reserved"
    title = "Unproved figures, the best first" if tuning.warnings else "Settings, the best first"
    lines = table(
        [(title, memory, "calls", "retries", "driver")] + [_cells(tuning, each) for each in shown],
        _WIDTHS,
    )
    if left := len(tuning.rows) - len(shown):
        dropped = sum(each.dropped_at is not None for each in tuning.rows)
        lines += paragraph(
            f"and {plural(left, 'other')}; {plural(dropped, 'replay')} stopped when the setting "
            "could no longer win.",
            indent=2,
        )
    if any(each.cost.is_thrashing and each.survives for each in shown):
        lines += paragraph(
            "thrashing: releasing and allocating segments again takes longer than allocating the "
            "memory of the peak once.",
            indent=2,
        )
    lines += paragraph(
        "calls: cudaMalloc, cudaFree, map and unmap. driver: an estimate of their time, "
        f"{driver_note(tuning.costs)} (--costs FILE).",
        indent=2,
    )
    return lines


def _cells(tuning: Tuning, each: SettingRow) -> tuple[str, ...]:
    mark = "* " if each is tuning.best else "= " if each.is_baseline else "  "
    name = f"{mark}{each.setting}"
    if each.error is not None:
        return (f"{name}: {each.error}", "", "", "", "")
    if each.fails_at is not None:
        return (f"{name} (fails, entry {each.fails_at:,})", "-", "-", "-", "-")
    if each.cost.is_thrashing:
        name += " (thrashing)"
    point = (each.device_point if tuning.by_device else None) or each.point
    return (
        name,
        format_size(point.memory),
        f"{point.calls:,}",
        f"{point.retries:,}",
        f"{each.cost.total / 1000:,.1f} ms",
    )


def _front(tuning: Tuning) -> list[str]:
    if not tuning.front:
        return row("Trade-offs", "none: no tried setting serves every request")
    choices = []
    for each in tuning.front:
        point = (each.device_point if tuning.by_device else None) or each.point
        calls = plural(point.calls, "driver call")
        choices.append(f"{format_size(point.memory)} with {calls}: {each.setting}")
    return rows("Unproved" if tuning.warnings else "Trade-offs", choices)


def _work(tuning: Tuning) -> list[str]:
    rate = tuning.entries_replayed / max(tuning.seconds, 1e-9)
    work = [
        f"{plural(len(tuning.rows), 'setting')} on {plural(tuning.entries, 'entry', 'entries')}: "
        f"{plural(tuning.entries_replayed, 'entry', 'entries')} replayed in "
        f"{tuning.seconds:,.1f} s, {rate:,.0f}/s"
    ]
    if tuning.entries_skipped:
        what = plural(tuning.entries_skipped, "entry", "entries")
        work.append(f"{what} skipped: repeated steps that change nothing")
    if tuning.duplicates:
        what = plural(len(tuning.duplicates), "setting")
        work.append(f"{what} not counted: the same effect as another on these recordings")
    if tuning.known:
        work.append(f"{plural(tuning.known, 'replay')} taken from the results file")
    return rows("Work", work)


def document(
    tuning: Tuning, loan: Loan | None = None, tried: Sequence[EditTrial] = ()
) -> dict[str, Any]:
    best = tuning.best
    return {
        **fields(tuning, "files torch_version device_memory find_device=by_device"),
        "notes": [*tuning.warnings, *tuning.notes],
        "is_proved": not tuning.warnings,
        "devices": [
            {"file": file, "device": device, "device_memory": memory}
            for file, device, memory in tuning.parts
        ],
        "baseline": _row(tuning, tuning.baseline),
        "rows": [_row(tuning, row) for row in tuning.rows],
        "best": None if best is None else _best(tuning, best),
        "recommendation": recommendation_document(tuning.recommendation),
        **fields(tuning, "further=further.conf helps reason"),
        "front": [row.conf for row in tuning.front],
        "duplicates": [
            {"conf": each.conf, "memory_fraction": each.call_fraction, "same_as": same.conf}
            for each, same in tuning.duplicates
        ],
        "bounds": asdict(tuning.bounds),
        "costs": costs_document(tuning.costs),
        **({"edits": tried_edits_document(tried)} if tried else {}),
        "seconds": round(tuning.seconds, 3),
        **fields(tuning, "entries entries_replayed entries_skipped rows_from_results=known"),
        **tuning_spill_document(tuning, loan),
    }


def _best(tuning: Tuning, best: SettingRow) -> dict[str, Any]:
    saved = tuning.saved_bytes
    before = tuning.baseline.peak_reserved_bytes
    return {
        "conf": best.conf,
        "memory_fraction": best.memory_fraction,
        "env": f"{NAME}={best.conf}",
        "paste": paste_lines(best.setting),
        "needs": tuning.needs,
        "saved_bytes": saved,
        "saved_percent": round(100 * saved / before, 2) if before else 0.0,
        "above_ideal_bytes": tuning.bounds.above_ideal(best.peak_reserved_bytes),
    }


def _trial_without_calls(part: Trial) -> dict[str, Any]:
    # The table of driver calls by size is long.
    return {name: value for name, value in part.plain().items() if name != "driver_calls"}


def _row(tuning: Tuning, row: SettingRow) -> dict[str, Any]:
    ends = {} if row.peak_range is None else {"peak_reserved_range_bytes": list(row.peak_range)}
    return {
        **fields(row, _ROW),
        "driver_us": round(row.cost.total, 1),
        "churn_us": round(row.cost.churn, 1),
        "is_thrashing": row.cost.is_thrashing,
        "parts": [
            {**_trial_without_calls(part), "file": file, "device": device}
            for part, (file, device, _) in zip(row.parts, tuning.parts, strict=True)
        ],
        **ends,
    }


def screen(
    tuning: Tuning,
    loan: Loan | None = None,
    tried: Sequence[EditTrial] = (),
    top: Top | None = None,
) -> Answer:
    base, found = tuning.baseline, tuning.recommendation
    label = "As recorded" if base.is_as_recorded else "Baseline"
    unproved = "unproved: " if tuning.warnings else ""
    likely = "" if found is None or found.is_sure else "likely, not proved: "
    verdict = f"{likely}{tuning.reason}" if tuning.helps else f"nothing helps: {tuning.reason}"
    if tuning.warnings:
        verdict = f"withheld: {tuning.reason}"
    good = Tone.GOOD if tuning.helps else Tone.PLAIN
    parts = [
        said_first(tuning.warnings[:1], tuning.notes),
        Part(row("Verdict", f"{verdict}."), Tone.FAILURE if tuning.warnings else good),
        Part(row(label, f"{unproved}{base.setting}: {_row_figures(tuning, base)}")),
    ]
    if tuning.helps and tuning.best is not None:
        best = tuning.best
        parts.append(Part(row("Best", f"{best.setting}: {_row_figures(tuning, best)}")))
        if found is None:
            lines = paste_setting(best.setting)
            parts.append(Part(lines, Tone.PASTE, starts=True))
    if loan is not None:
        parts.append(Part(tuning_spill_rows(tuning, loan)))
    if tuning.warnings:
        parts.append(Part(row("To paste", f"nothing: {WhyNot.WITHHELD}."), starts=True))
    parts += to_paste(found, [tuning])
    if tried:
        parts.append(Part(tried_edit_rows(tried, _SHOWN_EDITS), starts=True))
    return answer_of([*parts, *_searched(tuning, top)], TABLES)


def _searched(tuning: Tuning, top: Top | None) -> list[Part]:
    bounds = tuning.bounds
    ideal = (
        f"{format_size(bounds.peak_live_bytes)} live at once, the least for any allocator; "
        f"{format_size(bounds.packed_bytes)} are enough with every place chosen in advance"
    )
    whole = sum(each.is_whole for each in tuning.rows)
    tried = f"{plural(len(tuning.rows), 'setting')}, {whole:,} of them to the end"
    return [
        Part(row("Ideal", ideal), rank=3),
        Part(_further_rows(tuning), rank=4),
        owners_part(top, rank=2),
        Part(row("Tried", f"{tried} ({tuning.seconds:,.1f} s)"), rank=5, starts=True),
    ]
