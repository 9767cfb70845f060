"""What driver calls cost: a model of time beside counts that are exact.

Rule: the allocator's calls are counted by replays, to the call; the time of each is in a table,
whose defaults are of the right order for a data-centre GPU and nothing more; measured figures can
replace them.  They decide which settings are called thrashing, never how much memory one needs.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from pathlib import Path

from allocsim.core import SMALL_BUFFER
from allocsim.engine import Trial
from allocsim.errors import ConfigError

__all__ = ["Cost", "Costs", "cost_of", "read_costs"]

_LONGEST = 1 << 16


@dataclass(frozen=True, slots=True)
class Costs:
    """Microseconds of each call.

    cuda_malloc: one cudaMalloc.
    cuda_free: one cudaFree, with the wait for the device that it implies.
    map_handle: creating, mapping and giving access to one handle of an expandable segment (2 MiB
        in the small pool, large_segment_size_mb in the large).
    unmap_handle: the reverse, with the wait for the segment's stream.
    synchronize: waiting for every stream before cached memory is given back, with the gap that
        leaves in the GPU's work.
    thrashing_above: a setting is thrashing where the churn is more than so many times the growth.
    """

    cuda_malloc: float = 300.0
    cuda_free: float = 300.0
    map_handle: float = 60.0
    unmap_handle: float = 60.0
    synchronize: float = 1000.0
    thrashing_above: float = 1.0


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds in the driver over a recording, by the model.

    growth: getting the memory of the peak once.
    churn: giving memory back, waiting for that, and getting it again.
    """

    growth: float
    churn: float
    is_thrashing: bool

    @property
    def total(self) -> float:
        """Both together."""
        return self.growth + self.churn


def cost_of(trial: Trial, large_segment_size: int, costs: Costs) -> Cost:
    """The cost of a trial; large_segment_size: bytes, as its setting has it."""
    mapped = trial.num_maps > 0
    handles = trial.obtained_small / SMALL_BUFFER + trial.obtained_large / large_segment_size
    mallocs = trial.num_device_alloc - trial.num_maps
    getting = mallocs * costs.cuda_malloc + (handles * costs.map_handle if mapped else 0.0)
    obtained = trial.obtained_small + trial.obtained_large
    if mapped and obtained:
        giving = handles * costs.unmap_handle * trial.returned_bytes / obtained
    else:
        giving = trial.num_device_free * costs.cuda_free
    growth = getting * (min(trial.peak_reserved_bytes / obtained, 1.0) if obtained else 1.0)
    churn = getting - growth + giving + trial.num_sync_all_streams * costs.synchronize
    return Cost(growth, churn, churn > costs.thrashing_above * growth)


def read_costs(path: str | os.PathLike[str]) -> Costs:
    """Costs from a JSON file: an object whose keys are fields of `Costs`, others at default.

    Raises ConfigError, naming the file and the key, for anything else.
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
                f"{name}: {key[:60]!r} is no cost; expected one of {', '.join(known)}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise ConfigError(f"{name}: {key} is {value!r:.60}; expected microseconds, 0 or more")
    return Costs(**{key: float(value) for key, value in found.items()})
