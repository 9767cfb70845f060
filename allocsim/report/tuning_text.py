"""`allocsim tune` on a terminal.

Rule: what a replay counted stands without a qualifier; what the cost model made of it is called
an estimate wherever it stands.
"""

from __future__ import annotations

from collections.abc import Sequence

from allocsim.report.page import exact_size, number, paragraph, plural, row, table
from allocsim.report.tuning_paste import paste_lines
from allocsim.tuning.row import Row
from allocsim.tuning.tuning import Tuning
from allocsim.units import format_size

__all__ = ["tuning_text"]

_WIDTHS = (40, 12, 8, 9, 11)
_MOST_ROWS = 12
_SHELLS = (("bash", "bash"), ("powershell", "PowerShell"), ("cmd", "cmd"), ("python", "Python"))


def tuning_text(tuning: Tuning) -> str:
    """The whole answer."""
    memory = tuning.device_memory
    lines = []
    for label, name in zip(["Recordings", *[""] * len(tuning.files)], tuning.files, strict=False):
        lines += row(label, name)
    lines += row("Release", f"PyTorch {tuning.torch_version}")
    lines += row("Device memory", "unknown: no limit" if memory is None else exact_size(memory))
    for note in tuning.notes:
        lines += row("Note", note)
    lines += ["", *_answer(tuning), "", *_rows(tuning), "", *_front(tuning), "", *_work(tuning)]
    return "\n".join(lines) + "\n"


def _answer(tuning: Tuning) -> list[str]:
    base, best = tuning.baseline, tuning.best
    lines = row("As recorded", f"{base.setting}: {_figures(tuning, base)}")
    if best is None or not tuning.helps:
        return lines + row("Answer", f"nothing helps: {tuning.reason}.")
    lines += row("Best", f"{best.setting}: {_figures(tuning, best)}")
    lines += row("", f"{tuning.reason}.")
    lines += _ideal(tuning, best)
    for shell, text in paste_lines(best.setting).items():
        label = dict(_SHELLS).get(shell, "and call")
        # A line to paste is never wrapped.
        lines.append(f"{'  ' + label:16}{text}")
    if "expandable_segments:True" in best.conf:
        lines += paragraph("expandable_segments is not available on Windows, WSL and Jetson.")
    return lines


def _figures(tuning: Tuning, found: Row) -> str:
    if found.error is not None:
        return found.error
    retries = plural(found.num_alloc_retries, "retry", "retries")
    text = f"{format_size(found.peak_reserved_bytes)} reserved at the peak, {retries}"
    if found.num_ooms:
        text += f", {plural(found.num_ooms, 'request')} without an answer"
    device = found.min_device_memory_bytes
    if device is not None:
        kind = "smallest device" if tuning.by_device else "smallest device without retries"
        text += f"; {kind}: {format_size(device)}"
    return text


def _ideal(tuning: Tuning, best: Row) -> list[str]:
    bounds = tuning.bounds
    above = bounds.above_ideal(best.peak_reserved_bytes)
    return row(
        "Ideal",
        f"{format_size(bounds.peak_live_bytes)} live at once, which no allocator undercuts: the "
        f"best is {format_size(above)} above that. With every place chosen beforehand "
        f"{format_size(bounds.packed_bytes)} do.",
    )


def _rows(tuning: Tuning) -> list[str]:
    whole = [each for each in tuning.rows if each.is_whole]
    shown = whole[:_MOST_ROWS]
    if tuning.baseline not in shown:
        shown.append(tuning.baseline)
    memory = "device" if tuning.by_device else "reserved"
    lines = table(
        [("Settings, the best first", memory, "calls", "retries", "driver")]
        + [_cells(tuning, each) for each in shown],
        _WIDTHS,
    )
    left = len(tuning.rows) - len(shown)
    if left:
        dropped = sum(each.dropped_at is not None for each in tuning.rows)
        lines += paragraph(
            f"and {plural(left, 'other')}; {plural(dropped, 'replay')} given up when the setting "
            "could no longer win.",
            indent=2,
        )
    lines += paragraph(
        "calls: cudaMalloc, cudaFree, map and unmap. driver: an estimate of their time "
        "(--costs FILE).",
        indent=2,
    )
    return lines


def _cells(tuning: Tuning, each: Row) -> tuple[str, ...]:
    mark = "* " if each is tuning.best else "= " if each.is_baseline else "  "
    name = f"{mark}{each.setting}"
    if each.error is not None:
        return (f"{name}: {each.error}", "", "", "", "")
    if each.fails_at is not None:
        name += f" (fails, entry {number(each.fails_at)})"
    elif each.cost.is_thrashing:
        name += " (thrashing)"
    point = (each.device_point if tuning.by_device else None) or each.point
    return (
        name,
        format_size(point.memory),
        number(point.calls),
        number(point.retries),
        f"{each.cost.total / 1000:,.1f} ms",
    )


def _front(tuning: Tuning) -> list[str]:
    if not tuning.front:
        return row("Trade-offs", "none: nothing tried answers every request")
    lines = []
    for label, each in zip(["Trade-offs", *[""] * len(tuning.front)], tuning.front, strict=False):
        point = (each.device_point if tuning.by_device else None) or each.point
        lines += row(
            label,
            f"{format_size(point.memory)} with {plural(point.calls, 'driver call')}: "
            f"{each.setting}",
        )
    return lines


def _work(tuning: Tuning) -> list[str]:
    rate = tuning.entries_replayed / max(tuning.seconds, 1e-9)
    text = (
        f"{plural(len(tuning.rows), 'setting')} on {plural(tuning.entries, 'entry', 'entries')}: "
        f"{number(tuning.entries_replayed)} entries replayed in {tuning.seconds:,.1f} s, "
        f"{rate:,.0f}/s"
    )
    lines = row("Work", text)
    if tuning.entries_skipped:
        what = plural(tuning.entries_skipped, "entry", "entries")
        lines += row("", f"{what} skipped: steps that repeat and change nothing any more")
    if tuning.duplicates:
        lines += row("", _duplicates(tuning.duplicates))
    if tuning.known:
        lines += row("", f"{plural(tuning.known, 'replay')} taken from the file of results")
    return lines


def _duplicates(duplicates: Sequence[object]) -> str:
    what = plural(len(duplicates), "setting")
    return f"{what} not counted: they have the effect of another on these recordings"
