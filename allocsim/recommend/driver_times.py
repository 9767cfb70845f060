"""Measured times of driver calls, as a function of the size: one table for each card.

Each time is a median in microseconds that `python -m benchmarks.on_gpu` (part "driver") measured in
an otherwise idle process on an otherwise idle card.  All measurements are in
`traces/h200/driver.json`.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from allocsim.units import MIB

Points = tuple[tuple[int, float], ...]
"""(size in MiB, microseconds) of each measured size, ascending."""


@dataclass(frozen=True, slots=True)
class DriverTimes:
    """Times of driver calls on one card.

    card, driver: name of the card and version of its driver.
    malloc, free: cuMemAlloc and cuMemFree, with nothing else allocated.
    fresh: additional microseconds of cuMemAlloc if other allocations are held, so that it needs a
        new address range.
    fresh_each: further microseconds of cuMemAlloc for each allocation that is held.
    create, map, access: cuMemCreate and cuMemMap of one handle, cuMemSetAccess of one range.
    unmap, release: cuMemUnmap and cuMemRelease of one handle.
    low, high: range of the ratio of real to estimated time.  Each recording of the same card gives
        a median ratio; these are the quartiles of the medians
        (`python -m benchmarks.driver_times`).
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
        """Name of card and driver for output, such as "NVIDIA H200, driver 580.159.04"."""
        return f"{self.card}, driver {self.driver}"

    def of_call(self, call: str, size: int, held: float = 0.0) -> float:
        """Return the microseconds of one call for `size` bytes.

        call: "malloc", "free", "create", "map" or "unmap"; see `allocsim.core.Device.calls`.
        held: number of segments that are allocated already; only "malloc" uses it.
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
    """Return the microseconds for `size` bytes, by linear interpolation.

    Sizes above the last point are extrapolated; sizes below the first point take its time.
    """
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
"""One H200, 26 November 2026.

`malloc` and `free` end at 16 GiB: at 32 GiB one call took between 1.6 and 145 ms.  `fresh` and
`fresh_each` come from 600 segments of 20 MiB held at once: 80.8 us at the 50th on average and
100.2 us at the 550th, against 44.4 us for a lone one.
"""
