"""Law of a program where one size gives the number of copies of a part, such as layers.

Rule: for each combination of the other sizes, two recordings show how the program grows
(`growth.py`). At a given number of layers, the programs that grew so are samples of a law of the
other sizes (`law.py`). Every further recording checks both laws.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from allocsim.errors import ConfigError, RecordingError
from allocsim.fitting.scale.growth import Growth, growth_between
from allocsim.fitting.scale.law import (
    Sample,
    ScalingLaw,
    Sizes,
    is_between,
    laws_of,
    refuse_other_program,
    refuse_uncombined,
    typed,
)
from allocsim.fitting.scale.program import SizedProgram


@dataclass(frozen=True, slots=True, eq=False)
class Growing:
    """Law of a program that repeats a part, such as a layer, as often as one size says.

    name: size that gives the number of copies.
    values: the two values of that size whose recordings determine the growth.
    growths: growth for each sample of `others`.
    others: law of the other sizes, where the growing size has the first of `values`.
    samples: recordings that determine both laws.
    checks: recordings that can refute both laws.
    """

    name: str
    values: tuple[int, int]
    growths: tuple[Growth, ...]
    others: ScalingLaw
    samples: tuple[Sample, ...]
    checks: tuple[Sample, ...]

    @property
    def varied(self) -> tuple[str, ...]:
        """Names of the sizes that vary."""
        return (self.name, *self.others.varied)

    @property
    def degrees(self) -> Mapping[str, int]:
        """Highest power of each size in `others`."""
        return self.others.degrees

    @property
    def program(self) -> SizedProgram:
        """Program of the first sample."""
        return self.growths[0].first

    @property
    def step(self) -> int:
        """Increase of the size for each additional copy of the parts."""
        return self.values[1] - self.values[0]

    def domain(self, name: str) -> tuple[int, int]:
        """Return the least covered value of the size `name`, and the step to the next value."""
        return (self.values[0], self.step) if name == self.name else self.others.domain(name)

    def covers(self, at: Sizes) -> bool:
        """Return whether each size in `at` is between two recorded values."""
        return is_between([*self.samples, *self.checks], self.varied, at)

    def complete(self, at: Sizes) -> dict[str, int]:
        """Return `at` with the sizes that are the same in all recordings.

        Raises ConfigError for sizes that the law does not cover.
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
        """Return the law of the other sizes for the value that the growing size has in `at`.

        Raises ConfigError if a program cannot be repeated that often. Raises RecordingError if the
        samples are different programs at that value.
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
    """Yield the laws of programs that grow with a size, the simplest first.

    Nothing is yielded if no program grows. Raises ConfigError if the samples do not show the joint
    effect of the growing size and the others.
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
    """Yield a law of growing programs for each law that the other sizes may have.

    name, values: growing size, and its two values that determine the growth.
    pairs: two samples with these values for each combination of the other sizes.
    growths: growth between the samples of each pair, by the `id()` of the first sample.
    """
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
    """Group the samples by their other sizes; return each group by value of the size `name`."""
    found: defaultdict[str, dict[int, Sample]] = defaultdict(dict)
    for sample in samples:
        rest = typed({each: value for each, value in sample.at.items() if each != name})
        found[rest].setdefault(sample.at[name], sample)
    return list(found.values())


def _growing_values(grouped: Sequence[Mapping[int, Sample]]) -> tuple[int, int] | None:
    """Return the two smallest values of the growing size that one group has, or None.

    grouped: samples by value of that size, for each combination of the other sizes.
    """
    found = [tuple(sorted(row))[:2] for row in grouped if len(row) > 1]
    return min(((first, second) for first, second in found), default=None)


def _is_one_program_by(samples: Sequence[Sample], name: str) -> bool:
    """Return whether samples with equal values of the size `name` are the same program."""
    by: dict[int, Sample] = {}
    for sample in samples:
        first = by.setdefault(sample.at[name], sample)
        if first.program.first_difference(sample.program) is not None:
            return False
    return True


def refuse_otherwise_grown(made: ScalingLaw, sample: Sample) -> None:
    """Raise RecordingError if a recording is not of the program that the law predicts.

    made: law of the other sizes at the recording's value of the growing size.
    """
    row = made.program.first_difference(sample.program)
    if row is not None:
        raise RecordingError(
            sample.path,
            f"differs from the prediction of the others at {sample.text}, first at "
            f"{sample.program.described(row)} (predicted: {made.program.described(row)}); "
            "if the first parts differ from later ones, record programs with more parts",
        )
