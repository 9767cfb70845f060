"""What a report says first: the verdict, and the line to paste with what is proved of it.

Rule: the sentences are those of the commands; what is not proved is never called so.
"""

from __future__ import annotations

from collections.abc import Sequence

from allocsim.engine import Setting
from allocsim.questions.explain import DeviceExplanation
from allocsim.report.html.markup import text
from allocsim.report.recommendation import paste_lines, paste_notes

__all__ = ["to_paste", "verdict"]

_SHELLS = {
    "powershell": "PowerShell",
    "cmd": "Windows command prompt",
    "python": "Python, before torch is imported",
    "call": "Python, once torch is imported",
}
_UNASKED = "not looked for; --what-if replays other settings."


def verdict(sentence: str, warnings: Sequence[str]) -> str:
    """The verdict below what has to be said before it."""
    said = [*(("Warning", each) for each in warnings), ("Verdict", sentence)]
    return "".join(
        f'<p class="verdict"><strong>{label}:</strong> {text(each)}</p>\n' for label, each in said
    )


def to_paste(explanation: DeviceExplanation | None) -> str:
    """The line to paste with a button that copies it, or why there is none."""
    if explanation is None:
        return _nothing(_UNASKED)
    found = explanation.recommendation
    if found.best is None:
        why = "" if found.why_not is None else f": {found.why_not}"
        return _nothing(f"nothing{why}.")
    first, *notes = paste_notes(found, explanation.entries_left)
    lines = paste_lines(found.best.setting)
    return (
        f'<p class="verdict paste"><strong>To paste:</strong> {_copied(lines["bash"])}</p>\n'
        f'<p class="proof">{text(first)} <span class="note">{text(" ".join(notes))}</span></p>\n'
        f"{_other_shells(found.best.setting)}"
    )


def _nothing(why: str) -> str:
    return f'<p class="verdict"><strong>To paste:</strong> {text(why)}</p>\n'


def _copied(line: str) -> str:
    return (
        f'<code>{text(line)}</code> <button type="button" class="js copy" '
        f'data-copy="{text(line)}">Copy</button>'
    )


def _other_shells(setting: Setting) -> str:
    items = "".join(
        f"<div><dt>{text(_SHELLS[shell])}</dt><dd>{_copied(line)}</dd></div>\n"
        for shell, line in paste_lines(setting).items()
        if shell in _SHELLS
    )
    return f"<details><summary>For other shells</summary><dl>{items}</dl></details>\n"
