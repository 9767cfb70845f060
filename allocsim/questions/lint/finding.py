"""What lint finds: one thing wrong or notable, where it stands, and what it means for a replay.

Rule: every check has a row in `CHECKS`, and its meaning stands there once; a finding adds what it
saw, with entry and value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocsim.trace import Entry, Recording
from allocsim.trace import Finding as Found

__all__ = ["CHECKS", "ERROR", "NOTE", "WARNING", "Check", "Finding", "found", "gathered"]

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    severity: of what it finds, unless the trace's own lint calls it an error.
    meaning: for a replay, a sentence; of_error: of an error, where that means another thing.
    """

    severity: str
    meaning: str
    of_error: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    check: its name, a key of `CHECKS`.
    severity: "error": it cannot be replayed, or PyTorch refuses it; "warning": a replay tells less
        than one may think, or another thing, or the settings do harm; "note": it changes nothing.
    text: what was found, with its figures.  meaning: what that means for a replay.
    device, entry: where, None if nowhere in particular.  value: what stands there, "" for nothing.
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
        """Whether it is more than a note."""
        return self.severity != NOTE


_UNSOUND = "it cannot be replayed; a file that was edited looks so, or two processes' in one"
_TIMES = "a replay goes by the order of the entries, not by their times; time axes are off"

CHECKS: dict[str, Check] = {
    "contents": Check(ERROR, "there is nothing to replay"),
    "segments": Check(ERROR, _UNSOUND),
    "overlap": Check(ERROR, _UNSOUND),
    "free_without_allocation": Check(ERROR, _UNSOUND),
    "history": Check(ERROR, _UNSOUND),
    "alignment": Check(NOTE, "sizes are replayed as they are recorded, unrounded", _UNSOUND),
    "reader": Check(
        WARNING,
        "a replay takes what is there, and what was made of it; it is compared with nothing that "
        "the file lacks",
    ),
    "backend": Check(
        NOTE,
        "the proof tells whether that build's allocator acts as CUDA's does",
        "it is refused, since nothing that a replay told would be true",
    ),
    "layout": Check(
        WARNING,
        "it is replayed as the newest release, whose rules may not be those of the run",
    ),
    "mid_run": Check(
        WARNING,
        "what came before the first entry is in no figure, and another setting tried lays out "
        "anew what was there; record from the start, before anything is on the device",
    ),
    "ring": Check(
        WARNING,
        "requests, peaks and errors of what is lost are in no figure; record with a larger "
        "max_entries",
    ),
    "processes": Check(
        WARNING,
        "each device is replayed by itself, and what is told of all of them together is of no "
        "process",
    ),
    "sums": Check(WARNING, "a replay takes the blocks; the file was made or changed elsewhere"),
    "device_memory": Check(
        NOTE,
        "something else took memory of the device or gave some back; another setting is tried on "
        "one of the first size",
    ),
    "clock": Check(NOTE, _TIMES),
    "stacks": Check(
        NOTE,
        "addresses and sizes are exact all the same; explain, top and gate cannot name lines of "
        'code; record with stacks="python"',
    ),
    "provenance": Check(NOTE, "the replay is of what was recorded; on a card it may differ"),
    "no_settings": Check(
        NOTE, "the defaults are assumed; --conf names others, and the proof tells if they held"
    ),
    "settings": Check(
        WARNING,
        "a replay follows the recorded string; --set 0:CONF tells what the program began with",
    ),
    "release": Check(WARNING, "a replay tells what the release asked for would have done"),
    "workspaces": Check(
        WARNING,
        "a replay takes the requests as they were recorded; those for workspaces would be others",
    ),
    "option_refused": Check(ERROR, "PyTorch stops with an error, and so does a replay"),
    "option_ignored": Check(WARNING, "the run is as without it; so is a replay of the run"),
    "option_unsafe": Check(
        WARNING, "a replay models both; tune and explain never propose them together"
    ),
    "option_inert": Check(NOTE, "a replay is the same without it"),
}
"""Every check by its name."""


def found(
    check: str,
    text: str,
    *,
    device: int | None = None,
    entry: int | None = None,
    value: str = "",
) -> Finding:
    """A finding of `check`, with the severity and the meaning of its row."""
    row = CHECKS[check]
    return Finding(check, row.severity, text, row.meaning, device, entry, value)


def gathered(recording: Recording, findings: Iterable[Found]) -> Iterable[Finding]:
    """What the trace's own lint found, as findings; its errors stay errors."""
    for each in findings:
        row = CHECKS[each.check]
        is_error = each.severity == "error"
        yield Finding(
            each.check,
            ERROR if is_error else row.severity,
            each.text,
            (row.of_error if is_error else "") or row.meaning,
            each.device,
            each.entry,
            _at(recording, each.device, each.entry),
        )


def _at(recording: Recording, device: int | None, entry: int | None) -> str:
    """What an entry says."""
    if device is None or entry is None:
        return ""
    return entry_text(recording.device(device)[entry])


def entry_text(entry: Entry) -> str:
    """ "alloc of 512 bytes at 0x7000 on stream 0"."""
    place = f"with {entry.addr} bytes free" if entry.action.name == "OOM" else f"at {entry.addr:#x}"
    return f"{entry.action.text} of {entry.size} bytes {place} on stream {entry.stream}"
