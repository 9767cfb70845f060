"""Findings of `allocsim lint`, and the table `CHECKS` of all checks.

`CHECKS` has the severity of each check and its consequence for a replay.  A finding adds the place
and the value that was found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocsim.recording import Defect, Entry, Recording

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, slots=True)
class LintRule:
    """Severity and meaning of one check.

    severity: severity of its findings.  A defect that makes a replay impossible is always an error.
    meaning: consequence for a replay, as a sentence.
    of_error: consequence if the finding is an error; "" if it is the same as `meaning`.
    """

    severity: str
    meaning: str
    of_error: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a check.

    check: name of the check, a key of `CHECKS`.
    severity: "error" if a replay is impossible, or PyTorch refuses the settings; "warning" if a
        replay may mislead, or the settings do harm; "note" if there is no such consequence.
    meaning: consequence for a replay, as a sentence.
    device, entry: place of the finding; None if there is no particular place.
    value: value that was found; "" if there is none.
    """

    check: str
    severity: str
    text: str
    meaning: str
    device: int | None = None
    entry: int | None = None
    value: str = ""

    @property
    def matters(self) -> bool:
        return self.severity != NOTE


_UNSOUND = "it cannot be replayed; causes are an edited file, or two processes in one file"
_TIMES = "a replay uses the order of the entries and not their times; time axes are wrong"

CHECKS: dict[str, LintRule] = {
    "contents": LintRule(ERROR, "there is nothing to replay"),
    "segments": LintRule(ERROR, _UNSOUND),
    "overlap": LintRule(ERROR, _UNSOUND),
    "free_without_allocation": LintRule(ERROR, _UNSOUND),
    "history": LintRule(ERROR, _UNSOUND),
    "alignment": LintRule(NOTE, "sizes are replayed as they are recorded, unrounded", _UNSOUND),
    "reader": LintRule(
        WARNING,
        "a replay uses the contents of the file and what was inferred from them; nothing that the "
        "file lacks can be compared",
    ),
    "backend": LintRule(
        NOTE,
        "the proof shows whether that build's allocator behaves as CUDA's does",
        "it is refused, since a replay would give wrong results",
    ),
    "layout": LintRule(
        WARNING, "it is replayed as the newest release, whose rules may not be those of the run"
    ),
    "mid_run": LintRule(
        WARNING,
        "no figure includes the time before the first entry, and a what-if replay allocates again "
        "what was there; record from the start, before anything is on the device",
    ),
    "ring": LintRule(
        WARNING,
        "no figure includes requests, peaks and errors of the lost entries; record with a larger "
        "max_entries",
    ),
    "processes": LintRule(
        WARNING,
        "each device is replayed separately, and figures for all devices together describe no "
        "single process",
    ),
    "sums": LintRule(
        WARNING, "a replay uses the blocks; the file was created or changed by another program"
    ),
    "device_memory": LintRule(
        NOTE,
        "something else took or released device memory; what-if replays use a device of the first "
        "size",
    ),
    "clock": LintRule(NOTE, _TIMES),
    "stacks": LintRule(
        NOTE,
        "addresses and sizes are still exact, but explain, top and gate cannot name lines of code; "
        'record with stacks="python"',
    ),
    "provenance": LintRule(NOTE, "a replay shows the recorded run; a run on a card may differ"),
    "no_settings": LintRule(
        NOTE, "the defaults are assumed; --conf gives others, and the proof shows if they applied"
    ),
    "settings": LintRule(
        WARNING,
        "a replay uses the recorded string; give the settings at the start with --set 0:CONF",
    ),
    "release": LintRule(WARNING, "a replay shows what the given release would have done"),
    "workspaces": LintRule(
        WARNING,
        "a replay uses the recorded requests, but the given release would request other workspaces",
    ),
    "option_refused": LintRule(ERROR, "PyTorch stops with an error, and so does a replay"),
    "option_ignored": LintRule(WARNING, "it has no effect on the run or on a replay"),
    "option_unsafe": LintRule(
        WARNING, "a replay models both; tune and explain never propose them together"
    ),
    "option_inert": LintRule(NOTE, "a replay is the same without it"),
}
"""Checks by name."""


def found(
    check: str, text: str, *, device: int | None = None, entry: int | None = None, value: str = ""
) -> Finding:
    row = CHECKS[check]
    return Finding(check, row.severity, text, row.meaning, device, entry, value)


def gathered(recording: Recording, findings: Iterable[Defect]) -> Iterable[Finding]:
    for each in findings:
        row = CHECKS[each.check]
        is_error = each.severity == "error"
        value = ""
        if each.device is not None and each.entry is not None:
            value = entry_text(recording.device(each.device)[each.entry])
        yield Finding(
            each.check,
            ERROR if is_error else row.severity,
            each.text,
            (row.of_error if is_error else "") or row.meaning,
            each.device,
            each.entry,
            value,
        )


def entry_text(entry: Entry) -> str:
    """Return an entry as text, such as "alloc of 512 bytes at 0x7000 on stream 0"."""
    place = f"with {entry.addr} bytes free" if entry.action.name == "OOM" else f"at {entry.addr:#x}"
    return f"{entry.action.text} of {entry.size} bytes {place} on stream {entry.stream}"
