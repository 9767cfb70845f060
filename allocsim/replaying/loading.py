"""Settings that vLLM changes while it loads weights, inferred from the recording.

vLLM sets max_split_size_mb to 20 before it loads weights, and to `NO_LIMIT` afterwards.  A snapshot
contains only the last settings, so the time of the change is found by replays: an entry that needs
the first settings is before the change, and an entry that needs the last settings is after it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allocsim.recording import Action, Mark, MarkKind, Trace
from allocsim.replaying.baseline import parting_of
from allocsim.replaying.prepared import Prepared
from allocsim.simulation import Setting
from allocsim.units import MIB

WHILE_LOADING = "max_split_size_mb:20"
AFTER_LOADING = "max_split_size_mb:17592186044415"
_LEAST_UNSPLIT = 20 * MIB


def with_settings_of_vllm(prepared: Prepared) -> Prepared:
    """Return `prepared` with the settings of vLLM, if only they make the baseline exact."""
    is_known = any(mark.kind is MarkKind.SETTINGS for mark in prepared.marks)
    if prepared.recorded.conf != AFTER_LOADING or prepared.hints.settings or is_known:
        return prepared
    parting = parting_of(prepared)
    if parting is None or parting.entry is None:
        return prepared
    found = parting_of(_changed_at(prepared, None))
    last = len(prepared.trace) if found is None or found.entry is None else found.entry
    changes = _possible_changes(prepared.trace, parting.entry, last)
    low, high = 0, len(changes)
    while low < high:
        middle = (low + high) // 2 if high < len(changes) else high - 1  # the last is most likely
        tried = _changed_at(prepared, changes[middle])
        found = parting_of(tried)
        if found is None:
            return tried
        if found.is_before(last - 1):
            low = middle + 1
        else:
            high = middle
    return prepared


def _possible_changes(trace: Trace, first: int, last: int) -> list[int]:
    # The settings treat requests of less than 20 MiB differently only if their addresses differ
    # too, so the change may be right before a larger request, or before the first difference.
    rows = np.flatnonzero((trace.action == Action.ALLOC) & (trace.size >= _LEAST_UNSPLIT))
    return [*rows[(rows > first) & (rows < last)].tolist(), *([last] if last > first else [])]


def _changed_at(prepared: Prepared, entry: int | None) -> Prepared:
    marks = prepared.marks
    if entry is not None:
        added = Mark(entry, MarkKind.SETTINGS, AFTER_LOADING)
        marks = tuple(sorted((*marks, added), key=lambda mark: mark.entry))
    first = Setting(WHILE_LOADING)
    return replace(prepared, recorded=first, config=first.config(prepared.release), marks=marks)
