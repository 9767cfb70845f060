"""`allocsim lint`: report what is wrong or notable with a recording before it is used."""

from __future__ import annotations

import argparse
from pathlib import Path

from allocsim.cli.options import Commands, UsageError, add_command, add_shared, is_conf
from allocsim.cli.output import write_report

_SUMMARY = "report problems of a recording or an option string"
_DESCRIPTION = """\
Reports what is missing or contradictory in FILE, and what that means for a
replay: entries lost by a full ring buffer, a start in the middle of a run,
frees without an allocation, overlapping blocks, wrong sums, several processes
in one file, clocks that were changed, options that are refused, ignored, unsafe
or without effect, and a release with other workspaces.  With --conf alone, it
reports how a release of PyTorch reads CONF."""
_EXAMPLE = """\
example: allocsim lint run.pickle --torch 2.15
         allocsim lint --conf PYTORCH_ALLOC_CONF=expandable_segments:True --torch 2.9

exit codes: 0 only notes; 1 errors or warnings; 2 FILE cannot be read, or an
option is wrong"""
_FAILED = 1


def add_to(commands: Commands) -> None:
    usage = "allocsim lint [FILE] [--conf CONF] [--torch VERSION] [--json]"
    parser = add_command(
        commands, "lint", _SUMMARY, _DESCRIPTION, run, epilog=_EXAMPLE, usage=usage
    )
    about = "a recording; leave it out to check --conf alone"
    parser.add_argument("file", metavar="FILE", nargs="?", help=about)
    asked = "an option string to check too, or a shell assignment, e.g. PYTORCH_ALLOC_CONF=…"
    add_shared(parser, "--conf", text=asked)
    release = "release of PyTorch for FILE and --conf, {releases}"
    add_shared(parser, "--torch", text=f"{release} (default: detected from the recording)")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.lint import lint, lint_conf
    from allocsim.recording import load
    from allocsim.report import lint as report

    if arguments.file is not None:
        if is_conf(arguments.file) and not Path(arguments.file).exists():
            raise UsageError(f"{arguments.file} is no file; did you mean --conf {arguments.file}?")
        found = lint(load(arguments.file), arguments.conf, torch_version=arguments.torch)
    elif arguments.conf is not None:
        found = lint_conf(arguments.conf, arguments.torch)
    else:
        raise UsageError(
            "nothing to check; expected FILE, or --conf CONF (see allocsim lint --help)"
        )
    write_report(arguments, report, found)
    return 0 if found.passed else _FAILED
