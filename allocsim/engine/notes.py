"""What a replay says of what it had to infer, in sentences.

Rule: one sentence for each thing that the recording does not say, with what speaks for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from allocsim.core import RELEASES, FreeBlockOrder, Release
from allocsim.engine.left_open import has_unseen_calls, may_hide_calls
from allocsim.engine.prepared import Prepared
from allocsim.engine.start import Start, StartPeaks
from allocsim.trace import Action, MarkKind, Provenance, card_memory
from allocsim.units import format_size

__all__ = [
    "address_notes",
    "address_range_note",
    "cause_notes",
    "device_note",
    "known_notes",
    "peak_notes",
    "provenance_notes",
    "start_notes",
    "open_notes",
    "workspace_note",
]


def cause_notes(prepared: Prepared) -> list[str]:
    """What the program is taken to have done that is not recorded, and on what evidence."""
    plan, notes = prepared.plan, []
    if plan.n_empty_cache:
        what = f"{plan.n_empty_cache} releases of cached memory are taken for empty_cache calls"
        if plan.n_empty_cache == 1:
            what = "a release of cached memory is taken for a call of empty_cache"
        whose = "its Python stack" if plan.n_named == 1 else "their Python stacks"
        notes.append(f"{what} ({plan.n_named} named by {whose})" if plan.n_named else what)
    marked = sum(mark.kind is MarkKind.POOL_DELETED for mark in prepared.marks)
    if plan.n_deleted > marked:
        times = f", {plan.n_deleted} times" if plan.n_deleted > 1 else ""
        notes.append(f"a MemPool was deleted{times}: memory of private pools alone was released")
    if plan.n_either:
        what, them = f"{plan.n_either} releases before a new segment are", "them"
        if plan.n_either == 1:
            what, them = "a release before a new segment is", "it"
        notes.append(
            f"{what} taken for requests that a full device refused; calls of empty_cache explain "
            f"{them} as well"
        )
    if plan.limit is not None:
        notes.append(_limit_note(prepared, plan.limit))
    if plan.n_narrowed and prepared.capacity is not None:
        notes.append(
            f"requests refused although the device had room: {plan.n_narrowed}; something else "
            "held memory on it, or the program allowed itself less"
        )
    return notes


def workspace_note(recorded: str, modelled: Release) -> str | None:
    """That a program would have asked for other memory under the release that is modelled.

    None where that is alike, or where it is not known which release recorded it (semantics 12.10).
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
    """The limit that the program seems to have set by a call, and what shows it."""
    trace = prepared.trace
    had_room = bool(np.any((trace.action == Action.OOM) & (trace.addr >= trace.size)))
    why = "the device had room for what failed" if had_room else "garbage was collected"
    size = format_size(limit)
    if prepared.capacity is None:
        return f"{why}: the program seems to allow itself about {size}"
    share = f"{100 * limit / prepared.capacity:.3g} % of the device"
    return f"{why}: the program seems to allow itself {size} ({share})"


def device_note(made: Provenance) -> str:
    """The device that the recording names."""
    what = f"device memory {format_size(made.device_memory)}"
    card = card_memory(made)
    if card is not None and card.is_shared:
        about = "about " if card.is_estimated else ""
        what += (
            f", of which other processes held {about}{format_size(card.others)} and this program's "
            f"CUDA context {about}{format_size(card.context)}"
        )
    elif made.context_memory:
        what += f", of which the CUDA context holds {format_size(made.context_memory)}"
    return f"{what}: as recorded on {made.device_name or 'a device without a name'}"


def provenance_notes(made: Provenance | None) -> list[str]:
    """What a recording says of its own making that its reader should know."""
    notes = []
    if made is not None and made.captured:
        notes.append(f"captured within the program, {made.captured}")
    if made is not None and made.reads_back:
        notes.append(
            f"values were read back at {made.reads_back}: they are zero on a phantom GPU, and "
            "sizes that depend on them are not the program's"
        )
    if made is not None and made.routing:
        notes.append(routing_text(made.routing))
    if made is not None and made.guessed:
        notes.append(
            f"workspaces of {made.guessed} are a phantom GPU's guess, as small as they can be: a "
            "card may take more"
        )
    return notes


def routing_text(routing: str) -> str:
    """Describe how the phantom chose experts, for "balanced" or "skewed"."""
    how = {
        "balanced": "tokens are spread evenly over the experts",
        "skewed": "all tokens choose the same experts",
    }.get(routing, routing)
    return f"sizes depend on the choice of experts, unknown on a phantom GPU: here {how}"


def known_notes(prepared: Prepared) -> list[str]:
    """What is known of the program's calls, and from whom; what a phantom could not tell it."""
    hints, marks, made = prepared.hints, prepared.marks, prepared.provenance
    notes = provenance_notes(made)
    for kind, is_told, what in (
        (
            MarkKind.FRACTION,
            hints.memory_fraction is not None,
            "of set_per_process_memory_fraction",
        ),
        (MarkKind.SETTINGS, bool(hints.settings), "of _set_allocator_settings"),
        (MarkKind.EMPTY_CACHE, False, "of empty_cache"),
        (MarkKind.POOL_DELETED, False, "to delete a MemPool"),
    ):
        if count := sum(mark.kind is kind for mark in marks):
            calls = "a call" if count == 1 else f"{count:,} calls"
            notes.append(f"{calls} {what}: as {'told' if is_told else 'recorded'}")
    if not hints.empties:
        notes.append("no memory was given back by empty_cache: as told")
    return notes


def address_notes(prepared: Prepared) -> list[str]:
    """By which rule a what-if gives segments addresses, where it is not in plain order.

    Empty for releases that decide between equal blocks by their age.
    """
    if prepared.release.free_block_order is not FreeBlockOrder.ADDRESS:
        return []
    found = prepared.addresses
    if not found.is_known:
        return [
            "the rule by which the recorded driver chose addresses is not known: segments get "
            "addresses in order"
        ]
    rule = {
        "driver": "the CUDA driver's rule",
        "firstfit": "the rule of the lowest free address",
    }.get(found.policy)
    if rule is None:
        return []
    if not found.n_segments:
        return [f"segments get addresses by {rule}, which the recorded ones suggest"]
    return [
        f"segments get addresses by {rule}, which places {found.n_right:,} of the "
        f"{found.n_segments:,} recorded ones as recorded"
    ]


def address_range_note(peaks: tuple[int, int], peak: int | None) -> str:
    """Describe a what-if's peaks under other addresses; peak: its own, None if it has none."""
    known = peaks if peak is None else (min(*peaks, peak), max(*peaks, peak))
    low, high = map(format_size, known)
    return (
        "which of several free blocks of one size is reused depends on addresses of segments, "
        "which the driver chooses: tried over plausible ones, the peak reserved comes to "
        f"{low} to {high}"
    )


def start_notes(prepared: Prepared, start: Start) -> list[str]:
    """What a recording that starts mid-run begins with, and how that is put in place."""
    segments = prepared.start
    if not segments:
        return []
    held = format_size(prepared.held)
    there = "a segment" if len(segments) == 1 else f"{len(segments)} segments"
    was = "was" if len(segments) == 1 else "were"
    notes = [f"the recording starts mid-run: {there}, {held}, {was} there"]
    if start is Start.ANEW:
        live = format_size(sum(segment.active_size for segment in segments))
        notes.append(
            f"the {live} in use at the start are laid out anew under the setting tried, in the "
            "order of their addresses, since their own is not recorded"
        )
    elif any(segment.is_expandable for segment in segments):
        notes.append(
            "the bases of expandable segments are not recorded; the lowest mapped address of "
            "each is taken for it"
        )
    return notes


def peak_notes(peaks: StartPeaks) -> list[str]:
    """What the other start comes to, where one of the two does not come to the end."""
    how = {Start.KEPT: "with the segments of the start kept", Start.ANEW: "laid out anew"}
    by_start = {Start.KEPT: peaks.kept, Start.ANEW: peaks.anew}
    other = Start.ANEW if peaks.shown is Start.KEPT else Start.KEPT
    found = by_start[other]
    if found is None:
        return [f"{how[other]}, the replay does not come to its end"]
    if by_start[peaks.shown] is None:
        return [f"{how[other]}, every request is answered: {format_size(found)} at its peak"]
    return []


def open_notes(prepared: Prepared, peaks: tuple[int, int]) -> Iterator[str]:
    """Yield a sentence for each thing that the recording does not show.

    peaks: the least and the most reserved bytes that a what-if may come to by it.
    """
    if has_unseen_calls(prepared):
        yield (
            "calls of empty_cache that gave nothing back leave no entry, and may give some back "
            "under another setting"
        )
    elif may_hide_calls(prepared):
        yield (
            f"no call of empty_cache shows, but at {prepared.quiet.share:.0%} of all moments one "
            "would have given nothing back and left no entry, and may give some back under "
            "another setting"
        )
    if prepared.plan.limits is not None:
        low, high = map(format_size, prepared.plan.limits)
        yield f"any limit from {low} to {high} collects the garbage that was recorded"
    low, high = map(format_size, peaks)
    between = f"comes to {low} to {high}" if low != high else f"stays {low}"
    yield f"tried over what is open there, the peak reserved {between}"
