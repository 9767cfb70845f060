"""Setup of a replay on the recorded device or on a requested device.

If setting and device are the recorded ones, the replay is the baseline: it uses the recorded
addresses of the driver, and is compared with every entry.  If the size of the device is not
recorded, it is inferred, and a note gives the evidence.
"""

from __future__ import annotations

from collections.abc import Callable

from allocsim.core import UNLIMITED_DEVICE
from allocsim.errors import ConfigError
from allocsim.fidelity import FidelityCheck, Uncompared
from allocsim.replaying.notes import (
    address_notes,
    cause_notes,
    device_note,
    known_notes,
    start_notes,
)
from allocsim.replaying.prepared import Prepared
from allocsim.simulation import Drive, Observer, Progress, Setting, Start
from allocsim.units import TIB, format_size, round_up


def drive_as_recorded(
    prepared: Prepared,
    setting: Setting,
    device_memory: int | None,
    *,
    addresses: str = "recorded",
    base_address: int | None = None,
    host_spill: int = 0,
    check_every: int = 0,
    progress: Progress | None = None,
    observers: tuple[Observer, ...] = (),
    is_stepwise: bool = False,
    proves: bool = False,
    make: Callable[..., Drive] = Drive,
) -> tuple[Drive, int | None, list[str]]:
    """Return a replay that has not started, the device's memory in bytes, and notes.

    The memory is None for an unlimited device.  The notes are sentences on inferred facts.
    is_stepwise: run each step separately and without a history, so that nothing is compared.
    proves: `setting` is equivalent to the recorded one, so that its replay is a baseline too.
    make: class of the replay.
    The other parameters and the errors are the same as in `replay`.
    """
    is_same = prepared.is_recorded(setting) and not prepared.is_edited
    is_as_recorded = is_same and is_recorded_device(prepared, device_memory) and not host_spill
    is_baseline = is_as_recorded or proves
    plan = prepared.plan_under(setting, prepared.plan if is_baseline else prepared.free_plan)
    memory, notes = _device_memory(prepared, device_memory, is_as_recorded=is_as_recorded)
    is_compared = is_baseline and not is_stepwise
    dictates = is_baseline and addresses == "recorded"
    if host_spill and memory is None:
        raise ConfigError(
            "host memory is lent on top of the device's memory, whose size is not recorded; give it"
        )
    start = Start.KEPT if host_spill else prepared.start_under(setting, memory)
    policy = None if addresses == "recorded" else addresses
    if dictates:
        # Segments without a recorded address must not overlap segments with one.
        policy = "bump"
        if base_address is None:
            base_address = round_up(prepared.last_address, TIB)
    keeps_history = any(each.keeps_history for each in observers)
    check_of = Uncompared if prepared.is_requests else FidelityCheck
    expected = prepared.expected if is_compared and plan is prepared.plan else None
    allocator = prepared.allocator(
        setting,
        memory,
        address_policy=policy,
        base_address=base_address,
        record_history=is_compared or keeps_history,
        fast_path=not is_stepwise,
        limit=prepared.limit_for(setting, memory, plan),
        start=start,
        host_spill=host_spill,
    )
    drive = make(
        allocator,
        plan,
        len(prepared.trace),
        dictates=dictates,
        check_every=check_every,
        fidelity=check_of(prepared.trace, expected) if is_compared else None,
        progress=progress,
        observers=observers,
        lays_out=prepared.start if start is Start.REALLOCATED else (),
        address_events=prepared.addresses.events if policy is None else (),
        keeps_rows=is_compared and not keeps_history,
    )
    notes += [*known_notes(prepared), *start_notes(prepared, start)]
    if addresses == "recorded" and not is_same:
        notes += address_notes(prepared)
    return drive, memory, notes


def is_recorded_device(prepared: Prepared, device_memory: int | None) -> bool:
    """Return True if the recording can have been made on a device of this size."""
    plan = prepared.plan
    if prepared.named_memory is not None:
        return device_memory in (None, prepared.named_memory)
    if device_memory is None or device_memory == plan.capacity:
        return True
    had_room = plan.capacity is None and plan.refused_below is None
    return had_room and device_memory >= plan.max_reserved


def device_of(prepared: Prepared) -> tuple[int | None, list[str]]:
    """Return the device memory of the baseline in bytes, None if unlimited, and notes."""
    return _device_memory(prepared, None, is_as_recorded=True)


def memory_of(prepared: Prepared, device_memory: int | None) -> int | None:
    """Return the device memory of a what-if in bytes, None if unlimited.

    device_memory: requested bytes, or None.
    """
    return _device_memory(prepared, device_memory, is_as_recorded=False)[0]


def _device_memory(
    prepared: Prepared, requested: int | None, *, is_as_recorded: bool
) -> tuple[int | None, list[str]]:
    plan, made = prepared.plan, prepared.provenance
    notes = cause_notes(prepared)
    if requested is not None:
        return requested, notes
    if made is not None and prepared.named_memory is not None:
        return prepared.named_memory, [*notes, device_note(made)]
    if plan.capacity is not None:
        notes.append(
            f"device memory {format_size(plan.capacity)}: free plus reserved at the recorded "
            "out-of-memory error"
        )
        return plan.capacity, notes
    if plan.fits is not None and plan.fits < UNLIMITED_DEVICE and is_as_recorded:
        notes.append(
            f"device memory is not recorded; the growth of segments suggests "
            f"{format_size(plan.fits)}"
        )
        return plan.fits, notes
    inferred = plan.inferred_capacity
    if inferred is not None and is_as_recorded:
        notes.append(
            f"device memory is not recorded; segments released before a new one suggest "
            f"{format_size(plan.max_reserved)} to {format_size(inferred)}"
        )
        return inferred, notes
    at_least = f" (at least {format_size(plan.max_reserved)} were reserved)"
    least = at_least if plan.max_reserved else ""
    notes.append(f"device memory is not recorded: replayed without a limit{least}")
    return None, notes
