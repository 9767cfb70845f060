"""The arguments that several commands share: FILE, --conf, --device-memory, --torch and others.

Rule: an argument of one name means the same in every command; only its help text may differ.  The
supported releases are looked up when a help text is printed, not before.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from allocsim.cli.usage import Parser, change, count, fraction, memory_size

if TYPE_CHECKING:
    from allocsim.engine import Hints

__all__ = ["Commands", "HINTS", "add_command", "add_shared", "expanded", "hints_of"]

Commands = argparse._SubParsersAction  # argparse has no public name for what add_subparsers returns

_FILE = "a snapshot, a profiler trace, rows of requests (docs/formats.md)"
_SHARED: dict[str, dict[str, Any]] = {
    "file": {"metavar": "FILE", "help": _FILE},
    "files": {"metavar": "FILE", "nargs": "+", "help": _FILE},
    "--conf": {"metavar": "CONF", "help": "PYTORCH_CUDA_ALLOC_CONF to replay under; '' for none"},
    "--device-memory": {
        "metavar": "SIZE",
        "type": memory_size,
        "help": "memory of the device, as 24GiB (default: what the recording tells)",
    },
    "--host-spill": {
        "metavar": "SIZE",
        "type": memory_size,
        "default": 0,
        "help": "host memory that the driver lends once the card is full, as 32GiB (Windows)",
    },
    "--torch": {"metavar": "VERSION", "help": "PyTorch's release, {releases} (default: likewise)"},
    "--device": {"metavar": "N", "type": count, "help": "this device only (default: every one)"},
    "--try": {"metavar": "CONF", "action": "append", "dest": "confs"},
    "--memory-fraction": {
        "metavar": "F",
        "type": fraction,
        "help": "the program calls set_per_process_memory_fraction(F) at its start",
    },
    "--empty-cache": {
        "choices": ("never", "recorded"),
        "default": "recorded",
        "help": "whether releases may be calls of empty_cache (default: recorded)",
    },
    "--set": {
        "metavar": "ENTRY:CONF",
        "type": change,
        "action": "append",
        "dest": "settings",
        "help": "the program sets options before that entry; may be repeated",
    },
    "--dask": {
        "metavar": "tcp://HOST:PORT",
        "help": "a Dask scheduler, whose workers see the files",
    },
    "--by": {
        "choices": ("line", "stack", "module", "category", "stream", "pool"),
        "default": "line",
        "help": "what a row stands for (default: line)",
    },
    "-n": {
        "metavar": "N",
        "type": count,
        "dest": "count",
        "help": "rows to show, 0 for all (default: a screen)",
    },
    "--fail-on-oom": {"action": "store_true", "help": "exit 3 if the device runs out of memory"},
    "--verbose": {"action": "store_true", "help": "print all there is, not the first screen only"},
    "--json": {"action": "store_true", "help": "print JSON instead of text"},
}
"""What argparse is given for each shared argument."""

_SHORT = {"--verbose": ("-v",)}

HINTS = ("--memory-fraction", "--empty-cache", "--set")
"""What the program did and its recording does not say."""


def hints_of(arguments: argparse.Namespace) -> Hints | None:
    """What the HINTS options say; None if none is given."""
    from allocsim.engine import Hints  # noqa: PLC0415

    settings = tuple(arguments.settings or ())
    hints = Hints(arguments.memory_fraction, arguments.empty_cache, settings)
    return None if hints == Hints() else hints


def expanded(text: str) -> str:
    """A help text with the range of releases in place of `{releases}`."""
    if "{releases}" not in text:
        return text
    from allocsim.core import RELEASES  # noqa: PLC0415

    versions = list(RELEASES)
    return text.replace("{releases}", f"{versions[0]} to {versions[-1]}")


class _Help(argparse.RawDescriptionHelpFormatter):
    """The description as it is written, and help texts that are `expanded`."""

    def _expand_help(self, action: argparse.Action) -> str:
        return expanded(super()._expand_help(action))


def add_command(
    commands: Commands[Parser],
    name: str,
    summary: str,
    description: str,
    run: Callable[[argparse.Namespace], int],
    **more: str,
) -> Parser:
    """A command without arguments that calls `run`.  more: its epilog and usage."""
    about: dict[str, Any] = {"help": summary, "description": description, **more}
    parser = commands.add_parser(name, formatter_class=_Help, allow_abbrev=False, **about)
    parser.set_defaults(run=run)
    return parser


def add_shared(parser: Parser, *names: str, text: str | None = None) -> None:
    """Add shared arguments by name.  text: their help, if it is not the usual one."""
    for name in names:
        options = _SHARED[name] if text is None else {**_SHARED[name], "help": text}
        parser.add_argument(*_SHORT.get(name, ()), name, **options)
