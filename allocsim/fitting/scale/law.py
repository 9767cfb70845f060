"""Law: the bytes of each request of a program at any batch or other named size.

It is derived from recordings at a few sizes.  The bytes are a polynomial in the named sizes.  If
the recordings allow it, no size is squared: with sizes b and s the bytes are p + q·b + r·s + t·b·s.
"""

# If k sizes vary, 2^k recordings are needed, and every further recording is a check. If a check
# refutes the law, a size may be squared, as the length is in an attention mask, which needs three
# values of that size. Two recordings are of one program if the k-th request of both is freed at the
# same row, on the same stream, in the same pool. A recording of other kernels is refused.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import lcm, prod
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from allocsim._fast_numpy import any_of
from allocsim.errors import ConfigError, RecordingError
from allocsim.metrics import Code, code_at
from allocsim.replaying import Prepared
from allocsim.simulation import StepKind, Steps
from allocsim.state import INACTIVE
from allocsim.units import format_size

FREES = (StepKind.FREE, StepKind.FREE_REQUEST, StepKind.FREE_COMPLETE)
"""Kinds of steps (calls of a replay) that free a block."""


@dataclass(frozen=True, slots=True, eq=False)
class SizedProgram:
    """Allocator calls of a program on one device, at one set of sizes such as batch=2, as rows.

    prepared: recording of a run of the program, prepared for replay.
    steps: the rows as steps (calls) of a replay, as recorded or with layers added.
    kind: code of `StepKind` for each row.
    block: for each row, the index of the request that allocated the requested or freed block;
        negative for a block from before the recording, 0 in rows that neither request nor free.
    stream: for each row, the index of its stream in the order of first use.
    argument: for each row, the argument of the call, such as a pool; 0 in requests and frees.
    size: bytes of each request, one element per request.
    before: bytes of each block from before the recording, in the order of their addresses.
    """

    prepared: Prepared
    steps: Steps
    kind: NDArray[np.uint8]
    block: NDArray[np.int64]
    stream: NDArray[np.int64]
    argument: NDArray[np.int64]
    size: NDArray[np.int64]
    before: tuple[int, ...]

    @property
    def requests(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.kind == StepKind.ALLOC)

    def first_difference(self, other: SizedProgram) -> int | None:
        """Return the first row that differs from `other`, ignoring bytes; None if all agree."""
        shared = min(len(self.kind), len(other.kind))
        differs = np.zeros(shared, dtype=bool)
        for name in ("kind", "block", "stream", "argument"):
            differs |= getattr(self, name)[:shared] != getattr(other, name)[:shared]
        if differs.any():
            return int(np.argmax(differs))
        return None if len(self.kind) == len(other.kind) else shared

    def described(self, row: int) -> str:
        if row >= len(self.kind):
            return "nothing: the program ends"
        steps = self.steps
        entry, kind = int(steps.entry[row]), StepKind(int(self.kind[row]))
        by = "" if (code := self.code(row)) is None else f" by {code}"
        if kind is StepKind.ALLOC:
            what = f"a request of {format_size(int(steps.size[row]))}"
        elif kind in FREES:
            block = int(self.block[row])
            what = "a free of " + (
                f"request {block:,}" if block >= 0 else "a block from before the recording"
            )
        else:
            what = kind.name.lower()
        return f"entry {entry:,}, {what}{by}"

    def code(self, row: int) -> Code | None:
        return code_at(self.prepared.trace, int(self.steps.entry[row]))


def program_of(prepared: Prepared) -> SizedProgram:
    """Return the requests, frees and other calls in a recording of one device.

    Raises RecordingError for a recording that ran out of memory, because such a program ends early
    or continues differently.
    """
    plan = prepared.free_plan
    steps = plan.steps
    failed = np.flatnonzero(steps.kind == StepKind.OOM)
    if len(failed):
        entry = int(steps.entry[failed[0]])
        what = "ran out of memory; expected a run where every request succeeded"
        raise RecordingError(prepared.path, what, entry=entry)
    blocks = [block for segment in prepared.start for block in segment.blocks]
    present = [block for block in blocks if block.state != INACTIVE]
    number = {block.address: i - len(present) for i, block in enumerate(present)}
    block, count = np.zeros(len(steps), dtype=np.int64), 0
    is_request = steps.kind == StepKind.ALLOC
    concerns_block = is_request | any_of(steps.kind, FREES)
    rows = np.flatnonzero(concerns_block)
    for row, address, requests in zip(
        rows.tolist(), steps.addr[rows].tolist(), is_request[rows].tolist(), strict=True
    ):
        if requests:
            number[address] = count
            count += 1
        block[row] = number[address]
    return SizedProgram(
        prepared=prepared,
        steps=steps,
        kind=steps.kind,
        block=block,
        stream=numbered(steps.stream),
        argument=np.where(concerns_block, 0, steps.size),
        size=steps.size[is_request],
        before=tuple(block.requested_size or block.size for block in present),
    )


def numbered(values: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Replace each value by its index in the order of first occurrence, from 0."""
    known, first, index = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(known), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(known))
    return rank[index]


Sizes = Mapping[str, int]
"""Sizes of a run: dictionary from names, such as "batch", to values."""

_HIGHEST = 2
"""Highest power of a size in a law's polynomials."""

_MOST_BYTES = 1 << 60
"""Largest possible request, more than any device has."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One recorded run of a program, `program`, and the run's sizes `at`, such as batch=2."""

    program: SizedProgram
    at: Sizes

    @property
    def path(self) -> str:
        return self.program.prepared.path

    @property
    def text(self) -> str:
        """Sizes as command-line text, such as "batch=2,sequence=512"."""
        return typed(self.at)


@dataclass(frozen=True, slots=True, eq=False)
class Requested:
    """Bytes of a program's requests at given sizes, computed by its law.

    size: bytes, one element per request.
    rounded: number of requests whose bytes were a fraction and were rounded up.
    """

    size: NDArray[np.int64]
    rounded: int


@dataclass(frozen=True, slots=True, eq=False)
class ScalingLaw:
    """Formulas for the bytes of a program's requests, whose number and order never change.

    samples: recorded runs that determine the formulas, each with its sizes, such as batch=2.
    checks: recorded runs with which the law is compared, and which can refute it.
    degrees: dictionary from each size that varies to its highest power in a formula.
    """

    samples: tuple[Sample, ...]
    checks: tuple[Sample, ...]
    degrees: Mapping[str, int]

    @property
    def varied(self) -> tuple[str, ...]:
        """Names of the program's sizes, such as the batch, that differ between the recordings."""
        return tuple(self.degrees)

    @property
    def program(self) -> SizedProgram:
        """Requests and frees of the first recorded run in `samples`."""
        return self.samples[0].program

    def domain(self, name: str) -> tuple[int, int]:
        """Return (first, step) of the size `name`: the law covers first, first + step and so on."""
        assert name in self.degrees
        return 1, 1

    def settled(self, at: Sizes) -> ScalingLaw:
        # Only `Growing` has a number of layers that `at` must fix.
        assert set(at) == set(self.samples[0].at)
        return self

    def covers(self, at: Sizes) -> bool:
        """Return whether each size in `at` is within the range of its recorded values."""
        return is_between([*self.samples, *self.checks], self.varied, at)

    def complete(self, at: Sizes) -> dict[str, int]:
        """Return `at`, completed with the sizes that are equal in all recordings.

        Raises ConfigError if a size is unknown or missing, or if the law does not cover its value.
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
        """Return the bytes of all requests at the sizes `at`.

        Raises ConfigError if a formula gives less than 1 byte, or more than any device has.
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
    """Return whether `at` has each size in `names` within the range of its values in `samples`."""
    return all(
        min(each.at[name] for each in samples) <= at[name] <= max(each.at[name] for each in samples)
        for name in names
    )


def typed(at: Sizes) -> str:
    return ",".join(f"{name}={value}" for name, value in at.items())


def laws_of(samples: Sequence[Sample]) -> Iterator[ScalingLaw]:
    """Yield the laws that recorded runs determine, the simplest law (with no size squared) first.

    samples: recorded runs of one program, each with its sizes, such as batch=2.

    Raises ConfigError for too few runs, RecordingError if the runs are different programs.
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
    for degrees in sorted((dict(zip(varied, each, strict=True)) for each in powers), key=_n_terms):
        chosen = _independent(samples, degrees)
        if len(chosen) == _n_terms(degrees):
            checks = tuple(sample for sample in samples if sample not in chosen)
            yield ScalingLaw(tuple(chosen), checks, degrees)
        elif max(degrees.values()) == 1:
            refuse_uncombined(len(samples), varied, _n_terms(degrees))


def refuse_uncombined(count: int, varied: Sequence[str], expected: int) -> NoReturn:
    raise ConfigError(
        f"{count} recordings do not show how {' and '.join(varied)} act together; "
        f"expected {expected}, each size combined with each other"
    )


def _n_terms(degrees: Mapping[str, int]) -> int:
    # A polynomial needs as many samples as it has terms.
    return prod(degree + 1 for degree in degrees.values())


def refuse_other_program(first: Sample, other: Sample) -> None:
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
    # The terms are 1, every power of a size up to its degree, and all products of such powers.
    powers = product(*(range(degree + 1) for degree in degrees.values()))
    return [prod(at[name] ** n for name, n in zip(degrees, each, strict=True)) for each in powers]


def _independent(samples: Sequence[Sample], degrees: Mapping[str, int]) -> list[Sample]:
    # Samples whose polynomial terms are linearly independent determine the law.
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
    # Exact weights w with Σ w[i]·rows[i] = target.
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
