"""The law of a program in which one size says how often its parts come, as layers do.

Rule: for each combination of the other sizes two recordings tell how the program grows
(`growth.py`); at a number of layers the programs so made are samples of a law of the others
(`law.py`).  Every further recording is a check of both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from allocsim.errors import ConfigError, RecordingError
from allocsim.questions.scale.growth import Growth, growth_between
from allocsim.questions.scale.law import (
    Law,
    Sample,
    Sizes,
    laws_of,
    lies_between,
    refuse_other_program,
    refuse_uncombined,
    typed,
)
from allocsim.questions.scale.program import Program

__all__ = ["Growing", "growing_laws", "refuse_otherwise_grown"]


@dataclass(frozen=True, slots=True, eq=False)
class Growing:
    """Programs that grow with one size, and the law of the others.

    name: the size that says how often the parts come.
    values: of it, the two that the growth is told by.
    growths: one for each sample of `others`.
    others: the law of the other sizes, at the first of `values`.
    samples, checks: the recordings that tell the law, and those that can refute it.
    """

    name: str
    values: tuple[int, int]
    growths: tuple[Growth, ...]
    others: Law
    samples: tuple[Sample, ...]
    checks: tuple[Sample, ...]

    @property
    def varied(self) -> tuple[str, ...]:
        """The names of the sizes that vary."""
        return (self.name, *self.others.varied)

    @property
    def degrees(self) -> Mapping[str, int]:
        """Up to which power each of the others counts."""
        return self.others.degrees

    @property
    def program(self) -> Program:
        """The program of the first sample."""
        return self.growths[0].first

    @property
    def step(self) -> int:
        """How much of the size one copy of the parts is."""
        return self.values[1] - self.values[0]

    def domain(self, name: str) -> tuple[int, int]:
        """The least value of a size that the law tells, and the step to the next."""
        return (self.values[0], self.step) if name == self.name else self.others.domain(name)

    def covers(self, at: Sizes) -> bool:
        """Whether `at` lies between recorded sizes."""
        return lies_between([*self.samples, *self.checks], self.varied, at)

    def complete(self, at: Sizes) -> dict[str, int]:
        """`at` with the sizes that never varied.  Raises ConfigError for what no sample tells."""
        if self.name not in at:
            raise ConfigError(f"which {self.name}? expected {self.name}=N")
        value, (least, step) = at[self.name], self.domain(self.name)
        if value < least:
            raise ConfigError(
                f"{self.name}={value}: expected {least} or more, the fewest that are recorded"
            )
        if (value - least) % step:
            raise ConfigError(
                f"{self.name}={value}: recordings at {least} and {least + step} tell of every "
                f"{step} more; expected one at {least + 1} for those between"
            )
        whole = self.others.complete({**at, self.name: least})
        return {**whole, self.name: value}

    def settled(self, at: Sizes) -> Law:
        """The law of the other sizes where the growing one is that of `at`.

        Raises ConfigError where the parts follow no law, and RecordingError if those of the
        samples differ there.
        """
        copies = (at[self.name] - self.values[0]) // self.step
        samples = tuple(
            Sample(growth.program_with(copies), {**sample.at, self.name: at[self.name]})
            for growth, sample in zip(self.growths, self.others.samples, strict=True)
        )
        for sample in samples:
            refuse_other_program(samples[0], sample)
        return Law(samples, (), self.others.degrees)


def growing_laws(samples: Sequence[Sample]) -> Iterator[Growing]:
    """The laws of programs that grow with a size that `samples` determine, the simplest first.

    There is none if nothing grows.  Raises ConfigError if they do not tell how that size and
    others act together.
    """
    for name in samples[0].at:
        grouped = _grouped(samples, name)
        values = _told_by(grouped)
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
    """The laws of the other sizes, each with the growths of its samples."""
    firsts = [first for first, _ in pairs]
    for others in _laws_of_others(samples, firsts, name):
        chosen = [pair for pair in pairs if pair[0] in others.samples]
        told = tuple(sample for pair in chosen for sample in pair)
        yield Growing(
            name,
            values,
            tuple(growths[id(first)] for first, _ in chosen),
            others,
            told,
            tuple(sample for sample in samples if sample not in told),
        )


def _laws_of_others(
    samples: Sequence[Sample], firsts: Sequence[Sample], name: str
) -> Iterator[Law]:
    others = [each for each in samples[0].at if each != name]
    varied = [each for each in others if len({sample.at[each] for sample in samples}) > 1]
    if not varied:
        yield Law(tuple(firsts), (), {})
        return
    if any(len({first.at[each] for first in firsts}) == 1 for each in varied):
        refuse_uncombined(len(samples), [name, *varied], 2 ** (1 + len(varied)))
    yield from laws_of(firsts)


def _grouped(samples: Sequence[Sample], name: str) -> list[dict[int, Sample]]:
    """Samples of the same other sizes, by the one that is called `name`."""
    found: defaultdict[str, dict[int, Sample]] = defaultdict(dict)
    for sample in samples:
        rest = typed({each: value for each, value in sample.at.items() if each != name})
        found[rest].setdefault(sample.at[name], sample)
    return list(found.values())


def _told_by(grouped: Sequence[Mapping[int, Sample]]) -> tuple[int, int] | None:
    """The two smallest values that samples of the same other sizes have."""
    found = [tuple(sorted(row))[:2] for row in grouped if len(row) > 1]
    return min(((first, second) for first, second in found), default=None)


def _is_one_program_by(samples: Sequence[Sample], name: str) -> bool:
    """Whether samples differ in what they do only where they differ in the size `name`."""
    by: dict[int, Sample] = {}
    for sample in samples:
        first = by.setdefault(sample.at[name], sample)
        if first.program.first_difference(sample.program) is not None:
            return False
    return True


def refuse_otherwise_grown(made: Law, sample: Sample) -> None:
    """Raises RecordingError if a recording is not of the program that the law makes."""
    row = made.program.first_difference(sample.program)
    if row is not None:
        raise RecordingError(
            sample.path,
            f"does something else than the others make of {sample.text} from "
            f"{sample.program.told(row)} (by them: {made.program.told(row)}); where the first "
            "parts are still other than those that follow, recordings with more of them tell",
        )
