"""A verdict on an out-of-memory text, for a terminal and as JSON.

Rule: the cause stands first, by its name; every figure comes from the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from allocsim.analysis import Verdict
from allocsim.report.page import number, paragraph, plural, row

__all__ = ["CAUSE_TEXTS", "verdicts_document", "verdicts_text"]

CAUSE_TEXTS = {
    "impossible": "the request alone is larger than the card",
    "host_fallback": "more is allocated than the card has; the host's memory was used too",
    "fraction_limit": "a limit set for PyTorch stopped it, not the card",
    "free_above_request": "the driver refused although enough was free",
    "fragmentation": "PyTorch held enough idle memory, but not in one usable piece",
    "fragmentation_likely": "idle and free memory together would do, but not in one piece",
    "full": "the card is full",
    "no_figures": "the text does not say enough",
}
"""What each cause means, in a few words."""

_FIGURES = ("tried", "total", "allocated", "reserved", "idle", "free", "limit", "process", "pool")
_SHOWN = 10
_SHOWN_WORDS = 160


def verdicts_text(verdicts: Sequence[Verdict]) -> str:
    """`allocsim explain` of a text.  Errors that repeat at once are shown once."""
    runs = [list(run) for _, run in groupby(verdicts, key=_likeness)]
    parts = [_one(run, is_alone=len(verdicts) == 1) for run in runs[:_SHOWN]]
    if len(runs) > _SHOWN:
        hidden = sum(len(run) for run in runs[_SHOWN:])
        parts.append([f"{plural(hidden, 'more error')}; --json lists them all."])
    return "\n".join(line for part in parts for line in [*part, ""])


def _likeness(verdict: Verdict) -> tuple[object, ...]:
    return verdict.figures, verdict.cause, verdict.advice


def _one(run: Sequence[Verdict], *, is_alone: bool) -> list[str]:
    verdict = run[0]
    lines: list[str] = []
    if not is_alone:
        where = f"line {number(verdict.message.line)}"
        if len(run) > 1:
            where += f" to {number(run[-1].message.line)}, {number(len(run))} times"
        lines += [f"== {where} ==", ""]
        words = verdict.message.text
        lines += paragraph(words[:_SHOWN_WORDS] + ("..." if words[_SHOWN_WORDS:] else ""), indent=4)
        lines.append("")
    lines += row("Verdict", f"{verdict.cause}: {CAUSE_TEXTS[verdict.cause]}")
    if verdict.arithmetic:
        lines += row("Because", verdict.arithmetic)
    for i, sentence in enumerate(verdict.advice):
        lines += row("Advice" if i == 0 else "", sentence)
    return lines


def verdicts_document(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """`allocsim explain --json` of a text: one error's object, or {"ooms": [...]} of several."""
    if len(verdicts) == 1:
        return _object(verdicts[0])
    unknown = dict.fromkeys(("entry", "kinds", "blockers", "cures"))
    return {"ooms": [{**_object(verdict), **unknown} for verdict in verdicts]}


def _object(verdict: Verdict) -> dict[str, Any]:
    return {
        "cause": verdict.cause,
        "figures": {f"{name}_bytes": _figure(verdict, f"{name}_bytes") for name in _FIGURES},
        "advice": list(verdict.advice),
        "arithmetic": verdict.arithmetic or None,
        "line": verdict.message.line,
    }


def _figure(verdict: Verdict, name: str) -> int | None:
    size: int | None = getattr(verdict.figures, name)
    return size
