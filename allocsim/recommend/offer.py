"""Candidate setting with its replay on each device, and the time of its driver calls.

A candidate and its replays are an `Offer`; its memory, driver calls and retries are the highest
over all devices.  The time of a driver call is from a table that was measured on one card, or from
a file of the user.  The times show if a setting thrashes, that is, releases memory and obtains it
again repeatedly.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from allocsim.errors import ConfigError
from allocsim.replaying import Point, Trial
from allocsim.simulation import Setting
from allocsim.units import MIB

_MANY_CALLS = 2
"""Ratio of a setting's driver calls to those of the present setting, above which it may thrash."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Candidate setting with its replay on each device.

    setting: option string and memory fraction.
    trials: results of the replays, one for each device.
    is_fitted: True if a value of the setting is derived from the recorded sizes.
    churns: True if a replay spends more time on releasing memory and obtaining it again than on
        obtaining it once.
    """

    setting: Setting
    trials: tuple[Trial, ...]
    is_fitted: bool = False
    churns: bool = False

    @property
    def goes_through(self) -> bool:
        return all(trial.goes_through for trial in self.trials)

    @property
    def retries(self) -> int:
        return max(trial.num_alloc_retries for trial in self.trials)

    @property
    def memory(self) -> int:
        return max(trial.peak_reserved_bytes for trial in self.trials)

    @property
    def memory_at_end(self) -> int:
        """Lower bound of the reserved bytes after the last entry; the highest over all devices."""
        return max(trial.least_at_end for trial in self.trials)

    @property
    def memory_range(self) -> tuple[int, int]:
        """Lowest and highest possible peak reserved bytes; each the highest over all devices."""
        ends = [trial.peak_range or (trial.peak_reserved_bytes,) * 2 for trial in self.trials]
        return max(low for low, _ in ends), max(high for _, high in ends)

    @property
    def calls(self) -> int:
        return max(trial.num_device_alloc + trial.num_device_free for trial in self.trials)

    def thrashes(self, baseline: Offer) -> bool:
        return self.churns and self.calls > _MANY_CALLS * baseline.calls


def dominates(better: Point, worse: Point) -> bool:
    """Return True if `better` is lower in memory, driver calls or retries, and higher in none."""
    return (
        better.memory <= worse.memory
        and better.calls <= worse.calls
        and better.retries <= worse.retries
        and better != worse
    )


Bar = tuple[tuple[Point, bool], ...]
"""Results of finished replays that a running replay must beat.

An item is (peak reserved bytes, driver calls and retries of a finished replay; True if the running
replay also loses with equal numbers).
"""


def is_hopeless(bar: Bar, so_far: Point) -> bool:
    """Return True if a running replay has already lost against a finished one.

    bar: peak reserved bytes, driver calls and retries of each finished replay.
    so_far: the same numbers of the running replay until now; they never decrease.
    """
    return any(dominates(p, so_far) or (loses and p == so_far) for p, loses in bar)


def front(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the points that no other point beats (the Pareto front), in order of memory.

    points: peak reserved bytes, driver calls and retries of each setting.  Equal points are
        returned once.
    """
    distinct = sorted(set(points))
    return tuple(p for p in distinct if not any(dominates(other, p) for other in distinct))


Points = tuple[tuple[int, float], ...]
"""Measured times of a driver call: (size in MiB, microseconds), in ascending order of size."""


@dataclass(frozen=True, slots=True)
class DriverTimes:
    """Times of driver calls on one card.

    card, driver: name of the card, and version of its driver.
    malloc, free: times of cuMemAlloc and cuMemFree by size, with nothing else allocated.
    fresh: additional microseconds of cuMemAlloc if other allocations exist, so that it needs a new
        address range.
    fresh_each: further microseconds of cuMemAlloc for each existing allocation.
    create, map, access: times of cuMemCreate and cuMemMap for one handle, and of cuMemSetAccess for
        one range.
    unmap, release: times of cuMemUnmap and cuMemRelease for one handle.
    low, high: first and third quartile of measured ratios of real to estimated time.  Each ratio is
        the median for one recording and one kind of call (`python -m benchmarks.driver_times`).
    """

    card: str
    driver: str
    malloc: Points
    free: Points
    fresh: float
    fresh_each: float
    create: Points
    map: Points
    access: Points
    unmap: Points
    release: Points
    low: float
    high: float

    @property
    def name(self) -> str:
        return f"{self.card}, driver {self.driver}"

    def of_call(self, call: str, size: int, held: float = 0.0) -> float:
        """Return the microseconds of one call for `size` bytes.

        call: name in `Device.calls`: "malloc", "free", "create", "map" or "unmap".
        held: number of segments that already exist; only "malloc" uses it.
        """
        if call == "malloc":
            return interpolated(self.malloc, size) + self.fresh + self.fresh_each * held
        if call == "free":
            return interpolated(self.free, size)
        if call == "create":
            return interpolated(self.create, size) + interpolated(self.map, size)
        if call == "map":
            return interpolated(self.access, size)
        return interpolated(self.unmap, size) + interpolated(self.release, size)


def interpolated(points: Points, size: int) -> float:
    """Return the microseconds of a call for `size` bytes, interpolated linearly in `points`."""
    mib = size / MIB
    if mib <= points[0][0] or len(points) == 1:
        return points[0][1]
    right = min(max(bisect_left(points, (mib,)), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return y0 + (y1 - y0) * (mib - x0) / (x1 - x0)


H200 = DriverTimes(
    card="NVIDIA H200",
    driver="580.159.04",
    malloc=(
        (2, 54.2), (4, 50.0), (10, 49.7), (20, 44.4), (22, 46.0), (64, 76.9), (128, 70.4),
        (256, 84.1), (512, 145.9), (1024, 291.0), (2048, 407.9), (4096, 656.7), (8192, 1234.3),
        (16384, 2393.2),
    ),
    free=(
        (2, 42.6), (4, 40.5), (10, 47.7), (20, 52.8), (22, 54.0), (64, 77.4), (128, 121.6),
        (256, 190.9), (512, 358.0), (1024, 676.1), (2048, 1243.9), (4096, 2955.9),
        (8192, 5339.7), (16384, 11389.0),
    ),
    fresh=34.4,
    fresh_each=0.0388,
    create=((2, 15.1), (20, 15.3), (64, 15.3), (256, 19.6)),
    map=((2, 3.0), (20, 2.8), (64, 2.8), (256, 2.8)),
    access=((2, 33.3), (20, 33.2), (64, 33.1), (256, 54.8)),
    unmap=((2, 23.5), (20, 22.1), (64, 22.0), (256, 27.8)),
    release=((2, 15.3), (20, 24.7), (64, 48.4), (256, 151.2)),
    low=1.5,
    high=3.6,
)  # fmt: skip
"""Times measured on one H200 on 26 November 2026.

`malloc` and `free` end at 16 GiB, because the times of larger calls vary too much: at 32 GiB one
call took between 1.6 and 145 ms.  `fresh` and `fresh_each` come from 600 segments of 20 MiB held at
once: on average, the 50th cudaMalloc took 80.8 us and the 550th 100.2 us, against 44.4 us with
nothing else allocated.
"""


_LONGEST = 1 << 16
_TAKES = ("malloc", "create", "map")
"""Names in `Device.calls` of the calls that obtain memory; all other calls release it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds of each kind of driver call, as the user gives them.

    If a field is None, the time is taken from `table` and depends on the size of the call.

    cuda_malloc: one cudaMalloc.
    cuda_free: one cudaFree, without waiting for the device.
    map_handle: creating and mapping one handle of an expandable segment, and setting its access.
    unmap_handle: unmapping and releasing one handle, without waiting for its stream.
    synchronize: waiting for every stream before cached memory is released.  The default is not
        measured, since the time depends on the work that the program has queued.
    thrashing_above: ratio, not a time: a setting thrashes if `Cost.churn` is more than this many
        times `Cost.growth`.
    """

    cuda_malloc: float | None = None
    cuda_free: float | None = None
    map_handle: float | None = None
    unmap_handle: float | None = None
    synchronize: float = 1000.0
    thrashing_above: float = 1.0

    @property
    def table(self) -> DriverTimes:
        """Measured times, used in place of fields that are None."""
        return H200

    @property
    def uses_table(self) -> bool:
        return None in (self.cuda_malloc, self.cuda_free, self.map_handle, self.unmap_handle)

    def of_call(self, call: str, size: int, held: float = 0.0) -> float:
        if call == "map" and self.map_handle is not None:
            return 0.0  # `map_handle` is counted in "create", once for each handle
        known = {
            "malloc": self.cuda_malloc,
            "free": self.cuda_free,
            "create": self.map_handle,
            "unmap": self.unmap_handle,
        }.get(call)
        return self.table.of_call(call, size, held) if known is None else known


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated time of all driver calls of a replay, in microseconds.

    growth: time to obtain the peak reserved memory once.
    churn: time to release memory, to wait for streams, and to obtain released memory again.
    is_thrashing: True if `churn` is more than `Costs.thrashing_above` times `growth`.
    """

    growth: float
    churn: float
    is_thrashing: bool

    @property
    def total(self) -> float:
        return self.growth + self.churn


def cost_of(trial: Trial, costs: Costs) -> Cost:
    calls = trial.driver_calls
    getting = driver_time((call for call in calls if call[0] in _TAKES), costs)
    giving = driver_time((call for call in calls if call[0] not in _TAKES), costs)
    obtained = sum(size * n for call, size, n in calls if call in ("malloc", "create"))
    growth = getting * (min(trial.peak_reserved_bytes / obtained, 1.0) if obtained else 1.0)
    churn = getting - growth + giving + trial.num_sync_all_streams * costs.synchronize
    return Cost(growth, churn, churn > costs.thrashing_above * growth)


def driver_time(calls: Iterable[tuple[str, int, int]], costs: Costs) -> float:
    """Return the microseconds that driver calls take.

    calls: (name in `Device.calls`, bytes, number of calls with this name and size).
    """
    calls = list(calls)
    # On average, half of the segments are already held when a segment is obtained.
    held = sum(n for call, _, n in calls if call == "malloc") / 2
    return sum(n * costs.of_call(call, size, held) for call, size, n in calls)


def read_costs(path: str | os.PathLike[str]) -> Costs:
    """Read times of driver calls from a JSON file, whose keys are fields of `Costs`.

    Raises ConfigError for a file that is not such a JSON object.
    """
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file:
            found = json.loads(file.read(_LONGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: cannot be read as JSON ({error})") from None
    known = [part.name for part in fields(Costs)]
    if not isinstance(found, dict):
        raise ConfigError(f"{name}: expected an object with some of {', '.join(known)}")
    for key, value in found.items():
        if key not in known:
            raise ConfigError(
                f"{name}: {key[:60]!r} is not a cost; expected one of {', '.join(known)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise ConfigError(f"{name}: {key} is {value!r:.60}; expected microseconds, 0 or more")
    return Costs(**{key: float(value) for key, value in found.items()})
