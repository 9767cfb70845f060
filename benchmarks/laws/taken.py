"""Derivation of a law from recordings of one program at many sizes.

Rule: every recording has the same requests and frees in the same order, and the bytes of a request
are the same monomial (a number times variables) in all of them, or there is no law. Recordings that
were not used for the formulas prove the law, row by row and to the byte.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError
from allocsim.fitting.by_law import card_of
from allocsim.fitting.laws import (
    COLUMNS,
    EMPTY_CACHE,
    FAMILIES,
    FIRST,
    FREE,
    REQUEST,
    SIZES,
    VARIABLES,
    Formula,
    Law,
    Requests,
    Training,
    find_laws,
    requests_of,
    steps_of,
    variables_of,
)
from allocsim.fitting.scale.growth import Growth, growth_between
from allocsim.fitting.scale.law import SizedProgram
from allocsim.phantom import find_gpu
from allocsim.recording import Frame, FrameInterner, FrameTable, MarkKind
from allocsim.simulation import StepKind
from benchmarks.laws.recorded import CARD, in_order, recorded, without_repeats
from benchmarks.laws.samples import SEEING, Variant, drawn, regimes
from benchmarks.truth import without_cudnn

__all__ = [
    "Check",
    "NoLawError",
    "PROOFS",
    "SAMPLES",
    "USED",
    "Whole",
    "formulas_of",
    "law_of",
    "checked",
    "laws_of",
]

USED, PROOFS, _MORE = 9, 2, 2
"""Numbers of recordings that determine the formulas, prove them, and may first refute them."""

SAMPLES = USED + PROOFS + _MORE
SAMPLES_AGAIN = 21
"""Number of recordings of a regime whose law was refuted by the first recordings."""
_MOST_FACTORS = 4
_NEAR = 1e-9
"""Largest difference between equal logarithms."""
_SUMS = "_partial_sums"
_KINDS = {
    StepKind.ALLOC: REQUEST,
    StepKind.FREE: FREE,
    StepKind.EMPTY_CACHE: EMPTY_CACHE,
}
_FORKED = "forked.py"


class NoLawError(Exception):
    """Reason why recordings give no law."""


class RefutedError(NoLawError):
    """Law from some recordings that another recording refutes."""


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """Law of a whole program.

    reset: row at which the program resets the peaks.
    proofs: number of recordings that the law was not derived from and reproduced row by row.
    """

    law: Law
    reset: int
    proofs: int


def laws_of(
    variant: Variant, python: str, sought: Sequence[str], seed: int = 0
) -> tuple[FrameTable, dict[str, Whole], dict[str, str]]:
    """Return stacks, laws of a variant, and the reasons why others are missing, by regime.

    python: path of the Python that runs the programs.
    sought: regimes to record.
    seed: seed with which the sizes are drawn.
    """
    interner, found = FrameInterner(), dict[str, Whole]()
    refused = _take(variant, python, sought, interner, found, count=SAMPLES, seed=seed)
    again = [regime for regime, why in refused.items() if isinstance(why, RefutedError)]
    refused |= _take(variant, python, again, interner, found, count=SAMPLES_AGAIN, seed=seed)
    why_not = {regime: str(why) for regime, why in refused.items() if regime not in found}
    return interner.table(), found, why_not


@dataclass(frozen=True, slots=True)
class Check:
    """Comparison of a composed law with a recording.

    sizes: sizes of the recording.
    difference: description of the first row that differs, "" if none does.
    """

    variant: Variant
    regime: str
    sizes: Mapping[str, int]
    difference: str


def checked(
    variants: Sequence[Variant], python: str, seed: int, count: int | None = None
) -> Iterator[Check]:
    """Compare composed laws of training programs with recordings at new sizes.

    seed: seed with which the sizes are drawn; the laws were derived with seed 0.
    count: number of regimes to record of each program, chosen at random; default: all with a law.
    """
    chance, asked = random.Random(seed), list[tuple[Variant, str, dict[str, int]]]()
    for variant in variants:
        laws = find_laws(variant.program)
        known = [] if laws is None else [r for r in regimes(variant) if f"{FIRST}.{r}" in laws]
        if count is not None:
            known = chance.sample(known, min(count, len(known)))
        asked += [(variant, each, at) for each in known for at in drawn(variant, each, 1, seed)]
    programs = recorded(python, [_text(variant, at) for variant, _, at in asked])
    for (variant, regime, sizes), program in zip(asked, programs, strict=True):
        whole = without_repeats(program) if variant.family in SEEING else program
        try:
            made = _in_order(_composed(variant, regime, sizes))
        except ConfigError as error:
            yield Check(variant, regime, sizes, str(error))
            continue
        row = _difference(made, whole)
        yield Check(variant, regime, sizes, "" if row is None else whole.described(row))


def _text(variant: Variant, sizes: Mapping[str, int]) -> str:
    """Return the text of a program; convolutions run without cuDNN, whose plans vary."""
    text = variant.text(sizes)
    return without_cudnn(text) if variant.family in SEEING else text


def _composed(variant: Variant, regime: str, sizes: Mapping[str, int]) -> Requests:
    """Return a training program at some sizes by its law."""
    laws, values, card = find_laws(variant.program), _variables(sizes), card_of(find_gpu(CARD))
    assert laws is not None
    assert laws.parameters is not None
    optimizer = steps_of(variant.program.work, laws.parameters, values, card, laws.groups)
    steps = variant.task(sizes).steps
    return Training(sizes, card, regime, steps).program(laws, optimizer, sizes["layers"])


def _in_order(made: Requests) -> Requests:
    """Return a program with successive frees in the order of their requests, as recordings are."""
    is_free = made.kind == FREE
    run = np.cumsum(np.concatenate(([False], ~is_free[1:] | ~is_free[:-1])))
    order = np.lexsort((np.where(is_free, made.block, 0), run))
    columns = {name: getattr(made, name)[order] for name in ("kind", "block", "size", "stack")}
    return replace(made, **columns)


def _take(
    variant: Variant,
    python: str,
    sought: Sequence[str],
    interner: FrameInterner,
    found: dict[str, Whole],
    *,
    count: int,
    seed: int = 0,
) -> dict[str, NoLawError]:
    """Add the laws of the regimes `sought` to `found`; return the reasons why others are missing.

    count: number of sizes to record for each regime.
    seed: seed with which the sizes are drawn.
    """
    period = FAMILIES[variant.family].period
    samples = {regime: drawn(variant, regime, count, seed) for regime in sought}
    refused = {
        regime: NoLawError(f"only {len(sizes)} of the drawn sizes are in it")
        for regime, sizes in samples.items()
        if len(sizes) < count
    }
    texts = [
        _text(variant, at)
        for regime, sizes in samples.items()
        if regime not in refused
        for at in ({**sizes[0], "layers": sizes[0]["layers"] - period}, *sizes)
    ]
    programs = recorded(python, texts) if texts else iter(())
    if variant.family in SEEING:
        programs = map(without_repeats, programs)
    for regime, sizes in samples.items():
        if regime not in refused:
            try:
                small, *larger = [next(programs) for _ in range(1 + len(sizes))]
                found[regime] = _law(small, larger, sizes, interner, period)
            except NoLawError as error:
                refused[regime] = error
    return refused


def _law(
    small: SizedProgram,
    programs: Sequence[SizedProgram],
    sizes: Sequence[Mapping[str, int]],
    interner: FrameInterner,
    period: int,
) -> Whole:
    """Derive the law of one regime.

    small: the first of `programs` with fewer layers, by the family's `period`.
    sizes: sizes of each program.
    period: the family's `period`.
    """
    first = programs[0]
    for program, at in zip(programs, sizes, strict=True):
        row = first.first_difference(program)
        if row is not None:
            raise NoLawError(f"{at} differs from {sizes[0]}, first at {program.described(row)}")
    growth = growth_between(small, first)
    if growth is None:
        small, *programs = (in_order(each, newest_first=True) for each in (small, *programs))
        first = programs[0]
        growth = growth_between(small, first)
    if growth is None:
        raise NoLawError("two periods of layers do not grow to three")
    determining, others = list(range(USED)), list(range(USED, len(programs)))
    while True:
        columns = np.array([programs[i].size for i in determining]).T
        values = [_variables(sizes[i]) for i in determining]
        found = formulas_of(columns, values, _describer(first))
        law = law_of(growth, *found, interner, period=period)
        wrong = ((i, _refuted(law, programs[i], sizes[i])) for i in others)
        refuted = next(((i, row) for i, row in wrong if row is not None), None)
        if refuted is None:
            return Whole(law, reset_of(first), len(others))
        # A recording that refuted a formula joins those that determine it.
        number, row = refuted
        determining.append(number)
        others.remove(number)
        if len(others) < PROOFS:
            raise RefutedError(f"{sizes[number]} refutes it at {programs[number].described(row)}")


def _refuted(law: Law, program: SizedProgram, sizes: Mapping[str, int]) -> int | None:
    """Return the first row of a recording that differs from the law's, or None."""
    rows = law.rows(_variables(sizes), sizes["layers"])
    return _difference(requests_of([rows], [""], 0, sizes["layers"]), program)


def _difference(made: Requests, program: SizedProgram) -> int | None:
    """Return the first row of a recording whose kind, block or bytes differ, or None."""
    shared = min(len(made.kind), len(program.kind))
    kind = np.array([_KINDS.get(StepKind(each), -1) for each in program.kind[:shared].tolist()])
    size = np.zeros(len(program.kind), dtype=np.int64)
    size[program.requests] = program.size
    differs = kind != made.kind[:shared]
    differs |= (kind != EMPTY_CACHE) & (made.block[:shared] != program.block[:shared])
    differs |= made.size[:shared] != size[:shared]
    if differs.any():
        return int(np.argmax(differs))
    return None if len(made.kind) == len(program.kind) else shared


def _variables(sizes: Mapping[str, int]) -> dict[str, int]:
    return variables_of(sizes, card_of(find_gpu(CARD)))


def _describer(program: SizedProgram) -> Callable[[int], str]:
    """Return a function that describes a request of a program by its number."""
    return lambda request: program.described(int(program.requests[request]))


def formulas_of(
    columns: NDArray[np.int64], values: Sequence[Mapping[str, int]], describe: Callable[[int], str]
) -> tuple[list[Formula], NDArray[np.int64]]:
    """Return the formulas, and for each request the index of its formula.

    columns: for each request, its bytes in each sample.
    values: variables of each sample.
    describe: function that describes a request by its number, for errors.
    """
    distinct, first, number = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    known = _Monomials.of(values)
    formulas = []
    for column, request in zip(distinct.tolist(), first.tolist(), strict=True):
        if set(column) == {values[0]["workspace"]}:
            formulas.append(Formula(1, 1, (VARIABLES.index("workspace"),)))
            continue
        shares = ((Fraction(column[0], at), of) for of, at in known.of_course(column))
        sound = [
            Formula(*each.as_integer_ratio(), of) for each, of in shares if _is_whole(each, of)
        ]
        if not sound:
            raise NoLawError(f"{column} is not a monomial: {describe(request)}")
        formulas.append(max(sound, key=_columns_of))
    return formulas, number


def _columns_of(formula: Formula) -> int:
    """Return the factor of `COLUMNS` for the partial sums in a formula, the largest of several."""
    return max((COLUMNS[name][0] for name in _summed(formula.variables)), default=0)


def _is_whole(share: Fraction, numbers: Sequence[int]) -> bool:
    """Return whether the factor of the columns agrees with the partial sums of a product.

    share: factor of the product.
    numbers: variables of the product.
    """
    factors = (COLUMNS[name][0] for name in _summed(numbers))
    return all(share.numerator % factor == 0 for factor in factors)


def _is_sound(numbers: Sequence[int]) -> bool:
    """Return whether partial sums occur in a product only with their own columns."""
    names = {VARIABLES[number] for number in numbers}
    return all(set(COLUMNS[name][1]) <= names for name in _summed(numbers))


def _summed(numbers: Sequence[int]) -> list[str]:
    """Return the names of the columns whose partial sums are in a product."""
    names = [VARIABLES[number] for number in numbers]
    return [name.removesuffix(_SUMS) for name in names if name.endswith(_SUMS)]


@dataclass(frozen=True, slots=True, eq=False)
class _Monomials:
    """Products of variables, the simplest first, with their values in the samples.

    courses: for each product, the logarithms of the ratios of its value in each sample to that in
        the first sample.
    """

    values: Sequence[Mapping[str, int]]
    products: Sequence[tuple[int, ...]]
    courses: NDArray[np.float64]

    @classmethod
    def of(cls, values: Sequence[Mapping[str, int]]) -> _Monomials:
        there = tuple(n for n, name in enumerate(VARIABLES) if all(each[name] for each in values))
        products, factors = _products(there)
        known = [[each[VARIABLES[number]] for each in values] for number in there]
        course = np.log(np.array(known, dtype=np.float64))
        return cls(values, products, factors @ (course - course[:, :1]))

    def of_course(self, column: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
        """Return the simplest products whose values are in proportion to the bytes in `column`.

        Each product is returned as its variables and its value in the first sample.
        """
        sought = np.log(np.array(column, dtype=np.float64) / column[0])
        near = np.flatnonzero((np.abs(self.courses - sought) < _NEAR).all(axis=1))
        found: list[tuple[tuple[int, ...], int]] = []
        for numbers in (self.products[place] for place in near.tolist()):
            if found and _plainness(found[0][0]) != _plainness(numbers):
                break
            at = [prod(each[VARIABLES[number]] for number in numbers) for each in self.values]
            if all(a * column[0] == at[0] * b for a, b in zip(at, column, strict=True)):
                found.append((numbers, at[0]))
        return found


@cache
def _products(there: tuple[int, ...]) -> tuple[list[tuple[int, ...]], NDArray[np.float64]]:
    """Return products of variables that a family has, the simplest first, with their exponents.

    there: variables that the family has. A product has up to four sizes and at most one rounded
        variable. The exponents are those of the variables in `there`.
    """
    plain = [number for number in there if number < len(SIZES)]
    rounded = [number for number in there if number >= len(SIZES)]
    found: list[tuple[int, ...]] = []
    with_one: list[tuple[int, ...]] = []
    for factors in range(_MOST_FACTORS + 1):
        found += combinations_with_replacement(plain, factors)
        sizes = found[-comb(len(plain) + factors - 1, factors) :]
        with_one += [(*each, number) for each in sizes for number in rounded]
    products = sorted(filter(_is_sound, [*found, *with_one]), key=_plainness)
    factors_of = np.zeros((len(products), len(there)))
    place = {number: column for column, number in enumerate(there)}
    for row, numbers in enumerate(products):
        for number in numbers:
            factors_of[row, place[number]] += 1
    return products, factors_of


def _plainness(numbers: Sequence[int]) -> tuple[bool, int]:
    """Return a sort key of a product: sizes before rounded variables, fewer factors before more."""
    return any(number >= len(SIZES) for number in numbers), len(numbers)


def law_of(
    growth: Growth,
    formulas: Sequence[Formula],
    of_request: NDArray[np.int64],
    interner: FrameInterner,
    *,
    rows: slice = slice(None),
    period: int = 1,
) -> Law:
    """Return the law of a program, or of some of its rows.

    of_request: index of the formula of each request.
    rows: rows of the program that the law describes.
    period: number of layers by which the program grew, a third of its layers.
    """
    program = growth.second
    kinds = set(program.kind.tolist())
    if not kinds <= set(map(int, _KINDS)):
        raise NoLawError(f"it does more than request and free: {sorted(kinds)}")
    if len(set(program.stream.tolist())) != 1 or program.before:
        raise NoLawError("it uses several streams, or begins with blocks in use")
    kind = np.array([_KINDS[StepKind(each)] for each in program.kind.tolist()], dtype=np.uint8)
    requests = program.requests
    if growth.by_copy[requests].any():
        raise NoLawError("a request grows from one layer to the next")
    grows = growth.by_copies[requests] != 0
    if grows.any():
        row = int(requests[np.argmax(grows)])
        raise NoLawError(f"a request grows with the layers: {program.described(row)}")
    stack = _stacks(program, interner)
    group = np.full(len(kind), -1, dtype=np.int64)
    group[requests] = stack
    frees = np.flatnonzero(kind == FREE)
    group[frees] = stack[program.block[frees]]
    start, stop, _ = rows.indices(len(kind))
    number = growth.value[start:stop].copy()
    number[kind[start:stop] == REQUEST] = of_request
    return Law(
        kind=kind[start:stop],
        group=group[start:stop],
        number=number,
        by_copy=growth.by_copy[start:stop],
        by_copies=growth.by_copies[start:stop],
        parts=_parts_in(growth, start, stop),
        formulas=tuple(formulas),
        layers=3 * period,
        period=period,
    )


def reset_of(program: SizedProgram) -> int:
    """Return the row at which a program resets the peaks."""
    marks = program.prepared.trace.marks
    reset = next(each.entry for each in marks if each.kind is MarkKind.PEAK_RESET)
    return int(np.searchsorted(program.steps.entry, reset))


def _parts_in(growth: Growth, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the repeated parts within rows `start` to `stop` - 1, counted from `start`."""
    found = []
    for part in growth.parts:
        first, last = part.insertion.start, part.insertion.stop
        if first < stop and last > start:
            if first < start or last > stop:
                raise NoLawError("a layer is cut")
            found.append((first - start, last - start))
    return found


def _stacks(program: SizedProgram, interner: FrameInterner) -> NDArray[np.int64]:
    """Return the number of each request's stack; file names are cut before site-packages."""
    trace = program.prepared.trace
    numbers = trace.frames[program.steps.entry[program.requests]]
    known = {}
    for number in np.unique(numbers).tolist():
        frames = [
            Frame(_short(frame.filename), frame.name, frame.line)
            for frame in trace.frame_table.stack(number)
            if not frame.filename.endswith(_FORKED)
        ]
        known[number] = interner.stack([interner.frame(frame) for frame in frames])
    return np.array([known[number] for number in numbers.tolist()], dtype=np.int64)


def _short(filename: str) -> str:
    _, there, rest = filename.rpartition("/site-packages/")
    return f"site-packages/{rest}" if there else filename
