"""The largest of one size that fits a card, at each of several values of another.

Rule: every row is a search of its own, whose last two runs prove it.  What the rows before tell is
only where to look first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.phantom import Gpu
from allocsim.questions.fit.largest import SIZES, Largest, largest
from allocsim.questions.fit.task import Task, most_of

__all__ = ["Frontier", "frontier", "usual_values"]

_TIMES = {"seq": 1, "prompt": 1, "image": 2}
"""Sizes that a batch multiplies, and the power in which they stand there: memory grows with their
product, so that one line through all runs tells where to look."""


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """The answer.

    name: of the size that was looked for, other: of the one that was given.
    rows: for each value of the other, ascending, what was found there.
    """

    name: str
    other: str
    rows: tuple[tuple[int, Largest], ...]

    @property
    def fits(self) -> bool:
        """Whether any value fits anywhere."""
        return any(found.fitting is not None for _, found in self.rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not known, in sentences."""
        return tuple(dict.fromkeys(note for _, found in self.rows for note in found.notes))


def usual_values(task: Task, other: str) -> tuple[int, ...]:
    """Where none are asked for: half of what the task has, that, and twice as much, so far as the
    model has positions for it."""
    own: int = getattr(task, other)
    return tuple(sorted({max(own // 2, 1), own, min(2 * own, most_of(task, other))}))


def frontier(
    task: Task,
    name: str,
    other: str,
    gpu: Gpu,
    *,
    values: Sequence[int] = (),
    step: int = 1,
    engine: str = "auto",
    conf: str | None = None,
    python: str | None = None,
    torch_version: str | None = None,
    transformers: str | None = None,
    watch: Callable[[str], object] | None = None,
) -> Frontier:
    """The largest value of the size `name` at which `task` fits `gpu`, for each of `values` of the
    size `other` (default: `usual_values`).

    The other options are those of `largest`.  Raises ConfigError as that does, and if the two sizes
    are one.
    """
    if name == other or not {name, other} <= set(SIZES):
        raise ConfigError(f"{name} and {other}: expected two of {', '.join(SIZES)}")
    rows: list[tuple[int, Largest]] = []
    for value in sorted(set(values or usual_values(task, other))):
        found = largest(
            task.at(other, value),
            name,
            gpu,
            step=step,
            first=_guessed(name, other, rows, value, gpu),
            engine=engine,
            conf=conf,
            python=python,
            torch_version=torch_version,
            transformers=transformers,
            watch=None if watch is None else _watched(watch, f"{other}={value}"),
        )
        rows.append((value, found))
    return Frontier(name, other, tuple(rows))


def _watched(watch: Callable[[str], object], where: str) -> Callable[[str], object]:
    return lambda what: watch(f"{what}, {where}")


def _guessed(
    name: str, other: str, rows: Sequence[tuple[int, Largest]], value: int, gpu: Gpu
) -> int | None:
    """Where the card is full at `value`, by what the rows before took; None where there is none."""
    if not rows:
        return None
    if name == "batch" and other in _TIMES:
        ours, theirs = 1, _TIMES[other]
    elif other == "batch" and name in _TIMES:
        ours, theirs = _TIMES[name], 1
    else:
        return max(rows[-1][1].value, 1)
    peaks = {
        each.value**ours * at**theirs: each.peak_reserved_bytes
        for at, found in rows
        for each in found.tried
        if each.fits
    }
    near, far = min(peaks, default=0), max(peaks, default=0)
    if far == near or peaks[far] <= peaks[near]:
        return None
    room = (gpu.room - peaks[near]) / (peaks[far] - peaks[near]) * (far - near) + near
    return int(max(room / value**theirs, 1.0) ** (1 / ours))
