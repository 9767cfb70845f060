"""Choice of the start state of a what-if when the recording starts mid-run (`initial_state.py`).

To find the better default, recordings of whole runs were cut in the middle, and what-ifs of the
parts were compared with what-ifs of the whole runs.  The default is the start state with the
smaller error (benchmarks/midrun.py; table in docs/evidence/fidelity.md).  A what-if reports the
peak under the other start state too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from allocsim.core import MIN_LARGE_ALLOC, SMALL_SIZE, UNLIMITED, AllocatorConfig
from allocsim.simulation.initial_state import Start, has_live_blocks
from allocsim.simulation.recorded_device import RecordedDevice
from allocsim.simulation.requested_sizes import requested_of
from allocsim.simulation.setting import Setting


def choose_start(device: RecordedDevice, setting: Setting, breaks: Callable[[], bool]) -> Start:
    """Return the start state of a replay under `setting`.

    breaks: function that returns True if a replay with the recorded segments ends in undefined
        behaviour; called only if `may_break`.

    The recorded segments are kept if the setting would have reserved segments of the same kind.  If
    it changes expandable_segments or large_segment_size, or if `breaks`, the blocks in use are
    requested again.
    """
    if not has_two_starts(device, setting):
        return Start.KEPT
    config = setting.config(device.release)
    if config.expandable_segments != device.config.expandable_segments:
        return Start.REALLOCATED
    # large_segment_size has no effect if no requests share a segment.
    is_changed = config.large_segment_size != device.config.large_segment_size
    if is_changed and large_segments_matter(
        config, map(config.round_size, requested_of(device).sizes.tolist())
    ):
        return Start.REALLOCATED
    is_broken = may_break(device, setting) and breaks()
    return Start.REALLOCATED if is_broken else Start.KEPT


def may_break(device: RecordedDevice, setting: Setting) -> bool:
    """Return True if the recorded segments have a split block of max_split_size or more.

    To free such a block is undefined behaviour.  The device size decides if that happens.
    """
    size = setting.config(device.release).max_split_size
    return has_two_starts(device, setting) and any(
        not segment.is_expandable
        and len(segment.blocks) > 1
        and any(block.size >= size for block in segment.blocks)
        for segment in device.start
    )


def large_segments_matter(config: AllocatorConfig, rounded: Iterable[int]) -> bool:
    """Return True if large_segment_size affects requests of these rounded sizes, in bytes.

    It is the size of segments shared by requests of 1 to 10 MiB.  With expandable segments it is
    also the unit of mapped memory for all requests above 1 MiB.
    """
    least = UNLIMITED if config.expandable_segments else MIN_LARGE_ALLOC
    return any(SMALL_SIZE < size < least for size in rounded)


def has_two_starts(device: RecordedDevice, setting: Setting) -> bool:
    """Return True if a replay can begin in two states: blocks kept, or requested again.

    This is so if blocks are in use at the start and `setting` is not the recorded one.
    """
    return has_live_blocks(device.start) and not device.is_recorded(setting)
