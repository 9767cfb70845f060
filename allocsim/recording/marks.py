"""Marks: calls and training steps that PyTorch's history does not contain.

An example is empty_cache().  `allocsim record` and `allocsim.capture` store marks in a snapshot,
under the key "allocsim".  Only `allocsim.capture` stores training steps and phases, if the program
reports them.  The position of a mark is the number of entries recorded before it.

Annotations are ranges that the program names, such as an optimizer step.  PyTorch writes two for
each range, START and END (semantics 6.5), and allocsim keeps them unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from allocsim.recording.fields import INT32_MAX, INT64_MAX, UINT64_MAX, Fields
from allocsim.state import PoolId

MARKS = "marks"
_Value = str | float | int | PoolId | None


class MarkKind(StrEnum):
    """Call or event that a mark records."""

    EMPTY_CACHE = "empty_cache"
    FRACTION = "set_per_process_memory_fraction"
    SETTINGS = "_set_allocator_settings"
    POOL_CREATED = "MemPool created"
    POOL_DELETED = "MemPool deleted"
    PEAK_RESET = "reset_peak_memory_stats"
    STEP = "step"
    PHASE = "phase"


_LASTING = (MarkKind.FRACTION, MarkKind.SETTINGS)
"""Kinds of mark that set an allocator option, which keeps its value after the mark."""
_REPLACING = (MarkKind.STEP, MarkKind.PHASE)
"""Kinds of mark that begin a step or phase, and end the previous step or phase."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One mark of a device.

    entry: number of entries of the device before the mark.
    value: the fraction (0 to 1) of FRACTION, the conf of SETTINGS, the pool id of POOL_CREATED and
        POOL_DELETED, the number of the step that begins at STEP, or the phase that begins at PHASE
        ("setup", "forward", "backward" or "optimizer"); None for other kinds.
    """

    entry: int
    kind: MarkKind
    value: _Value = None


def cut_marks(marks: Iterable[Mark], first: int, last: int) -> tuple[Mark, ...]:
    """Return the marks for the entries [first, last), with entry `first` renumbered as 0.

    Marks before `first` that are still in effect are moved to entry 0: settings, and the step and
    phase that contain entry `first`.
    """
    before: dict[MarkKind, Mark] = {}
    kept: list[Mark] = []
    for mark in marks:
        if mark.entry < first and mark.kind in _REPLACING:
            before[mark.kind] = mark
        elif mark.entry <= last and (mark.entry >= first or mark.kind in _LASTING):
            kept.append(mark)
    kept = [*before.values(), *kept]
    return tuple(replace(mark, entry=max(mark.entry - first, 0)) for mark in kept)


def plain_marks(device: int, marks: Iterable[Mark]) -> list[dict[str, object]]:
    """Return the marks of a device as the dictionaries that a snapshot stores."""
    return [
        {"device": device, "entry": mark.entry, "kind": str(mark.kind), "value": mark.value}
        for mark in marks
    ]


def read_marks(fields: Fields, size: int) -> dict[int, tuple[Mark, ...]]:
    """Return the marks of each device, by device number.

    fields: dictionary under the snapshot's key "allocsim".
    size: bytes of the file, which limit the number of marks.
    """
    found: dict[int, list[Mark]] = {}
    values = fields.items(MARKS) if MARKS in fields else []
    if len(values) > size:
        fields.wrong(MARKS, values, "no more than the file's size can hold")
    for index, value in enumerate(values):
        row = Fields(fields.path, f"{MARKS}[{index}]", value)
        device, entry = row.integer("device", 0, INT32_MAX), row.integer("entry", 0, INT64_MAX)
        name = row.text("kind")
        if name not in set(MarkKind):
            continue  # written by a later release of allocsim
        kind = MarkKind(name)
        found.setdefault(device, []).append(Mark(entry, kind, _value(row, kind)))
    # Stable sort: marks at the same entry keep the order of the calls.
    return {
        device: tuple(sorted(marks, key=lambda mark: mark.entry)) for device, marks in found.items()
    }


def _value(row: Fields, kind: MarkKind) -> _Value:
    if kind in (MarkKind.SETTINGS, MarkKind.PHASE):
        return row.text("value")
    if kind is MarkKind.STEP:
        return row.integer("value", 0, INT64_MAX)
    if kind is MarkKind.FRACTION:
        share = row.number("value")
        if not 0.0 <= share <= 1.0:
            row.wrong("value", share, "a number from 0 to 1")
        return share
    if kind in (MarkKind.EMPTY_CACHE, MarkKind.PEAK_RESET):
        return None
    numbers = [n for n in row.items("value") if type(n) is int and 0 <= n <= UINT64_MAX]
    if len(numbers) != 2:
        row.refuse(f"{row.where} has no pool's two numbers as its value")
    return numbers[0], numbers[1]


@dataclass(frozen=True, slots=True)
class Annotation:
    """Begin or end of an annotated range.

    stage: "START" or "END".
    time_us: microseconds, by the same clock as the times of entries.
    """

    name: str
    stage: str
    device: int
    time_us: int

    def plain(self) -> dict[str, object]:
        return asdict(self)


def read_annotations(top: Fields, size: int) -> tuple[Annotation, ...]:
    """Return the annotations of a snapshot; an empty tuple if it has none.

    size: bytes of the file, which limit the number of annotations.
    """
    if "external_annotations" not in top:
        return ()
    values = top.items("external_annotations")
    if len(values) > size:
        top.wrong("external_annotations", values, "no more than the file's size can hold")
    found = []
    for index, value in enumerate(values):
        row = Fields(top.path, f"external_annotations[{index}]", value)
        name, stage = row.text("name"), row.text("stage")
        device, time = row.integer("device", -1, INT32_MAX), row.integer("time_us", 0, INT64_MAX)
        found.append(Annotation(name, stage, device, time))
    return tuple(found)
