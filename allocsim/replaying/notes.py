"""Notes: sentences on facts that a replay inferred, because the recording does not contain them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from allocsim.core import RELEASES, FreeBlockOrder, Release
from allocsim.inference import has_unseen_calls, may_hide_calls
from allocsim.recording import Action, MarkKind, Provenance, card_memory
from allocsim.replaying.prepared import Prepared
from allocsim.simulation import Start, StartPeaks
from allocsim.units import format_size


def cause_notes(prepared: Prepared) -> list[str]:
    plan, notes = prepared.plan, []
    if plan.n_empty_cache:
        what = f"{plan.n_empty_cache} releases of cached memory are attributed to empty_cache calls"
        if plan.n_empty_cache == 1:
            what = "a release of cached memory is attributed to a call of empty_cache"
        whose = "its Python stack" if plan.n_named == 1 else "their Python stacks"
        notes.append(f"{what} ({plan.n_named} named by {whose})" if plan.n_named else what)
    marked = sum(mark.kind is MarkKind.POOL_DELETED for mark in prepared.marks)
    if plan.n_deleted > marked:
        what = f"{plan.n_deleted} MemPools were" if plan.n_deleted > 1 else "a MemPool was"
        notes.append(f"{what} deleted: only memory of private pools was released")
    notes += [
        f"a private pool is assumed from entry {first:,} to {last:,}, which the program deleted"
        for first, last in plan.deleted_pools
    ]
    if plan.n_either:
        what, them = f"{plan.n_either} releases before a new segment are", "them"
        if plan.n_either == 1:
            what, them = "a release before a new segment is", "it"
        notes.append(
            f"{what} attributed to a full device; calls of empty_cache would explain {them} too"
        )
    if plan.limit is not None:
        notes.append(_limit_note(prepared, plan.limit))
    if plan.n_refused_with_room and prepared.capacity is not None:
        notes.append(
            f"requests refused although the device had room: {plan.n_refused_with_room}; something "
            "else used its memory, or the program set a lower limit"
        )
    return notes


def workspace_note(recorded: str, modelled: Release) -> str | None:
    """Return a note if two PyTorch releases request different workspaces for cuBLAS.

    Returns None if they request the same workspaces, or if `recorded` is no modelled release.

    recorded, modelled: release that made the recording, and release that the replay models.
    """
    made = RELEASES.get(recorded)
    if made is None or made.keeps_cublas_workspaces == modelled.keeps_cublas_workspaces:
        return None
    ways = {
        True: "keeps a cuBLAS workspace for each handle and stream (8.125 MiB, 32 MiB from "
        "capability 9.0 on)",
        False: "allocates and frees cuBLAS's workspaces with each product",
    }
    was, would = (ways[each.keeps_cublas_workspaces] for each in (made, modelled))
    return f"the requests are those of PyTorch {recorded}, which {was}; {modelled.version} {would}"


def _limit_note(prepared: Prepared, limit: int) -> str:
    trace = prepared.trace
    had_room = bool(np.any((trace.action == Action.OOM) & (trace.addr >= trace.size)))
    why = "the device had room for a failed request" if had_room else "garbage was collected"
    size = format_size(limit)
    if prepared.capacity is None:
        return f"{why}: the program seems to have set a limit of about {size}"
    share = f"{100 * limit / prepared.capacity:.3g} % of the device"
    return f"{why}: the program seems to have set a limit of {size} ({share})"


def device_note(provenance: Provenance) -> str:
    what = f"device memory {format_size(provenance.device_memory)}"
    card = card_memory(provenance)
    if card is not None and card.is_shared:
        about = "about " if card.is_estimated else ""
        what += (
            f", including {about}{format_size(card.others)} used by other processes and "
            f"{about}{format_size(card.context)} used by this program's CUDA context"
        )
    elif provenance.context_memory:
        what += f", including {format_size(provenance.context_memory)} used by the CUDA context"
    return f"{what}: as recorded on {provenance.device_name or 'a device without a name'}"


def provenance_notes(provenance: Provenance | None) -> list[str]:
    notes = []
    if provenance is not None and provenance.captured:
        notes.append(f"captured within the program, {provenance.captured}")
    if provenance is not None and provenance.reads_back:
        notes.append(
            f"the program read values back at {provenance.reads_back}: they are zero on a phantom "
            "GPU, so sizes that depend on them may be wrong"
        )
    if provenance is not None and provenance.routing:
        notes.append(routing_text(provenance.routing))
    if provenance is not None and provenance.guessed:
        notes.append(
            f"workspaces of {provenance.guessed} have the smallest possible size on a phantom GPU; "
            "a real GPU may use more"
        )
    return notes


def routing_text(routing: str) -> str:
    """Describe how a simulated (phantom) GPU assigned tokens to the experts of a model."""
    how = {
        "balanced": "tokens are spread evenly over the experts",
        "skewed": "all tokens choose the same experts",
    }.get(routing, routing)
    return f"sizes depend on the choice of experts, unknown on a phantom GPU: here {how}"


def known_notes(prepared: Prepared) -> list[str]:
    """Return notes on how the recording was made, and on calls that leave no entry in it."""
    hints, marks, made = prepared.hints, prepared.marks, prepared.provenance
    notes = provenance_notes(made)
    for kind, is_hinted, what in (
        (
            MarkKind.FRACTION,
            hints.memory_fraction is not None,
            "of set_per_process_memory_fraction",
        ),
        (MarkKind.SETTINGS, bool(hints.settings), "of _set_allocator_settings"),
        (MarkKind.EMPTY_CACHE, False, "of empty_cache"),
        (MarkKind.POOL_DELETED, False, "to delete a MemPool"),
    ):
        known = [mark for mark in marks if mark.kind is kind]
        if known and kind is MarkKind.SETTINGS and not is_hinted and not _are_recorded(prepared):
            notes.append(
                f"max_split_size_mb:20 is assumed up to entry {known[0].entry:,}, as vLLM sets "
                "while it loads weights"
            )
        elif count := len(known):
            calls = "a call" if count == 1 else f"{count:,} calls"
            notes.append(f"{calls} {what}: as {'specified' if is_hinted else 'recorded'}")
    if not hints.empties:
        notes.append("no memory was released by empty_cache: as specified")
    return notes


def _are_recorded(prepared: Prepared) -> bool:
    return any(mark.kind is MarkKind.SETTINGS for mark in prepared.trace.marks)


def address_notes(prepared: Prepared) -> list[str]:
    """Return a note on how a what-if replay places its segments; empty if none is needed."""
    if prepared.release.free_block_order is not FreeBlockOrder.ADDRESS:
        return []
    found = prepared.addresses
    if not found.is_known:
        return [
            "the address rule of the recorded driver is unknown: segments get ascending addresses"
        ]
    rule = {
        "driver": "the CUDA driver's rule",
        "firstfit": "the rule of the lowest free address",
    }.get(found.policy)
    if rule is None:
        return []
    if not found.n_segments:
        return [f"segments get addresses by {rule}, as the recorded ones suggest"]
    return [
        f"segments get addresses by {rule}, which reproduces {found.n_right:,} of the "
        f"{found.n_segments:,} recorded ones"
    ]


def address_range_note(peaks: tuple[int, int], peak: int | None) -> str:
    """Return a note on the peaks of a what-if under other addresses of segments.

    peaks: lowest and highest peak reserved bytes under other addresses.
    peak: peak reserved bytes of the what-if itself; None if an out-of-memory error ended it.
    """
    known = peaks if peak is None else (min(*peaks, peak), max(*peaks, peak))
    low, high = map(format_size, known)
    return (
        "the tie-break among free blocks of equal size depends on addresses of segments, which "
        f"the driver chooses: over plausible addresses, the peak reserved is {low} to {high}"
    )


def start_notes(prepared: Prepared, start: Start) -> list[str]:
    segments = prepared.start
    if not segments:
        return []
    held = format_size(prepared.held)
    what = f"a segment of {held}"
    if len(segments) > 1:
        what = f"{len(segments)} segments of {held} in total"
    notes = [f"the recording starts mid-run, with {what}"]
    if start is Start.REALLOCATED:
        live = format_size(sum(segment.active_size for segment in segments))
        notes.append(
            f"the {live} in use at the start are allocated again under the tried setting, in order "
            "of address, since the order of the requests is not recorded"
        )
    elif any(segment.is_expandable for segment in segments):
        notes.append(
            "the bases of expandable segments are not recorded; the lowest mapped address of "
            "each is used"
        )
    return notes


def peak_notes(peaks: StartPeaks) -> list[str]:
    how = {
        Start.KEPT: "with the initial segments kept",
        Start.REALLOCATED: "with the live blocks allocated again",
    }
    by_start = {Start.KEPT: peaks.kept, Start.REALLOCATED: peaks.anew}
    other = Start.REALLOCATED if peaks.shown is Start.KEPT else Start.KEPT
    found = by_start[other]
    if found is None:
        return [f"{how[other]}, the replay does not complete"]
    if by_start[peaks.shown] is None:
        return [f"{how[other]}, every request succeeds, with a peak of {format_size(found)}"]
    return []


def open_notes(prepared: Prepared, peaks: tuple[int, int]) -> Iterator[str]:
    """Yield notes on facts that the recording does not show, and then a note on the range of peaks.

    peaks: lowest and highest peak reserved bytes of replays that differ in these facts.
    """
    if has_unseen_calls(prepared, prepared.plan):
        yield (
            "calls of empty_cache that release nothing leave no entry, but may release memory "
            "under another setting"
        )
    elif may_hide_calls(prepared, prepared.plan, lambda: prepared.quiet):
        yield (
            "the recording shows no call of empty_cache, but at "
            f"{prepared.quiet.share:.0%} of all moments a call would have released nothing and "
            "left no entry; under another setting it may release memory"
        )
    if prepared.plan.limits is not None:
        low, high = map(format_size, prepared.plan.limits)
        yield f"any limit from {low} to {high} explains the recorded garbage collections"
    low, high = map(format_size, peaks)
    between = f"is {low} to {high}" if low != high else f"stays {low}"
    yield f"over these possibilities, the peak reserved {between}"
