"""`allocsim ranks`: compare the memory of all ranks of a job, and name the rank that needs most."""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from allocsim.cli.options import Commands, add_command, add_shared, dask_executor, processes
from allocsim.cli.output import ProgressBar, refuse_output, save_page, write_report

_SUMMARY = "compare the ranks of a job, and find the rank that needs the most memory"
_DESCRIPTION = """\
Replays the recordings of all ranks of a job, from a folder or several files,
and compares them: reserved and allocated memory at their peaks, the difference,
retries, out-of-memory errors, and if ranks differ by their requests or by
fragmentation.  A file that cannot be read is named and skipped.  --smallest
finds the smallest device for the job, -o writes a page with the memory curve of
each rank.  allocsim tune FILE FILE ... finds one setting for all ranks."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "ranks", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="a folder of recordings, or a recording")
    add_shared(parser, "--conf")
    add_shared(parser, "-n", text="ranks to print, 0 for all (default: one screen)")
    add("-o", "--output", metavar="FILE", help="write a page of all ranks, .html")
    smallest = "find the smallest device on which each rank succeeds, with about ten replays"
    add("--smallest", action="store_true", help=smallest)
    add("--mixed", action="store_true", help="accept files that cannot be of one job")
    add("--jobs", metavar="N", type=processes, help="number of processes (default: one per core)")
    add_shared(parser, "--dask")
    add_shared(parser, "--torch", text="release of PyTorch, {releases} (default: as recorded)")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.ranks import ranks
    from allocsim.report import ranks as report

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
            mixed=arguments.mixed,
            jobs=arguments.jobs,
            executor=executor,
            watch=bar.stage("replaying"),
        )
    if arguments.output is not None:
        from allocsim.report.html import ranks_page

        save_page(ranks_page(found), arguments.output)
    write_report(arguments, report, found, count=arguments.count)
    return 0
