"""Entry point and parser of the command `allocsim`.

Exit codes of every command:

    0    success
    1    a requested check failed
    2    the input or an option is wrong, or the output cannot be written (a closed standard output
         included): one sentence on standard error and nothing more on standard output
    3    the simulated device ran out of memory, and --fail-on-oom was given
    70   an error of allocsim itself; ALLOCSIM_DEBUG=1 adds the traceback
    130  interrupted
    141  the reader of standard output closed the pipe

Each command is a module with two functions: `add_to` adds the command and its options to a parser,
and `run` carries it out and returns the exit code.  Only `run` imports the modules that a running
command needs, so that --help answers at once.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from allocsim import __version__
from allocsim.cli.options import Parser, UsageError, one_line
from allocsim.cli.output import discard_output, say, standard_streams, write
from allocsim.errors import AllocsimError, InvariantError, OutOfMemoryError

__all__ = ["main"]

_BAD_INPUT, _OUR_FAULT, _INTERRUPTED, _NO_READER = 2, 70, 130, 141
_COLLECT_EVERY = 200_000
"""Number of new objects after which Python's cycle collector runs; much more than its default.

Almost no object is part of a cycle, and the data read from a recording is kept to the end
(benchmarks/results/speed.md).
"""
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)
"""Errors of an output that cannot be written: a full disk, or a descriptor not open for writing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code."""
    _skip_cycle_search_at_exit()
    threshold = gc.get_threshold()
    gc.set_threshold(_COLLECT_EVERY, *threshold[1:])
    try:
        with standard_streams():
            return _run(argv)
    finally:
        gc.set_threshold(*threshold)


def _skip_cycle_search_at_exit() -> None:
    """Keep the interpreter from searching all objects for reference cycles at its exit (50 ms)."""
    atexit.unregister(gc.freeze)  # registered by an earlier call
    atexit.register(gc.freeze)


def _run(argv: Sequence[str] | None) -> int:
    try:
        words = sys.argv[1:] if argv is None else argv
        arguments = build_parser(*words[:1]).parse_args(words)
        if arguments.__dict__.get("needs_numpy", True):
            import_numpy()
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except SystemExit as stop:  # raised by --help and --version
        code = stop.code if isinstance(stop.code, int) else 0
    except BrokenPipeError:
        discard_output()
        code = _NO_READER
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            discard_output()
        code, sentence = _ending(error)
        say(f"allocsim: {one_line(sentence)}\n")
    return code


def import_numpy() -> None:
    """Import numpy without starting the threads of its linear algebra, which takes 0.1 s."""
    if _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[_BLAS_THREADS]


def _ending(error: BaseException) -> tuple[int, str]:
    """Return the exit code for the error that ended a command, and the sentence to print."""
    is_ours = isinstance(error, InvariantError | OutOfMemoryError)
    if isinstance(error, UsageError | AllocsimError) and not is_ours:
        return _BAD_INPUT, str(error)
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return _BAD_INPUT, f"the output cannot be written ({error.strerror})"
    if isinstance(error, MemoryError):
        return _BAD_INPUT, "this machine has too little memory for this recording"
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, "interrupted"
    if os.environ.get("ALLOCSIM_DEBUG"):
        import traceback

        say("".join(traceback.format_exception(error)))
    what = str(error) if isinstance(error, InvariantError) else f"{type(error).__name__}: {error}"
    return _OUR_FAULT, (
        f"an error of allocsim itself, please report it ({what}); "
        "ALLOCSIM_DEBUG=1 shows where it happened"
    )


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
"""Placeholders (argparse's metavars) of the arguments that take a file name."""


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=16)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            # argparse does not count the indent of the names, and would break the longest line.
            self._action_max_length += self._indent_increment


class _PrintVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from allocsim.core import IS_COMPILED

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
            import shtab
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
    # argparse has no public name for a parser's actions.
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def build_parser(word: str | None = None) -> Parser:
    """Return the parser of all commands, or of `word` alone if it is the name of a command."""
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
