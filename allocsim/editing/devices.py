"""Replay of a recording as if its program had been edited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from allocsim.editing.edits import Edit, parse_edit
from allocsim.editing.program import Program, program_of
from allocsim.export import simulate_prepared
from allocsim.inference import OtherPlan
from allocsim.recording import Recording
from allocsim.replaying import Prepared, bytes_of, prepare, replay_prepared
from allocsim.simulation import DeviceRun, Hints, Parting, Plan, Run, Setting


@dataclass(frozen=True, eq=False)
class EditedDevice(Prepared):
    """Device of a recording with an edited program, ready for replays.

    Every replay is a what-if, also under the recorded settings.  The range of peaks due to
    empty_cache calls that the recording does not show is not computed.

    edits: edits of the program, applied in this order.
    baseline: replay of the recorded program under the recorded settings.
    program: the edited program.
    """

    edits: tuple[Edit, ...] = ()
    baseline: DeviceRun = field(kw_only=True)
    program: Program = field(kw_only=True)

    @property
    def is_edited(self) -> bool:
        return True

    @cached_property
    def free_plan(self) -> Plan:
        """Steps of the edited program, without the recorded answers of the driver."""
        return replace(self.plan, steps=self.program.steps)

    @cached_property
    def open_plans(self) -> tuple[OtherPlan, ...]:
        return ()

    @cached_property
    def proofs(self) -> list[Parting | None]:
        """First difference between the recording and its replay, before any edit."""
        return [self.baseline.parting]


@dataclass(frozen=True, slots=True)
class UneditedDevice:
    """Device of a recording with its recorded program, from which edits are made.

    device: the prepared device.
    baseline: replay under the recorded settings.
    program: the recorded program.
    """

    device: Prepared
    baseline: DeviceRun
    program: Program

    def edited(self, edits: Sequence[Edit]) -> EditedDevice:
        """Return the device with the program edited; the edits are applied in order.

        Raises ConfigError for an edit that the recording does not allow.
        """
        program = self.program
        for edit in edits:
            program = edit.apply(program)
        values = {each.name: getattr(self.device, each.name) for each in fields(self.device)}
        notes = [f"edit {edit.text!r}: it assumes that {edit.assumes}" for edit in edits]
        values["file_notes"] = (*self.device.file_notes, *notes)
        return EditedDevice(**values, edits=tuple(edits), baseline=self.baseline, program=program)


def as_recorded(device: Prepared) -> UneditedDevice:
    """Replay the baseline of a device, and divide its program into training steps."""
    (baseline,) = replay_prepared((device,)).devices
    return UneditedDevice(device, baseline, program_of(device, baseline))


def edited_recording(
    recording: Recording,
    edits: Sequence[str | Edit],
    *,
    torch_version: str | None = None,
    hints: Hints | None = None,
) -> Recording:
    """Return the recording that the edited program would have left, under the recorded settings.

    The parameters and the errors are the same as in `replay_edited`.
    """
    devices = edit_devices(prepare(recording, None, torch_version, hints=hints), edits)
    return simulate_prepared(devices, recording, command=f"edited: {recording.path}").recording


def edit_devices(
    devices: Sequence[Prepared], edits: Sequence[str | Edit]
) -> tuple[EditedDevice, ...]:
    """Return the devices with the program edited; the edits are applied in order.

    edits: texts such as "empty-cache after step 2"; see `EDIT_FORMS`.

    Raises ConfigError for an unknown edit, and for an edit that the recording does not allow.
    """
    parsed = [each if isinstance(each, Edit) else parse_edit(each) for each in edits]
    return tuple(as_recorded(device).edited(parsed) for device in devices)


def replay_edited(
    recording: Recording,
    edits: Sequence[str | Edit],
    conf: str | None = None,
    *,
    device_memory: int | str | None = None,
    torch_version: str | None = None,
    device: int | None = None,
    hints: Hints | None = None,
) -> Run:
    """Replay a recording as if its program had been edited.

    edits: texts such as "empty-cache after step 2" or "largest step first", applied in order;
        docs/commands/replay.md lists the forms.
    The other parameters and the errors are the same as in `replay`.  Raises ConfigError too for an
    unknown edit, and for an edit that the recording does not allow.
    """
    memory = bytes_of(device_memory)
    devices = [each.on(memory) for each in prepare(recording, device, torch_version, hints=hints)]
    setting = None if conf is None else Setting(conf)
    return replay_prepared(edit_devices(devices, edits), setting, device_memory=memory)
