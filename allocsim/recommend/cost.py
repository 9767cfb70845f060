"""Estimated time of driver calls.

Replays give the exact number and size of the calls.  The time of a call is from a table that was
measured on one card (`driver_times.py`), or from a file of the user.  The estimate orders settings
and marks settings that thrash.  It has no influence on the memory that a setting needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from allocsim.errors import ConfigError
from allocsim.recommend.driver_times import H200, DriverTimes
from allocsim.replaying import Trial

_LONGEST = 1 << 16
_TAKES = ("malloc", "create", "map")
"""Names in `Device.calls` of the calls that obtain memory; the others return it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds of each driver call; None takes the time from the table, depending on the size.

    cuda_malloc: one cudaMalloc.
    cuda_free: one cudaFree, without waiting for the device.
    map_handle: creating, mapping and giving access to one handle of an expandable segment.
    unmap_handle: unmapping and releasing one handle, without waiting for its stream.
    synchronize: waiting for every stream before cached memory is released.  Not measured: it
        depends on the work that the program has queued.
    thrashing_above: not a time, but a ratio.  A setting is thrashing if `Cost.churn` exceeds
        `Cost.growth` by more than this factor.
    """

    cuda_malloc: float | None = None
    cuda_free: float | None = None
    map_handle: float | None = None
    unmap_handle: float | None = None
    synchronize: float = 1000.0
    thrashing_above: float = 1.0

    @property
    def table(self) -> DriverTimes:
        """Table for the calls whose field is None."""
        return H200

    @property
    def uses_table(self) -> bool:
        """True if the time of at least one call is from the table."""
        return None in (self.cuda_malloc, self.cuda_free, self.map_handle, self.unmap_handle)

    def of_call(self, call: str, size: int, held: float = 0.0) -> float:
        """Return the microseconds of one driver call.

        call: name of the call, as in `Device.calls`.
        size: bytes.
        held: number of segments that are allocated already.
        """
        if call == "map" and self.map_handle is not None:
            return 0.0  # counted with each handle
        known = {
            "malloc": self.cuda_malloc,
            "free": self.cuda_free,
            "create": self.map_handle,
            "unmap": self.unmap_handle,
        }.get(call)
        return self.table.of_call(call, size, held) if known is None else known


@dataclass(frozen=True, slots=True)
class Cost:
    """Estimated time in driver calls over a recording, in microseconds.

    growth: time to obtain the memory of the peak once.
    churn: time to release memory, to wait for streams, and to obtain memory again.
    is_thrashing: True if the churn is large; see `Costs.thrashing_above`.
    """

    growth: float
    churn: float
    is_thrashing: bool

    @property
    def total(self) -> float:
        """Growth and churn together, in microseconds."""
        return self.growth + self.churn


def cost_of(trial: Trial, costs: Costs) -> Cost:
    """Return the estimated driver time of a replay."""
    calls = trial.driver_calls
    getting = driver_time((call for call in calls if call[0] in _TAKES), costs)
    giving = driver_time((call for call in calls if call[0] not in _TAKES), costs)
    obtained = sum(size * n for call, size, n in calls if call in ("malloc", "create"))
    growth = getting * (min(trial.peak_reserved_bytes / obtained, 1.0) if obtained else 1.0)
    churn = getting - growth + giving + trial.num_sync_all_streams * costs.synchronize
    return Cost(growth, churn, churn > costs.thrashing_above * growth)


def driver_time(calls: Iterable[tuple[str, int, int]], costs: Costs) -> float:
    """Return the microseconds of driver calls.

    calls: (name, bytes, number of calls).
    """
    calls = list(calls)
    # On average, half of the segments are already held when a segment is obtained.
    held = sum(n for call, _, n in calls if call == "malloc") / 2
    return sum(n * costs.of_call(call, size, held) for call, size, n in calls)


def read_costs(path: str | os.PathLike[str]) -> Costs:
    """Return the costs of a JSON file: an object whose keys are fields of `Costs`.

    Fields that are not in the file have their defaults.  Raises ConfigError with the file and the
    key for other contents.
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
