"""Search for the largest value of one size that fits, at several values of another size.

Rule: every value is found by a separate search, which ends with a run that fits and a larger one
that does not. Earlier results only give the value to start at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.fitting.largest import SIZES, Largest, largest
from allocsim.fitting.task import Task, most_of
from allocsim.phantom import Gpu

_POWERS = {"seq": 1, "prompt": 1, "image": 2}
"""Power of each size in the product with the batch to which memory is proportional.

Memory grows linearly with that product, so one line through all runs predicts the next limit.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Largest value of one size that fits a card, at several values of another size.

    name: size that was searched for.
    other: size whose values were given.
    rows: values of `other`, ascending, each with the largest value of `name`.
    """

    name: str
    other: str
    rows: tuple[tuple[int, Largest], ...]

    @property
    def fits(self) -> bool:
        """True if a value of `name` fits at any value of `other`."""
        return any(found.fitting is not None for _, found in self.rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts that the answer cannot know, one sentence each."""
        return tuple(dict.fromkeys(note for _, found in self.rows for note in found.notes))


def usual_values(task: Task, other: str) -> tuple[int, ...]:
    """Return the default values of the size `other`: the task's value, half of it, and twice it.

    The number of learned positions limits the last value.
    """
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
    """Find the largest `name` at which `task` fits `gpu`, for each value of the size `other`.

    values: values of `other`; default: `usual_values`.

    The other arguments are those of `largest`. Raises ConfigError as `largest` does, and if `name`
    and `other` are the same size.
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
            first=_predicted(name, other, rows, value, gpu),
            engine=engine,
            conf=conf,
            python=python,
            torch_version=torch_version,
            transformers=transformers,
            watch=None if watch is None else _with_position(watch, f"{other}={value}"),
        )
        rows.append((value, found))
    return Frontier(name, other, tuple(rows))


def _with_position(watch: Callable[[str], object], where: str) -> Callable[[str], object]:
    return lambda what: watch(f"{what}, {where}")


def _predicted(
    name: str, other: str, rows: Sequence[tuple[int, Largest]], value: int, gpu: Gpu
) -> int | None:
    """Predict the `name` (such as "batch") that fills the card if the size `other` is `value`.

    rows: results at smaller values of `other`.
    Returns None if there are too few results.
    """
    if not rows:
        return None
    if name == "batch" and other in _POWERS:
        power, other_power = 1, _POWERS[other]
    elif other == "batch" and name in _POWERS:
        power, other_power = _POWERS[name], 1
    else:
        return max(rows[-1][1].value, 1)
    # Runs of all earlier rows are points on one line: peak over the product of both sizes.
    peaks = {
        each.value**power * at**other_power: each.peak_reserved_bytes
        for at, found in rows
        for each in found.tried
        if each.fits
    }
    near, far = min(peaks, default=0), max(peaks, default=0)
    if far == near or peaks[far] <= peaks[near]:
        return None
    room = (gpu.room - peaks[near]) / (peaks[far] - peaks[near]) * (far - near) + near
    return int(max(room / value**other_power, 1.0) ** (1 / power))
