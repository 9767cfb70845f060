"""`allocsim top`: who held the memory at one moment.

Rule: the whole answer is made before its first character is printed.
"""

from __future__ import annotations

import argparse

from allocsim.cli.options import Commands, add_command, add_shared
from allocsim.cli.output import write, write_json, write_other_json
from allocsim.cli.progress import ProgressBar
from allocsim.cli.usage import Parser, count, moment

__all__ = ["add_to", "run"]

_SUMMARY = "say who held the memory at a moment: by line, module, category"
_DESCRIPTION = """\
Says of every byte that was allocated at one moment of FILE whose it was: the
line of code, the part of the model, the stream or pool that asked for it, and
what it was for (parameters, gradients, optimizer state, activations, ...).
The rows add up to the allocated memory.  A snapshot that holds a state only is
as good as a recording, but for the moment and some of the categories."""


def add_to(commands: Commands[Parser]) -> None:
    parser = add_command(commands, "top", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add_shared(parser, "file")
    add(
        "--at",
        metavar="MOMENT",
        type=moment,
        help="peak of allocated memory, oom (the last out-of-memory error), end, or an entry, "
        "for the moment after it (default: oom if there is one, else peak)",
    )
    add_shared(parser, "--by")
    add(
        "--frames",
        metavar="N",
        type=count,
        help="frames that tell owners apart (default: of a line 1, of a stack 8, of a module 3)",
    )
    add_shared(parser, "-n")
    add(
        "--format",
        choices=("speedscope", "collapsed"),
        help="print stacks for a flame graph viewer instead, with --by category below categories",
    )
    add_shared(parser, "--torch", text="PyTorch's release, {releases} (default: as recorded)")
    add_shared(parser, "--device", text="the device, where several are recorded")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.questions.top import top  # noqa: PLC0415
    from allocsim.report import (  # noqa: PLC0415
        collapsed_text,
        speedscope_document,
        top_document,
        top_text,
    )
    from allocsim.trace import load  # noqa: PLC0415

    with ProgressBar() as bar:
        answer = top(
            load(arguments.file),
            arguments.at,
            by=arguments.by,
            frames=arguments.frames or None,
            device=arguments.device,
            torch_version=arguments.torch,
            progress=bar.stage("replaying"),
        )
    if arguments.format == "speedscope":
        write_other_json(speedscope_document(answer))
    elif arguments.format == "collapsed":
        write(collapsed_text(answer))
    elif arguments.json:
        write_json(top_document(answer))
    else:
        write(top_text(answer, arguments.count, arguments.frames))
    return 0
