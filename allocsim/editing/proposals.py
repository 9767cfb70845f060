"""Candidate edits of a recorded program, replayed and ranked by their peak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allocsim.editing.devices import EditedDevice, as_recorded
from allocsim.editing.edits import parse_edit
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.replaying import Prepared, replay_prepared
from allocsim.simulation import DeviceRun, Setting
from allocsim.units import MIB

_CANDIDATES = (
    "empty-cache every 1 steps",
    "empty-cache before phase backward",
    "largest step first",
    "free early",
)


@dataclass(frozen=True, slots=True)
class EditTrial:
    """Edit of a recorded program, with a replay of each device under one setting.

    place: line of the training loop that the edit concerns, as "file:line"; "" if it is unknown.
    """

    devices: tuple[EditedDevice, ...]
    runs: tuple[DeviceRun, ...]
    place: str

    @property
    def peak_reserved_bytes(self) -> int:
        """Peak of reserved bytes on the device that reserves most."""
        return max(run.peak_reserved_bytes for run in self.runs)

    @property
    def is_whole(self) -> bool:
        """True if every request succeeds on every device."""
        return not any(run.ooms for run in self.runs)


def try_edits(
    devices: Sequence[Prepared], setting: Setting | None = None, device_memory: int | None = None
) -> tuple[EditTrial, ...]:
    """Return the candidate edits that the recording allows, the lowest peak first.

    setting: setting of the replays; None for the recorded one.
    device_memory: bytes; None for the recorded size.
    """
    found = list(_trials(devices, setting, device_memory))
    return tuple(sorted(found, key=lambda each: (not each.is_whole, each.peak_reserved_bytes)))


def _trials(
    devices: Sequence[Prepared], setting: Setting | None, device_memory: int | None
) -> Iterator[EditTrial]:
    baselines = replay_prepared(devices, device_memory=device_memory).devices
    peak = max(run.peak_allocated_bytes for run in baselines)
    recorded = [as_recorded(device) for device in devices]
    for text in (*_CANDIDATES, f"preallocate {-(-peak // MIB)}MiB"):
        try:
            edited = tuple(each.edited([parse_edit(text)]) for each in recorded)
            run = replay_prepared(edited, setting, device_memory=device_memory)
        except (ConfigError, UndefinedBehaviorError, UpstreamError):
            continue  # the recording does not allow this edit
        yield EditTrial(edited, run.devices, _place(edited[0], text))


def _place(edited: EditedDevice, text: str) -> str:
    """Return the line of the training loop after which the edit calls empty_cache, as "file:line".

    text: text of the edit.  The result is "" if the line is unknown.
    """
    program = edited.program
    if program.loop is None or not text.startswith("empty-cache"):
        return ""
    places = program.calls()
    lines = (
        program.loop.line_at(edited.trace, int(program.steps.entry[at]))
        for at in range(places[0] - 1, -1, -1)
    )
    line = next((line for line in lines if line >= 0), None)
    return "" if line is None else f"{program.loop.functions[-1][0]}:{line}"
