"""Measure the memory of a part of a recording, and check it against limits and a baseline.

The replay uses only the requests and frees of the recording, and begins with an empty cache on an
unlimited device.  A baseline file is a small JSON file for version control.  It contains the
measured memory of an earlier run, without values that differ between runs of the same program.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from allocsim._repr import Shown
from allocsim.analysis.gate.body import PLACES, Body, HeldBefore, body_of
from allocsim.core import ReplayAllocator
from allocsim.errors import ConfigError, RecordingError
from allocsim.ownership import held_at, moved_lines, scene_of_run, status_of
from allocsim.recording import Action, Recording
from allocsim.replaying import Prepared, prepare
from allocsim.simulation import Drive, Progress, Setting
from allocsim.units import format_size

__all__ = [
    "Baseline", "Budget", "LimitCheck", "Gate", "LineGrowth", "Measured", "PLACES", "gate",
    "measured", "read_baseline", "write_baseline",
]  # fmt: skip

_FORMAT = 1
_LARGEST = 16 << 20
_FIGURES = (
    "peak_reserved_bytes", "peak_allocated_bytes", "peak_requested_bytes", "driver_calls",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Baseline:
    """Contents of a baseline file: the memory of a part of a recording.

    at: place where the measured part of the recording begins, such as ("step", "2"); None for the
        beginning of the recording.
    counts_held: True if the peaks include blocks that are allocated before the measured part and
        are live until its last request.
    conf, torch_version: allocator settings and PyTorch release of the replay.
    driver_calls: number of allocations from the driver in the measured part.
    owners: dictionary from a line of code to the requested bytes of its blocks at the peak.
    """

    path: str
    at: tuple[str, str] | None
    counts_held: bool
    conf: str
    torch_version: str
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    peak_requested_bytes: int
    driver_calls: int
    owners: Mapping[str, int]


def write_baseline(path: str | os.PathLike[str], found: Baseline) -> None:
    document: dict[str, Any] = {
        "allocsim_baseline": _FORMAT,
        "from": " ".join(found.at) if found.at else "",
        "counts_held": found.counts_held,
        "conf": found.conf,
        "torch_version": found.torch_version,
    }
    document |= {name: getattr(found, name) for name in _FIGURES}
    document["owners"] = dict(sorted(found.owners.items()))
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    target = Path(path)
    part = target.with_name(f"{target.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(target)


def read_baseline(path: str | os.PathLike[str]) -> Baseline:
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file:
            data = file.read(_LARGEST + 1)
        document = json.loads(data.decode("utf-8")) if len(data) <= _LARGEST else None
    except OSError as error:
        raise ConfigError(f"{name} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        document = None
    try:
        return _read(name, document)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(f"{name} is not a baseline; --update writes one") from None


def _read(path: str, document: Any) -> Baseline:
    if document["allocsim_baseline"] != _FORMAT:
        raise ValueError
    place = document["from"].split(" ", 1)
    if document["from"] and (len(place) != 2 or place[0] not in PLACES):
        raise ValueError
    texts = {name: document[name] for name in ("conf", "torch_version")}
    figures, owners = {name: document[name] for name in _FIGURES}, document["owners"]
    if not all(type(text) is str for text in texts.values()) or type(owners) is not dict:
        raise ValueError
    if not all(type(size) is int and size >= 0 for size in [*figures.values(), *owners.values()]):
        raise ValueError
    return Baseline(
        path=path,
        at=(place[0], place[1]) if document["from"] else None,
        counts_held=document["counts_held"] is True,
        owners=owners,
        **texts,
        **figures,
    )


_NO_END = 1 << 60


@dataclass(frozen=True, slots=True)
class Measured(Baseline):
    """Measured memory of a part of a recording: the contents of a baseline file, and more.

    device: number of the device.
    first: index of the history entry at which the measured part begins.
    entry: index of the history entry of peak allocated memory.
    held: memory that is live when the measured part begins.
    """

    device: int
    first: int
    entry: int
    held: HeldBefore
    notes: tuple[str, ...] = ()

    @property
    def fragmentation(self) -> float:
        """Peak reserved minus peak allocated memory, divided by peak reserved memory: 0 to 1."""
        if not self.peak_reserved_bytes:
            return 0.0
        return 1 - self.peak_allocated_bytes / self.peak_reserved_bytes


def measured(
    recording: Recording,
    *,
    at: tuple[str, str] | None = None,
    counts_held: bool = True,
    conf: str | None = None,
    device: int | None = None,
    torch_version: str | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Measure the memory that a part of a recording needs in an allocator that begins empty.

    at: place where the measured part begins: ("step", "2"), ("phase", "forward"), ("mark",
        "prefill") or ("entry", "1200"); None for the beginning of the recording.
    counts_held: count blocks that are allocated before the part and live until its last request.
    conf: PYTORCH_CUDA_ALLOC_CONF; None for the recorded value.
    device: device number; None if only one device is recorded.
    torch_version: PyTorch release to model; None to choose it from the recording.
    progress: callback for the progress of the replay.
    Raises RecordingError if there is nothing to replay or no such place, and ConfigError for
    settings that the PyTorch release refuses.
    """
    trace = recording.only_device(device)
    if not trace.count(Action.ALLOC):
        what = "holds no requests; expected a recording with a history"
        raise RecordingError(recording.path, what)
    (prepared,) = prepare(recording, trace.device, torch_version)
    body = body_of(prepared, at, counts_held=counts_held, annotations=recording.annotations)
    if not body.trace.count(Action.ALLOC):
        what = f"has no requests after {' '.join(at or ())}; expected an earlier place"
        raise RecordingError(recording.path, what)
    setting = prepared.recorded if conf is None else Setting(conf)
    drive = _driven(prepared, body, setting, progress)
    timeline = drive.timeline.build(drive.plan.steps.entry)
    stats = drive.allocator.memory_stats()
    fullest = int(timeline.entry[np.argmax(timeline.allocated)]) if len(timeline.entry) else -1
    scene = scene_of_run(body.trace, body.start, timeline)
    owned = held_at(scene, body.trace, fullest)
    requested = owned.blocks.requested[owned.rows].tolist()
    owners: Counter[str] = Counter()
    for index, size in enumerate(requested):
        owners[owned.line(index)] += size or owned.sizes[index]
    return Measured(
        path=recording.path,
        device=trace.device,
        at=at,
        counts_held=counts_held,
        first=body.first,
        conf=setting.conf,
        torch_version=prepared.release.version,
        peak_reserved_bytes=stats["reserved_bytes.all.peak"],
        peak_allocated_bytes=stats["allocated_bytes.all.peak"],
        peak_requested_bytes=stats.get("requested_bytes.all.peak", sum(requested)),
        driver_calls=stats.get("num_device_alloc", stats["segment.all.allocated"]),
        entry=body.first + fullest,
        held=body.held,
        owners=dict(sorted(owners.items(), key=lambda each: (-each[1], each[0]))),
        notes=_notes(drive, body),
    )


def _driven(prepared: Prepared, body: Body, setting: Setting, progress: Progress | None) -> Drive:
    version, device = prepared.release.version, prepared.trace.device
    allocator = ReplayAllocator(_NO_END, setting.conf, version, base_address=0, device=device)
    plan, n = prepared.plan_under(setting, body.plan), len(body.trace)
    drive = Drive(allocator, plan, n, dictates=False, progress=progress, lays_out=body.start)
    drive.run()
    return drive


def _notes(drive: Drive, body: Body) -> tuple[str, ...]:
    found = []
    if body.trace.count(Action.OOM):
        found.append("requests that failed in the recording succeed here, and they count")
    if drive.plan.empties_cache:
        found.append("the program calls empty_cache(), and so does this replay")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class LineGrowth:
    """Change since the baseline of the memory that one line of code holds at the peak.

    owner, was: name of the line now, and in the baseline; "" if it holds no memory there.
    before, now: requested bytes in the baseline, and now.
    """

    owner: str
    was: str
    before: int
    now: int

    @property
    def bytes(self) -> int:
        return self.now - self.before

    @property
    def status(self) -> str:
        return status_of(self.bytes, was_there=bool(self.was), is_there=bool(self.owner))


def growth_of(before: Mapping[str, int], now: Mapping[str, int]) -> tuple[LineGrowth, ...]:
    known = {name: name for name in now if name in before} | moved_lines(before, now)
    found = [
        LineGrowth(name, known.get(name, ""), before.get(known.get(name, ""), 0), size)
        for name, size in now.items()
    ]
    gone = before.keys() - set(known.values())
    found += [LineGrowth("", name, before[name], 0) for name in gone]
    return tuple(sorted(found, key=lambda each: (-each.bytes, each.owner, each.was)))


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of the measured memory; a field is None if there is no limit.

    max_reserved, max_allocated, max_requested: peaks in bytes.
    max_driver_calls: number of allocations from the driver.
    max_fragmentation: limit of `Measured.fragmentation`, from 0 to 1.
    """

    max_reserved: int | None = None
    max_allocated: int | None = None
    max_requested: int | None = None
    max_driver_calls: int | None = None
    max_fragmentation: float | None = None

    @property
    def is_empty(self) -> bool:
        return self == Budget()


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """Result of checking one limit.

    what: measured quantity: "reserved", "allocated" or "requested" (peak bytes), "driver_calls" or
        "fragmentation".
    baseline: value in the baseline file from which the limit is derived; None for a limit of
        `Budget`.
    """

    what: str
    value: float
    limit: float
    baseline: int | None = None

    @property
    def passed(self) -> bool:
        return self.value <= self.limit


@dataclass(frozen=True, slots=True, repr=False)
class Gate(Shown):
    """Result of comparing measured memory with limits and a baseline (an earlier measurement).

    tolerance: share by which peaks may exceed the baseline, such as 0.01 for 1 %.
    checks: one for each limit of the budget and each peak of the baseline.
    growth: change of memory of every line of code since the baseline; empty without a baseline.
    """

    measured: Measured
    checks: tuple[LimitCheck, ...]
    baseline: Baseline | None
    tolerance: float
    growth: tuple[LineGrowth, ...]

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def grown(self) -> tuple[LineGrowth, ...]:
        """Lines of code that hold more memory than in the baseline, largest growth first."""
        return tuple(each for each in self.growth if each.bytes > 0)

    def headline(self) -> str:
        what = "within its limits" if self.passed else "beyond its limits"
        return f"{what}: {format_size(self.measured.peak_reserved_bytes)} reserved at the peak"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for check in self.checks:
            yield check.what, f"{check.value:,} of {check.limit:,}"


def gate(
    measured: Measured,
    budget: Budget = Budget(),
    *,
    baseline: Baseline | None = None,
    tolerance: float = 0.01,
) -> Gate:
    """Check measured memory against limits, a baseline (an earlier measurement), or both.

    tolerance: share by which the peaks may exceed the peaks in the baseline.
    Raises ConfigError if there is neither a limit nor a baseline, if the tolerance is negative, and
    if the baseline was measured for another part of the recording or under other settings.
    """
    if budget.is_empty and baseline is None:
        raise ConfigError("there is neither a limit nor a baseline; expected one of them")
    if tolerance < 0:
        raise ConfigError(f"tolerance {tolerance} is negative; expected a share such as 0.01")
    checks = [
        LimitCheck(what, value, limit)
        for what, value, limit in (
            ("reserved", measured.peak_reserved_bytes, budget.max_reserved),
            ("allocated", measured.peak_allocated_bytes, budget.max_allocated),
            ("requested", measured.peak_requested_bytes, budget.max_requested),
            ("driver_calls", measured.driver_calls, budget.max_driver_calls),
            ("fragmentation", measured.fragmentation, budget.max_fragmentation),
        )
        if limit is not None
    ]
    growth: tuple[LineGrowth, ...] = ()
    if baseline is not None:
        _refuse_other(measured, baseline)
        growth = growth_of(baseline.owners, measured.owners)
        for what in ("reserved", "allocated", "requested"):
            value, before = (getattr(each, f"peak_{what}_bytes") for each in (measured, baseline))
            limit = int(before * (1 + Fraction(str(tolerance))))
            checks.append(LimitCheck(what, value, limit, before))
    return Gate(measured, tuple(checks), baseline, tolerance, growth)


def _refuse_other(measured: Measured, baseline: Baseline) -> None:
    if measured.at != baseline.at:
        ours, theirs = (" ".join(each.at or ("the beginning",)) for each in (measured, baseline))
        raise ConfigError(
            f"{baseline.path} measures the run from {theirs} on; expected from {ours} on"
        )
    if measured.counts_held != baseline.counts_held:
        counts = "counts" if baseline.counts_held else "does not count"
        raise ConfigError(
            f"{baseline.path} {counts} memory held before the measured part, unlike this check"
        )
    if measured.conf != baseline.conf:
        raise ConfigError(
            f"{baseline.path} has the settings {baseline.conf!r}; expected {measured.conf!r}, or "
            "--update to rewrite it"
        )
