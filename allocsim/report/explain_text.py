"""Explanation of the out-of-memory errors in a text: text, JSON and first screen.

Equal consecutive errors are shown once. `allocsim.analysis.explain` computes all numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from allocsim.analysis.explain import Verdict
from allocsim.report.answer import Answer, Part, Tone, answer_of
from allocsim.report.explain import CAUSES, figures_document
from allocsim.report.layout import paragraph, plural, row, rows
from allocsim.units import format_size

_ADVICE_LINES = 15
_SHOWN_ERRORS = 4
_HIDDEN = "-v: full answer; --json: the same for programs"
_SHOWN = 10
_SHOWN_LETTERS = 160
_SIZES = {
    "tried": "tried",
    "total": "in total",
    "free": "free",
    "limit": "allowed",
    "process": "held by this process",
    "others": "held by other processes",
    "reserved": "reserved by PyTorch",
    "allocated": "allocated by PyTorch",
    "pool": "of it in private pools",
    "idle": "reserved but unallocated",
    "largest": "the most that one allocation may have",
}
"""Words for each size of a text, by its name in `Figures` without "_bytes"."""


def repeats_of(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Group equal consecutive verdicts (explanations of one error each), in order."""
    return [list(run) for _, run in groupby(verdicts, lambda v: (v.figures, v.cause, v.advice))]


def text(verdicts: Sequence[Verdict]) -> str:
    """Return the output of `allocsim explain -v` for an error text; equal errors are shown once."""
    runs = repeats_of(verdicts)
    parts = [_verdict(run, is_alone=len(verdicts) == 1) for run in runs[:_SHOWN]]
    if len(runs) > _SHOWN:
        hidden = sum(len(run) for run in runs[_SHOWN:])
        parts.append([f"{plural(hidden, 'more error')}; --json lists them all."])
    return "\n".join(line for part in parts for line in [*part, ""])


def _verdict(run: Sequence[Verdict], *, is_alone: bool) -> list[str]:
    verdict = run[0]
    lines = []
    if not is_alone:
        where = f"line {verdict.message.line:,}"
        if len(run) > 1:
            where += f" to {run[-1].message.line:,}, {len(run):,} times"
        lines += [f"== {where} ==", ""]
        lines += [*paragraph(_shown_text(verdict), indent=4), ""]
    outside = f"; {verdict.outside}" if verdict.outside else ""
    lines += row("Verdict", f"{verdict.cause}: {CAUSES[verdict.cause]}{outside}")
    if verdict.arithmetic:
        lines += row("Because", verdict.arithmetic)
    lines += rows("Advice", verdict.advice)
    if is_alone:
        lines += row("Text", f"line {verdict.message.line}: {_shown_text(verdict) or 'no error'}")
    sizes = [
        f"{format_size(size)} {label}"
        for name, label in _SIZES.items()
        if (size := getattr(verdict.figures, f"{name}_bytes")) is not None
    ]
    lines += rows("Figures", sizes or ["none in this text"])
    if verdict.message.since is not None:
        lines += row("Wording", f"of PyTorch {verdict.message.since} or later")
    return lines


def _shown_text(verdict: Verdict) -> str:
    text = verdict.message.text
    return text[:_SHOWN_LETTERS] + ("..." if text[_SHOWN_LETTERS:] else "")


def document(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return the document of `allocsim explain --json` for an error text.

    It describes one error, or has the form {"ooms": [...]} for several errors.
    """
    if len(verdicts) == 1:
        return _object(verdicts[0])
    unknown = dict.fromkeys(("entry", "kinds", "blockers", "cures"))
    return {"ooms": [{**_object(verdict), **unknown} for verdict in verdicts]}


def _object(verdict: Verdict) -> dict[str, Any]:
    return {
        "cause": verdict.cause,
        "figures": figures_document(verdict.figures),
        "advice": list(verdict.advice),
        "arithmetic": verdict.arithmetic or None,
        "line": verdict.message.line,
    }


def screen(verdicts: Sequence[Verdict]) -> Answer:
    listed = _listed(repeats_of(verdicts)) if len(verdicts) > 1 else ()
    return answer_of([Part(listed), *verdict_of_text(verdicts)], _HIDDEN)


def verdict_of_text(verdicts: Sequence[Verdict]) -> list[Part]:
    """Return the lines with the cause of the last error in a text, and the advice."""
    verdict = repeats_of(verdicts)[-1][0]
    tone = Tone.PLAIN if verdict.cause == "no_figures" else Tone.FAILURE
    outside = f"; {verdict.outside}" if verdict.outside else ""
    parts = [Part(row("Verdict", f"{verdict.cause}: {CAUSES[verdict.cause]}{outside}"), tone)]
    if verdict.arithmetic:
        parts.append(Part(row("Because", verdict.arithmetic)))
    lines: list[str] = []
    for count, sentence in enumerate(verdict.advice):
        added = row("" if lines else "Advice", sentence)
        if lines and len(lines) + len(added) > _ADVICE_LINES:
            lines += row("", f"({plural(len(verdict.advice) - count, 'more sentence')})")
            break
        lines += added
    return [*parts, Part(lines, starts=True)]


def _listed(runs: Sequence[Sequence[Verdict]]) -> list[str]:
    lines = []
    for run in runs[-_SHOWN_ERRORS:]:
        first = run[0]
        times = f", {len(run):,} times" if len(run) > 1 else ""
        lines.append(f"line {first.message.line:,}{times}: {first.cause}")
    if (hidden := sum(len(run) for run in runs[:-_SHOWN_ERRORS])) > 0:
        lines.insert(0, f"({plural(hidden, 'earlier error')})")
    return rows("Errors", [*lines, "The last error:"])
