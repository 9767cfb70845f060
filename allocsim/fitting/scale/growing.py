"""Law (formulas for the requests) of a program with a variable number of layers.

Two recordings with different numbers of layers show the requests and frees that a layer adds.  The
law must then predict the peak of reserved memory of every further recording exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from allocsim.errors import ConfigError, RecordingError
from allocsim.fitting.scale.growth import Growth, growth_between
from allocsim.fitting.scale.law import (
    Requested,
    Sample,
    ScalingLaw,
    SizedProgram,
    Sizes,
    is_between,
    laws_of,
    refuse_other_program,
    refuse_uncombined,
    typed,
)
from allocsim.simulation import Drive, Plan, Setting, fold_allocated
from allocsim.units import format_size


@dataclass(frozen=True, slots=True, eq=False)
class Growing:
    """Law (formulas for the requests) of a program with a variable number of layers.

    name: name of the size that is the number of layers or other repeated parts, such as "layers".
    values: smallest pair of recorded values of this size, such as 2 and 3 layers.
    growths: for each recorded run in `others.samples`, the rows (requests, frees, other calls)
        that one more layer adds.
    others: law in the other sizes, such as the batch size, with `values[0]` layers.
    samples: recorded runs that determine the law, each with its sizes.
    checks: recorded runs with which the law is compared, and which can refute it.
    """

    name: str
    values: tuple[int, int]
    growths: tuple[Growth, ...]
    others: ScalingLaw
    samples: tuple[Sample, ...]
    checks: tuple[Sample, ...]

    @property
    def varied(self) -> tuple[str, ...]:
        """Names of the program's sizes, such as the batch, that differ between the recordings."""
        return (self.name, *self.others.varied)

    @property
    def degrees(self) -> Mapping[str, int]:
        """Highest power of each size in the law, except for the size `name`."""
        return self.others.degrees

    @property
    def program(self) -> SizedProgram:
        """Requests and frees of the first recorded run in `samples`."""
        return self.growths[0].first

    @property
    def step(self) -> int:
        """Difference between two successive values of the size `name` in the law, such as 1."""
        return self.values[1] - self.values[0]

    def domain(self, name: str) -> tuple[int, int]:
        """Return (first, step) of the size `name`: the law covers first, first + step and so on."""
        return (self.values[0], self.step) if name == self.name else self.others.domain(name)

    def covers(self, at: Sizes) -> bool:
        """Return whether each size in `at` is within the range of its recorded values."""
        return is_between([*self.samples, *self.checks], self.varied, at)

    def complete(self, at: Sizes) -> dict[str, int]:
        """Return `at`, completed with the sizes that are equal in all recordings.

        Raises ConfigError if a size is unknown or missing, or if the law does not cover its value.
        """
        if self.name not in at:
            raise ConfigError(f"no value of {self.name}; expected {self.name}=N")
        value, (least, step) = at[self.name], self.domain(self.name)
        if value < least:
            raise ConfigError(
                f"{self.name}={value}: expected {least} or more, the fewest that were recorded"
            )
        if (value - least) % step:
            raise ConfigError(
                f"{self.name}={value}: recordings at {least} and {least + step} determine every "
                f"{step} more; expected a recording at {least + 1} for those between"
            )
        whole = self.others.complete({**at, self.name: least})
        return {**whole, self.name: value}

    def settled(self, at: Sizes) -> ScalingLaw:
        """Return the law for the number of layers in `at`, with the other sizes still variable.

        Raises RecordingError if the number or order of requests depends on the other sizes.
        """
        copies = (at[self.name] - self.values[0]) // self.step
        samples = tuple(
            Sample(growth.program_with(copies), {**sample.at, self.name: at[self.name]})
            for growth, sample in zip(self.growths, self.others.samples, strict=True)
        )
        for sample in samples:
            refuse_other_program(samples[0], sample)
        return ScalingLaw(samples, (), self.others.degrees)


def growing_laws(samples: Sequence[Sample]) -> Iterator[Growing]:
    """Yield laws (formulas for every request) of a program, if its number of layers varies.

    The number of layers is one of the sizes in `samples`; each size is tried.  The simplest law
    comes first.  Nothing is yielded if no size repeats parts of the program.

    samples: recorded runs of one program, each with its sizes, such as layers=2,batch=4.
    """
    for name in samples[0].at:
        grouped = _grouped(samples, name)
        values = _growing_values(grouped)
        if values is None or not _is_one_program_by(samples, name):
            continue
        pairs = [(row[values[0]], row[values[1]]) for row in grouped if set(values) <= set(row)]
        found = [growth_between(first.program, second.program) for first, second in pairs]
        growths = {
            id(first): growth
            for (first, _), growth in zip(pairs, found, strict=True)
            if growth is not None
        }
        if len(growths) == len(pairs):
            yield from _combined(samples, name, values, pairs, growths)
            return


def _combined(
    samples: Sequence[Sample],
    name: str,
    values: tuple[int, int],
    pairs: Sequence[tuple[Sample, Sample]],
    growths: Mapping[int, Growth],
) -> Iterator[Growing]:
    firsts = [first for first, _ in pairs]
    for others in _laws_of_others(samples, firsts, name):
        chosen = [pair for pair in pairs if pair[0] in others.samples]
        determining = tuple(sample for pair in chosen for sample in pair)
        yield Growing(
            name,
            values,
            tuple(growths[id(first)] for first, _ in chosen),
            others,
            determining,
            tuple(sample for sample in samples if sample not in determining),
        )


def _laws_of_others(
    samples: Sequence[Sample], firsts: Sequence[Sample], name: str
) -> Iterator[ScalingLaw]:
    others = [each for each in samples[0].at if each != name]
    varied = [each for each in others if len({sample.at[each] for sample in samples}) > 1]
    if not varied:
        yield ScalingLaw(tuple(firsts), (), {})
        return
    if any(len({first.at[each] for first in firsts}) == 1 for each in varied):
        refuse_uncombined(len(samples), [name, *varied], 2 ** (1 + len(varied)))
    yield from laws_of(firsts)


def _grouped(samples: Sequence[Sample], name: str) -> list[dict[int, Sample]]:
    found: defaultdict[str, dict[int, Sample]] = defaultdict(dict)
    for sample in samples:
        rest = typed({each: value for each, value in sample.at.items() if each != name})
        found[rest].setdefault(sample.at[name], sample)
    return list(found.values())


def _growing_values(grouped: Sequence[Mapping[int, Sample]]) -> tuple[int, int] | None:
    found = [tuple(sorted(row))[:2] for row in grouped if len(row) > 1]
    return min(((first, second) for first, second in found), default=None)


def _is_one_program_by(samples: Sequence[Sample], name: str) -> bool:
    by: dict[int, Sample] = {}
    for sample in samples:
        first = by.setdefault(sample.at[name], sample)
        if first.program.first_difference(sample.program) is not None:
            return False
    return True


def _refuse_otherwise_grown(made: ScalingLaw, sample: Sample) -> None:
    row = made.program.first_difference(sample.program)
    if row is not None:
        raise RecordingError(
            sample.path,
            f"differs from the prediction of the others at {sample.text}, first at "
            f"{sample.program.described(row)} (predicted: {made.program.described(row)}); "
            "if the first parts differ from later ones, record programs with more parts",
        )


def plan_at(law: ScalingLaw, requested: Requested) -> Plan:
    """Return the plan (allocator calls of a replay) for the program of a law at given sizes.

    requested: bytes of the requests at these sizes, which replace the recorded ones.
    """
    program = law.program
    size = program.steps.size.copy()
    size[program.requests] = requested.size
    return replace(program.prepared.free_plan, steps=replace(program.steps, size=size))


def drive_at(law: ScalingLaw, plan: Plan, setting: Setting, device_memory: int | None) -> Drive:
    """Replay the allocator calls in `plan`, a result of `plan_at`; return the finished replay.

    setting: allocator settings and memory fraction of the replay.
    device_memory: bytes of the device; None for an unlimited device.
    """
    prepared = law.program.prepared
    return prepared.drive(setting, device_memory, plan=plan, folder=fold_allocated)


@dataclass(frozen=True, slots=True)
class LawCheck:
    """Recorded run whose peak of reserved memory a law predicted exactly.

    path, text: file of the recording, and its sizes as text, such as "batch=2".
    missed: number of requests for which the law gives other bytes than the recording.
    largest_miss: largest difference of one request, in bytes.
    """

    path: str
    text: str
    peak_reserved_bytes: int
    missed: int
    largest_miss: int


def checks_of(law: ScalingLaw | Growing) -> tuple[LawCheck, ...]:
    """Compare the law with each recorded run from which it was not derived.

    Raises RecordingError for the first run whose peak of reserved memory the law does not predict.
    """
    return tuple(_check(law.settled(law.complete(each.at)), each) for each in law.checks)


def _check(law: ScalingLaw, sample: Sample) -> LawCheck:
    _refuse_otherwise_grown(law, sample)
    own = sample.program.prepared
    requested = law.requested_at(sample.at)
    predicted = _peak(drive_at(law, plan_at(law, requested), own.recorded, None))
    recorded = _peak(own.drive(own.recorded, None, folder=fold_allocated))
    miss = np.abs(requested.size - sample.program.size)
    if predicted != recorded:
        first = int(np.argmax(miss != 0))
        row = int(sample.program.requests[first])
        size = format_size(int(requested.size[first]))
        raise RecordingError(
            sample.path,
            f"does not follow the law of the others: {format_size(recorded)} reserved at the peak, "
            f"by the law {format_size(predicted)}; first "
            f"{sample.program.described(row)}, by the law {size}",
        )
    return LawCheck(
        sample.path, sample.text, predicted, int(np.count_nonzero(miss)), int(miss.max())
    )


def _peak(drive: Drive) -> int:
    return drive.allocator.statistics().all.reserved_bytes.peak
