"""Parser of the command line: commands, options and help.

Each command is a module with two functions: `add_to` adds the command and its options to a parser,
and `run` carries it out and returns the exit code.

Rule: building the parser imports no code that only a running command needs. If the first word is
the name of a command, only the parser of that command is built, because building the parsers of all
commands takes longer than loading a small recording.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from allocsim import __version__
from allocsim.cli.output import write
from allocsim.cli.usage import Parser, UsageError

_DESCRIPTION = (
    "A bit-exact model of PyTorch's CUDA caching allocator.  It replays a recorded memory "
    "history without a GPU, and reports what happened, why memory ran out and what would help."
)
_EXIT_CODES = (
    "exit codes: 0 success; 1 a requested check failed; 2 the input or an option is wrong; "
    "3 the simulated device ran out of memory and --fail-on-oom was given; 70 an error of "
    "allocsim itself (ALLOCSIM_DEBUG=1 adds the traceback)"
)


_COMMANDS = (
    *("replay", "explain", "top", "compare", "gate", "ranks", "tune", "risk", "fit", "scale"),
    *("report", "plot", "step", "record", "lint", "stats", "watch", "convert", "synth"),
    *("colocate", "crosscheck"),
)
"""Names of the commands, most needed first; each is a module of this package."""
_SHELLS = ("bash", "zsh", "fish", "tcsh")
_FILES = ("FILE", "FILE|KIND", "TEXT|FILE|-")
"""Metavars of the arguments that take a file name."""


class _Help(argparse.HelpFormatter):
    """Help formatter whose column of command names is as wide as the longest name."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=16)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            # argparse does not count the indent of the names, and would break the longest line.
            self._action_max_length += self._indent_increment


class _PrintVersion(argparse.Action):
    """Action of --version: print the version, and if the core is compiled."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from allocsim.core import IS_COMPILED  # noqa: PLC0415

        form = "compiled" if IS_COMPILED else "pure Python"
        write(f"allocsim {__version__} ({form} core)\n")
        parser.exit()


class _PrintCompletion(argparse.Action):
    """Action of --print-completion: print the script that shtab makes from the parser, and exit."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        _namespace: argparse.Namespace,
        values: Any,
        _option_string: str | None = None,
    ) -> None:
        try:
            import shtab  # noqa: PLC0415
        except ImportError:
            raise UsageError(
                "--print-completion needs the package shtab: pip install 'allocsim[completion]'"
            ) from None
        for action in _actions(parser):
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        write(shtab.complete(parser, values))
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield every argument and option of a parser and of its subcommands."""
    # argparse has no public name for a parser's actions.
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def build_parser(word: str | None = None) -> Parser:
    """Return the parser of the whole command line.

    The parser of a command sets `arguments.run` to the function that carries it out.

    word: first word of the command line; if it names a command, only that command is added.
    """
    parser = Parser(
        prog="allocsim",
        description=_DESCRIPTION,
        epilog=_EXIT_CODES,
        allow_abbrev=False,
        formatter_class=_Help,
    )
    parser.add_argument(
        "--version",
        action=_PrintVersion,
        nargs=0,
        default=argparse.SUPPRESS,
        help="show program's version number and exit",
    )
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=_SHELLS,
        default=argparse.SUPPRESS,  # commands do not get this argument
        metavar="SHELL",
        help="print a completion script for this shell (needs shtab)",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(run=lambda _: _print_help(parser))
    for name in (word,) if word in _COMMANDS else _COMMANDS:
        import_module(f"allocsim.cli.{name}").add_to(commands)
    return parser


def _print_help(parser: Parser) -> int:
    parser.print_help()
    return 0
