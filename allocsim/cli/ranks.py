"""`allocsim ranks`: every rank of a job, and which of them decides.

Rule: the whole answer is made before its first character is printed.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial

from allocsim.cli.dask import dask_executor
from allocsim.cli.options import Commands, add_command, add_shared
from allocsim.cli.output import refuse_output, save_page, write_result
from allocsim.cli.progress import ProgressBar
from allocsim.cli.usage import Parser, processes

__all__ = ["add_to", "run"]

_SUMMARY = "say which rank of a job decides, and how far they lie apart"
_DESCRIPTION = """\
Replays the recordings of all ranks of a job, a folder of them or several files,
and puts them side by side: reserved and allocated memory at their peaks, what
was reserved beyond that, retries, out-of-memory errors, and whether ranks
differ by what they ask for or by fragmentation.  A file that cannot be read is
named, and the rest are done.  --smallest finds the device that the job needs,
-o writes a page with a curve of each rank, all on one scale.  One setting for
all is what allocsim tune FILE FILE ... looks for."""


def add_to(commands: Commands[Parser]) -> None:
    parser = add_command(commands, "ranks", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="a folder of recordings, or recordings")
    add_shared(parser, "--conf")
    add_shared(parser, "-n", text="ranks to show, 0 for all (default: a screen)")
    add("-o", "--output", metavar="FILE", help="a page of all ranks to write, as an .html")
    smallest = "find the smallest device each rank goes through on, some ten replays"
    add("--smallest", action="store_true", help=smallest)
    add("--jobs", metavar="N", type=processes, help="processes (default: one a core)")
    add_shared(parser, "--dask")
    add_shared(parser, "--torch", text="PyTorch's release, {releases} (default: as recorded)")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.questions.ranks import ranks  # noqa: PLC0415
    from allocsim.report import ranks_document, ranks_text  # noqa: PLC0415

    if arguments.output is not None:
        refuse_output(arguments.output, arguments.files, (".html",))
    with ExitStack() as stack:
        bar = stack.enter_context(ProgressBar())
        executor = dask_executor(arguments.dask, stack) if arguments.dask else None
        found = ranks(
            arguments.files,
            conf=arguments.conf,
            torch_version=arguments.torch,
            smallest=arguments.smallest,
            jobs=arguments.jobs,
            executor=executor,
            watch=bar.stage("replaying"),
        )
    if arguments.output is not None:
        from allocsim.report.html import ranks_page  # noqa: PLC0415

        save_page(ranks_page(found), arguments.output)
    document, text = partial(ranks_document, found), partial(ranks_text, found, arguments.count)
    write_result(arguments.json, document, text)
    return 0
