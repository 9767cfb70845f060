"""Edits of a recorded program, for what-if replays.

Other what-ifs change the settings of the allocator.  An edit changes the program: calls of
`empty_cache`, the order of training steps, streams.
"""

from allocsim.editing.devices import (
    EditedDevice,
    EditTrial,
    Saving,
    edit_devices,
    edited_recording,
    replay_edited,
    savings_at,
    savings_of,
    try_edits,
)
from allocsim.editing.edits import EDIT_FORMS, Edit, parse_edit

__all__ = [
    "EDIT_FORMS", "Edit", "EditTrial", "EditedDevice", "Saving", "edit_devices",
    "edited_recording", "parse_edit", "replay_edited", "savings_at", "savings_of", "try_edits",
]  # fmt: skip
