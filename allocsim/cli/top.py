"""`allocsim top`: report the owners of the memory at one moment.

Rule: the whole answer is computed before its first character is printed.
"""

from __future__ import annotations

import argparse

from allocsim.cli.options import Commands, add_command, add_shared
from allocsim.cli.output import ProgressBar, write, write_other_json, write_report
from allocsim.cli.usage import Parser, UsageError, count, moment

_SUMMARY = "list the owners of the memory at one moment"
_DESCRIPTION = """\
Lists the owner of every byte that was allocated at one moment of FILE: the line
of code, the module, the stream or pool that requested it, and its category
(parameters, gradients, optimizer state, activations, ...).  The rows add up to
the allocated memory.  A snapshot without a history has one moment and fewer
categories."""


def add_to(commands: Commands[Parser]) -> None:
    parser = add_command(commands, "top", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add_shared(parser, "file")
    add(
        "--at",
        metavar="MOMENT",
        type=moment,
        help="moment to list: peak of allocated memory, oom (the last out-of-memory error), end, "
        "or the number of an entry (the moment after it) (default: oom if any, else peak)",
    )
    add_shared(parser, "--by")
    add("--host", action="store_true", help="list pinned host memory instead of a device")
    add(
        "--frames",
        metavar="N",
        type=count,
        help="number of frames that identify an owner (default: line 1, stack 8, module 3)",
    )
    add_shared(parser, "-n")
    add(
        "--format",
        choices=("speedscope", "collapsed"),
        help="print stacks for a flame graph viewer instead; with --by category, by category first",
    )
    add_shared(parser, "--torch", text="release of PyTorch, {releases} (default: as recorded)")
    add_shared(parser, "--device", text="device to list, if several are recorded")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.top import top, top_host  # noqa: PLC0415
    from allocsim.recording import load, load_host  # noqa: PLC0415
    from allocsim.report import top as report  # noqa: PLC0415

    if arguments.host and (arguments.device is not None or arguments.torch is not None):
        raise UsageError("--host is of no device and no release; leave out --device and --torch")
    with ProgressBar() as bar:
        answer = (
            top_host(
                arguments.file,
                load_host(arguments.file),
                arguments.at,
                by=arguments.by,
                frames=arguments.frames or None,
            )
            if arguments.host
            else top(
                load(arguments.file),
                arguments.at,
                by=arguments.by,
                frames=arguments.frames or None,
                device=arguments.device,
                torch_version=arguments.torch,
                progress=bar.stage("replaying"),
            )
        )
    if arguments.format == "speedscope":
        write_other_json(report.speedscope_document(answer))
    elif arguments.format == "collapsed":
        write(report.collapsed_text(answer))
    else:
        write_report(arguments, report, answer, count=arguments.count, frames=arguments.frames)
    return 0
