"""`allocsim gate`: check a recording's memory against limits or an earlier measurement."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.options import (
    Commands,
    UsageError,
    add_command,
    add_shared,
    count,
    device_size,
    fraction,
    share,
)
from allocsim.cli.output import ProgressBar, refuse_input, write_report, write_warnings, writing

if TYPE_CHECKING:
    from allocsim.analysis.gate import Baseline, Budget, Gate, Measured

_SUMMARY = "fail if a recording needs more memory than allowed"
_DESCRIPTION = """\
Replays the requests of a recording, or those from one step on, in an empty
allocator, so that earlier work has no effect, and compares the peaks with
limits, with a baseline, or both.  The exit code is 0 if every check holds, and
1 if one fails; then the lines of code that grew are printed."""
_EPILOG = """\
example: allocsim gate run.pickle --from step 2 --baseline memory.json --update
         allocsim gate run.pickle --baseline memory.json --tolerance 1%"""
_PEAKS = {
    "reserved": "limit of reserved memory at its peak, e.g. 20GiB",
    "allocated": "limit of allocated memory at its peak",
    "requested": "limit of requested memory (before rounding) at its peak",
}


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "gate", _SUMMARY, _DESCRIPTION, run, epilog=_EPILOG)
    add = parser.add_argument
    add_shared(parser, "file")
    for what, text in _PEAKS.items():
        add(f"--max-{what}", metavar="SIZE", type=device_size, help=text)
    max_driver_calls = "limit of calls to the driver for memory"
    add("--max-driver-calls", metavar="N", type=count, help=max_driver_calls)
    fragments = "limit of the unallocated share of reserved memory, e.g. 10%% or 0.1"
    add("--max-fragmentation", metavar="SHARE", type=fraction, help=fragments)
    add("--baseline", metavar="FILE", help="figures of an earlier run, written by --update")
    tolerance = "allowed increase over the baseline (default: 1%%)"
    add("--tolerance", metavar="SHARE", type=share, default=0.01, help=tolerance)
    add("--update", action="store_true", help="write or replace the baseline")
    place = (
        "where the measured part begins: step 2, phase forward, mark TEXT (user_metadata or an "
        "annotation), or entry 1200 (default: as in the baseline, else the beginning)"
    )
    add("--from", metavar=("KIND", "WHICH"), nargs=2, dest="at", help=place)
    own = "do not count memory allocated before that part, such as weights"
    add("--own", action="store_true", help=own)
    add_shared(parser, "--conf")
    add_shared(parser, "-n")
    add_shared(parser, "--torch", text="release of PyTorch, {releases} (default: as recorded)")
    add_shared(parser, "--device", text="device to check, if several are recorded")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.gate import Budget
    from allocsim.report import gate as report

    budget = Budget(**{each.name: getattr(arguments, each.name) for each in fields(Budget)})
    _refuse(arguments, is_empty=budget.is_empty)
    found = _gated(arguments, budget)
    write_report(arguments, report, found, count=arguments.count)
    return 0 if found.passed else 1


def _refuse(arguments: argparse.Namespace, *, is_empty: bool) -> None:
    from allocsim.analysis.gate import PLACES

    path = arguments.baseline
    if arguments.at is not None and arguments.at[0] not in PLACES:
        raise UsageError(f"--from {arguments.at[0]!r}; expected one of {', '.join(PLACES)}")
    if path is None:
        if arguments.update:
            raise UsageError("--update writes a baseline; give its name: --baseline FILE")
        if is_empty:
            raise UsageError(
                "no limit is given; expected e.g. --max-reserved SIZE or --baseline FILE"
            )
        return
    refuse_input(path, arguments.file)
    if Path(path).exists() and not Path(path).is_file():
        raise UsageError(f"{path} is not a regular file; expected a baseline that --update wrote")
    if not (arguments.update or Path(path).is_file()):
        raise UsageError(f"{path} does not exist; --update writes it")


def _gated(arguments: argparse.Namespace, budget: Budget) -> Gate:
    from allocsim.analysis.gate import gate, read_baseline, write_baseline

    baseline: Baseline | None = None
    if arguments.baseline is not None and not arguments.update:
        baseline = read_baseline(arguments.baseline)
    found = _measured(arguments, baseline)
    if arguments.update:
        with writing(arguments.baseline):
            write_baseline(arguments.baseline, found)
        write_warnings([f"wrote {arguments.baseline}"])
        baseline = read_baseline(arguments.baseline)
    return gate(found, budget, baseline=baseline, tolerance=arguments.tolerance)


def _measured(arguments: argparse.Namespace, baseline: Baseline | None) -> Measured:
    from allocsim.analysis.gate import measured
    from allocsim.recording import load

    at = None if arguments.at is None else (arguments.at[0], arguments.at[1])
    counts_held = not arguments.own
    if baseline is not None and at is None:
        at, counts_held = baseline.at, counts_held and baseline.counts_held
    with ProgressBar() as bar:
        return measured(
            load(arguments.file),
            at=at,
            counts_held=counts_held,
            conf=arguments.conf,
            device=arguments.device,
            torch_version=arguments.torch,
            progress=bar.stage("replaying"),
        )
