"""`allocsim lint`: what is wrong or notable with a recording, before anything is built on it.

Rule: what cannot be read exits 2 as everywhere; what can be read and is no good exits 1.
"""

from __future__ import annotations

import argparse

from allocsim.cli.options import Commands, add_command, add_shared
from allocsim.cli.output import write_result
from allocsim.cli.usage import Parser, UsageError

__all__ = ["add_to", "run"]

_SUMMARY = "say what is wrong with a recording or an option string"
_DESCRIPTION = """\
Says what FILE lacks or contradicts, and what that means for a replay: entries
that a full ring lost, a start in the middle of a run, frees without allocation,
overlaps, sums that do not add up, several processes in one file, clocks that
were set, options that are refused, ignored, unsafe or without effect, a release
whose workspaces are others.  With --conf alone, what a release makes of it."""
_EXAMPLE = """\
example: allocsim lint run.pickle --torch 2.15
         allocsim lint --conf PYTORCH_ALLOC_CONF=expandable_segments:True --torch 2.9

exit codes: 0 nothing but notes; 1 errors or warnings; 2 FILE cannot be read, or
an option is wrong"""
_FAILED = 1


def add_to(commands: Commands[Parser]) -> None:
    usage = "allocsim lint [FILE] [--conf CONF] [--torch VERSION] [--json]"
    parser = add_command(
        commands, "lint", _SUMMARY, _DESCRIPTION, run, epilog=_EXAMPLE, usage=usage
    )
    about = "a snapshot: pickle, JSON or .npz, plain or gzip; none to look at --conf alone"
    parser.add_argument("file", metavar="FILE", nargs="?", help=about)
    asked = "an option string to look at too, or what a shell would set, as PYTORCH_ALLOC_CONF=…"
    add_shared(parser, "--conf", text=asked)
    release = "PyTorch's release that is to replay it and to read --conf, {releases}"
    add_shared(parser, "--torch", text=f"{release} (default: likewise)")
    add_shared(parser, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.questions.lint import lint, lint_conf  # noqa: PLC0415
    from allocsim.report import lint_document, lint_text  # noqa: PLC0415
    from allocsim.trace import load  # noqa: PLC0415

    if arguments.file is not None:
        found = lint(load(arguments.file), arguments.conf, torch_version=arguments.torch)
    elif arguments.conf is not None:
        found = lint_conf(arguments.conf, arguments.torch)
    else:
        raise UsageError(
            "nothing to look at; expected FILE, or --conf CONF (see allocsim lint --help)"
        )
    write_result(arguments.json, lint_document, lint_text, found)
    return 0 if found.passed else _FAILED
