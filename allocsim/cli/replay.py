"""`allocsim replay`: replay a recording and report the result."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from allocsim.cli.options import (
    HINTS,
    OUT_OF_MEMORY,
    Commands,
    UsageError,
    add_command,
    add_shared,
    count,
    edited_by,
    hints_of,
)
from allocsim.cli.output import ProgressBar, write_report
from allocsim.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocsim.analysis.explain import Cure
    from allocsim.recommend import Recommendation
    from allocsim.replaying import Prepared
    from allocsim.simulation import Run

_SUMMARY = "replay a recording, check the replay, and report what happened"
_DESCRIPTION = """\
Replays FILE, a recording of torch.cuda.memory._record_memory_history().
Under the recorded settings, every address, segment and entry is compared with
the recorded one.  Under other settings (--conf, --device-memory), it reports
what would have happened.  If the run ended out of memory, or wasted much
memory, a few settings are replayed as well, and the best one that a replay
proves to help is printed as a line to paste."""
_STRICT = 1


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "replay", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add_shared(parser, "file", "--conf", "--device-memory", "--torch", "--device")
    add_shared(parser, "--host-spill", *HINTS, "--edit")
    strict = "exit 1 unless the replay is exactly as recorded, also step by step"
    add("--strict", action="store_true", help=strict)
    add_shared(parser, "--fail-on-oom")
    check = "check the model's invariants every N entries (slow; default: never)"
    add("--check-every", metavar="N", type=count, default=0, help=check)
    cure = "search for a setting that helps (default: yes, without --conf and --json)"
    add("--cure", action=argparse.BooleanOptionalAction, help=cure)
    add_shared(parser, "--verbose", "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.explain import OomWatch, shortages_of
    from allocsim.analysis.top import top_of_replay, top_of_spill
    from allocsim.recording import load
    from allocsim.replaying import prepare, replay_prepared, with_proof, with_range
    from allocsim.report import replay as report
    from allocsim.simulation import Setting

    with ProgressBar() as bar:
        recording, hints = load(arguments.file), hints_of(arguments)
        ready = prepare(recording, arguments.device, arguments.torch, hints=hints)
        devices = [each.on(arguments.device_memory) for each in ready]
        edited = edited_by(arguments, devices)
        devices = list(edited) or devices
        watch = OomWatch(devices)
        result = replay_prepared(
            devices,
            None if arguments.conf is None else Setting(arguments.conf),
            device_memory=arguments.device_memory,
            host_spill=arguments.host_spill,
            check_every=arguments.check_every,
            progress=bar.stage("replaying"),
            observers=(watch,),
        )
        shortages = {device.device: shortages_of(device, watch=watch) for device in result.devices}
        if arguments.strict:
            _compare_strictly(devices, result)
        wants_cure = arguments.cure
        if wants_cure and arguments.host_spill:
            raise UsageError("--cure searches settings for a device without host memory; leave "
                             "--host-spill out")  # fmt: skip
        if wants_cure and edited:
            raise UsageError("--cure searches settings for the recorded program; use allocsim tune "
                             "with --edit")  # fmt: skip
        if wants_cure is None:
            others = (arguments.conf is not None, arguments.json, arguments.host_spill, edited)
            wants_cure = not any(others)
        found = None
        if wants_cure:
            found = _recommended(arguments, devices, result, bar)
        top = None if arguments.json or edited else top_of_replay(devices, result)
        if arguments.host_spill:
            top = top_of_spill(devices, result.devices)
        result = with_range(with_proof(result))  # before output, because both may need replays
    write_report(arguments, report, result, shortages, found, top, edited)
    if arguments.strict and not all(d.fidelity and d.fidelity.is_exact for d in result.devices):
        return _STRICT
    if arguments.fail_on_oom and any(device.ooms for device in result.devices):
        return OUT_OF_MEMORY
    return 0


def _compare_strictly(devices: Sequence[Prepared], result: Run) -> None:
    """Replay again, one step at a time, and raise InvariantError if the result differs."""
    from allocsim.replaying import difference_step_by_step

    for device_run in result.devices:
        if device_run.fidelity is not None and not device_run.fidelity.is_compared:
            raise UsageError(
                f"--strict compares a replay with its recording, but {result.path} holds requests "
                "only, without addresses or segments; leave --strict out"
            )
        if device_run.fidelity is None:
            raise UsageError(
                f"--strict compares a replay with its recording, but device {device_run.device} "
                "was replayed under other settings or another device memory, or with an edit; "
                "leave --conf, --device-memory and --edit out"
            )
    for prepared, device_run in zip(devices, result.devices, strict=True):
        difference = difference_step_by_step(prepared, device_run)
        if difference is not None:
            raise InvariantError(f"device {device_run.device}: {difference}")


def _recommended(
    arguments: argparse.Namespace, devices: Sequence[Prepared], result: Run, bar: ProgressBar
) -> tuple[Recommendation, tuple[Cure, ...]]:
    from allocsim.analysis.explain import cures_of
    from allocsim.recommend import Case, recommend
    from allocsim.replaying import Trials, effects_on
    from allocsim.simulation import Setting

    watch = partial(bar.trying, more=" (--no-cure skips)")
    cases = [
        Case(Trials(prepared, watch, effects_on(prepared)), device_run)
        for prepared, device_run in zip(devices, result.devices, strict=True)
    ]
    found = recommend(
        cases,
        Setting(result.conf),
        insists=bool(arguments.cure),  # with --cure, even if the replay differs from the recording
        in_full=arguments.json or arguments.verbose,
    )
    return found, cures_of(found, cases)
