"""Estimated time of driver calls, and the card on which the time of each call was measured.

`allocsim.metrics` computes the estimate; this module only formats it.
"""

from __future__ import annotations

from typing import Any

from allocsim.recommend import Costs, driver_time
from allocsim.report.layout import number, plural, rows
from allocsim.simulation import DeviceRun

_USUAL = 20 << 20
"""Bytes for which `costs_document` gives times: the segment of a request below 10 MiB."""


def driver_note(costs: Costs) -> str:
    """Return a sentence about the card behind the estimate, and its error on recorded runs."""
    table = costs.table
    if not costs.uses_table:
        return "with the given times"
    return (
        f"based on an {table.name}; in half of that card's recordings, calls took "
        f"{table.low:g} to {table.high:g} times as long, and longer with other busy processes"
    )


def driver_rows(run: DeviceRun, is_expandable: bool) -> list[str]:
    """Return lines with the numbers of a replay's driver calls and retries, and their time."""
    stats, costs = run.stats, Costs()
    retries = plural(stats["num_alloc_retries"], "retry", "retries")
    calls = [f"{retries} after cached memory was released to the driver"]
    if "num_device_alloc" in stats:  # from 2.3 on
        take, give = ("mappings", "unmappings") if is_expandable else ("cudaMalloc", "cudaFree")
        allocated, freed = number(stats["num_device_alloc"]), number(stats["num_device_free"])
        calls.insert(0, f"{allocated} {take}, {freed} {give}")
    time = driver_time(run.driver_calls, costs)
    calls.append(f"about {time / 1000:,.1f} ms without waits, {driver_note(costs)}")
    return rows("Driver calls", calls)


def driver_document(run: DeviceRun) -> dict[str, Any]:
    """Return the estimated time of a replay's driver calls as JSON."""
    costs = Costs()
    return {
        "driver_us": round(driver_time(run.driver_calls, costs), 1),
        "driver_times": _table_document(costs),
    }


def costs_document(costs: Costs) -> dict[str, Any]:
    """Return the time of each kind of driver call as JSON.

    Calls whose time depends on the size are given for 20 MiB.
    """
    times = {
        "cuda_malloc": costs.of_call("malloc", _USUAL),
        "cuda_free": costs.of_call("free", _USUAL),
        "map_handle": costs.of_call("create", _USUAL) + costs.of_call("map", _USUAL),
        "unmap_handle": costs.of_call("unmap", _USUAL),
    }
    return {
        **{name: round(time, 1) for name, time in times.items()},
        "synchronize": costs.synchronize,
        "thrashing_above": costs.thrashing_above,
        "driver_times": _table_document(costs) if costs.uses_table else None,
    }


def _table_document(costs: Costs) -> dict[str, Any]:
    table = costs.table
    return {
        "card": table.card,
        "driver": table.driver,
        "recorded_over_estimated": [table.low, table.high],
    }
