"""`allocsim compare`: report the differences in memory between two runs, and their causes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from allocsim.cli.options import Commands, UsageError, add_command, add_shared, moment
from allocsim.cli.output import ProgressBar, refuse_output, save_page, write_report

if TYPE_CHECKING:
    from allocsim.analysis.compare import Comparison

_SUMMARY = "compare the memory of two runs, and name the code that differs"
_DESCRIPTION = """\
Compares recording B with recording A: the peak of reserved memory, its parts
(requested, rounding, and the reserved memory beyond both), and the lines,
modules or categories that hold more or less.  The rows add up to the difference
of allocated memory, to the byte.
With one FILE and --conf, it compares the recorded run with a replay under that
setting; with --conf twice, two settings.  -o writes a page or a figure."""
_TWO = 2


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "compare", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="two recordings, or one recording and --conf")
    conf = "PYTORCH_CUDA_ALLOC_CONF to compare FILE under; may be given twice"
    add("--conf", metavar="CONF", action="append", dest="confs", help=conf)
    at = (
        "moment to compare: peak of allocated memory (default), oom (the last "
        "out-of-memory error), end, or the number of an entry (the moment after it)"
    )
    add("--at", metavar="MOMENT", type=moment, help=at)
    out = "write a page (.html) or a figure (.png, .svg)"
    add("-o", "--output", metavar="FILE", help=out)
    add_shared(parser, "--by")
    add_shared(parser, "-n")
    add_shared(parser, "--torch", text="release of PyTorch, {releases} (default: as recorded)")
    add_shared(parser, "--device", text="device to compare, if several are recorded")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.report import compare as report

    output = arguments.output
    if output is not None:
        refuse_output(output, arguments.files, (".html", ".png", ".svg"))
        if not output.endswith(".html"):
            from allocsim.report.figures import require_matplotlib

            require_matplotlib()
    found = _compared(arguments)
    if output is not None:
        _save(found, output)
    write_report(arguments, report, found, count=arguments.count)
    return 0


def _save(found: Comparison, output: str) -> None:
    if output.endswith(".html"):
        from allocsim.report.html import compare_page

        save_page(compare_page(found), output)
        return
    from allocsim.report.figures import changes_figure, save_figure

    save_figure(changes_figure(found), output)


def _compared(arguments: argparse.Namespace) -> Comparison:
    from allocsim.analysis.compare import compare, compare_settings
    from allocsim.recording import load

    files, confs = arguments.files, arguments.confs or []
    if len(files) > _TWO:
        raise UsageError(f"{len(files)} recordings were given; expected two, or one with --conf")
    if len(files) == _TWO and confs:
        raise UsageError("--conf compares one recording under two settings; name one FILE")
    if len(files) == 1 and not 1 <= len(confs) <= _TWO:
        what = "given three times" if confs else "missing"
        raise UsageError(f"--conf is {what}; expected it once or twice with one FILE, or two FILEs")
    with ProgressBar() as bar:
        more = {
            "at": arguments.at,
            "by": arguments.by,
            "device": arguments.device,
            "torch_version": arguments.torch,
            "progress": bar.stage("replaying"),
        }
        if confs:
            first, second = [None, *confs][-_TWO:]
            return compare_settings(load(files[0]), (first, second), **more)
        return compare(load(files[0]), load(files[1]), **more)
