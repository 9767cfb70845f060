"""`allocsim ranks`: every rank of a job, and which of them decides.

Rule: the whole answer is made before its first character is printed.
"""

from __future__ import annotations

import argparse
from functools import partial

from allocsim.cli.options import Commands, add_command, add_shared
from allocsim.cli.output import write_result
from allocsim.cli.progress import ProgressBar
from allocsim.cli.usage import Parser, processes

__all__ = ["add_to", "run"]

_SUMMARY = "say which rank of a job decides, and how far they lie apart"
_DESCRIPTION = """\
Replays the recordings of all ranks of a job, a folder of them or several files,
and puts them side by side: reserved and allocated memory at their peaks, what
was reserved beyond that, retries, out-of-memory errors, and whether ranks
differ by what they ask for or by fragmentation.  A file that cannot be read is
named, and the rest are done.  One setting for all is what allocsim tune FILE
FILE ... looks for."""


def add_to(commands: Commands[Parser]) -> None:
    parser = add_command(commands, "ranks", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="a folder of recordings, or recordings")
    add_shared(parser, "--conf")
    add_shared(parser, "-n", text="ranks to show, 0 for all (default: a screen)")
    add("--jobs", metavar="N", type=processes, help="processes (default: one a core)")
    add_shared(parser, "--torch", text="PyTorch's release, {releases} (default: as recorded)")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.questions.ranks import ranks  # noqa: PLC0415
    from allocsim.report import ranks_document, ranks_text  # noqa: PLC0415

    with ProgressBar() as bar:
        found = ranks(
            arguments.files,
            conf=arguments.conf,
            torch_version=arguments.torch,
            jobs=arguments.jobs,
            watch=bar.stage("replaying"),
        )
    document, text = partial(ranks_document, found), partial(ranks_text, found, arguments.count)
    write_result(arguments.json, document, text)
    return 0
