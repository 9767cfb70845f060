"""First screens of `allocsim explain` for a recording and for an error text.

`explain.py` has the text of `-v`. `explain_log.py` and `explain_state.py` have the texts for logs
and for snapshots without a history.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from allocsim.analysis.explain import DeviceExplanation, Shortage, Verdict
from allocsim.report.answer import (
    Answer,
    AnswerPart,
    Tone,
    answer_of,
    most_urgent,
    named,
    of_owners,
    others,
    part,
    to_paste,
    warnings,
)
from allocsim.report.explain import CAUSES, because, code_text, repeats_of
from allocsim.report.layout import number, plural, row, rows
from allocsim.simulation import Run
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.top import Top

_ADVICE_LINES = 15
_SHOWN_ERRORS = 4
_HIDDEN = "-v: full answer; --json: the same for programs"


def explanation_screen(
    run: Run, devices: Sequence[DeviceExplanation], top: Top | None = None
) -> Answer:
    """Return the first screen of `allocsim explain` for a recording.

    top: code that held the memory at the error; None if unknown.
    """
    parts = [warnings(run), *verdict_of_run(run, devices)]
    owners = of_owners(top)
    paste = to_paste(devices[0].recommendation if devices else None, devices)
    is_full = any(s.cause == "full" for d in devices for s in d.shortages[-1:])
    # On a full device, no setting helps: the code that holds the memory must be shown.
    return answer_of([*parts, owners, *paste] if is_full else [*parts, *paste, owners])


def verdict_of_run(run: Run, devices: Sequence[DeviceExplanation]) -> list[AnswerPart]:
    """Return the lines with cause and failed request of each device; at most three devices."""
    shown = most_urgent([device.device_run for device in devices])
    by_number = {device.device_run.device: device for device in devices}
    found: list[AnswerPart] = []
    for device_run in shown:
        found += _explained(run, by_number[device_run.device], is_alone=len(devices) == 1)
    return [*found, others(run, shown)]


def _explained(run: Run, device: DeviceExplanation, *, is_alone: bool) -> list[AnswerPart]:
    label, name = named("Verdict", run, device.device_run)
    parting = device.device_run.parting
    if not device.shortages:
        unproved = "unproved: " if parting is not None else ""
        return [part(row(label, f"{name}{unproved}no request failed"), Tone.GOOD)]
    shortage = device.shortages[-1]
    oom = shortage.oom
    unproved = "unproved: " if parting is not None and parting.is_before(oom.entry) else ""
    asked = oom.rounded_bytes if oom.requested_bytes is None else oom.requested_bytes
    more = len(device.shortages) - 1
    errors = f", the last of {number(more + 1)} errors" if more else ""
    where = f"{format_size(asked)} requested at entry {number(oom.entry)}{errors}"
    found = [
        part(
            row(label, f"{name}{unproved}{shortage.cause}: {CAUSES[shortage.cause]}"), Tone.FAILURE
        ),
        part(row("Because", because(shortage))),
        part(rows("Request", [where, *_code(shortage)]), rank=2 if is_alone else 5),
    ]
    first = device.advice[-1][:1]
    if device.recommendation.best is None and first:
        found.append(part(row("Advice", first[0]), rank=1))
    return found


def _code(shortage: Shortage) -> Iterable[str]:
    return () if shortage.code is None else (f"by {code_text(shortage.code)}",)


def verdicts_screen(verdicts: Sequence[Verdict]) -> Answer:
    """Return the first screen for an error text; repeated errors are shown once."""
    listed = _listed(repeats_of(verdicts)) if len(verdicts) > 1 else ()
    return answer_of([part(listed), *verdict_of_text(verdicts)], _HIDDEN)


def verdict_of_text(verdicts: Sequence[Verdict]) -> list[AnswerPart]:
    """Return the lines with the cause of the last error in a text, and the advice."""
    verdict = repeats_of(verdicts)[-1][0]
    tone = Tone.PLAIN if verdict.cause == "no_figures" else Tone.FAILURE
    outside = f"; {verdict.outside}" if verdict.outside else ""
    parts = [part(row("Verdict", f"{verdict.cause}: {CAUSES[verdict.cause]}{outside}"), tone)]
    if verdict.arithmetic:
        parts.append(part(row("Because", verdict.arithmetic)))
    lines: list[str] = []
    for count, sentence in enumerate(verdict.advice):
        added = row("" if lines else "Advice", sentence)
        if lines and len(lines) + len(added) > _ADVICE_LINES:
            lines += row("", f"({plural(len(verdict.advice) - count, 'more sentence')})")
            break
        lines += added
    return [*parts, part(lines, starts=True)]


def _listed(runs: Sequence[Sequence[Verdict]]) -> list[str]:
    """Return a line for each group of equal errors, if a text has several errors."""
    lines = []
    for run in runs[-_SHOWN_ERRORS:]:
        first = run[0]
        times = f", {number(len(run))} times" if len(run) > 1 else ""
        lines.append(f"line {number(first.message.line)}{times}: {first.cause}")
    if (hidden := sum(len(run) for run in runs[:-_SHOWN_ERRORS])) > 0:
        lines.insert(0, f"({plural(hidden, 'earlier error')})")
    return rows("Errors", [*lines, "The last error:"])
