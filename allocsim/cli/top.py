"""`allocsim top`: report the owners of the memory at one moment."""

from __future__ import annotations

import argparse

from allocsim.cli.options import Commands, UsageError, add_command, add_shared, count, moment
from allocsim.cli.output import ProgressBar, write, write_other_json, write_report

_SUMMARY = "list the owners of the memory at one moment"
_DESCRIPTION = """\
Lists the owner of every byte that was allocated at one moment of FILE: the line
of code, the module, the stream or pool that requested it, and its category
(parameters, gradients, optimizer state, activations, ...).  The rows add up to
the allocated memory.  A snapshot without a history has one moment and fewer
categories."""


def add_to(commands: Commands) -> None:
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
    frames = "number of frames that identify an owner (default: line 1, stack 8, module 3)"
    add("--frames", metavar="N", type=count, help=frames)
    add_shared(parser, "-n")
    shown = "print stacks for a flame graph viewer instead; with --by category, by category first"
    add("--format", choices=("speedscope", "collapsed"), help=shown)
    add_shared(parser, "--torch", text="release of PyTorch, {releases} (default: as recorded)")
    add_shared(parser, "--device", text="device to list, if several are recorded")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.top import top
    from allocsim.recording import load, load_host
    from allocsim.report import top as report

    if arguments.host and (arguments.device is not None or arguments.torch is not None):
        raise UsageError("--host is of no device and no release; leave out --device and --torch")
    named = {"by": arguments.by, "frames": arguments.frames or None}
    with ProgressBar() as bar:
        if arguments.host:
            from allocsim.analysis.top import top_host

            answer = top_host(arguments.file, load_host(arguments.file), arguments.at, **named)
        else:
            answer = top(
                load(arguments.file),
                arguments.at,
                device=arguments.device,
                torch_version=arguments.torch,
                progress=bar.stage("replaying"),
                **named,
            )
    if arguments.format == "speedscope":
        write_other_json(report.speedscope_document(answer))
    elif arguments.format == "collapsed":
        write(report.collapsed_text(answer))
    else:
        write_report(arguments, report, answer, count=arguments.count, frames=arguments.frames)
    return 0
