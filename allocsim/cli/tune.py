"""`allocsim tune`: find the best setting for recordings."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import TYPE_CHECKING

from allocsim.cli.options import (
    HINTS,
    Commands,
    UsageError,
    add_command,
    add_shared,
    dask_executor,
    hints_of,
    processes,
)
from allocsim.cli.output import ProgressBar, write_report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocsim.analysis.top import Top
    from allocsim.analysis.tune import Tuning
    from allocsim.editing import EditTrial
    from allocsim.report import Loan

_SUMMARY = "find the best setting for one or more recordings"
_DESCRIPTION = """\
Replays one recording, or several that must share a setting, under every option
of that release of PyTorch, with values derived from the recorded sizes.  Prints
the best setting, its saving, its cost in driver calls, and the line to paste.
With --find-device, the best setting is the one with the smallest device."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "tune", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add_shared(parser, "files")
    memory = "memory of the device, e.g. 24GiB (default: as recorded)"
    add_shared(parser, "--device-memory", text=memory)
    add_shared(parser, "--host-spill", "--torch", "--device")
    add_shared(parser, *HINTS, "--edit")
    add_shared(parser, "--try", text="try only this setting; may be repeated")
    add("--no-expandable", action="store_true", help="never propose expandable segments")
    add("--find-device", action="store_true", help="find the smallest device for each setting")
    add("--jobs", metavar="N", type=processes, default=1, help="number of processes (default: 1)")
    add_shared(parser, "--dask")
    results = "JSON Lines file to append results to; results in it are not computed again"
    add("--results", metavar="FILE", help=results)
    add("--costs", metavar="FILE", help="JSON file with the microseconds of each driver call")
    exhaustive = "replay every setting to its end, without shortcuts"
    add("--exhaustive", action="store_true", help=exhaustive)
    edits = "also try edits of the program, such as calls of empty_cache in the training loop"
    add("--edits", action="store_true", dest="tries_edits", help=edits)
    add_shared(parser, "--verbose", "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.tune import EXHAUSTIVE, tune
    from allocsim.recommend import read_costs
    from allocsim.report import tune as report

    loan = _loan(arguments)
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressBar())
        costs = None if arguments.costs is None else read_costs(arguments.costs)
        executor = dask_executor(arguments.dask, stack) if arguments.dask else None
        tuning = tune(
            arguments.files,
            arguments.device_memory if loan is None else loan.card + loan.lent,
            torch_version=arguments.torch,
            confs=arguments.confs,
            device=arguments.device,
            hints=hints_of(arguments),
            edits=arguments.edits or (),
            expandable=not arguments.no_expandable,
            find_device=arguments.find_device,
            jobs=arguments.jobs,
            executor=executor,
            results=arguments.results,
            costs=costs,
            tricks=EXHAUSTIVE if arguments.exhaustive else None,
            progress=bar.counted(_progress),
        )
        tried: Sequence[EditTrial] = ()
        if arguments.tries_edits:
            tried = _tried_edits(arguments, tuning)
        top = None
        if not (arguments.json or arguments.verbose):
            top = _owners(tuning)
    write_report(arguments, report, tuning, loan, tried, top=top)
    return 0


def _loan(arguments: argparse.Namespace) -> Loan | None:
    from allocsim.report import Loan

    if not arguments.host_spill:
        return None
    if arguments.device_memory is None:
        raise UsageError("--host-spill needs the memory of the card, e.g. --device-memory 8GiB")
    if arguments.find_device or arguments.memory_fraction is not None:
        name = "find-device" if arguments.find_device else "memory-fraction"
        raise UsageError(f"--{name} needs a card without host memory; leave --host-spill out")
    return Loan(arguments.device_memory, arguments.host_spill)


def _tried_edits(arguments: argparse.Namespace, tuning: Tuning) -> Sequence[EditTrial]:
    if tuning.prepared is None or arguments.edits or arguments.host_spill:
        raise UsageError(
            "--edits tries edits of one device of one recording; leave --edit and --host-spill "
            "out, and give --device N"
        )
    from allocsim.editing import try_edits

    return try_edits([tuning.prepared], device_memory=arguments.device_memory)


def _owners(tuning: Tuning) -> Top | None:
    if tuning.prepared is None:
        return None
    from allocsim.analysis.top import top_of_replay
    from allocsim.replaying import replay_prepared

    return top_of_replay([tuning.prepared], replay_prepared([tuning.prepared]))


def _progress(done: int, total: int, rate: float) -> str:
    left = (total - done) / max(rate, 1e-9)
    return f"{done} of {total} settings, {rate:.1f}/s, {left:.0f} s left"
