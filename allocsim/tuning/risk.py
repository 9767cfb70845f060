"""How near a recording comes to an out-of-memory error on a device, and on which it would not.

Rule: every size is one that a replay proved (`smallest_device`); the point of least headroom is
that of a replay under the settings asked for, on the device asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allocsim.analysis.code import Code, code_at
from allocsim.analysis.headroom import HeadroomPoint, HeadroomWatch, Span, largest_entry, spans_of
from allocsim.analysis.measures import Measures, measures_of
from allocsim.core import find_release, parse_conf
from allocsim.engine import DeviceRun, Progress, Run
from allocsim.engine import replay as replay_under
from allocsim.errors import RecordingError
from allocsim.trace import Recording
from allocsim.tuning.capacity import Capacity, smallest_device
from allocsim.tuning.cure import Watch, settings_to_try

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

    points: the headroom wherever memory came from the driver; tightest: the least, with the
    code of its request.  largest_bytes: the largest request, at `largest_entry`.
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
    number = device if device is not None else recording.devices[0].device
    trace = recording.device(number)
    biggest = largest_entry(trace)
    size = 0 if biggest is None else int(trace.size[biggest])
    stream = 0 if biggest is None else int(trace.stream[biggest])
    seen = HeadroomWatch((size, stream))
    run = replay_under(
        recording,
        conf,
        device_memory=device_memory,
        torch_version=torch_version,
        device=number,
        progress=progress,
        observer=seen,
    )
    device_run = run.devices[0]
    tightest = seen.tightest
    return Risk(
        run=run,
        device_run=device_run,
        spans=spans_of(device_run.timeline, _SPANS),
        points=tuple(seen.points),
        tightest=tightest,
        code=None if tightest is None else code_at(trace, tightest.entry),
        largest_entry=biggest,
        largest_bytes=size,
        needs=_needs(recording, run, number, confs, watch),
        measures=measures_of(trace, device_run),
    )


def _needs(
    recording: Recording, run: Run, device: int, confs: Sequence[str] | None, watch: Watch | None
) -> tuple[Need, ...]:
    release = find_release(run.torch_version)
    others = settings_to_try(run.conf, release) if confs is None else confs
    for conf in others:
        parse_conf(conf, release)  # a wrong one is the user's to know
    return tuple(
        Need(
            conf,
            smallest_device(
                recording, conf, torch_version=run.torch_version, device=device, watch=watch
            ),
        )
        for conf in dict.fromkeys([run.conf, *others])
    )
