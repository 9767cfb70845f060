"""Choice of the start state of a what-if when the recording starts mid-run.

The default is the start that was wrong less often on recordings cut in the middle, compared with
the whole runs (benchmarks/midrun.py; table in docs/fidelity.md).  The peak under the other start is
computed as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from allocsim.arrays import any_of, distinct
from allocsim.core import MIN_LARGE_ALLOC, SMALL_SIZE, UNLIMITED, AllocatorConfig
from allocsim.engine.fold import fold_allocated
from allocsim.engine.setting import Setting
from allocsim.engine.start import Start, StartPeaks, has_live_blocks, requests_of
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.trace import Action

if TYPE_CHECKING:
    from allocsim.engine.prepared import Prepared

__all__ = ["chosen_start", "large_segments_matter", "may_break", "peaks_of"]


def chosen_start(prepared: Prepared, setting: Setting, device_memory: int | None) -> Start:
    """Return the start state of a replay under `setting`.

    The recorded segments are kept, unless the setting would have reserved different ones:
    expandable segments or not, or another large_segment_size.  The live blocks are requested again
    also if the kept segments lead to undefined behaviour: the release of a split block of
    max_split_size or more.
    """
    if not _has_two_starts(prepared, setting):
        return Start.KEPT
    config = setting.config(prepared.release)
    if config.expandable_segments != prepared.config.expandable_segments:
        return Start.ANEW
    # large_segment_size matters only for requests that share a segment.
    is_changed = config.large_segment_size != prepared.config.large_segment_size
    if is_changed and large_segments_matter(
        config, map(config.round_size, _requested_sizes(prepared))
    ):
        return Start.ANEW
    is_broken = may_break(prepared, setting) and _breaks(prepared, setting, device_memory)
    return Start.ANEW if is_broken else Start.KEPT


def may_break(prepared: Prepared, setting: Setting) -> bool:
    """Return True if the recorded segments have a split block that max_split_size forbids.

    The start state of a replay then depends on the device too.
    """
    size = setting.config(prepared.release).max_split_size
    return _has_two_starts(prepared, setting) and any(
        not segment.is_expandable
        and len(segment.blocks) > 1
        and any(block.size >= size for block in segment.blocks)
        for segment in prepared.start
    )


def large_segments_matter(config: AllocatorConfig, rounded: Iterable[int]) -> bool:
    """Return True if large_segment_size affects requests of these rounded sizes.

    It is the size of segments shared by requests of 1 to 10 MiB, and of every mapping.
    """
    least = UNLIMITED if config.expandable_segments else MIN_LARGE_ALLOC
    return any(SMALL_SIZE < size < least for size in rounded)


def peaks_of(
    prepared: Prepared, setting: Setting, device_memory: int | None, shown: Start, peak: int | None
) -> StartPeaks | None:
    """Replay with the other start state, and return both peaks; None if there is only one start.

    shown: start of the replay that is already known.
    peak: its peak reserved in bytes; None if it did not complete.
    """
    if not _has_two_starts(prepared, setting):
        return None
    other = Start.ANEW if shown is Start.KEPT else Start.KEPT
    found: int | None = None
    try:
        drive = prepared.drive(
            setting, device_memory, skips=True, folder=fold_allocated, start=other
        )
    except (ConfigError, UndefinedBehaviorError, UpstreamError):
        pass  # this start is impossible under the setting
    else:
        is_whole = drive.stopped_at is None
        found = drive.allocator.statistics().all.reserved_bytes.peak if is_whole else None
    by_start = {shown: peak, other: found}
    return StartPeaks(shown, kept=by_start[Start.KEPT], anew=by_start[Start.ANEW])


def _has_two_starts(prepared: Prepared, setting: Setting) -> bool:
    """Return True if both start states are possible."""
    return has_live_blocks(prepared.start) and not prepared.is_recorded(setting)


def _requested_sizes(prepared: Prepared) -> set[int]:
    """Return the requested sizes in the recording, including those of the initial blocks."""
    trace = prepared.trace
    sizes = trace.size[any_of(trace.action, (Action.ALLOC, Action.OOM)) & (trace.size > 0)]
    return {*distinct(sizes).tolist(), *requests_of(prepared.start)}


def _breaks(prepared: Prepared, setting: Setting, device_memory: int | None) -> bool:
    """Return True if a replay with the kept segments ends in undefined behaviour."""
    try:
        prepared.drive(setting, device_memory, skips=True, start=Start.KEPT)
    except UndefinedBehaviorError:
        return True
    except (ConfigError, UpstreamError):
        pass  # the caller's own replay raises the same error
    return False
