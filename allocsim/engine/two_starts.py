"""Which of its two possible starts a what-if of a recording cut at the front shows; both results.

Rule: the one shown is the start that was wrong less often on recordings cut in the middle, judged
by their whole runs (benchmarks/midrun.py; docs/fidelity.md has the table).
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
    """How a drive under `setting` begins.

    What was there is kept, unless the setting gets other memory from the driver: segments instead
    of mappings, mappings instead of segments, or others for the requests that share them.  Then
    nothing of the start would have looked like that.  It is laid out anew, too, where the kept
    segments come to what no run under the setting could: the release of a block that was cut
    though it is as large as max_split_size.
    """
    if not _is_open(prepared, setting):
        return Start.KEPT
    config = setting.config(prepared.release)
    if config.expandable_segments != prepared.config.expandable_segments:
        return Start.ANEW
    is_changed = config.large_segment_size != prepared.config.large_segment_size
    if is_changed and large_segments_matter(config, map(config.round_size, _asked(prepared))):
        return Start.ANEW
    is_odd = may_break(prepared, setting)
    return Start.ANEW if is_odd and _breaks(prepared, setting, device_memory) else Start.KEPT


def may_break(prepared: Prepared, setting: Setting) -> bool:
    """Whether the kept start has a block that max_split_size would have left whole.

    Then it depends on the device, too, how a drive under `setting` begins.
    """
    size = setting.config(prepared.release).max_split_size
    return _is_open(prepared, setting) and any(
        not segment.is_expandable
        and len(segment.blocks) > 1
        and any(block.size >= size for block in segment.blocks)
        for segment in prepared.start
    )


def large_segments_matter(config: AllocatorConfig, rounded: Iterable[int]) -> bool:
    """Whether large_segment_size decides anything for requests of these rounded sizes.

    It is the size of the segments that requests of 1 to 10 MiB share, and of every mapping.
    """
    least = UNLIMITED if config.expandable_segments else MIN_LARGE_ALLOC
    return any(SMALL_SIZE < size < least for size in rounded)


def peaks_of(
    prepared: Prepared, setting: Setting, device_memory: int | None, shown: Start, peak: int | None
) -> StartPeaks | None:
    """The peak reserved of a what-if by how it begins; None where there is one way only.

    shown: how the one that came to `peak` (None: not to its end) began; the other is driven here.
    """
    if not _is_open(prepared, setting):
        return None
    other = Start.ANEW if shown is Start.KEPT else Start.KEPT
    found: int | None = None
    try:
        drive = prepared.drive(
            setting, device_memory, skips=True, folder=fold_allocated, start=other
        )
    except (ConfigError, UndefinedBehaviorError, UpstreamError):
        pass  # no run under the setting begins so
    else:
        is_whole = drive.stopped_at is None
        found = drive.allocator.statistics().all.reserved_bytes.peak if is_whole else None
    by_start = {shown: peak, other: found}
    return StartPeaks(shown, kept=by_start[Start.KEPT], anew=by_start[Start.ANEW])


def _is_open(prepared: Prepared, setting: Setting) -> bool:
    """Whether there are two ways to begin."""
    return has_live_blocks(prepared.start) and not prepared.is_recorded(setting)


def _asked(prepared: Prepared) -> set[int]:
    """Raw sizes that the recording asks for, what it begins with among them."""
    trace = prepared.trace
    asked = trace.size[any_of(trace.action, (Action.ALLOC, Action.OOM)) & (trace.size > 0)]
    return {*distinct(asked).tolist(), *requests_of(prepared.start)}


def _breaks(prepared: Prepared, setting: Setting, device_memory: int | None) -> bool:
    """Whether a drive that begins with the kept segments ends in undefined behaviour."""
    try:
        prepared.drive(setting, device_memory, skips=True, start=Start.KEPT)
    except UndefinedBehaviorError:
        return True
    except (ConfigError, UpstreamError):
        pass  # is told by whoever drives it
    return False
