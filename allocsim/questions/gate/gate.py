"""Is a recording still within its memory, and if not, which lines of code are behind it?

Rule: every limit that was named is a check of its own, and the answer has all of them; one that is
met exactly holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from allocsim.display import Shown
from allocsim.errors import ConfigError
from allocsim.questions.gate.baseline import Baseline
from allocsim.questions.gate.growth import Growth, growth_of
from allocsim.questions.gate.measured import Measured
from allocsim.units import format_size

__all__ = ["Budget", "Check", "Gate", "gate"]

_SIZES = ("reserved", "allocated", "requested")


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits, None for none: bytes, calls of the driver for memory, a share from 0 to 1."""

    max_reserved: int | None = None
    max_allocated: int | None = None
    max_requested: int | None = None
    max_driver_calls: int | None = None
    max_fragmentation: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it limits nothing."""
        return self == Budget()


@dataclass(frozen=True, slots=True)
class Check:
    """One limit.

    what: "reserved", "allocated" or "requested" (bytes at their peaks), "driver_calls" or
    "fragmentation".  baseline: what `value` was, None of a limit that was named.
    limit: the most that `value` may be.
    """

    what: str
    value: float
    limit: float
    baseline: int | None = None

    @property
    def passed(self) -> bool:
        """Whether it holds."""
        return self.value <= self.limit


@dataclass(frozen=True, slots=True, repr=False)
class Gate(Shown):
    """The answer.

    growth: against the baseline, every line of code of both; empty without one.
    """

    measured: Measured
    checks: tuple[Check, ...]
    baseline: Baseline | None
    tolerance: float
    growth: tuple[Growth, ...]

    @property
    def passed(self) -> bool:
        """Whether every check holds."""
        return all(check.passed for check in self.checks)

    @property
    def grown(self) -> tuple[Growth, ...]:
        """The lines that hold more than they did, the most first."""
        return tuple(each for each in self.growth if each.bytes > 0)

    def headline(self) -> str:
        """Whether it passed, and what is reserved at the peak."""
        what = "within its limits" if self.passed else "beyond its limits"
        return f"{what}: {format_size(self.measured.peak_reserved_bytes)} reserved at the peak"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Every check."""
        for check in self.checks:
            yield check.what, f"{check.value:,} of {check.limit:,}"


def gate(
    measured: Measured,
    budget: Budget = Budget(),
    *,
    baseline: Baseline | None = None,
    tolerance: float = 0.01,
) -> Gate:
    """Hold what was measured against limits, a baseline, or both.

    tolerance: the share by which the three sizes may be above the baseline's.
    Raises ConfigError if there is nothing to hold it against, if the tolerance is negative, and if
    the baseline is of another part of the run or other settings.
    """
    if budget.is_empty and baseline is None:
        raise ConfigError("there is no limit and no baseline; expected one")
    if tolerance < 0:
        raise ConfigError(f"tolerance {tolerance} is negative; expected a share, as 0.01")
    checks = [
        Check(what, value, limit)
        for what, value, limit in (
            ("reserved", measured.peak_reserved_bytes, budget.max_reserved),
            ("allocated", measured.peak_allocated_bytes, budget.max_allocated),
            ("requested", measured.peak_requested_bytes, budget.max_requested),
            ("driver_calls", measured.driver_calls, budget.max_driver_calls),
            ("fragmentation", measured.fragmentation, budget.max_fragmentation),
        )
        if limit is not None
    ]
    growth: tuple[Growth, ...] = ()
    if baseline is not None:
        _refuse_other(measured, baseline)
        growth = growth_of(baseline.owners, measured.owners)
        checks += [_against(measured, baseline, what, tolerance) for what in _SIZES]
    return Gate(measured, tuple(checks), baseline, tolerance, growth)


def _against(measured: Measured, baseline: Baseline, what: str, tolerance: float) -> Check:
    name = f"peak_{what}_bytes"
    before = getattr(baseline, name)
    limit = int(before * (1 + Fraction(str(tolerance))))
    return Check(what, getattr(measured, name), limit, before)


def _refuse_other(measured: Measured, baseline: Baseline) -> None:
    ours, theirs = (each.at for each in (measured, baseline))
    told = [" ".join(at) if at else "the beginning" for at in (ours, theirs)]
    if ours != theirs:
        raise ConfigError(f"{baseline.path} is of the run from {told[1]}, not from {told[0]} on")
    if measured.counts_held != baseline.counts_held:
        counts = "counts" if baseline.counts_held else "does not count"
        raise ConfigError(f"{baseline.path} {counts} what was held before, unlike what is asked")
    if measured.conf != baseline.conf:
        raise ConfigError(
            f"{baseline.path} is of the settings {baseline.conf!r}, and this run of "
            f"{measured.conf!r}; --update writes it anew"
        )
