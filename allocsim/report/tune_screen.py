"""First screen of `tune`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allocsim.analysis.tune import Tuning
from allocsim.recommend import WhyNot
from allocsim.report.answer import Answer, Part, Tone, answer_of, of_owners, part
from allocsim.report.layout import number, plural, row
from allocsim.report.recommendation import paste_setting
from allocsim.report.screen_parts import TABLES, said_first, to_paste
from allocsim.report.spill import Loan, tuning_spill_rows
from allocsim.report.tune import further_rows, row_figures
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top

__all__ = ["tuning_screen"]


def tuning_screen(tuning: Tuning, top: Top | None = None, loan: Loan | None = None) -> Answer:
    """Return the first screen of `allocsim tune`; `loan` is as in `tuning_text`.

    top: code that held the memory; None if unknown.
    """
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
        part(row("Verdict", f"{verdict}."), Tone.FAILURE if tuning.warnings else good),
        part(row(label, f"{unproved}{base.setting}: {row_figures(tuning, base)}")),
    ]
    if tuning.helps and tuning.best is not None:
        best = tuning.best
        parts.append(part(row("Best", f"{best.setting}: {row_figures(tuning, best)}")))
        if found is None:
            lines = paste_setting(best.setting)
            parts.append(part(lines, Tone.PASTE, starts=True))
    if loan is not None:
        parts.append(part(tuning_spill_rows(tuning, loan)))
    if tuning.warnings:
        parts.append(part(row("To paste", f"nothing: {WhyNot.WITHHELD}."), starts=True))
    parts += to_paste(found)
    return answer_of([*parts, *_searched(tuning, top)], TABLES)


def _searched(tuning: Tuning, top: Top | None) -> list[Part]:
    """Return the parts that may be left out: bounds, further results, owners, number of trials."""
    bounds = tuning.bounds
    ideal = (
        f"{format_size(bounds.peak_live_bytes)} live at once, the least for any allocator; "
        f"{format_size(bounds.packed_bytes)} are enough with every place chosen in advance"
    )
    whole = sum(each.is_whole for each in tuning.rows)
    tried = f"{plural(len(tuning.rows), 'setting')}, {number(whole)} of them to the end"
    return [
        part(row("Ideal", ideal), rank=3),
        part(further_rows(tuning), rank=4),
        of_owners(top, rank=2),
        part(row("Tried", f"{tried} ({tuning.seconds:,.1f} s)"), rank=5, starts=True),
    ]
