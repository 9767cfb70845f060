"""`allocsim stats`: summarize a recording in ten lines, without a replay."""

from __future__ import annotations

import argparse

from allocsim.cli.options import Commands, add_command, add_shared
from allocsim.cli.output import write_report

_SUMMARY = "summarize a file in ten lines"
_DESCRIPTION = """\
Prints the format, size and digest of FILE, its writer and settings, and for
each device the entries by action, their time span, if they begin at an empty
device, the peaks, the memory in use at the end, and the number of stacks.
Nothing is replayed; allocsim lint reports problems of a file."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "stats", _SUMMARY, _DESCRIPTION, run)
    add_shared(parser, "file", "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.stats import stats
    from allocsim.recording import load
    from allocsim.report import stats as report

    write_report(arguments, report, stats(load(arguments.file)))
    return 0
