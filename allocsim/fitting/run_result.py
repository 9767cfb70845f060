"""Result of a program's run: its recording, the replay of its requests and its peaks of memory.

The program runs on a phantom (simulated) GPU, or a law (formulas) gives its requests.  The memory
that a program needs is that of the smallest card on which it completes, not the amount that it
would reserve on an unlimited card.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from allocsim.errors import ConfigError, UnavailableError
from allocsim.fitting.model import Configured, Model, UserModel, flattened
from allocsim.fitting.program import program_of
from allocsim.fitting.task import Task
from allocsim.phantom import Gpu, TorchInstall, begin_to_find_torch, find_torch
from allocsim.recording import BlockLives, MarkKind, Recording
from allocsim.replaying import (
    Prepared,
    prepare,
    prepare_made,
    replay_prepared,
    run_as_made,
)
from allocsim.simulation import Deferred, DeviceRun, SimulatedOom
from allocsim.workload import Played

if TYPE_CHECKING:
    from allocsim.phantom import Recorded
    from allocsim.replaying import Trials

_PROGRAM = "program.py"


@dataclass(frozen=True, slots=True)
class Failure:
    """Out-of-memory error that ended a run.

    entry: index of the recorded entry at which it occurred.
    tried_bytes: bytes that PyTorch's allocator requested from the driver when it failed.
    reserved_bytes, allocated_bytes: values of PyTorch's counters after the error.
    """

    entry: int
    tried_bytes: int
    reserved_bytes: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """Run of a program on one GPU, with the replay of its requests.

    recording, prepared: recording of the run, and the recorded device, prepared for any replay.
    device_run: replay on `gpu`.
    as_recorded: replay on the GPU of the recording, which may have more memory than `gpu`.
    entry: index of the first recorded entry that counts for the peaks: that of the last reset of
        PyTorch's peak counters, or 0. Entries before it usually build the model.
    busiest: index of the recorded entry after which allocated memory is highest.
    seconds: duration of the run, including imports.
    engine: "program" if the program ran, "laws" if formulas gave the requests.
    transformers: release of transformers that a law describes; None for a program.
    lives: lifetimes of the blocks, computed when needed, if formulas gave the requests; else None.
    """

    gpu: Gpu
    recording: Recording
    prepared: Prepared
    device_run: DeviceRun
    as_recorded: DeviceRun
    entry: int
    busiest: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    is_out_of_memory: bool
    torch_version: str
    seconds: float
    engine: str
    transformers: str | None = None
    lives: Deferred[BlockLives] | None = None

    @property
    def oom(self) -> SimulatedOom | None:
        """Out-of-memory error that ended the replay; None if the run completed."""
        ooms = self.device_run.ooms
        return ooms[-1] if self.is_out_of_memory and ooms else None

    @property
    def failure(self) -> Failure | None:
        """Out-of-memory error that ended the run, as numbers for reports; None without one."""
        oom = self.oom
        if oom is None:
            return None
        tried = oom.tried_bytes or oom.rounded_bytes
        return Failure(oom.entry, tried, oom.reserved_bytes, oom.allocated_bytes)


def find_install(python: str | None = None, torch_version: str | None = None) -> TorchInstall:
    """Return a Python interpreter that has a CUDA build of PyTorch.

    Raises UnavailableError if there is none.

    python: the only interpreter to search; default: the running one and the one on the PATH.
    torch_version: release of PyTorch that is preferred if several interpreters have one.
    """
    found, wrong = [], []
    for place in begin_to_find_torch(python):
        try:
            found.append(find_torch(place))
        except UnavailableError as error:
            wrong.append(str(error))
    if not found:
        raise UnavailableError(f"{'; '.join(wrong)} (pip install 'allocsim[fit]', or --python)")
    return min(found, key=lambda each: torch_version not in (None, each.release))


def run_program(
    program: Task | str | Sequence[str],
    gpu: Gpu,
    *,
    python: str | None = None,
    torch_version: str | None = None,
    keep: Path | None = None,
    model: Model | None = None,
    **options: Any,
) -> Ran:
    """Run a program on a phantom (simulated) `gpu`, and return its peaks of memory.

    program: a task, whose program is generated; the text of a program; or a command line.
    python: interpreter for the text of a program; default: this one, or the one on the PATH.
    torch_version: preferred release of PyTorch.
    keep: file to which the recording is written.
    model: model to name in error messages; default: the task's model.
    options: fields of `RecordedProgram`: `conf` (allocator settings), `work` (when streams complete
        their work), `values` (True to compute small tensors), `routing` (choice of experts).

    Raises ConfigError if the program ends with an error other than out of memory.
    """
    from allocsim.recording import load  # noqa: PLC0415  (laws read no file)

    began = time.perf_counter()
    if isinstance(program, Task):
        model, program = program.model, program_of(program)
    with TemporaryDirectory(prefix="allocsim-fit-") as place:
        folder = Path(place)
        if isinstance(program, str):
            file = folder / _PROGRAM
            file.write_text(program)
            command: tuple[str, ...] = (find_install(python, torch_version).python, str(file))
        else:
            command = tuple(program)
        # User code may depend on values.
        options["sizes_only"] = model is not None and not isinstance(model, UserModel)
        recorded, text = record_in(folder, command, gpu, keep, **options)
        if not recorded.processes:
            when = "without using the GPU"
            raise ConfigError(why_it_failed(text, recorded.exit_code, when, model))
        # Helper processes may use the GPU too; the program is the one with most entries.
        process = max(recorded.processes, key=lambda each: each.entries)
        if recorded.exit_code and not process.oom_text:
            raise ConfigError(why_it_failed(text, recorded.exit_code, "before its end", model))
        recording = load(process.file)
        if keep is not None:
            shutil.copyfile(process.file, keep)
    assert recorded.torch is not None
    seconds = time.perf_counter() - began
    return ran_of(
        recording,
        gpu,
        recorded.torch.version,
        seconds,
        is_out_of_memory=bool(process.oom_text),
        engine="program",
    )


def record_in(
    folder: Path, command: Sequence[str], gpu: Gpu, keep: Path | None, **options: Any
) -> tuple[Recorded, str]:
    """Run a command on a phantom (simulated) `gpu`; return its recordings and printed text.

    folder: folder for the recordings.
    keep: file for the user, if any; without one, recordings have a faster format, which PyTorch's
        own viewer cannot read.
    options: further fields of `RecordedProgram`.
    """
    from allocsim.phantom import RecordedProgram, record  # noqa: PLC0415  (laws run no program)

    log = folder / "log"
    options |= {"log": log, "by_column": keep is None}  # PyTorch's own viewer needs rows
    program = RecordedProgram(tuple(command), folder / "fit.pickle", gpu, **options)
    return record(program), log.read_text("utf-8", "replace")


def ran_of(
    recording: Recording,
    gpu: Gpu,
    torch_version: str,
    seconds: float,
    *,
    is_out_of_memory: bool,
    engine: str,
    transformers: str | None = None,
    played: Played | None = None,
) -> Ran:
    """Replay the recording of a run on `gpu`. Other arguments become fields of the returned `Ran`.

    played: finished replay of the requests, if a law gave them; None to replay the recording.
    """
    # A recording may have several devices; the program used the one with most entries.
    device = max(recording.devices, key=len).device
    if played is None:
        (prepared,) = prepare(recording, device)
        (device_run,) = replay_prepared((prepared,)).devices
    else:
        (prepared,) = prepare_made(recording, device)
        prepared = replace(prepared, known_period=played.period)
        device_run = run_as_made(
            prepared, played.allocator, played.moved, played.peak, played.peak_device_bytes
        )
    resets = [mark.entry for mark in prepared.marks if mark.kind is MarkKind.PEAK_RESET]
    return _with_peaks(
        Ran(
            gpu=gpu,
            recording=recording,
            prepared=prepared,
            device_run=device_run,
            as_recorded=device_run,
            entry=max(resets, default=0),
            busiest=0,
            peak_reserved_bytes=0,
            peak_allocated_bytes=0,
            is_out_of_memory=is_out_of_memory,
            torch_version=torch_version,
            seconds=seconds,
            engine=engine,
            transformers=transformers,
            lives=None if played is None else played.lives,
        )
    )


def ran_on(gpu: Gpu, ran: Ran) -> Ran:
    """Replay a run on `gpu`, a card like that of the run but with less memory; return the result.

    The result equals a run of the program on `gpu` if the program does not react to free memory.
    """
    held = ran.device_run.peak_device_bytes
    if held <= gpu.memory and not ran.prepared.recorded.conf:
        # All requests succeed on this card as well. With a conf they might not: a setting may
        # depend on the card's size.
        return replace(ran, gpu=gpu, device_run=replace(ran.device_run, device_memory=gpu.memory))
    device_run = replay_on(gpu, ran)
    is_out = device_run.stopped_at is not None
    return _with_peaks(replace(ran, gpu=gpu, device_run=device_run, is_out_of_memory=is_out))


def beside_context(ran: Ran, context_memory: int) -> Ran:
    """Return the result that `ran` would have with a CUDA context of `context_memory` bytes.

    ran: run on a card with unlimited memory.
    """
    more = context_memory - ran.prepared.context_memory
    if not more:
        return ran
    device_run = replace(ran.device_run, peak_device_bytes=ran.device_run.peak_device_bytes + more)
    prepared = ran.prepared.with_context(context_memory)
    return replace(ran, prepared=prepared, device_run=device_run, as_recorded=device_run)


def replay_on(gpu: Gpu, ran: Ran, host_spill: int = 0) -> DeviceRun:
    prepared = ran.prepared
    memory = gpu.room + prepared.context_memory
    (found,) = replay_prepared(
        (prepared,), prepared.recorded, device_memory=memory, host_spill=host_spill
    ).devices
    return found


def _with_peaks(ran: Ran) -> Ran:
    timeline = ran.device_run.timeline
    # Memory that is allocated at the reset counts; the row before the reset has it. Memory that is
    # reserved at the reset counts too, but an empty_cache() just before the reset has no row. So
    # the row after the reset is used, where at least as much is reserved.
    first = min(int(np.searchsorted(timeline.entry, ran.entry)), len(timeline.entry) - 1)
    before = max(first - 1, 0)
    allocated, reserved = timeline.allocated[before:], timeline.reserved[first:]
    return replace(
        ran,
        busiest=int(timeline.entry[before + int(np.argmax(allocated))]),
        peak_reserved_bytes=int(reserved.max()),
        peak_allocated_bytes=int(allocated.max()),
    )


def needed_room(unlimited: Ran, ran: Ran, trials: Trials) -> int | None:
    """Return the least bytes, without the CUDA context, with which all requests of a run succeed.

    Return None if no amount suffices, or if the program makes different requests on a card with a
    memory limit than without a limit.

    unlimited: run on a card without a memory limit.
    ran: run on the card on which the program fails.
    trials: replays of the unlimited run with other memory sizes.
    """
    from allocsim.replaying import smallest_device  # noqa: PLC0415  (slow; not needed if it fits)

    prepared, gpu = unlimited.prepared, ran.gpu
    setting, context = prepared.recorded, prepared.context_memory
    if prepared.is_made and prepared.period is None:
        trials.add(setting, replace(unlimited.device_run, device_memory=None))
        trials.add(setting, ran.device_run)
    # smallest_device() assumes that the run fails on `gpu`: it only looks at larger cards.
    if trials.under(setting, gpu.room + context, to_first_oom=True).goes_through:
        return None
    found = smallest_device(trials, setting)
    return None if found is None else found.device_memory - context


_LONGEST = 300
_ERROR = re.compile(
    r"^(?:\[rank\d+\]: )?"
    r"(?:(?:\w+\.)+([A-Z]\w*)|(\w*(?:Error|Exception|Interrupt|Exit))): (.*)"
)
"""Pattern of the last line of a traceback: the exception's class and its text.

torch.distributed writes the rank before each line."""
_PLACE = re.compile(r'^\s*File "(.+)", line (\d+)')
_NOT_A_MODEL = re.compile(r"'(\w+)' object has no attribute 'to'$")
_LAST_NAME = re.compile(r"'([^']+)'$")
_UNKNOWN_TYPE = "does not recognize this architecture"
_OWN_CODE = (_UNKNOWN_TYPE, "custom code", "trust_remote_code")
_UNKNOWN_HEAD = "Unrecognized configuration class"


def why_it_failed(log: str, exit_code: int, when: str, model: Model | None = None) -> str:
    """Return a sentence on why a program failed, from the last error that it printed to `log`.

    when: words on how far the program came, such as "before its end".
    model: model of the task; None for a user's own program.
    """
    lines = log.splitlines()
    # The last exception ended the program; earlier ones may have been handled.
    for number, line in reversed(list(enumerate(lines))):
        found = _ERROR.match(line.strip())
        if found:
            kind, text = found[1] or found[2], found[3]
            sentence = _model_error(model, kind, text)
            if sentence is not None:
                return sentence
            where = _place(lines[:number]) if kind == "SyntaxError" else ""
            return f"the program ended {when}, with {kind}: {text[:_LONGEST]}{where}"
    last = log.strip().splitlines()[-1:] or ["it printed nothing"]
    return f"the program ended {when}, with exit code {exit_code}: {last[0][:_LONGEST]}"


def _place(lines: list[str]) -> str:
    places = [found for found in map(_PLACE.match, lines) if found]
    return f" ({places[-1][1]}, line {places[-1][2]})" if places else ""


def _model_error(model: Model | None, kind: str, text: str) -> str | None:
    if isinstance(model, UserModel):
        returned = _NOT_A_MODEL.search(text)
        if kind == "AttributeError" and returned:
            what = f"{model.name} returned {returned[1]}"
            return f"{what}; expected a model, or a model and a batch"
    if isinstance(model, Configured) and model.path is not None:
        return _file_error(model, model.path, kind, text)
    return None


def _file_error(model: Configured, path: str, kind: str, text: str) -> str | None:
    model_type = model.config["model_type"]
    if "auto_map" in model.config and any(each in text for each in _OWN_CODE):
        what = f"{path}: {model_type} needs custom code (auto_map), which is not fetched"
        return f"{what}; expected a model_type that the installed transformers knows"
    if _UNKNOWN_TYPE in text:
        return f"{path}: the installed transformers knows no model_type {model_type!r:.80}"
    if _UNKNOWN_HEAD in text:
        return f"{path}: transformers has no {model.head} of model_type {model_type!r:.80}"
    named = _LAST_NAME.search(text)
    if named and kind in ("KeyError", "AttributeError"):
        for key, value in flattened(model.config):
            if value == named[1]:
                return f"{path}: {key} is {value!r:.80}, which transformers does not know"
    return None
