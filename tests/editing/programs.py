"""Simulated training programs whose source can be edited, as the truth for predicted edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from allocsim.recording import Mark, MarkKind, Recording
from allocsim.units import MIB
from allocsim.workload.recorder import Recorder

__all__ = ["Source", "order_with_largest_first", "recorded"]

SIDE = 7
"""Raw handle of a second stream."""


@dataclass(frozen=True)
class Source:
    """Source of a training program, with its edits.

    lengths: MiB of the first activation of each training step; the position is the step's number.
    order: steps to run, as positions in `lengths`; None for all.
    empties_after, empties_before_backward: steps with a call of empty_cache at that place.
    preallocated: MiB that the program allocates and frees first; 0 for nothing.
    keeps_gradients: gradients are freed by the next step, not by their own.
    records_stream: each step hands a batch to the second stream before it frees the batch.
    """

    lengths: tuple[int, ...]
    order: tuple[int, ...] | None = None
    empties_after: frozenset[int] = frozenset()
    empties_before_backward: frozenset[int] = frozenset()
    preallocated: int = 0
    keeps_gradients: bool = True
    records_stream: bool = False


def recorded(source: Source, *, conf: str = "") -> Recording:
    """Return the recording of one run on the model, with a mark for each training step."""
    recorder = Recorder("64GiB", conf)
    marks: list[Mark] = []
    with recorder.program():
        _run(source, recorder, marks)
    recording = recorder.recording("training", {})
    (trace,) = recording.devices
    return replace(recording, devices=(replace(trace, marks=tuple(marks)),))


def _run(source: Source, recorder: Recorder, marks: list[Mark]) -> None:
    line = recorder.code("train.py", "main", 1)

    def new(mebibytes: float, stream: int = 0) -> int:
        return recorder.malloc(int(mebibytes * MIB) or 1, line, stream)

    def drop(blocks: list[int]) -> None:
        for block in blocks:
            recorder.free(block, line)
        blocks.clear()

    if source.preallocated:
        drop([new(source.preallocated)])
    weights = [new(size) for size in (3, 12, 0.5, 30)]
    gradients: list[int] = []
    states: list[int] = []
    order = range(len(source.lengths)) if source.order is None else source.order
    for turn, step in enumerate(order, 1):
        marks.append(Mark(recorder.n_entries, MarkKind.STEP, turn))
        drop(gradients)
        length = source.lengths[step]
        batch = new(length / 3, SIDE if source.records_stream else 0)
        activations = [new(length), new(length / 7), new(0.25), new(length / 2)]
        if source.records_stream:
            recorder.allocator.record_stream(batch, 0)
        drop([batch])
        if step in source.empties_before_backward:
            recorder.empty_cache()
        workspace = [new(length / 5)]
        gradients += [new(size) for size in (3, 12, 0.5, 30)]
        drop(workspace)
        drop(activations)
        if not states:
            states += [new(size) for size in (3, 12, 0.5, 30) for _ in range(2)]
        drop([new(30)])
        if not source.keeps_gradients:
            drop(gradients)
        if step in source.empties_after:
            recorder.empty_cache()
    drop(gradients)
    drop(weights)
    drop(states)


def order_with_largest_first(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of the steps, that of the longest first."""
    first = max(range(len(lengths)), key=lambda step: lengths[step])
    return (first, *(step for step in range(len(lengths)) if step != first))
