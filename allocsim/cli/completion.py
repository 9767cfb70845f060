"""`allocsim --print-completion SHELL`: print a shell's completion script for commands and options.

Rule: the script is generated from the parser alone, by the optional package shtab.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from allocsim.cli.output import write
from allocsim.cli.usage import UsageError

__all__ = ["SHELLS", "PrintCompletion"]

SHELLS = ("bash", "zsh", "fish", "tcsh")
_FILES = ("FILE", "FILE|KIND", "TEXT|FILE|-")
"""Metavars of the arguments that take a file name."""


class PrintCompletion(argparse.Action):
    """Action of the option: print the completion script for a shell, and exit."""

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
