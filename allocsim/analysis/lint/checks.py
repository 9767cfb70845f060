"""Findings of `allocsim lint`, the table `CHECKS` of all checks, and the checks of entries.

`CHECKS` has the severity of each check and its consequence for a replay.  The functions below it
find lost entries, entries of several processes, jumps of the clock, and other programs on the
device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations, pairwise

import numpy as np

from allocsim.core import PAGE
from allocsim.recording import Action, Defect, Entry, Recording, Trace
from allocsim.state import INACTIVE, SegmentState
from allocsim.units import format_size

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, slots=True)
class LintRule:
    """Severity and meaning of the findings of one check.

    meaning: consequence for a replay, as a clause.
    of_error: clause that replaces `meaning` in a finding that is an error; "" to keep `meaning`.
    """

    severity: str
    meaning: str
    of_error: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """Problem that a check found in a recording or in settings.

    check: name of the check, a key of `CHECKS`.
    severity: "error" if a replay is impossible, or PyTorch refuses the settings; "warning" if a
        replay may mislead, or the settings do harm; else "note".
    text: the problem, as a sentence.
    meaning: consequence for a replay, as a clause.
    device, entry: device number, and index of a history entry; None if the problem is not there.
    value: entry, setting or other value that has the problem, as text; "" if there is none.
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
    "reader": LintRule(WARNING,
        "a replay uses the contents of the file and what was inferred from them; nothing that the "
        "file lacks can be compared"),
    "backend": LintRule(NOTE,
        "the proof shows whether that build's allocator behaves as CUDA's does",
        "it is refused, since a replay would give wrong results"),
    "layout": LintRule(WARNING,
        "it is replayed as the newest release, whose rules may not be those of the run"),
    "mid_run": LintRule(WARNING,
        "no figure includes the time before the first entry, and a what-if replay allocates again "
        "what was there; record from the start, before anything is on the device"),
    "ring": LintRule(WARNING,
        "no figure includes requests, peaks and errors of the lost entries; record with a larger "
        "max_entries"),
    "processes": LintRule(WARNING,
        "each device is replayed separately, and figures for all devices together describe no "
        "single process"),
    "sums": LintRule(WARNING,
        "a replay uses the blocks; the file was created or changed by another program"),
    "device_memory": LintRule(NOTE,
        "something else took or released device memory; what-if replays use a device of the first "
        "size"),
    "clock": LintRule(NOTE, _TIMES),
    "stacks": LintRule(NOTE,
        "addresses and sizes are still exact, but explain, top and gate cannot name lines of code; "
        'record with stacks="python"'),
    "provenance": LintRule(NOTE, "a replay shows the recorded run; a run on a card may differ"),
    "no_settings": LintRule(NOTE,
        "the defaults are assumed; --conf gives others, and the proof shows if they applied"),
    "settings": LintRule(WARNING,
        "a replay uses the recorded string; give the settings at the start with --set 0:CONF"),
    "release": LintRule(WARNING, "a replay shows what the given release would have done"),
    "workspaces": LintRule(WARNING,
        "a replay uses the recorded requests, but the given release would request other "
        "workspaces"),
    "option_refused": LintRule(ERROR, "PyTorch stops with an error, and so does a replay"),
    "option_unmodelled": LintRule(WARNING,
        "PyTorch accepts it, but allocsim models only the native backend, so a replay refuses it"),
    "option_ignored": LintRule(WARNING, "it has no effect on the run or on a replay"),
    "option_unsafe": LintRule(WARNING,
        "a replay models both; tune and explain never propose them together"),
    "option_inert": LintRule(NOTE, "a replay is the same without it"),
}  # fmt: skip
"""Dictionary from the name of every check to its severity and meaning."""


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
    place = f"with {entry.addr} bytes free" if entry.action.name == "OOM" else f"at {entry.addr:#x}"
    return f"{entry.action.text} of {entry.size} bytes {place} on stream {entry.stream}"


_LEAP = timedelta(days=1)
"""Shortest pause between two entries that counts as a changed clock and not as an idle program."""


def about_history(trace: Trace, start: tuple[SegmentState, ...]) -> Iterator[Finding]:
    """Yield findings on one device: clock changes, changed device memory and missing stacks.

    start: segments before the first entry.
    """
    yield from _leaps(trace)
    yield from _other_holders(trace, start)
    requests = trace.action == Action.ALLOC
    if np.any(requests) and not np.any(trace.frames[requests] >= 0):
        n = int(np.count_nonzero(requests))
        yield found("stacks", f"none of {n:,} requests has a stack", device=trace.device)


def lost_entries(trace: Trace, start: tuple[SegmentState, ...]) -> Finding | None:
    """Return a finding if entries before the first recorded entry were lost, else None.

    PyTorch stores the stack of a block only while it records.  So if a block from before the first
    entry has a stack, the entry of its allocation was lost.
    """
    there = [block for segment in start for block in segment.blocks if block.state != INACTIVE]
    stacked = [block for block in there if block.frames >= 0]
    if not stacked:
        return None
    size = format_size(sum(block.size for block in stacked))
    text = (
        f"{len(stacked):,} of {len(there):,} blocks ({size}) from before the first entry have a "
        f"stack, so they were recorded and their entries are lost: the {len(trace):,} remaining "
        "entries are from a full ring or a restarted recording"
    )
    first = entry_text(trace[0]) if len(trace) else ""
    return found("ring", text, device=trace.device, entry=0 if first else None, value=first)


def _leaps(trace: Trace) -> Iterator[Finding]:
    if trace.time_us is None:
        return
    ahead = np.diff(trace.time_us)
    leaps = np.flatnonzero(ahead > _LEAP / timedelta(microseconds=1))
    if len(leaps):
        at = int(leaps[0]) + 1
        days = float(ahead[at - 1]) / (_LEAP / timedelta(microseconds=1))
        times = "once" if len(leaps) == 1 else f"{len(leaps)} times"
        text = f"time_us jumps ahead {times}, first at entry {at} by {days:.1f} days"
        yield found("clock", text, device=trace.device, entry=at, value=entry_text(trace[at]))


def _other_holders(trace: Trace, start: tuple[SegmentState, ...]) -> Iterator[Finding]:
    ooms = np.flatnonzero(trace.action == Action.OOM)
    if len(ooms) < 2:
        return
    reserved = trace.reserved_after(ooms, sum(segment.total_size for segment in start))
    sizes = (reserved + trace.addr[ooms].astype(np.int64)).tolist()
    for (_, before), (at, size) in pairwise(zip(ooms.tolist(), sizes, strict=True)):
        if abs(size - before) >= PAGE:
            text = (
                f"free plus reserved memory is {format_size(size)} at the error at entry {at}, and "
                f"{format_size(before)} at the previous error"
            )
            what = entry_text(trace[at])
            yield found("device_memory", text, device=trace.device, entry=at, value=what)
            return


def about_processes(recording: Recording, errors: dict[int, Defect]) -> Iterator[Finding]:
    """Yield a finding for each sign that the file has entries of several processes.

    errors: dictionary from a device number to the first contradiction in its entries.
    """
    if len(recording.processes) > 1:
        named = ", ".join(each or "one without a number" for each in recording.processes[:8])
        text = f"the file holds the events of {len(recording.processes)} processes: {named}"
        yield found("processes", text, value=recording.processes[1])
    for left, right in combinations(recording.devices, 2):
        both = _shared_address(left, right)
        if both is not None:
            text = (
                f"device {left.device} and device {right.device} both have a segment at "
                f"0x{both:x}, but devices of one process never share addresses"
            )
            yield found("processes", text, device=right.device, value=f"0x{both:x}")
            break
    for trace in recording.devices:
        if trace.device in errors and (at := _second_run(trace)) is not None:
            text = (
                f"entries 0 to {at - 1:,} and {at:,} to {len(trace) - 1:,} are each in order of "
                "time but contradict each other, as entries of two recordings do"
            )
            yield found(
                "processes", text, device=trace.device, entry=at, value=entry_text(trace[at])
            )


def _shared_address(left: Trace, right: Trace) -> int | None:
    segments = sorted((*left.segments, *right.segments), key=lambda segment: segment.address)
    ours = {id(segment) for segment in left.segments}
    for a, b in pairwise(segments):
        if a.end > b.address and (id(a) in ours) != (id(b) in ours):
            return b.address
    return None


def _second_run(trace: Trace) -> int | None:
    if trace.time_us is None:
        return None
    back = np.flatnonzero(np.diff(trace.time_us) < 0)
    return int(back[0]) + 1 if len(back) == 1 else None
