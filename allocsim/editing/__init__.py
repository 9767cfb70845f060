"""Edits of a recorded program, whose effect on memory a replay shows.

An edit changes the recorded program (calls of `empty_cache`, the order of training steps, streams)
and not the settings of the allocator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

from allocsim.editing.edits import EDIT_FORMS, Edit, parse_edit
from allocsim.editing.program import Program, program_of
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.export import simulate_prepared
from allocsim.inference import OtherPlan
from allocsim.ownership import Phase, held_at, scene_of_run
from allocsim.recording import Recording
from allocsim.replaying import Prepared, bytes_of, prepare, replay_prepared
from allocsim.simulation import DeviceRun, Hints, Parting, Plan, Run, Setting
from allocsim.units import MIB

__all__ = [
    "EDIT_FORMS", "Edit", "EditTrial", "EditedDevice", "Saving", "edit_devices",
    "edited_recording", "parse_edit", "replay_edited", "savings_at", "savings_of", "try_edits",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class EditedDevice(Prepared):
    """Device of a recording with a changed program, ready for replays.

    Each replay counts as a what-if replay (not comparable with the recording), even under the
    recorded settings, and gives one peak, not a range of possible peaks.
    edits: changes that were made to the recorded program.
    baseline: replay of the unchanged program under the recorded settings.
    program: the changed program.
    """

    edits: tuple[Edit, ...] = ()
    baseline: DeviceRun = field(kw_only=True)
    program: Program = field(kw_only=True)

    @property
    def is_edited(self) -> bool:
        return True

    @cached_property
    def free_plan(self) -> Plan:
        return replace(self.plan, steps=self.program.steps)

    @cached_property
    def open_plans(self) -> tuple[OtherPlan, ...]:
        return ()

    @cached_property
    def proofs(self) -> list[Parting | None]:
        """List with one item: how the replay of the unchanged program differs from the recording.

        The item is the first difference; None if they are equal.
        """
        return [self.baseline.parting]

    def edited(self, edits: Sequence[Edit]) -> EditedDevice:
        program = self.program
        for edit in edits:
            program = edit.apply(program)
        notes = [f"edit {edit.text!r}: it assumes that {edit.assumes}" for edit in edits]
        file_notes = (*self.file_notes, *notes)
        return replace(self, program=program, edits=tuple(edits), file_notes=file_notes)


def as_recorded(device: Prepared) -> EditedDevice:
    """Return a device as an `EditedDevice` without edits, with a replay under recorded settings."""
    (baseline,) = replay_prepared((device,)).devices
    values = {each.name: getattr(device, each.name) for each in fields(device)}
    return EditedDevice(**values, baseline=baseline, program=program_of(device, baseline))


def edited_recording(
    recording: Recording,
    edits: Sequence[str | Edit],
    *,
    torch_version: str | None = None,
    hints: Hints | None = None,
) -> Recording:
    """Return the recording that PyTorch would write of the edited program, with recorded settings.

    edits: texts such as "empty-cache after step 2", applied in order.
    torch_version: PyTorch release to model; None to choose it from the recording.
    hints: facts about the program that the recording does not contain.
    """
    devices = edit_devices(prepare(recording, None, torch_version, hints=hints), edits)
    return simulate_prepared(devices, recording, command=f"edited: {recording.path}").recording


def edit_devices(
    devices: Sequence[Prepared], edits: Sequence[str | Edit]
) -> tuple[EditedDevice, ...]:
    """Change the program of each device, and return the changed devices.

    edits: texts such as "empty-cache after step 2", applied in order.
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
    conf: PYTORCH_CUDA_ALLOC_CONF; None for the recorded value.
    device_memory: bytes or "24GiB"; None for the recorded or inferred size.
    torch_version: PyTorch release to model; None to choose it from the recording.
    device: number of the only device to replay; None for all.
    hints: facts about the program that the recording does not contain.
    Raises the errors of `replay`.  Also raises ConfigError for an unknown edit, and for an edit
    that the recording does not allow.
    """
    memory = bytes_of(device_memory)
    devices = [each.on(memory) for each in prepare(recording, device, torch_version, hints=hints)]
    setting = None if conf is None else Setting(conf)
    return replay_prepared(edit_devices(devices, edits), setting, device_memory=memory)


_CANDIDATES = (
    "empty-cache every 1 steps",
    "empty-cache before phase backward",
    "largest step first",
    "free early",
)


@dataclass(frozen=True, slots=True)
class EditTrial:
    """Replays of all devices with one edit, under one setting.

    devices, runs: the edited devices, and the replay of each.
    place: line of the training loop after which the added call belongs, as "file:line"; "" if it is
        unknown or no call is added.
    """

    devices: tuple[EditedDevice, ...]
    runs: tuple[DeviceRun, ...]
    place: str

    @property
    def peak_reserved_bytes(self) -> int:
        return max(run.peak_reserved_bytes for run in self.runs)

    @property
    def is_whole(self) -> bool:
        return not any(run.ooms for run in self.runs)


def try_edits(
    devices: Sequence[Prepared], setting: Setting | None = None, device_memory: int | None = None
) -> tuple[EditTrial, ...]:
    """Replay the program with each of a few edits; return the results, lowest peak first.

    The edits are added calls of empty_cache, memory allocated at the start, another order of the
    training steps, and earlier frees.  An edit that the recording does not allow is left out.

    setting, device_memory: setting and bytes of the device; None for the recorded values.
    """
    return _tried(devices, [*map(as_recorded, devices)], setting, device_memory)


def _tried(
    devices: Sequence[Prepared],
    recorded: Sequence[EditedDevice],
    setting: Setting | None,
    device_memory: int | None,
) -> tuple[EditTrial, ...]:
    # On a smaller device a replay may end before the recorded peak; on a larger device it may reach
    # a higher peak.
    baselines = [each.baseline for each in recorded]
    if device_memory is not None:
        baselines += replay_prepared(devices, device_memory=device_memory).devices
    peak = max(run.peak_allocated_bytes for run in baselines)
    found = []
    for text in (*_CANDIDATES, f"preallocate {-(-peak // MIB)}MiB"):
        try:
            edited = tuple(each.edited([parse_edit(text)]) for each in recorded)
            run = replay_prepared(edited, setting, device_memory=device_memory)
        except (ConfigError, UndefinedBehaviorError, UpstreamError):
            continue  # the recording does not allow this edit
        found.append(EditTrial(edited, run.devices, _place(edited[0], text)))
    return tuple(sorted(found, key=lambda each: (not each.is_whole, each.peak_reserved_bytes)))


def _place(edited: EditedDevice, text: str) -> str:
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


_CHECKPOINTED = (0.6, 0.85)
"""Lowest and highest share that checkpointing every layer saves of activations kept for backward.

In six models, it saves 61 to 84 % (tests/editing/test_savings.py).
"""
_EIGHT_BITS = (0.48, 0.74)
"""Share of optimizer state that 8-bit state with scales saves: 0.48 of 16-bit, 0.74 of 32-bit."""
_ADAPTED = (0.9, 1.0)
"""Lowest and highest share of gradients and optimizer state that usual LoRA adapters save."""
_QUANTISED = (0.45, 0.75)
"""Shares of 16-bit weights that are saved: by 8-bit linear layers, and by 4-bit linear layers."""
_LEAST_SHARE = 0.05
_MOST = 4


@dataclass(frozen=True, slots=True)
class Saving:
    """Change of a program and the memory that it saves.

    change: the change as text, such as "checkpoint the activations of every layer".
    low_bytes, high_bytes: estimated range of the saving; None if a replay with the change proved
        that every request succeeds.
    is_enough: True if the failed request would succeed even with `low_bytes`; None if unknown.
    """

    change: str
    low_bytes: int | None
    high_bytes: int | None
    is_enough: bool | None

    @property
    def is_proved(self) -> bool:
        return self.low_bytes is None


def savings_at(
    prepared: Prepared, setting: Setting, device_memory: int | None, entry: int, missing: int
) -> tuple[Saving, ...]:
    """Return changes of a program with which it may fit a device that is too small for it.

    setting, device_memory: setting, and bytes of the device, of the replay that failed.
    entry: index of the history entry at which memory is missing.
    missing: bytes that the device lacks.
    """
    recorded = as_recorded(prepared)
    scene = scene_of_run(prepared.trace, prepared.start, recorded.baseline.timeline)
    held = held_at(scene, prepared.trace, entry)
    categories: Counter[str] = Counter()
    for index, size in enumerate(held.sizes):
        categories[held.category(index)] += size
    estimates = savings_of(categories, scene.phase_at(entry).text, missing)
    tried = _tried([prepared], [recorded], setting, device_memory)
    return (*_proved(tried), *estimates)


def savings_of(
    categories: Mapping[str, int], phase: str, missing: int | None = None
) -> tuple[Saving, ...]:
    """Return changes of a program that reduce its memory, with estimates of the saving.

    categories: dictionary from a category of memory (`allocsim.ownership.CATEGORIES`) to bytes.
    phase: training phase that needs the memory, such as "optimizer"; "" if unknown.
    missing: bytes that the failed request lacks; None if unknown.
    """
    least = _LEAST_SHARE * sum(categories.values())
    found = [
        Saving(change, int(low), int(high), None if missing is None else low >= missing)
        for change, low, high in _changes(categories, phase)
        if high >= least
    ]
    return tuple(found[:_MOST])


def _changes(categories: Mapping[str, int], phase: str) -> Iterator[tuple[str, float, float]]:
    kept, temporary = (
        categories.get(name, 0) for name in ("activations kept for backward", "temporaries")
    )
    state, gradients = (categories.get(name, 0) for name in ("optimizer state", "gradients"))
    if phase == Phase.OPTIMIZER.text:
        yield "optimizer with fused=True", 0.9 * temporary, temporary
    yield "checkpoint the activations of every layer", *_shares(kept, _CHECKPOINTED)
    yield "half the batch, accumulated twice", kept / 2, 0.52 * (kept + temporary)
    yield "optimizer state in 8 bits", *_shares(state, _EIGHT_BITS)
    if state:
        yield "train LoRA adapters alone", *_shares(state + gradients, _ADAPTED)
    else:
        caches = categories.get("caches", 0)
        yield "half the sequences or tokens in the caches", caches / 2, caches / 2
        yield "weights in 8 or 4 bits", *_shares(categories.get("parameters", 0), _QUANTISED)


def _shares(size: int, shares: tuple[float, float]) -> tuple[float, float]:
    return shares[0] * size, shares[1] * size


def _proved(tried: Iterable[EditTrial]) -> Iterator[Saving]:
    # "largest step first" is left out: the first step fits only because the optimizer has no state
    # yet.
    for trial in tried:
        edit = trial.devices[0].edits[0]
        if trial.is_whole and edit.text != "largest step first":
            yield Saving(edit.code, None, None, is_enough=True)
