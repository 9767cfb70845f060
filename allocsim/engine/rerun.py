"""One device of a recording, planned once and driven under any number of settings.

Rule: what is driven is what `replay` drives under settings that are not the recorded ones:
addresses come in order from the recording's first, nothing is dictated, nothing compared.  So
the recorded settings are answered like any others, and outcomes can be held against each other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from allocsim.core import CachingAllocator, SeedSegment
from allocsim.core.releases import FreeBlockOrder
from allocsim.core.stats import Folder
from allocsim.engine.drive import Drive
from allocsim.engine.fold import fold
from allocsim.engine.observers import Observer
from allocsim.engine.plan import Plan, plan_of
from allocsim.engine.repeats import Period, find_period
from allocsim.engine.replay import (
    UNLIMITED_DEVICE,
    collects_above,
    refuse_recorded_conf,
    refuse_too_small,
    release_of,
    seeds_of,
    start_of,
    trace_of,
)
from allocsim.trace import Action, Recording, SegmentState, Trace, refuse_unsound

__all__ = ["Rerun"]


class Rerun:
    """A device of `recording`, ready to be driven again and again.

    torch_version: None for the release that the recording tells.
    plan: its steps.  start: the segments before the first entry.  capacity: bytes of the device
    that the recording tells, None where it does not.  context_memory: what the CUDA context held.
    Raises RecordingError if there is nothing to replay, ConfigError for an unknown release.
    """

    def __init__(self, recording: Recording, device: int, torch_version: str | None = None) -> None:
        refuse_unsound(recording)
        self.trace: Trace = trace_of(recording, device)
        self.release, self.release_note = release_of(recording, torch_version)
        self.recorded_conf = recording.settings.conf if recording.settings is not None else ""
        refuse_recorded_conf(recording.path, self.recorded_conf, self.release)
        self.start: tuple[SegmentState, ...] = start_of(self.trace, recording, self.release)
        held = sum(segment.total_size for segment in self.start)
        plan = plan_of(self.trace, held, collects_above(recording, self.release))
        self.plan: Plan = replace(plan, steps=plan.steps.undictated())
        made = recording.provenance
        self.context_memory = made.context_memory if made is not None else 0
        self.capacity = (made.device_memory if made is not None else None) or self.plan.capacity
        self._seeds: list[SeedSegment] = seeds_of(self.start)
        self._base = _first_base(self.trace)
        self._period: Period | None = None
        self._is_searched = False

    def drive(
        self,
        conf: str,
        device_memory: int | None,
        *,
        memory_fraction: float | None = None,
        observer: Observer | None = None,
        skips: bool = False,
        fast_path: bool = True,
        folder: Folder = fold,
    ) -> Drive:
        """Drive every step on a device of `device_memory` bytes (None: without end).

        memory_fraction: as `torch.cuda.set_per_process_memory_fraction` at the beginning.
        skips: whether to pass over periods in which nothing changes; the timeline then lacks
        them.  fast_path: see `CachingAllocator`.  folder: what counts the statistics.
        Raises ConfigError for a setting that the release refuses or a device too small for what
        the recording begins with, and what PyTorch would not survive under its own name.
        """
        refuse_too_small(self.trace, self.start, device_memory)
        allocator = CachingAllocator(
            device_memory or UNLIMITED_DEVICE,
            conf,
            self.release.version,
            context_memory=self.context_memory,
            base_address=self._base,
            device=self.trace.device,
            fast_path=fast_path,
        )
        if memory_fraction is not None:
            allocator.set_per_process_memory_fraction(memory_fraction)
        allocator.seed(self._seeds)
        observers = () if observer is None else (observer,)
        drive = Drive(
            allocator,
            self.plan,
            len(self.trace),
            dictates=False,
            observers=observers,
            folder=folder,
        )
        drive.run(self._period_for(allocator) if skips else None)
        return drive

    def _period_for(self, allocator: CachingAllocator) -> Period | None:
        """The stretch that may be passed over, unless more than the blocks tells what comes."""
        counts_objects = self.release.free_block_order is FreeBlockOrder.CREATION
        if counts_objects or allocator.heap.collects_garbage:
            return None
        if not self._is_searched:
            self._period, self._is_searched = find_period(self.plan.steps), True
        return self._period


def _first_base(trace: Trace) -> int:
    """Where the recorded driver's addresses begin."""
    grown = np.flatnonzero(np.isin(trace.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)))
    if len(grown):
        return int(trace.addr[grown[0]])
    return trace.segments[0].address if trace.segments else 0
