"""Replays of a recording, under its own settings and device and under others.

Modules that only a search for a setting, for a smaller device or for a start state needs are
imported on first use.
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily
from allocsim.replaying.baseline import (
    device_of,
    difference_step_by_step,
    is_recorded_device,
    parting_of,
    unstarted_drive,
    with_proof,
)
from allocsim.replaying.equivalence import (
    RequestedSizes,
    effect_of,
    effects_on,
    large_segments_matter,
    requested_of,
    rounded_by,
    sizes_at_start,
    sizes_in,
    sizes_present,
)
from allocsim.replaying.notes import provenance_notes, routing_text, workspace_note
from allocsim.replaying.prepare import (
    can_be_of,
    choose_releases,
    prepare,
    prepare_made,
    run_as_made,
)
from allocsim.replaying.prepared import Prepared
from allocsim.replaying.replay import OTHER_RELEASE, Walk, bytes_of, replay, replay_prepared
from allocsim.replaying.uncertainty import with_range

if TYPE_CHECKING:
    from allocsim.replaying.capacity import (
        Capacity,
        Smallest,
        find_smallest,
        pages_needed,
        smallest_device,
        smallest_fraction,
    )
    from allocsim.replaying.from_state import StateSource, state_source
    from allocsim.replaying.trial import (
        Point,
        Standing,
        Trial,
        Trials,
        Watch,
        trial_of,
        trial_of_run,
        with_peaks,
    )

__all__ = [
    "Capacity", "OTHER_RELEASE", "Point", "Prepared", "RequestedSizes", "Smallest", "Standing",
    "StateSource", "Trial", "Trials", "Walk", "Watch", "bytes_of", "can_be_of", "choose_releases",
    "device_of", "difference_step_by_step", "effect_of", "effects_on", "find_smallest",
    "is_recorded_device", "large_segments_matter", "pages_needed", "parting_of", "prepare",
    "prepare_made", "provenance_notes", "replay", "replay_prepared", "requested_of", "rounded_by",
    "routing_text", "run_as_made", "sizes_at_start", "sizes_in", "sizes_present", "smallest_device",
    "smallest_fraction", "state_source", "trial_of", "trial_of_run", "unstarted_drive",
    "with_peaks", "with_proof", "with_range", "workspace_note",
]  # fmt: skip

_HOMES = {
    "capacity": "Capacity Smallest find_smallest pages_needed smallest_device smallest_fraction",
    "from_state": "StateSource state_source",
    "trial": "Point Standing Trial Trials Watch trial_of trial_of_run with_peaks",
}

__getattr__ = lazily(globals(), _HOMES)
