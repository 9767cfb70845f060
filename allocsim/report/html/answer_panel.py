"""First panel of a report: devices, verdict, and the setting to paste.

`allocsim replay` and `allocsim explain` print the same sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from allocsim.analysis.explain import DeviceExplanation
from allocsim.analysis.picture import Picture
from allocsim.report.html.markup import text
from allocsim.report.layout import plural
from allocsim.report.recommendation import paste_lines, paste_notes
from allocsim.simulation import DeviceRun, Setting
from allocsim.units import format_size

_SHELLS = {
    "powershell": "PowerShell",
    "cmd": "Windows command prompt",
    "python": "Python, before torch is imported",
    "call": "Python, once torch is imported",
}
_UNASKED = "not looked for; --what-if replays other settings."


def verdict(sentence: str, warnings: Sequence[str]) -> str:
    """Return the HTML of the warnings, followed by the verdict `sentence`."""
    said = [*(("Warning", each) for each in warnings), ("Verdict", sentence)]
    return "".join(
        f'<p class="verdict"><strong>{label}:</strong> {text(each)}</p>\n' for label, each in said
    )


def device_tabs(pictures: Sequence[Picture]) -> str:
    """Return the HTML of a tab for each device; "" for one device.

    The first device with an error is selected.
    """
    if len(pictures) == 1:
        return ""
    chosen = next((each for each in pictures if each.device_run.ooms), pictures[0])
    tabs = "".join(_tab(each.device_run, is_chosen=each is chosen) for each in pictures)
    return f'<div class="tabs js" role="tablist" aria-label="Devices">{tabs}</div>\n'


def _tab(device_run: DeviceRun, *, is_chosen: bool) -> str:
    failed = f", {plural(len(device_run.ooms), 'error')}" if device_run.ooms else ""
    peak = format_size(device_run.peak_reserved_bytes)
    return (
        f'<button type="button" role="tab" id="tab-{device_run.device}" aria-controls="main" '
        f'data-tab="{device_run.device}" aria-selected="{str(is_chosen).lower()}">'
        f"Device {device_run.device} <small>{peak}{failed}</small></button>"
    )


def to_paste(explanations: Sequence[DeviceExplanation]) -> str:
    """Return the HTML of the setting to paste with a copy button, or the reason for having none.

    explanations: explanation of each device; all have the same recommendation. Empty if other
        settings were not tried.
    """
    if not explanations:
        return _nothing(_UNASKED)
    found = explanations[0].recommendation
    if found.best is None:
        why = "" if found.why_not is None else f": {found.why_not}"
        return _nothing(f"nothing{why}.")
    first, *notes = paste_notes(found, explanations)
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
