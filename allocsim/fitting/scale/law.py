"""Bytes of each request of a program at any size, derived from recordings at a few sizes.

Rule: the bytes of a request are a polynomial in the named sizes. If the recordings allow it, no
size is squared: with sizes b and s the bytes are p + q·b + r·s + t·b·s. So k sizes that vary need
2^k recordings, and every further recording is a check (`proof.py`). If a check refutes the law, a
size may be squared, as the length is in an attention mask, which needs three values of that size. A
fraction of a byte is rounded up and counted. If a request would have zero or fewer bytes, there is
no law.

A law holds while PyTorch runs the same kernels. From some sizes on, other kernels run (a reduction
in two passes, a sort, one copy less). The requests then differ, and the recording is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import lcm, prod
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError, RecordingError
from allocsim.fitting.scale.program import SizedProgram

Sizes = Mapping[str, int]
"""Values of the named sizes in one run, such as batch=2."""

_HIGHEST = 2
"""Highest power of a size."""

_MOST_BYTES = 1 << 60
"""Largest possible request, more than any device has."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A recorded run and its sizes."""

    program: SizedProgram
    at: Sizes

    @property
    def path(self) -> str:
        """File of the recording."""
        return self.program.prepared.path

    @property
    def text(self) -> str:
        """Sizes in the form of command-line arguments."""
        return typed(self.at)


@dataclass(frozen=True, slots=True, eq=False)
class Requested:
    """Requests of a program at given sizes, computed by its law.

    size: bytes of each request.
    rounded: number of requests that were rounded up to whole bytes.
    """

    size: NDArray[np.int64]
    rounded: int


@dataclass(frozen=True, slots=True, eq=False)
class ScalingLaw:
    """Recordings that determine the bytes of every request, and recordings that check the result.

    samples: recordings that determine the law.
    checks: recordings that can refute it.
    degrees: highest power of each size that varies.
    """

    samples: tuple[Sample, ...]
    checks: tuple[Sample, ...]
    degrees: Mapping[str, int]

    @property
    def varied(self) -> tuple[str, ...]:
        """Names of the sizes that vary."""
        return tuple(self.degrees)

    @property
    def program(self) -> SizedProgram:
        """Program of the first sample."""
        return self.samples[0].program

    def domain(self, name: str) -> tuple[int, int]:
        """Return the least covered value of the size `name`, and the step to the next value."""
        assert name in self.degrees
        return 1, 1

    def settled(self, at: Sizes) -> ScalingLaw:
        """Return this law itself, because no size changes the number of its requests."""
        assert set(at) == set(self.samples[0].at)
        return self

    def covers(self, at: Sizes) -> bool:
        """Return whether each size in `at` is between two recorded values."""
        return is_between([*self.samples, *self.checks], self.varied, at)

    def complete(self, at: Sizes) -> dict[str, int]:
        """Return `at` with the sizes that are the same in all recordings.

        Raises ConfigError for sizes that the law does not cover.
        """
        known = self.samples[0].at
        for name, value in at.items():
            if name not in known:
                names = ", ".join(known)
                raise ConfigError(f"{name}={value}: unknown size; the recordings have {names}")
            if name not in self.varied and value != known[name]:
                only = f"every recording is of {name}={known[name]}"
                raise ConfigError(f"{name}={value}: {only}, which determines no other value")
            if value < 1:
                raise ConfigError(f"{name}={value}: expected 1 or more")
        missing = [name for name in self.varied if name not in at]
        if missing:
            raise ConfigError(f"no value of {missing[0]}; expected {missing[0]}=N")
        return {name: at.get(name, value) for name, value in known.items()}

    def requested_at(self, at: Sizes) -> Requested:
        """Return the bytes of every request at the sizes `at`.

        Raises ConfigError if a request would have no bytes, or more than any device has.
        """
        rows = [_terms(each.at, self.degrees) for each in self.samples]
        weights = _weights(rows, _terms(at, self.degrees))
        # Python integers with a common denominator: exact, without overflow or rounding.
        whole = lcm(*(weight.denominator for weight in weights))
        total = np.zeros(len(self.program.size), dtype=object)
        for weight, sample in zip(weights, self.samples, strict=True):
            total += int(weight * whole) * sample.program.size.astype(object)
        odd = np.flatnonzero((total < whole) | (total > _MOST_BYTES * whole))
        if len(odd):
            raise ConfigError(self._no_law(int(odd[0]), at, Fraction(total[odd[0]], whole)))
        size = (-(-total // whole)).astype(np.int64)
        return Requested(size, int(np.count_nonzero(total % whole)))

    def _no_law(self, request: int, at: Sizes, size: Fraction) -> str:
        row = int(self.program.requests[request])
        grew = ", ".join(
            f"{each.text}: {int(each.program.size[request]):,}" for each in self.samples
        )
        by = "" if (code := self.program.code(row)) is None else f" (by {code})"
        return (
            f"request {request:,}{by} follows no law: bytes at {grew} would make "
            f"{float(size):,.0f} at {typed(at)}"
        )


def is_between(samples: Sequence[Sample], names: Sequence[str], at: Sizes) -> bool:
    """Return whether each size in `names` has a value in `at` between two values of the samples."""
    return all(
        min(each.at[name] for each in samples) <= at[name] <= max(each.at[name] for each in samples)
        for name in names
    )


def typed(at: Sizes) -> str:
    """Return sizes as command-line text, such as "batch=2,sequence=512"."""
    return ",".join(f"{name}={value}" for name, value in at.items())


def laws_of(samples: Sequence[Sample]) -> Iterator[ScalingLaw]:
    """Yield the laws that `samples` determine, at least one, the simplest first.

    Raises ConfigError for too few samples, for samples that name different sizes, and for two
    samples with equal sizes. Raises RecordingError if the samples are different programs.
    """
    first = samples[0]
    for sample in samples:
        if set(sample.at) != set(first.at):
            raise ConfigError(
                f"{sample.path} is of {sample.text or 'no size'}, {first.path} of "
                f"{first.text or 'no size'}; expected the same names"
            )
        refuse_other_program(first, sample)
    varied = [name for name in first.at if len({each.at[name] for each in samples}) > 1]
    if not varied:
        raise ConfigError("the recordings are all of one size; expected two sizes or more")
    powers = product(range(1, _HIGHEST + 1), repeat=len(varied))
    for degrees in sorted((dict(zip(varied, each, strict=True)) for each in powers), key=_count):
        chosen = _independent(samples, degrees)
        if len(chosen) == _count(degrees):
            checks = tuple(sample for sample in samples if sample not in chosen)
            yield ScalingLaw(tuple(chosen), checks, degrees)
        elif max(degrees.values()) == 1:
            refuse_uncombined(len(samples), varied, _count(degrees))


def refuse_uncombined(count: int, varied: Sequence[str], expected: int) -> NoReturn:
    """Raise ConfigError because recordings do not show the joint effect of several sizes.

    count: number of recordings.
    varied: sizes that vary.
    expected: number of recordings that are needed.
    """
    raise ConfigError(
        f"{count} recordings do not show how {' and '.join(varied)} act together; "
        f"expected {expected}, each size combined with each other"
    )


def _count(degrees: Mapping[str, int]) -> int:
    """Return the number of terms of a polynomial, which is the number of samples that it needs."""
    return prod(degree + 1 for degree in degrees.values())


def refuse_other_program(first: Sample, other: Sample) -> None:
    """Raise RecordingError if two samples are different programs."""
    row = first.program.first_difference(other.program)
    if row is not None:
        raise RecordingError(
            other.path,
            f"differs from {first.path}, first at {other.program.described(row)} "
            f"(there: {first.program.described(row)}); a law needs the same kernels at every size",
        )
    if first.program.prepared.plan.changes != other.program.prepared.plan.changes:
        raise RecordingError(other.path, f"sets other options at run time than {first.path}")
    if first.program.before != other.program.before:
        raise RecordingError(
            other.path,
            f"begins with other blocks in use than {first.path}, whose sizes follow no law; "
            "expected recordings from the program's start",
        )


def _terms(at: Sizes, degrees: Mapping[str, int]) -> list[int]:
    """Return the value of each term of the polynomial at the sizes `at`.

    The terms are 1, every power of a size up to its degree, and all products of such powers.
    """
    powers = product(*(range(degree + 1) for degree in degrees.values()))
    return [prod(at[name] ** n for name, n in zip(degrees, each, strict=True)) for each in powers]


def _independent(samples: Sequence[Sample], degrees: Mapping[str, int]) -> list[Sample]:
    """Return enough samples to determine a polynomial: those with linearly independent terms.

    degrees: highest power of each size. Earlier samples are preferred.
    """
    chosen: list[Sample] = []
    reduced: list[list[Fraction]] = []
    for sample in samples:
        row = [Fraction(term) for term in _terms(sample.at, degrees)]
        for other in reduced:
            pivot = next(i for i, value in enumerate(other) if value)
            row = [a - b * row[pivot] / other[pivot] for a, b in zip(row, other, strict=True)]
        if any(row):
            reduced.append(row)
            chosen.append(sample)
    return chosen


def _weights(rows: Sequence[Sequence[int]], target: Sequence[int]) -> list[Fraction]:
    """Return the exact weights w with Σ w[i]·rows[i] = target."""
    n = len(rows)
    table = [[Fraction(rows[j][i]) for j in range(n)] + [Fraction(target[i])] for i in range(n)]
    for column in range(n):
        pivot = next(row for row in range(column, n) if table[row][column])
        table[column], table[pivot] = table[pivot], table[column]
        top = table[column]
        for row in range(n):
            if row != column and table[row][column]:
                share = table[row][column] / top[column]
                table[row] = [a - share * b for a, b in zip(table[row], top, strict=True)]
    return [table[i][n] / table[i][i] for i in range(n)]
