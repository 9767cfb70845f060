"""Derivation of the laws of serving from recordings of one program at many sizes.

Rule: a recording is cut into parts where the program chooses a token. Each part must have the same
requests and frees in every recording of its regime, or there is no law. Every recording is composed
again from the laws of its parts, and must agree row by row, block by block and to the byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.fitting.by_law import serving_of
from allocsim.fitting.laws import FAMILIES, REQUEST, Law, Serving
from allocsim.fitting.scale.alignment import Likeness, likeness_of
from allocsim.fitting.scale.growth import Growth, growth_between
from allocsim.fitting.scale.law import SizedProgram
from allocsim.phantom import find_gpu
from allocsim.recording import FrameInterner, FrameTable, MarkKind
from allocsim.simulation import StepKind
from benchmarks.laws.recorded import CARD, recorded
from benchmarks.laws.samples import Variant, drawn_to_serve
from benchmarks.laws.taken import PROOFS, SAMPLES, USED, NoLawError, formulas_of, law_of

__all__ = ["serving_laws_of"]

_CHOICE = "argmax"
"""Text in the program's line that chooses a token."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """One recording of a serving program.

    like: numbers by which its rows are compared.
    serving: workload of the recording.
    sizes: sizes of the recording.
    names: names of its parts in order, as `Serving.names`.
    places: rows of each part.
    growth: growth from the same program with fewer layers, by the family's `period`; None if that
        program was not recorded.
    """

    program: SizedProgram
    like: Likeness
    serving: Serving
    sizes: Mapping[str, int]
    names: Sequence[tuple[str, int]]
    places: Sequence[slice]
    growth: Growth | None


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Part of a recording, with the variables of its formulas."""

    run: _Run
    rows: slice
    variables: Mapping[str, int]

    @property
    def requests(self) -> NDArray[np.intp]:
        """Rows of the part that are requests."""
        rows = self.run.program.requests
        found: NDArray[np.intp] = rows[(rows >= self.rows.start) & (rows < self.rows.stop)]
        return found

    @property
    def size(self) -> NDArray[np.int64]:
        """Bytes of each request of the part."""
        found: NDArray[np.int64] = self.run.program.steps.size[self.requests]
        return found

    def first_difference(self, other: _Stretch) -> int | None:
        """Return the first row that differs in another part of the same name; None if all agree."""
        shared = min(self.rows.stop - self.rows.start, other.rows.stop - other.rows.start)
        differs = np.zeros(shared, dtype=bool)
        for name in ("form", "younger"):
            mine, theirs = getattr(self.run.like, name), getattr(other.run.like, name)
            differs |= mine[self.rows][:shared] != theirs[other.rows][:shared]
        if differs.any():
            return int(np.argmax(differs))
        same = self.rows.stop - self.rows.start == other.rows.stop - other.rows.start
        return None if same else shared

    def described(self, row: int) -> str:
        """Return a description of a row for messages."""
        return f"{dict(self.run.sizes)}, {self.run.program.described(self.rows.start + row)}"


def serving_laws_of(
    variant: Variant, python: str
) -> tuple[FrameTable, dict[str, Law], dict[str, str]]:
    """Return stacks, laws of a serving variant, and why others are missing, by part and regime.

    python: path of the Python that runs the programs.
    """
    sizes = drawn_to_serve(variant, SAMPLES)
    runs = _runs(variant, sizes, python)
    interner, period = FrameInterner(), FAMILIES[variant.family].period
    found: dict[str, Law] = {}
    refused: dict[str, str] = {}
    for name, stretches in _by_name(runs).items():
        try:
            found[name] = _law(stretches, interner, period)
        except NoLawError as error:
            refused[name] = str(error)
    for run in runs:
        why = _refuted(run, found)
        if why is not None:
            start = run.names[1][0]
            found.pop(start, None)
            refused[start] = f"{dict(run.sizes)}: {why}"
    return interner.table(), found, refused


def _runs(variant: Variant, sizes: Sequence[Mapping[str, int]], python: str) -> list[_Run]:
    """Return the recordings at these sizes.

    For each part, one program is also recorded with fewer layers, by the family's `period`.
    """
    gpu, period = find_gpu(CARD), FAMILIES[variant.family].period
    serving = [serving_of(variant.task(at), gpu) for at in sizes]
    known: set[str] = set()
    with_less, texts = [], []
    for at, each in zip(sizes, serving, strict=True):
        names = {name for name, _ in each.names}
        with_less.append(not names <= known)
        known |= names
        smaller = {**at, "layers": at["layers"] - period}
        texts += [variant.text(smaller)] * with_less[-1] + [variant.text(at)]
    line = 1 + next(i for i, each in enumerate(texts[0].splitlines()) if _CHOICE in each)
    programs = recorded(python, texts)
    numbers: dict[Hashable, int] = {}
    found = []
    for at, less, each in zip(sizes, with_less, serving, strict=True):
        small = next(programs) if less else None
        program = next(programs)
        growth = None if small is None else growth_between(small, program)
        if small is not None and growth is None:
            raise NoLawError(f"two periods of layers do not grow to three at {at}")
        like = likeness_of(program, numbers)
        places = _places(program, line, each.decode)
        found.append(_Run(program, like, each, at, each.names, places, growth))
    return found


def _places(program: SizedProgram, line: int, decode: int) -> list[slice]:
    """Return the rows of a recording's parts.

    The recording is cut at the reset of the peaks, after the requests of each choice of a token,
    and after the frees before the next token.

    line: line of the program that chooses the token.
    """
    trace, requests, place = program.prepared.trace, program.requests, ("program.py", line)
    frames = [trace.frame_table.stack(each) for each in trace.frames[program.steps.entry[requests]]]
    chooses = np.array([(stack[0].filename, stack[0].line) == place for stack in frames])
    ends = requests[chooses & ~np.append(chooses[1:], False)] + 1
    follows = [int(requests[np.searchsorted(requests, end)]) for end in ends[:-1].tolist()]
    reset = next(each.entry for each in trace.marks if each.kind is MarkKind.PEAK_RESET)
    cuts = [0, int(np.searchsorted(program.steps.entry, reset))]
    for number, end in enumerate(ends.tolist()):
        token = number % (1 + decode)
        if token:
            cuts.append(end)
        if token < decode:
            cuts.append(follows[number])
    cuts.append(len(program.kind))
    return [slice(start, stop) for start, stop in itertools.pairwise(cuts)]


def _by_name(runs: Sequence[_Run]) -> dict[str, list[_Stretch]]:
    """Return the parts of each name, one per length and recording, those with a growth first."""
    found: dict[str, list[_Stretch]] = {}
    for run in sorted(runs, key=lambda run: run.growth is None):
        taken: set[tuple[str, int]] = set()
        for name, rows in zip(run.names, run.places, strict=True):
            if name not in taken:
                stretch = _Stretch(run, rows, run.serving.variables(name))
                found.setdefault(name[0], []).append(stretch)
                taken.add(name)
    return found


def _law(stretches: Sequence[_Stretch], interner: FrameInterner, period: int) -> Law:
    first = stretches[0]
    for each in stretches:
        row = first.first_difference(each)
        if row is not None:
            raise NoLawError(f"differs from {dict(first.run.sizes)}: {each.described(row)}")
    growth = first.run.growth
    if growth is None:
        raise NoLawError("it was not recorded with a period of layers less")
    determining, others = _determining_first(stretches)
    rows = first.requests

    def describe(request: int) -> str:
        return first.run.program.described(int(rows[request]))

    while True:
        columns = np.array([stretches[i].size for i in determining]).T
        found = formulas_of(columns, [stretches[i].variables for i in determining], describe)
        law = law_of(growth, *found, interner, rows=first.rows, period=period)
        refuted = next((i for i in others if _is_refuted(law, stretches[i])), None)
        if refuted is None:
            return law
        determining.append(refuted)
        others.remove(refuted)
        if len(others) < PROOFS:
            raise NoLawError(f"refuted by {stretches[refuted].described(0)}")


def _determining_first(stretches: Sequence[_Stretch]) -> tuple[list[int], list[int]]:
    """Return the indices of parts that determine the formulas, and of parts that can refute them.

    They are from different recordings if there are enough.
    """
    seen: dict[int, int] = {}
    for number, each in enumerate(stretches):
        seen.setdefault(id(each.run), number)
    determining = list(seen.values())[:USED]
    others = [number for number in range(len(stretches)) if number not in determining]
    if len(determining) < USED or len(others) < PROOFS:
        raise NoLawError(f"only {len(seen)} recordings are in it")
    return determining, others


def _is_refuted(law: Law, stretch: _Stretch) -> bool:
    made = law.rows(stretch.variables, stretch.run.sizes["layers"])
    return not np.array_equal(made.value[made.kind == REQUEST], stretch.size)


def _refuted(run: _Run, laws: Mapping[str, Law]) -> str | None:
    """Return the first difference between a recording and the prediction by laws, or None."""
    missing = [name for name, _ in run.names if name not in laws]
    if missing:
        return f"there is no law for {missing[0]}"
    made, program = run.serving.program(laws, run.sizes["layers"]), run.program
    if len(made.kind) != len(program.kind):
        return f"{len(made.kind):,} rows instead of {len(program.kind):,}"
    of_block = program.kind != StepKind.EMPTY_CACHE
    size = np.where(program.kind == StepKind.ALLOC, program.steps.size, 0)
    wrong = (made.block != program.block) & of_block | (made.size != size)
    return program.described(int(np.argmax(wrong))) if wrong.any() else None
