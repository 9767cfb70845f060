"""Prediction of a program's memory, and of its recording, at sizes that were not recorded.

Only the bytes of requests are extrapolated.  A replay of the requests gives the memory that PyTorch
reserves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim._repr import Shown
from allocsim.core import TraceEntry
from allocsim.errors import ConfigError, RecordingError
from allocsim.fitting.scale.growing import (
    Growing,
    LawCheck,
    checks_of,
    drive_at,
    growing_laws,
    plan_at,
)
from allocsim.fitting.scale.law import Sample, ScalingLaw, laws_of, program_of, typed
from allocsim.metrics import Code, code_at
from allocsim.recording import Action, Provenance, Recording
from allocsim.replaying import bytes_of, prepare
from allocsim.simulation import (
    Drive,
    Observer,
    Plan,
    Setting,
    SimulatedOom,
    StepKind,
    fold_allocated,
)
from allocsim.units import format_size
from allocsim.workload import KeptHistory

_MOST = 1 << 24
"""Largest value of a size that `Scaling.largest` tries."""


@dataclass(frozen=True, slots=True, repr=False)
class Scaled(Shown):
    """Predicted memory of a program at given sizes.

    at: sizes of the program, such as {"batch": 8}.
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    device_memory: bytes of the device, None for an unlimited device.
    peak_reserved_bytes, peak_allocated_bytes: peaks, up to the out-of-memory error if any.
    num_alloc_retries: number of retries after releasing cached memory, as in memory_stats().
    oom: first request that failed, None if none failed.
    code: line of code of the failed request, None if unknown.
    is_between: True if each size is within the range of its recorded values.
    rounded: number of requests whose bytes were a fraction and were rounded up.
    """

    at: Mapping[str, int]
    conf: str
    device_memory: int | None
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    num_alloc_retries: int
    oom: SimulatedOom | None
    code: Code | None
    is_between: bool
    rounded: int

    @property
    def fits(self) -> bool:
        """True if every request succeeded."""
        return self.oom is None

    @property
    def text(self) -> str:
        """Sizes as command-line text, such as "batch=2,sequence=512"."""
        return typed(self.at)

    def headline(self) -> str:
        when = "at the peak" if self.fits else "when it runs out of memory"
        return f"{self.text}: {format_size(self.peak_reserved_bytes)} reserved {when}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield "reserved at the peak", format_size(self.peak_reserved_bytes)
        yield "allocated at the peak", format_size(self.peak_allocated_bytes)


@dataclass(frozen=True, slots=True)
class LargestSize:
    """Largest value of a size, such as the batch size, with which a program fits on a device.

    fitting: prediction at the largest value of the size `name` that fits; None if no value fits.
    failing: prediction at the next larger value, which does not fit.
    """

    name: str
    fitting: Scaled | None
    failing: Scaled


@dataclass(frozen=True, slots=True)
class ScaleFrontier:
    """Largest value of the size `name` that fits on a device, at several values of size `other`.

    rows: (value of `other`, largest value of `name` with it), by ascending value of `other`.
    """

    name: str
    other: str
    rows: tuple[tuple[int, LargestSize], ...]

    @property
    def fits(self) -> bool:
        """True if a value of `name` fits at any value of `other`."""
        return any(found.fitting is not None for _, found in self.rows)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scaling(Shown):
    """Formula for each request of a program (a law), derived from recordings at a few sizes.

    checks: recorded runs that the law was not derived from; it predicted their peaks exactly.
    """

    law: ScalingLaw | Growing
    checks: tuple[LawCheck, ...]

    @property
    def torch_version(self) -> str:
        """Release of PyTorch whose allocator is modelled."""
        return self.law.program.prepared.release.version

    @property
    def context_memory(self) -> int:
        """Bytes of the device that the CUDA context takes in a replay."""
        return self.law.program.prepared.context_memory

    def headline(self) -> str:
        sizes = ", ".join(sample.text for sample in self.law.samples)
        proved = f"checked by {len(self.checks)}" if self.checks else "not checked"
        return f"from {sizes}: {proved}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for sample in (*self.law.samples, *self.law.checks):
            yield sample.text, sample.path

    def at(
        self,
        sizes: Mapping[str, int],
        *,
        conf: str | None = None,
        device_memory: int | str | None = None,
    ) -> Scaled:
        """Return the predicted memory of the program at `sizes`, such as {"batch": 8}.

        conf: allocator settings (PYTORCH_CUDA_ALLOC_CONF) that replace the recorded ones.
        device_memory: bytes, or text such as "24GiB"; None for an unlimited device.

        Raises ConfigError for sizes that the law does not cover, and for settings that the release
        of PyTorch refuses.
        """
        whole, memory = self.law.complete(sizes), bytes_of(device_memory)
        law = self.law.settled(whole)
        prepared = law.program.prepared
        setting = prepared.recorded if conf is None else Setting(conf)
        requested = law.requested_at(whole)
        drive = drive_at(law, plan_at(law, requested), setting, memory)
        stats = drive.allocator.statistics()
        oom = drive.ooms[0] if drive.ooms else None
        return Scaled(
            at=whole,
            conf=setting.conf,
            device_memory=memory,
            peak_reserved_bytes=stats.all.reserved_bytes.peak,
            peak_allocated_bytes=stats.all.allocated_bytes.peak,
            num_alloc_retries=stats.num_alloc_retries,
            oom=oom,
            code=None if oom is None else code_at(prepared.trace, oom.entry),
            is_between=self.law.covers(whole),
            rounded=requested.rounded,
        )

    def largest(
        self,
        name: str,
        sizes: Mapping[str, int],
        device_memory: int | str,
        *,
        conf: str | None = None,
        watch: Callable[[str], object] | None = None,
    ) -> LargestSize:
        """Find the largest value of the size `name` at which the program fits on a device.

        sizes: values of the other sizes.
        device_memory: bytes, or text such as "24GiB".
        conf: allocator settings (PYTORCH_CUDA_ALLOC_CONF) that replace the recorded ones.
        watch: called with each value, such as "batch=8", before it is tried.

        The search assumes that a value does not fit if a smaller one does not. Raises ConfigError
        for sizes that the law does not cover, for settings that the release of PyTorch refuses, and
        if memory does not grow with the size.
        """
        if name not in self.law.varied:
            known = ", ".join(self.law.varied)
            raise ConfigError(
                f"{name} is the same in every recording; the sizes that vary are {known}"
            )
        least, stride = self.law.domain(name)

        def tried(count: int) -> Scaled:
            value = least + (count - 1) * stride
            if watch is not None:
                watch(f"{name}={value}")
            return self.at({**sizes, name: value}, conf=conf, device_memory=device_memory)

        guess = self._extrapolated_linearly(name, sizes, device_memory, conf)
        count, step = max((guess - least) // stride + 1, 1), 1
        low, high = 0, _MOST
        fitting: Scaled | None = None
        failing: Scaled | None = None
        while failing is None or high - low > 1:
            found = tried(count)
            if found.fits:
                low, fitting = count, found
            else:
                high, failing = count, found
            # Bisect once a value fits and another does not; until then double the step.
            if failing is not None and fitting is not None:
                count = (low + high) // 2
            else:
                count = low + step if failing is None else max(high - step, 1)
                step *= 2
            if count > _MOST:
                raise ConfigError(f"{name} makes no difference to the memory: {low:,} fits as well")
        return LargestSize(name, fitting, failing)

    def frontier(
        self,
        name: str,
        other: str,
        values: Sequence[int],
        sizes: Mapping[str, int],
        device_memory: int | str,
        *,
        conf: str | None = None,
        watch: Callable[[str], object] | None = None,
    ) -> ScaleFrontier:
        """Find the largest value of the size `name` that fits, for each of `values` of `other`.

        values: values of `other`; the result has them in ascending order.
        sizes: values of the remaining sizes.

        The other arguments and errors are those of `largest`.
        """
        if name == other:
            raise ConfigError(f"{name} and {other} are the same size; expected two")
        rows = []
        for value in sorted(set(values)):
            at = {**sizes, other: value}
            rows.append((value, self.largest(name, at, device_memory, conf=conf, watch=watch)))
        return ScaleFrontier(name, other, tuple(rows))

    def _extrapolated_linearly(
        self, name: str, sizes: Mapping[str, int], device_memory: int | str, conf: str | None
    ) -> int:
        values = sorted({sample.at[name] for sample in self.law.samples})[:2]
        near, far = (
            self.at({**sizes, name: value}, conf=conf).peak_reserved_bytes for value in values
        )
        room = (bytes_of(device_memory) or 0) - self.context_memory - near
        if far <= near:
            return values[0]
        guess = values[0] + room * (values[1] - values[0]) // (far - near)
        return min(max(guess, 1), _MOST)


def scaling_of(
    runs: Sequence[tuple[Recording, Mapping[str, int]]],
    *,
    device: int | None = None,
    torch_version: str | None = None,
) -> Scaling:
    """Derive a formula for each request of a program (a law) from recordings at a few sizes.

    runs: recordings, each with the sizes of its run, such as {"batch": 2}.
    device: index of the device in every recording; default: the only device.
    torch_version: release of PyTorch to model; default: the recorded release.

    Raises ConfigError for too few recordings, and for recordings that name different sizes. Raises
    RecordingError if the recordings are different programs, or if one contradicts the others' law.
    """
    samples = []
    for recording, at in runs:
        (prepared,) = prepare(recording, recording.only_device(device).device, torch_version)
        samples.append(Sample(program_of(prepared), dict(at)))
    refuted: RecordingError | None = None
    for law in _laws(samples):
        try:
            return Scaling(law, checks_of(law))
        except RecordingError as error:
            refuted = refuted or error
    assert refuted is not None
    raise refuted


def _laws(samples: Sequence[Sample]) -> Iterator[ScalingLaw | Growing]:
    is_one = all(samples[0].program.first_difference(each.program) is None for each in samples)
    is_comparable = all(set(each.at) == set(samples[0].at) for each in samples)
    growing = iter(()) if is_one or not is_comparable else growing_laws(samples)
    first = next(growing, None)
    yield from laws_of(samples) if first is None else chain([first], growing)


def recording_at(
    scaling: Scaling,
    sizes: Mapping[str, int],
    *,
    conf: str | None = None,
    device_memory: int | str | None = None,
) -> Recording:
    """Predict the recording (allocator calls and final state) of a run at the given sizes.

    conf: allocator settings (PYTORCH_CUDA_ALLOC_CONF) that replace the recorded ones.
    device_memory: bytes, or text such as "24GiB"; None for an unlimited device.

    Raises ConfigError for sizes that the law does not cover, and for refused settings.
    """
    whole, memory = scaling.law.complete(sizes), bytes_of(device_memory)
    law = scaling.law.settled(whole)
    prepared = law.program.prepared
    plan = plan_at(law, law.requested_at(whole))
    setting = prepared.recorded if conf is None else Setting(conf)
    allocator = prepared.allocator(setting, memory, record_history=True)
    kept = _Kept(plan, prepared.trace.frames)
    n_entries = len(prepared.trace)
    drive = Drive(
        allocator, plan, n_entries, dictates=False, observers=(kept,), folder=fold_allocated
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
    keeps_history = True

    def __init__(self, plan: Plan, frames: NDArray[np.int32]) -> None:
        self.history_kept = KeptHistory()
        steps = plan.steps
        freed = (StepKind.FREE, StepKind.FREE_REQUEST)
        # A replay's history has no stacks: use those of the k-th recorded request or free.
        self._requested = iter(frames[steps.entry[steps.kind == StepKind.ALLOC]].tolist())
        self._freed = iter(frames[steps.entry[any_of(steps.kind, freed)]].tolist())

    def history(self, entries: Sequence[TraceEntry]) -> None:
        # Entries of the driver have the stack of the next request, a free_completed that of its
        # free_requested.
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
