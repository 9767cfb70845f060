"""Checks of a recording's entries and of PYTORCH_CUDA_ALLOC_CONF.

The checks of entries find lost entries, entries of several processes, jumps of the clock and
devices that are shared with other processes.  A finding reports only facts that the recording
proves.

The checks of PYTORCH_CUDA_ALLOC_CONF find options that a release refuses, that are unsafe, or that
have no effect.  `AllocatorConfig` has the rules for options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations, pairwise

import numpy as np

from allocsim.analysis.lint.finding import Finding, entry_text, found
from allocsim.core import PAGE, RELEASES, AllocatorConfig, Release, parse_conf
from allocsim.errors import ConfigError
from allocsim.recording import Action, Defect, MarkKind, Recording, Trace
from allocsim.state import INACTIVE, SegmentState
from allocsim.units import format_size

_LEAP = timedelta(days=1)
"""Gap between two entries that indicates a clock change rather than an idle program."""


def about_history(trace: Trace, start: tuple[SegmentState, ...]) -> Iterator[Finding]:
    """Yield findings about a trace whose entries do not contradict each other.

    start: segments before its first entry.
    """
    yield from _leaps(trace)
    yield from _other_holders(trace, start)
    requests = trace.action == Action.ALLOC
    if np.any(requests) and not np.any(trace.frames[requests] >= 0):
        n = int(np.count_nonzero(requests))
        yield found("stacks", f"none of {n:,} requests has a stack", device=trace.device)


def lost_entries(trace: Trace, start: tuple[SegmentState, ...]) -> Finding | None:
    """Return a finding if entries before the first recorded entry were lost, else None.

    PyTorch stores the stack of a block only while it records.  So a block with a stack from before
    the first entry had an entry, which was lost.
    start: segments before the first entry.
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
    """Yield findings that show entries of several processes in one file.

    errors: first contradiction in the entries of each device, by device number.
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


_ASSIGNED = re.compile(r"([A-Z][A-Z0-9_]*)=(\"[^\"]*\"|'[^']*'|\S*)")
_MEANT = re.compile(r"([a-z][a-z0-9_]*)=([^,\s]+)")
_ALLOC_CONF = "ALLOC_CONF"
_RESERVE = "expandable_segments_reserve"
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Assignment:
    """Value of PYTORCH_CUDA_ALLOC_CONF that the user wants to set.

    variable: name of the environment variable, which may be an alias; "" if only a value was given.
    """

    conf: str
    variable: str = ""

    def __str__(self) -> str:
        text = f"{self.variable}={self.conf}" if self.variable else self.conf
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def assignments(text: str) -> tuple[Assignment, ...]:
    """Return the assignments in `text`: shell text such as "A=conf B=conf", or a single conf."""
    return _named(text) or (Assignment(text.strip()),)


def _named(text: str) -> tuple[Assignment, ...]:
    found = _ASSIGNED.finditer(text)
    return tuple(Assignment(match[2].strip("\"'"), match[1]) for match in found)


def about_conf(text: str, release: Release) -> Iterator[Finding]:
    """Yield findings about settings that a user wants to set; see `assignments` for `text`."""
    asked = assignments(text)
    read = _read_of(asked, release)
    for each in asked:
        if each is not read:
            yield _unread(each, read, release)
    if read is not None:
        yield from _about_string(str(read), read.conf, release, has_limit=False)


def _read_of(asked: tuple[Assignment, ...], release: Release) -> Assignment | None:
    names = ("", *release.conf_variables)
    return next((each for name in names for each in asked if each.variable == name), None)


def _unread(each: Assignment, read: Assignment | None, release: Release) -> Finding:
    names = " or ".join(release.conf_variables)
    if each.variable in release.conf_variables and read is not None:
        why = f"PyTorch {release.version} reads {read.variable} first"
    else:
        why = f"PyTorch {release.version} does not read {each.variable}; it reads {names}"
    return found("option_ignored", f"{each} is ignored: {why}", value=str(each))


def about_command(recording: Recording, release: Release) -> Iterator[Finding]:
    """Yield findings about variables that the recorded command sets but the release ignores."""
    made = recording.provenance
    text = made.command if made is not None else ""
    asked = tuple(each for each in _named(text) if each.variable.endswith(_ALLOC_CONF))
    read = _read_of(asked, release)
    yield from (_unread(each, read, release) for each in asked if each is not read)


def _about_string(shown: str, conf: str, release: Release, *, has_limit: bool) -> Iterator[Finding]:
    try:
        config = parse_conf(conf, release)
    except ConfigError as error:
        yield found("option_refused", f"{_refusal(error, conf)}; {_accepting(conf)}", value=shown)
        return
    refused = config.refused_handles()
    for text in config.unsafe_options() + ((refused,) if refused else ()):
        yield found("option_unsafe", text, value=shown)
    is_limited = has_limit or config.per_process_memory_fraction < 1.0
    for text in config.inert_options(has_limit=is_limited):
        yield found("option_inert", text, value=shown)
    if f"{_RESERVE}:" in conf.replace(" ", "") and config.expandable_segments_reserve is None:
        text = f"the value of {_RESERVE} is neither a share of the device nor GiB, such as 20G"
        yield found("option_ignored", text, value=shown)


def _refusal(error: ConfigError, conf: str) -> str:
    meant = _MEANT.search(conf)
    hint = f"; write {meant[1]}:{meant[2]}" if meant is not None else ""
    return f"{error}{hint}"


def _accepting(conf: str) -> str:
    versions = [version for version, release in RELEASES.items() if _is_accepted(conf, release)]
    if not versions:
        return "no release accepts it"
    return f"accepted by PyTorch {', '.join(versions)}"


def _is_accepted(conf: str, release: Release) -> bool:
    try:
        parse_conf(conf, release)
    except ConfigError:
        return False
    return True


def about_recorded(recording: Recording, release: Release) -> Iterator[Finding]:
    """Yield findings about the recorded settings, including entries that contradict them."""
    settings = recording.settings
    if settings is None:
        if not recording.is_requests:
            yield found("no_settings", "no settings are recorded, as up to PyTorch 2.2")
        return
    marks = [mark for trace in recording.devices for mark in trace.marks]
    has_limit = any(mark.kind is MarkKind.FRACTION for mark in marks)
    refused = False
    for each in _about_string(settings.conf, settings.conf, release, has_limit=has_limit):
        refused = refused or each.check == "option_refused"
        yield each
    made = recording.provenance
    is_followed = made is not None and made.conf_at_start is not None
    if refused or is_followed or any(mark.kind is MarkKind.SETTINGS for mark in marks):
        return  # the recorded changes of settings are replayed
    config = parse_conf(settings.conf, release)
    yield from _not_in_force(recording, config)
    for trace in recording.devices:
        yield from _not_as_set(trace, settings.expandable_segments)


def about_replaying_as(recording: Recording, release: Release) -> Iterator[Finding]:
    """Yield a finding if `release`, which the user chose to model, refuses the recorded conf."""
    conf = "" if recording.settings is None else recording.settings.conf
    for each in _about_string(conf, conf, release, has_limit=True):
        if each.check == "option_refused":
            yield each


def _not_in_force(recording: Recording, config: AllocatorConfig) -> Iterator[Finding]:
    assert recording.settings is not None
    recorded = recording.settings.plain()
    for name, said in config.settings().items():
        value = recorded.get(name, said)
        if _is_same(value, said):
            continue
        text = (
            f"{name} was {value!r} at the end, but the recorded string {config.text!r} sets it to "
            f"{said!r}: options were set by a call, or the platform refused them"
        )
        yield found("settings", text, value=f"{name}: {value!r}")


def _is_same(value: object, said: object) -> bool:
    if isinstance(value, float) and isinstance(said, float):
        return math.isclose(value, said, rel_tol=1e-9)
    if isinstance(value, dict) and isinstance(said, dict):  # an interval without divisions has 0
        return {k: v for k, v in value.items() if v} == {k: v for k, v in said.items() if v}
    return value == said


def _not_as_set(trace: Trace, is_expandable: bool) -> Iterator[Finding]:
    there = trace.count(Action.SEGMENT_MAP) > 0 or any(
        segment.is_expandable for segment in trace.segments
    )
    plain = trace.count(Action.SEGMENT_ALLOC)
    if is_expandable and plain and not there:
        text = f"expandable_segments is True, but none of {plain:,} new segments is expandable"
        yield found("settings", text, device=trace.device, value="expandable_segments: True")
    elif not is_expandable and there:
        text = "expandable_segments is False at the end, but there are expandable segments"
        yield found("settings", text, device=trace.device, value="expandable_segments: False")
