"""Arguments that several commands share: FILE, --conf, --device-memory, --torch and others.

Rule: an argument has the same meaning in every command; only its help text may differ. The
supported releases are imported only when a help text is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from allocsim.cli.usage import Parser, UsageError, change, count, device_size, fraction, memory_size

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import ExitStack

    from allocsim.editing import EditedDevice
    from allocsim.replaying import Prepared
    from allocsim.simulation import Hints

Commands = argparse._SubParsersAction  # argparse has no public name for it

_FILE = "a snapshot, a profiler trace or rows of requests (docs/reference/formats.md)"
_SHARED: dict[str, dict[str, Any]] = {
    "file": {"metavar": "FILE", "help": _FILE},
    "files": {"metavar": "FILE", "nargs": "+", "help": _FILE},
    "--conf": {"metavar": "CONF", "help": "PYTORCH_CUDA_ALLOC_CONF of the replay; '' for none"},
    "--device-memory": {
        "metavar": "SIZE",
        "type": device_size,
        "help": "memory of the device, e.g. 24GiB (default: as recorded)",
    },
    "--host-spill": {
        "metavar": "SIZE",
        "type": memory_size,
        "default": 0,
        "help": "host memory that the driver uses when the card is full, e.g. 32GiB (Windows)",
    },
    "--torch": {
        "metavar": "VERSION",
        "help": "release of PyTorch, {releases} (default: detected from the recording)",
    },
    "--device": {"metavar": "N", "type": count, "help": "use only this device (default: all)"},
    "--try": {"metavar": "CONF", "action": "append", "dest": "confs"},
    "--memory-fraction": {
        "metavar": "F",
        "type": fraction,
        "help": "replay as if the program had called set_per_process_memory_fraction(F) first",
    },
    "--empty-cache": {
        "choices": ("never", "recorded"),
        "default": "recorded",
        "help": "recorded: released segments may come from empty_cache; never: none do "
        "(default: recorded)",
    },
    "--set": {
        "metavar": "ENTRY:CONF",
        "type": change,
        "action": "append",
        "dest": "settings",
        "help": "replay as if the program had set options before that entry; may be repeated",
    },
    "--edit": {
        "metavar": "EDIT",
        "action": "append",
        "dest": "edits",
        "help": "replay an edited program, e.g. 'empty-cache after step 2', 'largest step first' "
        "(docs/commands/replay.md); may be repeated",
    },
    "--dask": {
        "metavar": "tcp://HOST:PORT",
        "help": "a Dask scheduler whose workers can read the files",
    },
    "--by": {
        "choices": ("line", "stack", "module", "category", "stream", "pool"),
        "default": "line",
        "help": "meaning of a row (default: line)",
    },
    "-n": {
        "metavar": "N",
        "type": count,
        "dest": "count",
        "help": "rows to print, 0 for all (default: one screen)",
    },
    "--fail-on-oom": {"action": "store_true", "help": "exit 3 if the device runs out of memory"},
    "--verbose": {
        "action": "store_true",
        "help": "print the full answer, not only the first screen",
    },
    "--json": {"action": "store_true", "help": "print JSON instead of text"},
}
"""Arguments of `add_argument` for each shared argument."""

_SHORT = {"--verbose": ("-v",)}

HINTS = ("--memory-fraction", "--empty-cache", "--set")
"""Options that state what the program did and its recording does not show."""


def hints_of(arguments: argparse.Namespace) -> Hints | None:
    """Return the facts about the recorded run that the user gave by options; None without any."""
    from allocsim.simulation import Hints  # noqa: PLC0415

    settings = tuple(arguments.settings or ())
    hints = Hints(arguments.memory_fraction, arguments.empty_cache, settings)
    return None if hints == Hints() else hints


def edited_by(
    arguments: argparse.Namespace, devices: Sequence[Prepared]
) -> tuple[EditedDevice, ...]:
    """Return the devices with the edits that the user gave by --edit; empty without any."""
    if not arguments.edits:
        return ()
    from allocsim.editing import edit_devices  # noqa: PLC0415

    return edit_devices(devices, arguments.edits)


def expanded(text: str) -> str:
    """Return a help text with `{releases}` replaced by the supported releases of PyTorch."""
    if "{releases}" not in text:
        return text
    from allocsim.core import RELEASES  # noqa: PLC0415

    versions = list(RELEASES)
    return text.replace("{releases}", f"{versions[0]} to {versions[-1]}")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help formatter that keeps the line breaks of the description and fills in the releases."""

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
    """Add a command that calls `run`, and return its parser, which has no arguments yet.

    more: epilog and usage of the help text.
    """
    about: dict[str, Any] = {"help": summary, "description": description, **more}
    parser = commands.add_parser(name, formatter_class=_Help, allow_abbrev=False, **about)
    parser.set_defaults(run=run)
    return parser


def add_shared(parser: Parser, *names: str, text: str | None = None) -> None:
    """Add the arguments called `names`, e.g. "FILE" or "--conf".

    text: help text of these arguments; None for their usual help text.
    """
    for name in names:
        options = _SHARED[name] if text is None else {**_SHARED[name], "help": text}
        parser.add_argument(*_SHORT.get(name, ()), name, **options)


def dask_executor(address: str, stack: ExitStack) -> Executor:
    """Return an executor that runs calls on the workers of the Dask scheduler at `address`.

    The connection is closed with `stack`. Raises UsageError if Dask is not installed, or no
    scheduler answers.
    """
    from importlib import import_module  # noqa: PLC0415

    try:
        distributed = import_module("distributed")
    except ImportError:
        raise UsageError("--dask needs Dask: pip install 'allocsim[dask]'") from None
    try:
        client = stack.enter_context(distributed.Client(address, timeout="10s"))
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(f"no Dask scheduler answers at {address} ({error})") from None
    executor: Executor = client.get_executor()
    return executor
