"""Check measured memory against limits and a baseline, and name the lines of code that grew.

Every given limit is checked separately, and the result contains all checks.  A value equal to its
limit passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from allocsim._repr import Shown
from allocsim.analysis.gate.measured import Baseline, Measured
from allocsim.errors import ConfigError
from allocsim.ownership import moved_lines, status_of
from allocsim.units import format_size


@dataclass(frozen=True, slots=True)
class LineGrowth:
    """Change of the memory that one line of code holds at the peak.

    The changes of all lines add up to the difference of the peaks.

    owner: name of the line now; "" if it holds no memory now.
    was: name of the line in the baseline, which differs if lines moved; "" if it held no memory.
    before, now: requested bytes at the peak.
    """

    owner: str
    was: str
    before: int
    now: int

    @property
    def bytes(self) -> int:
        """Change in bytes."""
        return self.now - self.before

    @property
    def status(self) -> str:
        """Status: "new", "gone", "larger", "smaller" or "same"."""
        return status_of(self.bytes, was_there=bool(self.was), is_there=bool(self.owner))


def growth_of(before: Mapping[str, int], now: Mapping[str, int]) -> tuple[LineGrowth, ...]:
    """Return the changes of all lines, largest growth first.

    before, now: requested bytes at the peak, by line of code.
    """
    known = {name: name for name in now if name in before} | moved_lines(before, now)
    found = [
        LineGrowth(name, known.get(name, ""), before.get(known.get(name, ""), 0), size)
        for name, size in now.items()
    ]
    gone = before.keys() - set(known.values())
    found += [LineGrowth("", name, before[name], 0) for name in gone]
    return tuple(sorted(found, key=lambda each: (-each.bytes, each.owner, each.was)))


_SIZES = ("reserved", "allocated", "requested")


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a recording's memory; None if there is no limit.

    max_reserved, max_allocated, max_requested: peaks in bytes.
    max_driver_calls: number of allocations from the driver.
    max_fragmentation: share of peak reserved memory above peak allocated memory, from 0 to 1.
    """

    max_reserved: int | None = None
    max_allocated: int | None = None
    max_requested: int | None = None
    max_driver_calls: int | None = None
    max_fragmentation: float | None = None

    @property
    def is_empty(self) -> bool:
        """True if there is no limit."""
        return self == Budget()


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """Result of checking one limit.

    what: measured quantity: "reserved", "allocated" or "requested" (peak bytes), "driver_calls" or
        "fragmentation".
    value: measured value.
    limit: largest allowed value.
    baseline: value in the baseline; None for a limit of the budget.
    """

    what: str
    value: float
    limit: float
    baseline: int | None = None

    @property
    def passed(self) -> bool:
        """True if the value is within the limit."""
        return self.value <= self.limit


@dataclass(frozen=True, slots=True, repr=False)
class Gate(Shown):
    """Result of all checks.

    tolerance: share by which sizes may exceed the baseline.
    growth: change of memory of every line of code since the baseline; empty without a baseline.
    """

    measured: Measured
    checks: tuple[LimitCheck, ...]
    baseline: Baseline | None
    tolerance: float
    growth: tuple[LineGrowth, ...]

    @property
    def passed(self) -> bool:
        """True if every check passed."""
        return all(check.passed for check in self.checks)

    @property
    def grown(self) -> tuple[LineGrowth, ...]:
        """Lines of code that hold more memory than in the baseline, largest growth first."""
        return tuple(each for each in self.growth if each.bytes > 0)

    def headline(self) -> str:
        what = "within its limits" if self.passed else "beyond its limits"
        return f"{what}: {format_size(self.measured.peak_reserved_bytes)} reserved at the peak"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        for check in self.checks:
            yield check.what, f"{check.value:,} of {check.limit:,}"


def gate(
    measured: Measured,
    budget: Budget = Budget(),
    *,
    baseline: Baseline | None = None,
    tolerance: float = 0.01,
) -> Gate:
    """Check measured memory against limits, a baseline, or both.

    tolerance: share by which the peaks may exceed the peaks in the baseline.
    Raises ConfigError if there is neither a limit nor a baseline, if the tolerance is negative, and
    if the baseline is for another part of the run or other settings.
    """
    if budget.is_empty and baseline is None:
        raise ConfigError("there is neither a limit nor a baseline; expected one of them")
    if tolerance < 0:
        raise ConfigError(f"tolerance {tolerance} is negative; expected a share such as 0.01")
    checks = [
        LimitCheck(what, value, limit)
        for what, value, limit in (
            ("reserved", measured.peak_reserved_bytes, budget.max_reserved),
            ("allocated", measured.peak_allocated_bytes, budget.max_allocated),
            ("requested", measured.peak_requested_bytes, budget.max_requested),
            ("driver_calls", measured.driver_calls, budget.max_driver_calls),
            ("fragmentation", measured.fragmentation, budget.max_fragmentation),
        )
        if limit is not None
    ]
    growth: tuple[LineGrowth, ...] = ()
    if baseline is not None:
        _refuse_other(measured, baseline)
        growth = growth_of(baseline.owners, measured.owners)
        checks += [_against(measured, baseline, what, tolerance) for what in _SIZES]
    return Gate(measured, tuple(checks), baseline, tolerance, growth)


def _against(measured: Measured, baseline: Baseline, what: str, tolerance: float) -> LimitCheck:
    name = f"peak_{what}_bytes"
    before = getattr(baseline, name)
    limit = int(before * (1 + Fraction(str(tolerance))))
    return LimitCheck(what, getattr(measured, name), limit, before)


def _refuse_other(measured: Measured, baseline: Baseline) -> None:
    ours, theirs = (each.at for each in (measured, baseline))
    places = [" ".join(at) if at else "the beginning" for at in (ours, theirs)]
    if ours != theirs:
        raise ConfigError(
            f"{baseline.path} measures the run from {places[1]} on; expected from {places[0]} on"
        )
    if measured.counts_held != baseline.counts_held:
        counts = "counts" if baseline.counts_held else "does not count"
        raise ConfigError(
            f"{baseline.path} {counts} memory held before the measured part, unlike this check"
        )
    if measured.conf != baseline.conf:
        raise ConfigError(
            f"{baseline.path} has the settings {baseline.conf!r}; expected {measured.conf!r}, or "
            "--update to rewrite it"
        )
