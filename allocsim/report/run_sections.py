"""Parts of a report on a replay, shared by several commands, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from allocsim.recommend import Costs, driver_time
from allocsim.report.layout import fields, plural, row, rows, unproved
from allocsim.units import format_change, format_size

if TYPE_CHECKING:
    from allocsim.analysis.explain import Shortage
    from allocsim.editing import EditedDevice, EditTrial
    from allocsim.simulation import DeviceRun, Run, TimelinePoint


def verdict_sentence(device: DeviceRun, shortages: Sequence[Shortage]) -> str:
    """Return a sentence that says if the replay of one device fits, or why memory runs out."""
    if shortages:
        last = shortages[-1]
        return unproved(device.parting, last.oom.entry) + _causes(last)[last.cause]
    what = "it fits: no request failed"
    if device.spill is not None and device.spill.most_bytes:
        size = format_size(device.spill.most_bytes)
        what = f"no request failed, because {size} of host memory extend the card"
    if device.device_memory is None:
        what = "no request failed; the memory of the device is unknown"
    sentence = f"{unproved(device.parting)}{what}."
    busiest = device.timeline.busiest
    if busiest is None:
        return sentence
    idle = _idle_part(busiest)
    return f"{sentence} At peak allocation, {idle} were unused."


def _idle_part(moment: TimelinePoint) -> str:
    idle, reserved = format_size(moment.idle), format_size(moment.reserved)
    # Both round to the same text, which would claim that nothing was in use.
    if idle == reserved and moment.idle != moment.reserved:
        return f"all but {format_size(moment.reserved - moment.idle)} of {reserved} reserved"
    return f"{idle} of {reserved} reserved"


def _causes(shortage: Shortage) -> dict[str, str]:
    tried = format_size(shortage.tried_bytes)
    idle = format_size(shortage.idle_bytes)
    free = shortage.figures.free_bytes
    free_text = "unknown" if free is None else format_size(free)
    reach = format_size(shortage.figures.idle_and_free or 0)
    held = format_size(shortage.oom.allocated_bytes)
    total = format_size(shortage.oom.total_bytes)
    return {
        "impossible": f"impossible. {tried} were requested at once, more than the whole device "
        f"has ({total}).",
        "host_fallback": f"more is allocated ({held}) than the device has ({total}).",
        "pending_free": f"a block was freed too late. {tried} were requested; a large enough "
        "block waited for another stream, and PyTorch does not search again after the wait.",
        "private_pool": f"a private pool holds the memory. {tried} were requested; the idle memory "
        "of a private pool (a CUDA graph, a MemPool) would have been enough.",
        "fraction_limit": f"a memory fraction was reached. PyTorch was limited to a part of "
        f"the device's {total}; {free_text} of the device were free.",
        "free_above_request": f"not the allocator. {tried} were requested with {free_text} free on "
        "the device: something outside PyTorch's allocator refused.",
        "fragmentation": f"fragmentation. {tried} were requested while PyTorch held {idle} "
        "idle: enough, but in pieces that are too small, or kept for another stream or pool.",
        "fragmentation_likely": f"fragmentation likely. {tried} were requested. {idle} idle "
        f"in PyTorch and {free_text} free on the device, {reach} together, would be enough, but "
        "not in one piece.",
        "full": f"the device is full. {tried} were requested. {idle} idle in PyTorch and "
        f"{free_text} free on the device, {reach} together, are too little. {held} were in use.",
        "host_memory": f"{tried} were requested of the host's memory.",
        "no_figures": f"{tried} were requested and not found; too little is known of the device's "
        "memory to give the cause.",
    }


_USUAL = 20 << 20
"""Size for which `costs_document` gives times: the segment of requests from 1 to 10 MiB."""


def driver_note(costs: Costs) -> str:
    table = costs.table
    if not costs.uses_table:
        return "with the given times"
    return (
        f"based on an {table.name}; in half of that card's recordings, calls took "
        f"{table.low:g} to {table.high:g} times as long, and longer with other busy processes"
    )


def driver_rows(run: DeviceRun, is_expandable: bool) -> list[str]:
    """Return lines with the number of driver calls and retries in a replay, and their time.

    is_expandable: True to call driver calls mappings, as for expandable segments.
    """
    stats, costs = run.stats, Costs()
    retries = plural(stats["num_alloc_retries"], "retry", "retries")
    calls = [f"{retries} after cached memory was released to the driver"]
    if "num_device_alloc" in stats:  # from 2.3 on
        take, give = ("mappings", "unmappings") if is_expandable else ("cudaMalloc", "cudaFree")
        allocated, freed = stats["num_device_alloc"], stats["num_device_free"]
        calls.insert(0, f"{allocated:,} {take}, {freed:,} {give}")
    time = driver_time(run.driver_calls, costs)
    calls.append(f"about {time / 1000:,.1f} ms without waits, {driver_note(costs)}")
    return rows("Driver calls", calls)


def driver_document(run: DeviceRun) -> dict[str, Any]:
    costs = Costs()
    return {
        "driver_us": round(driver_time(run.driver_calls, costs), 1),
        "driver_times": _table_document(costs),
    }


def costs_document(costs: Costs) -> dict[str, Any]:
    """Return the time of each kind of driver call as JSON, for 20 MiB if it depends on the size."""
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


def edit_rows(devices: Sequence[EditedDevice], run: Run) -> list[str]:
    """Return lines on the edits of the recorded program (such as added calls of empty_cache).

    The lines give the code of each edit, the effect of all edits on peaks, and the assumptions.
    """
    lines: list[str] = []
    for edit in devices[0].edits:
        lines += row("Edit", edit.text)
        lines += row("", f"code: {edit.code}")
    for edited, device_run in zip(devices, run.devices, strict=True):
        name = f"device {device_run.device}: " if len(run.devices) > 1 else ""
        lines += row("Effect", f"{name}{_effect(edited, device_run)}")
    said = dict.fromkeys(edit.assumes for edit in devices[0].edits)
    return lines + row("Assumed", "; ".join(said))


def _effect(edited: EditedDevice, device_run: DeviceRun) -> str:
    before = edited.baseline.peak_reserved_bytes
    after = device_run.peak_reserved_bytes
    change = f"{format_size(abs(after - before))} {'more' if after > before else 'less'}"
    if after == before:
        change = "as much"
    text = f"{format_size(after)} reserved at the peak, {change} than without the edit"
    calls = _calls(device_run) - _calls(edited.baseline)
    if calls:
        text += f"; {abs(calls):,} {'more' if calls > 0 else 'fewer'} driver calls"
    return text.replace("as much than", "as much as")


def _calls(device_run: DeviceRun) -> int:
    return sum(count for _, _, count in device_run.driver_calls)


def edit_document(devices: Sequence[EditedDevice]) -> Iterator[dict[str, Any]]:
    """Yield one JSON object for each edit of the recorded program.

    Each object also has the peak reserved bytes of each device without any edit.
    """
    for edit in devices[0].edits:
        without = [each.baseline.peak_reserved_bytes for each in devices]
        keys = fields(edit, "edit=text code assumes")
        yield keys | {"peak_reserved_bytes_without": without}


def tried_edit_rows(tried: Sequence[EditTrial], most: int) -> list[str]:
    """Return lines with the best edits, at most `most`: peak, change of the peak, code to add."""
    lines: list[str] = []
    for trial in tried[:most]:
        (edit,) = trial.devices[0].edits
        before = max(each.baseline.peak_reserved_bytes for each in trial.devices)
        peak = f"{format_size(trial.peak_reserved_bytes)} reserved at the peak"
        change = format_change(trial.peak_reserved_bytes - before)
        failed = "" if trial.is_whole else ", and a request fails"
        lines += row("" if lines else "Edits", f"{edit.text}: {peak} ({change}){failed}")
        place = f"; in the loop at {trial.place}" if trial.place else ""
        lines += row("", f"  {edit.code}{place}")
    return lines + row("", "Each assumes that all requests stay the same; --edit EDIT shows one.")


def tried_edits_document(tried: Sequence[EditTrial]) -> list[dict[str, Any]]:
    return [
        next(edit_document(trial.devices)) | fields(trial, "place peak_reserved_bytes is_whole")
        for trial in tried
    ]
