"""Explanation of a text: its out-of-memory errors, or the memory sizes in a server's log.

Sizes in a log, or in a table of PyTorch, are repeated as printed, and are never added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from allocsim._repr import printable
from allocsim.analysis.explain import Verdict
from allocsim.report.answer import Answer, Part, Tone, answer_of
from allocsim.report.explain import CAUSES, figures_document
from allocsim.report.layout import fields, paragraph, plural, row, rows
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.recording import LogFigure, LogFigures

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
"""Dictionary from a kind of size, as in `Figures.tried_bytes`, to words that follow the size."""
_SHOWN_FIGURES = 18
_SHOWN_REFUSALS = 3
_INSTEAD = "figures instead of assumptions"
_USES = {
    "memory_summary": "reserved minus allocated is idle; a recording shows what keeps it: allocsim "
    "record, or torch.cuda.memory._record_memory_history()",
    "vllm": f"allocsim fit MODEL --server vllm --gpu NAME --log FILE uses these {_INSTEAD}",
    "sglang": f"allocsim fit MODEL --server sglang --gpu NAME --log FILE uses these {_INSTEAD}",
    "llama.cpp": "allocsim fit MODEL.gguf --server llama.cpp --gpu NAME --log FILE uses the "
    "compute buffer instead of an assumption",
}
"""Dictionary from the kind of a log or table to advice on how to use its sizes."""


def repeats_of(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Group equal consecutive verdicts (explanations of one error each), in order."""
    return [list(run) for _, run in groupby(verdicts, lambda v: (v.figures, v.cause, v.advice))]


def text(found: Sequence[Verdict] | LogFigures) -> str:
    """Return the output of `allocsim explain -v` for a text with errors, or for a log.

    found: explanation of each error, or the sizes in a log without an error.
    """
    if not isinstance(found, Sequence):
        lines = _log_rows(found, found.figures)
        lines += row("Read", "of each size the last line about its device, as the log prints it")
        return "\n".join(lines) + "\n"
    runs = repeats_of(found)
    parts = [_verdict(run, is_alone=len(found) == 1) for run in runs[:_SHOWN]]
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
        elif verdict.message.rank is not None:
            where += f", {verdict.message.place}"
        lines += [f"== {where} ==", ""]
        lines += [*paragraph(_shown_text(verdict), indent=4), ""]
    lines += row("Verdict", _verdict_words(verdict))
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


def _verdict_words(verdict: Verdict) -> str:
    outside = f"; {verdict.outside}" if verdict.outside else ""
    likely = "likely, " if verdict.message.is_killed else ""
    return f"{verdict.cause}: {likely}{CAUSES[verdict.cause]}{outside}"


def _last_of_ranks(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the last verdict of each rank and GPU; [] if the text has only one of them."""
    found = {each.message.place: each for each in verdicts if each.message.place}
    return list(found.values()) if len(found) > 1 else []


def _shown_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    # One rank that fails makes the others fail, so of equal errors the first matters.
    ranks = _last_of_ranks(verdicts)
    is_equal = len({each.cause for each in ranks}) == 1
    return verdicts[0] if is_equal and verdicts[0].cause == ranks[0].cause else verdicts[-1]


def _shown_text(verdict: Verdict) -> str:
    text = verdict.message.text
    return text[:_SHOWN_LETTERS] + ("..." if text[_SHOWN_LETTERS:] else "")


def _log_rows(found: LogFigures, figures: Sequence[LogFigure]) -> list[str]:
    lines = []
    for refusal in found.refusals:
        lines += row("Verdict", f"did not start: {refusal.what} (line {refusal.line:,})")
        lines += row("Helps", refusal.helps)
    lines += row("Text", f"{found.what} {found.version}".rstrip())
    sizes = []
    for each in figures:
        device = f" of {printable(each.device)}" if each.device else ""
        sizes.append(f"{each} {each.label}{device}, line {each.line:,}")
    return [*lines, *rows("Figures", sizes), *row("Advice", _USES[found.kind])]


def document(found: Sequence[Verdict] | LogFigures) -> dict[str, Any]:
    """Return the document of `allocsim explain --json` for a text with errors, or for a log."""
    if not isinstance(found, Sequence):
        return {"log": _log_document(found)}
    if len(found) == 1:
        return _object(found[0])
    unknown = dict.fromkeys(("entry", "kinds", "blockers", "cures"))
    return {"ooms": [{**_object(verdict), **unknown} for verdict in found]}


def _object(verdict: Verdict) -> dict[str, Any]:
    return {
        "cause": verdict.cause,
        "figures": figures_document(verdict.figures),
        "advice": list(verdict.advice),
        "arithmetic": verdict.arithmetic or None,
        **fields(verdict.message, "line rank gpu"),
    }


def _log_document(found: LogFigures) -> dict[str, Any]:
    return {
        **fields(found, "kind what"),
        "version": found.version or None,
        "refusals": [fields(each, "what helps line") for each in found.refusals],
        "figures": [
            {
                **fields(each, "name label"),
                "value": int(each.value) if each.value == int(each.value) else each.value,
                **fields(each, "device line"),
            }
            for each in found.figures
        ],
    }


def screen(found: Sequence[Verdict] | LogFigures) -> Answer:
    if isinstance(found, Sequence):
        listed = _listed(repeats_of(found)) if len(found) > 1 else ()
        return answer_of([Part(listed), *verdict_of_text(found)], _HIDDEN)
    refusals = found.refusals[:_SHOWN_REFUSALS]
    shown = found.figures[: _SHOWN_FIGURES - 3 * len(refusals)]
    lines = _log_rows(replace(found, refusals=refusals), shown)
    if (hidden := len(found.figures) - len(shown)) > 0:
        lines += row("", f"({hidden} more; -v shows them)")
    return answer_of([Part(lines)])


def verdict_of_text(verdicts: Sequence[Verdict]) -> list[Part]:
    """Return the lines with the cause of the last error in a text, and the advice.

    If several ranks or GPUs fail for one reason, it is the first error.
    """
    verdict = _shown_verdict(verdicts)
    tone = Tone.PLAIN if verdict.cause == "no_figures" else Tone.FAILURE
    others = {
        each.cause: f"; {each.message.place}: {each.cause}"
        for each in _last_of_ranks(verdicts)
        if each.cause != verdict.cause
    }
    words = f"{_verdict_words(verdict)}{''.join(others.values())}"
    parts = [Part(row("Verdict", words), tone)]
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
    verdicts = [each for run in runs for each in run]
    shown, has_ranks = _shown_verdict(verdicts), bool(_last_of_ranks(verdicts))
    lines = []
    for run in runs[-_SHOWN_ERRORS:]:
        first = run[0]
        times = f", {len(run):,} times" if len(run) > 1 else ""
        places = {each.message.place for each in run}
        place = first.message.place if len(places) == 1 else "several ranks"
        where = f", {place}" if has_ranks and place else ""
        lines.append(f"line {first.message.line:,}{times}{where}: {first.cause}")
    if (hidden := sum(len(run) for run in runs[:-_SHOWN_ERRORS])) > 0:
        lines.insert(0, f"({plural(hidden, 'earlier error')})")
    which = "first" if shown is verdicts[0] else "last"
    place = f", of {shown.message.place}" if has_ranks and shown.message.place else ""
    return rows("Errors", [*lines, f"The {which} error{place}:"])
