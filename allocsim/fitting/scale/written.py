"""Writer of the recording that a program would leave at sizes that were not recorded.

Rule: its entries are the history of the allocator model for the law's requests, with the stacks of
the first sample. It can be replayed, tuned and plotted like any other recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.core import TraceEntry
from allocsim.fitting.scale.law import typed
from allocsim.fitting.scale.proof import plan_at
from allocsim.fitting.scale.scale import Scaling
from allocsim.recording import Action, Provenance, Recording
from allocsim.replaying import bytes_of
from allocsim.simulation import Drive, Observer, Plan, Setting, StepKind, fold_allocated
from allocsim.workload import KeptHistory


def recording_at(
    scaling: Scaling,
    sizes: Mapping[str, int],
    *,
    conf: str | None = None,
    device_memory: int | str | None = None,
) -> Recording:
    """Return the recording that the program would leave at `sizes`.

    conf: option string that replaces the recorded one.
    device_memory: bytes, or text such as "24GiB"; None for an unlimited device.

    Raises ConfigError as `Scaling.at` does.
    """
    whole, memory = scaling.law.complete(sizes), bytes_of(device_memory)
    law = scaling.law.settled(whole)
    prepared = law.program.prepared
    plan = plan_at(law, law.requested_at(whole))
    allocator = prepared.allocator(
        prepared.recorded if conf is None else Setting(conf),
        memory,
        record_history=True,
    )
    kept = _Kept(plan, prepared.trace.frames)
    drive = Drive(
        allocator,
        plan,
        len(prepared.trace),
        dictates=False,
        observers=(kept,),
        folder=fold_allocated,
    )
    drive.run()
    text = typed(whole)
    made = prepared.provenance
    provenance = Provenance(
        torch_version=f"{prepared.release.version}.0" if made is None else made.torch_version,
        device_name="a device that allocsim scale imagined",
        device_memory=0 if memory is None else memory,
        context_memory=0 if memory is None else allocator.device.context_memory,
        is_phantom=True,
        command=f"allocsim scale --to {text}",
        oom_text=drive.ooms[-1].message if drive.ooms else "",
    )
    table = prepared.trace.frame_table
    return kept.history_kept.recording(f"scale {text}", allocator, table, provenance)


class _Kept(Observer):
    """History of a replay, with the stack of the step that caused each entry.

    The k-th alloc entry belongs to the k-th request, the k-th free_requested to the k-th free.
    Entries of the driver belong to the request that follows, and a free_completed to the free that
    it completes.
    """

    keeps_history = True

    def __init__(self, plan: Plan, frames: NDArray[np.int32]) -> None:
        self.history_kept = KeptHistory()
        steps = plan.steps
        freed = (StepKind.FREE, StepKind.FREE_REQUEST)
        # The model's history has no stacks; they are those of the k-th request or free.
        self._requested = iter(frames[steps.entry[steps.kind == StepKind.ALLOC]].tolist())
        self._freed = iter(frames[steps.entry[any_of(steps.kind, freed)]].tolist())

    def history(self, entries: Sequence[TraceEntry]) -> None:
        found = []
        driver = 0
        for entry in entries:
            number = -1
            if entry.action == Action.ALLOC.text:
                number = next(self._requested)
                found += [number] * driver
                driver = 0
            elif entry.action == Action.FREE_REQUESTED.text:
                number = next(self._freed)
            elif entry.action == Action.FREE_COMPLETED.text and found:
                number = found[-1]
            elif entry.action in (Action.SEGMENT_ALLOC.text, Action.SEGMENT_MAP.text):
                driver += 1
                continue
            found += [-1] * driver
            driver = 0
            found.append(number)
        found += [-1] * driver
        self.history_kept.take(entries, np.array(found, dtype=np.int64))
