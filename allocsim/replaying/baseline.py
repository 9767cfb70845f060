"""Setup of replays, and the proof that a replay reproduces its recording.

The baseline is the replay under the recorded settings on the recorded device.  It places segments
at their recorded addresses, and its comparison with every entry is the proof.  The proof is made
once, on first use, and kept with the prepared device (`Prepared`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from allocsim._fast_numpy import any_of
from allocsim.collector import collector_paused
from allocsim.core import UNLIMITED_DEVICE, FreeBlockOrder
from allocsim.errors import AllocsimError, ConfigError
from allocsim.fidelity import FidelityCheck, Uncompared
from allocsim.inference import (
    Probe,
    Quiet,
    entries_suffice,
    has_unknown_sizes,
    learn_start,
    moments_of,
    needs_quiet_moments,
)
from allocsim.recording import Action
from allocsim.replaying.equivalence import effects_on
from allocsim.replaying.notes import (
    address_notes,
    cause_notes,
    device_note,
    known_notes,
    start_notes,
)
from allocsim.replaying.prepared import Prepared
from allocsim.simulation import (
    DeviceRun,
    Drive,
    Observer,
    Parting,
    Progress,
    Run,
    Setting,
    Start,
    StepKind,
    fold_allocated,
)
from allocsim.units import TIB, format_size, round_up


def unstarted_drive(
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
    """Construct a replay of one device without starting it.

    Returns the replay, the device's memory in bytes (None for an unlimited device), and sentences
    on inferred facts.  Parameters that are not listed here are those of `replay`.

    is_stepwise: True to run the steps one by one instead of in batches, without a comparison with
        the recording.
    proves: True to compare the replay with the recording although `setting` is not the recorded
        setting; only for a `setting` that has the same effect on the recording.
    make: function that constructs the replay: `Drive`, or a constructor of a subclass.
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
    """Return True if the recording can have been made on a device of `device_memory` bytes."""
    plan = prepared.plan
    if prepared.named_memory is not None:
        return device_memory in (None, prepared.named_memory)
    if device_memory is None or device_memory == plan.capacity:
        return True
    had_room = plan.capacity is None and plan.refused_below is None
    return had_room and device_memory >= plan.max_reserved


def device_of(prepared: Prepared) -> tuple[int | None, list[str]]:
    """Return the baseline's device memory in bytes (None if unlimited), and notes on its source."""
    return _device_memory(prepared, None, is_as_recorded=True)


def memory_of(prepared: Prepared, device_memory: int | None) -> int | None:
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


_ROUNDS = 8
"""Largest number of replays to learn the sizes of the blocks from before the first entry.

More than one may be needed, because a corrected size may change the outcome of earlier requests.
"""


def parting_of(prepared: Prepared) -> Parting | None:
    """Return the first difference of the baseline from the recording.

    The baseline is the replay under the recorded settings.  The first call for `prepared` replays
    it, and later calls return the cached result.

    Returns None if the baseline equals the recording.  Also returns None if nothing is compared,
    because the modelled PyTorch release cannot have written the recording, or because the recording
    contains only requests.
    """
    if not prepared.is_own_release:
        return None
    if not prepared.proofs:
        prepared.proofs.append(_prove(prepared))
    return prepared.proofs[0]


def with_learned_start(prepared: Prepared) -> Prepared:
    """Learn the sizes of the blocks from before the first entry, and return `prepared` with them.

    A recording shows only the requested sizes of these blocks.  Returns `prepared` unchanged if
    with no learned sizes a replay under the recorded settings equals the recording.
    """
    if not has_unknown_sizes(prepared):
        return prepared
    tried = prepared
    for _ in range(_ROUNDS):
        if parting_of(tried) is None:
            return tried
        start = learn_start(tried, tried.plan)
        if start == tried.start:
            break
        tried = replace(tried, start=start)
    return prepared


def with_proof(run: Run) -> Run:
    """Compare each device's replay under the recorded settings with the recording; return `run`.

    A replay is made if necessary.  The result of the comparison is `DeviceRun.parting`.
    """
    for each in run.devices:
        each.find_parting()
    return run


@collector_paused()
def _prove(prepared: Prepared) -> Parting | None:
    # The same replay finds the quiet moments: a second one takes a third of a what-if's time.
    moments = moments_of(prepared.free_plan) if needs_probe(prepared) else ()
    quiet: list[int] = []
    make = partial(
        Probe,
        moments=_step_numbers_in_plan(prepared, moments),
        quiet=quiet,
        folder=fold_allocated,
        stops_at_difference=True,
    )
    drive, _, _ = unstarted_drive(prepared, prepared.recorded, None, make=make)
    with suppress(AllocsimError):  # counts as a difference: the recorded program went on
        drive.run()
    return _difference(prepared, drive, moments, quiet)


def _step_numbers_in_plan(prepared: Prepared, moments: Sequence[int]) -> list[int]:
    steps = np.flatnonzero(prepared.plan.steps.is_of_program)
    return [int(number) for number in steps[list(moments)]]


def _difference(
    prepared: Prepared, drive: Drive, moments: Sequence[int], quiet: Sequence[int]
) -> Parting | None:
    assert drive.fidelity is not None
    parting = drive.fidelity.result(drive.allocator).parting_of(prepared.trace.device)
    if parting is None and moments:
        after = tuple(moments[number] for number in quiet)
        prepared.quiet_of_proof.append(Quiet(after, len(moments)))
    return parting


def run_as_proof(
    prepared: Prepared,
    setting: Setting,
    device_memory: int | None,
    *,
    observer: Observer,
    check_every: int = 0,
    progress: Progress | None = None,
) -> tuple[Drive, int | None, list[str]] | None:
    """Run a what-if of `setting` that is also compared with the recording, as its proof.

    This is possible if `setting` has the same effect as the recorded setting.  Returns the finished
    replay, the device's memory in bytes (None if unlimited) and notes.  Returns None if it is not
    possible, if the proof exists already, or if the replay differs from the recording.
    """
    if prepared.proofs or not _is_baseline_too(prepared, setting, device_memory):
        return None
    moments = moments_of(prepared.free_plan) if needs_probe(prepared) else ()
    quiet: list[int] = []
    drive, memory, notes = unstarted_drive(
        prepared,
        setting,
        device_memory,
        check_every=check_every,
        progress=progress,
        observers=(observer,),
        proves=True,
        make=partial(
            Probe,
            moments=_step_numbers_in_plan(prepared, moments),
            quiet=quiet,
            stops_at_difference=True,
        ),
    )
    try:
        drive.run()
    except AllocsimError:
        return None  # the what-if raises it again, unless only the baseline does
    parting = _difference(prepared, drive, moments, quiet)
    prepared.proofs.append(parting)
    return (drive, memory, notes) if parting is None else None


def _is_baseline_too(prepared: Prepared, setting: Setting, device_memory: int | None) -> bool:
    # Only the baseline has the recorded addresses and answers of the driver.
    plan = prepared.plan
    if not prepared.is_own_release or not plan.is_whole or plan.limit is not None:
        return False
    has_answers = any_of(plan.steps.kind, (StepKind.ROOM, StepKind.AWAIT)).any()
    if has_answers or not _addresses_cannot_matter(prepared):
        return False
    # Compared first, because the effects depend on the size of every request.
    expands = setting.config(prepared.release).expandable_segments
    if prepared.is_recorded(setting) or expands != prepared.config.expandable_segments:
        return False
    effect = effects_on(prepared)
    if effect(setting) != effect(prepared.recorded):
        return False
    memory = memory_of(prepared, device_memory)
    is_same_device = memory == device_of(prepared)[0]
    return is_same_device and prepared.start_under(setting, memory) is Start.KEPT


def _addresses_cannot_matter(prepared: Prepared) -> bool:
    # From PyTorch 2.13 on, free blocks of equal size are ordered by the age of their segment, and
    # only expandable segments are filled in the order of addresses.  Before, the policy of the
    # what-if must place every segment at its recorded address.
    trace, found = prepared.trace, prepared.addresses
    expands = any_of(trace.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)).any()
    if expands or any(segment.is_expandable for segment in prepared.start):
        return False
    if prepared.release.free_block_order is FreeBlockOrder.SEGMENT:
        return True
    is_simple = found.policy in ("bump", "firstfit") and not prepared.start
    n_segments = trace.count(Action.SEGMENT_ALLOC)
    return is_simple and found.n_right == n_segments == found.n_segments


def needs_probe(prepared: Prepared) -> bool:
    """Return True if the replay for the proof must also find the quiet moments.

    A quiet moment is a point of the recording where a call of empty_cache would have left no entry.
    """
    return needs_quiet_moments(prepared, prepared.plan) and not entries_suffice(
        prepared.trace, prepared.plan
    )


def difference_step_by_step(prepared: Prepared, device_run: DeviceRun) -> str | None:
    memory = device_run.device_memory
    recorded = memory if is_recorded_device(prepared, memory) else None
    drive, _, _ = unstarted_drive(prepared, prepared.recorded, recorded, is_stepwise=True)
    drive.run()
    stats = drive.allocator.memory_stats()
    for key, value in device_run.stats.items():
        if stats[key] != value:
            return f"{key} is {stats[key]:,} step by step, but {value:,} in a normal replay"
    check = FidelityCheck(prepared.trace)
    segments = check.result(drive.allocator).segments_matched
    if device_run.fidelity is not None and segments != device_run.fidelity.segments_matched:
        return f"{segments} segments match the recording step by step"
    return None
