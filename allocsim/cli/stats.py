"""`allocsim stats`: a file in ten lines.

Rule: it reads the file and replays nothing, so that it answers for any file that can be read.
"""

from __future__ import annotations

import argparse

from allocsim.cli.options import Commands, add_command, add_shared
from allocsim.cli.output import write_result
from allocsim.cli.usage import Parser

__all__ = ["add_to", "run"]

_SUMMARY = "say what is in a file, in ten lines"
_DESCRIPTION = """\
Tells of FILE its form, size and digest, who wrote it and under which settings,
and of each device its entries by action, the time they span, whether they begin
at an empty device, the peaks, what was live at the end, and how many stacks
there are.  Nothing is replayed; allocsim lint says what is wrong with a file."""


def add_to(commands: Commands[Parser]) -> None:
    parser = add_command(commands, "stats", _SUMMARY, _DESCRIPTION, run)
    add_shared(parser, "file", "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.questions.stats import stats  # noqa: PLC0415
    from allocsim.report import stats_document, stats_text  # noqa: PLC0415
    from allocsim.trace import load  # noqa: PLC0415

    write_result(arguments.json, stats_document, stats_text, stats(load(arguments.file)))
    return 0
