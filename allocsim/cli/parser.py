"""The command line of `allocsim`: its commands, their options, their help.

Each command is a module with two functions: `add_to` adds the command and its options to a parser,
`run` carries it out and returns the exit code.

Rule: building the parser imports no command's machinery; that happens when the command runs.
"""

from __future__ import annotations

from allocsim.cli import (
    crosscheck,
    explain,
    plot,
    record,
    replay,
    report,
    risk,
    step,
    synth,
    top,
    tune,
)
from allocsim.cli.usage import Parser

__all__ = ["VERSION", "build_parser"]

VERSION = "0.1.0"
"""As in pyproject.toml (a test compares them): reading the installed metadata takes 80 ms."""

_DESCRIPTION = (
    "A bit-exact model of PyTorch's CUDA caching allocator.  It replays a recorded memory "
    "history without a GPU: what happened, why it ran out of memory, what would help."
)
_EXIT_CODES = (
    "exit codes: 0 done; 1 a check asked for did not hold; 2 the input or an option is wrong; "
    "3 the simulated device ran out of memory and --fail-on-oom was given; 70 an error of "
    "allocsim itself (ALLOCSIM_DEBUG=1 adds the traceback)"
)


def build_parser() -> Parser:
    """The parser of the whole command line; each command sets `run`."""
    parser = Parser(
        prog="allocsim", description=_DESCRIPTION, epilog=_EXIT_CODES, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"allocsim {VERSION}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(run=lambda _: _print_help(parser))
    asked = (replay, crosscheck, record, explain, top, risk, tune, plot, report, step, synth)
    for command in asked:
        command.add_to(commands)
    return parser


def _print_help(parser: Parser) -> int:
    parser.print_help()
    return 0
