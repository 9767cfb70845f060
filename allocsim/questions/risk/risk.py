"""How near a recording comes to an out-of-memory error on a device, and on which it would not.

Rule: every size is one that a replay proved (`smallest_device`); the point of least headroom is
that of a replay under the settings asked for, on the device asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.engine import (
    Capacity,
    DeviceRun,
    Progress,
    Run,
    Setting,
    Trials,
    Watch,
    bytes_of,
    prepare,
    replay_prepared,
    smallest_device,
)
from allocsim.errors import RecordingError
from allocsim.measures import Code, Measures, code_at, effects_on, measures_of, usual_settings
from allocsim.questions.risk.headroom import (
    HeadroomPoint,
    HeadroomWatch,
    Span,
    largest_entry,
    spans_of,
)
from allocsim.trace import Recording

__all__ = ["Need", "Risk", "risk_of"]

_SPANS = 12


@dataclass(frozen=True, slots=True)
class Need:
    """What one setting needs.  capacity: None if PyTorch refuses it or would not survive it."""

    conf: str
    capacity: Capacity | None


@dataclass(frozen=True, slots=True)
class Risk:
    """One device of a recording on the device memory asked for.

    points: the headroom wherever memory came from the driver.
    tightest: the first of the least headroom; code: of its request.
    largest_bytes: the largest request, at `largest_entry`.
    """

    run: Run
    device_run: DeviceRun
    spans: tuple[Span, ...]
    points: tuple[HeadroomPoint, ...]
    tightest: HeadroomPoint | None
    code: Code | None
    largest_entry: int | None
    largest_bytes: int
    needs: tuple[Need, ...]
    measures: Measures


def risk_of(
    recording: Recording,
    conf: str | None = None,
    *,
    device_memory: int | str | None = None,
    torch_version: str | None = None,
    device: int | None = None,
    confs: Sequence[str] | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Risk:
    """The risk of one device of `recording` (default: the only one).

    confs: settings whose smallest device is looked for besides `conf`; None: those that a cure
    tries.  The other arguments are those of `replay`.
    Raises RecordingError if several devices are recorded and none is named.
    """
    if device is None and len(recording.devices) > 1:
        numbers = ", ".join(str(trace.device) for trace in recording.devices)
        raise RecordingError(recording.path, f"has devices {numbers}; choose one (--device)")
    (prepared,) = prepare(recording, device, torch_version)
    trace, largest = prepared.trace, largest_entry(prepared.trace)
    size, stream = 0, 0
    if largest is not None:
        size, stream = int(trace.size[largest]), int(trace.stream[largest])
    seen = HeadroomWatch((size, stream))
    setting = prepared.recorded if conf is None else Setting(conf)
    memory = bytes_of(device_memory)
    run = replay_prepared(
        (prepared,), setting, device_memory=memory, progress=progress, observers=(seen,)
    )
    device_run = run.devices[0]
    tightest = seen.tightest
    trials = Trials(prepared, watch, effects_on(prepared))
    trials.note(setting, device_run)
    return Risk(
        run=run,
        device_run=device_run,
        spans=spans_of(device_run.timeline, _SPANS),
        points=tuple(seen.points),
        tightest=tightest,
        code=None if tightest is None else code_at(trace, tightest.entry),
        largest_entry=largest,
        largest_bytes=size,
        needs=_needs(trials, setting, confs),
        measures=measures_of(trace, device_run),
    )


def _needs(trials: Trials, setting: Setting, confs: Sequence[str] | None) -> tuple[Need, ...]:
    release = trials.prepared.release
    usual = usual_settings(setting.config(release))
    others = usual if confs is None else tuple(map(Setting, confs))
    for each in others:
        each.config(release)  # a wrong one is the user's to know
    every = dict.fromkeys([setting, *others])
    return tuple(Need(each.conf, smallest_device(trials, each)) for each in every)
