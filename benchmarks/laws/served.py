"""Laws of serving, out of recordings of one program at many sizes.

Rule: a recording is cut where a token is chosen, and a stretch has the same requests and frees in
every recording of its regime, or there is no law.  Every recording is put together again from the
laws of its stretches and has to come out row by row, block by block and to the byte.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allocsim.engine import StepKind
from allocsim.laws import FAMILIES, REQUEST, Law, Laws, Serving
from allocsim.phantom import find_gpu
from allocsim.questions.fit.by_law import serving_of
from allocsim.questions.scale.growth import Growth, growth_between
from allocsim.questions.scale.likeness import Likeness, likeness_of
from allocsim.questions.scale.program import Program
from allocsim.trace import FrameInterner, MarkKind
from benchmarks.laws.recorded import CARD, Releases, recorded
from benchmarks.laws.samples import Variant, drawn_to_serve
from benchmarks.laws.taken import PROOFS, SAMPLES, USED, NoLawError, formulas_of, law_of

__all__ = ["serving_laws_of"]

_CHOICE = "argmax"
"""In the line of the program that chooses a token."""


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """A recording.

    sizes: what it was recorded at.  names: its stretches in their order, as `Serving.names`.
    places: their rows.  growth: how it grew out of the same with a period of layers less, None
    where that was not recorded.
    """

    program: Program
    like: Likeness
    serving: Serving
    sizes: Mapping[str, int]
    names: Sequence[tuple[str, int]]
    places: Sequence[slice]
    growth: Growth | None


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Rows of a recording, and the variables that they depend on."""

    run: _Run
    rows: slice
    variables: Mapping[str, int]

    @property
    def requests(self) -> NDArray[np.intp]:
        """Its rows of requests."""
        rows = self.run.program.requests
        found: NDArray[np.intp] = rows[(rows >= self.rows.start) & (rows < self.rows.stop)]
        return found

    @property
    def size(self) -> NDArray[np.int64]:
        """The bytes of its requests."""
        found: NDArray[np.int64] = self.run.program.steps.size[self.requests]
        return found

    def first_difference(self, other: _Stretch) -> int | None:
        """The first row in which another does something else; None if it does the same."""
        shared = min(self.rows.stop - self.rows.start, other.rows.stop - other.rows.start)
        differs = np.zeros(shared, dtype=bool)
        for name in ("form", "younger"):
            mine, theirs = getattr(self.run.like, name), getattr(other.run.like, name)
            differs |= mine[self.rows][:shared] != theirs[other.rows][:shared]
        if differs.any():
            return int(np.argmax(differs))
        same = self.rows.stop - self.rows.start == other.rows.stop - other.rows.start
        return None if same else shared

    def told(self, row: int) -> str:
        """What a row of it does."""
        return f"{dict(self.run.sizes)}, {self.run.program.told(self.rows.start + row)}"


def serving_laws_of(variant: Variant, python: str, of: Releases) -> tuple[Laws, dict[str, str]]:
    """The laws of a variant that serves by stretch and regime, and why there are none."""
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
    return Laws(variant.name, *of, interner.table(), found), refused


def _runs(variant: Variant, sizes: Sequence[Mapping[str, int]], python: str) -> list[_Run]:
    """The recordings at these sizes; for each stretch one of them with a period of layers less,
    too."""
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


def _places(program: Program, line: int, decode: int) -> list[slice]:
    """A recording's stretches: cut where the peaks are reset, after what each choice of a token
    requests, and after what is let go then where another token follows.

    line: of the program, which chooses.
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
    """The stretches of each name, one of each length of a run, the first of a run that grew."""
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
            raise NoLawError(f"otherwise than {dict(first.run.sizes)}: {each.told(row)}")
    growth = first.run.growth
    if growth is None:
        raise NoLawError("it was not recorded with a period of layers less")
    told, others = _told_first(stretches)
    rows = first.requests

    def told_by(request: int) -> str:
        return first.run.program.told(int(rows[request]))

    while True:
        columns = np.array([stretches[i].size for i in told]).T
        found = formulas_of(columns, [stretches[i].variables for i in told], told_by)
        law = law_of(growth, *found, interner, proofs=len(others), rows=first.rows, period=period)
        refuted = next((i for i in others if _is_refuted(law, stretches[i])), None)
        if refuted is None:
            return law
        told.append(refuted)
        others.remove(refuted)
        if len(others) < PROOFS:
            raise NoLawError(f"refuted by {stretches[refuted].told(0)}")


def _told_first(stretches: Sequence[_Stretch]) -> tuple[list[int], list[int]]:
    """Which tell the formulas, of other recordings if there are enough, and which may refute."""
    seen: dict[int, int] = {}
    for number, each in enumerate(stretches):
        seen.setdefault(id(each.run), number)
    told = list(seen.values())[:USED]
    others = [number for number in range(len(stretches)) if number not in told]
    if len(told) < USED or len(others) < PROOFS:
        raise NoLawError(f"only {len(seen)} recordings come to it")
    return told, others


def _is_refuted(law: Law, stretch: _Stretch) -> bool:
    made = law.rows(stretch.variables, stretch.run.sizes["layers"])
    return not np.array_equal(made.value[made.kind == REQUEST], stretch.size)


def _refuted(run: _Run, laws: Mapping[str, Law]) -> str | None:
    """How a recording differs from what its stretches' laws make; None if nowhere."""
    missing = [name for name, _ in run.names if name not in laws]
    if missing:
        return f"there is no law for {missing[0]}"
    made, program = run.serving.program(laws, run.sizes["layers"]), run.program
    if len(made.kind) != len(program.kind):
        return f"{len(made.kind):,} rows instead of {len(program.kind):,}"
    of_block = program.kind != StepKind.EMPTY_CACHE
    size = np.where(program.kind == StepKind.ALLOC, program.steps.size, 0)
    wrong = (made.block != program.block) & of_block | (made.size != size)
    return program.told(int(np.argmax(wrong))) if wrong.any() else None
