"""Parser of the command line, types of option values, and arguments that several commands share.

An argument has the same meaning in every command; only its help text may differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from allocsim.units import parse_size

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from contextlib import ExitStack

    from allocsim.editing import EditedDevice
    from allocsim.replaying import Prepared
    from allocsim.simulation import Hints


OUT_OF_MEMORY = 3
"""Exit code if the simulated device ran out of memory, or a model does not fit."""
_LARGEST_DEVICE = 1 << 60
_MOST_DIGITS = 9
_LEAST_DEVICE = 1024
_MOMENTS = ("peak", "oom", "end")
_LONGEST_SENTENCE = 1000
_MOST_PROCESSES = 1024
_MOST_SHARE = 100.0
_LONGEST_WAIT = 86_400.0


class UsageError(Exception):
    """Invalid command line: the error message is printed, and the exit code is 2."""


class Parser(argparse.ArgumentParser):
    """Argument parser that raises UsageError instead of exiting, and suggests similar options.

    with_dashes: options whose value may begin with a dash.
    """

    suggest_on_error = False
    with_dashes: frozenset[str] = frozenset()
    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but report unknown arguments under the command's name."""
        self._given = sys.argv[1:] if args is None else args
        known, unknown = super().parse_known_args(self._joined(self._given), namespace)
        if hasattr(known, "has_separator"):  # set by a command that uses it
            known.has_separator = "--" in self._given
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def _joined(self, words: Sequence[str]) -> list[str]:
        # argparse takes a word that begins with a dash for an option, unless it follows a "=".
        joined: list[str] = []
        for word in words:
            if joined and joined[-1] in self.with_dashes and "--" not in joined:
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        return joined

    def error(self, message: str) -> NoReturn:
        # argparse calls this with a sentence about the first wrong argument.
        raise UsageError(f"{message}{self._meant(message)} (see {self.prog} --help)")

    def _meant(self, message: str) -> str:
        options = [option for option in self._option_string_actions if option.startswith("--")]
        for word in takewhile(lambda word: word != "--", self._given):
            name = word.partition("=")[0]
            if name.startswith("--") and name not in options:
                of_what = "" if name in message else f"; {name} is not an option"
                near = _suggestion(name, options)
                return f"{of_what}{near}" if near else ""
            if "--conf" in options and is_conf(word) and word in message:
                return f"; did you mean --conf {word}?"
        return ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            near = _suggestion(str(value), [str(choice) for choice in action.choices or ()])
            raise argparse.ArgumentError(action, f"{error.message}{near}") from None


if TYPE_CHECKING:  # argparse has no public name for it, and the class is not generic when it runs
    Commands = argparse._SubParsersAction[Parser]
else:
    Commands = argparse._SubParsersAction


def is_conf(word: str) -> bool:
    """Return True if `word` begins with an option and its value, such as "backend:native"."""
    from allocsim.core import OPTIONS

    name, colon, _ = word.partition(":")
    return bool(colon) and name in OPTIONS


def _suggestion(word: str, words: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, words, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def memory_size(text: str) -> int:
    """Parse a size in bytes: "24GiB", "5600 MiB", "512"."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < size <= _LARGEST_DEVICE:
        raise argparse.ArgumentTypeError(
            f"size {text[:80]!r} is out of range; expected 1 to 2**60 bytes"
        )
    return size


def device_size(text: str) -> int:
    """Parse the memory of a device; refuse a small number that lacks its unit."""
    size = memory_size(text)
    if text.strip().isdigit() and size < _LEAST_DEVICE:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is {size} bytes; did you mean {size}GiB?")
    return size


def count(text: str) -> int:
    """Parse a whole number from 0 to 999,999,999."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a whole number, 0 or more")
    if len(text.lstrip("0")) > _MOST_DIGITS:
        most = 10**_MOST_DIGITS - 1
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is too large; expected 0 to {most:,}")
    return int(text)


def positive(text: str) -> int:
    found = count(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is too small; expected 1 or more")
    return found


def moment(text: str) -> str | int:
    """Parse a moment of a recording: "peak", "oom", "end", or the index of a history entry."""
    if text in _MOMENTS:
        return text
    if text.isascii() and text.isdecimal():
        return int(text)
    raise argparse.ArgumentTypeError(
        f"{text[:80]!r} is not a moment; expected peak, oom, end or the number of an entry"
    )


def fraction(text: str) -> float:
    """Parse a share from 0 to 1, e.g. "0.9" or "90%"."""
    found = _share(text)
    if not 0.0 <= found <= 1.0:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a fraction; expected 0 to 1")
    return found


def share(text: str) -> float:
    """Parse a share of 0 or more: "1%", "0.01", "150%"."""
    found = _share(text)
    if not 0.0 <= found <= _MOST_SHARE:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a share; expected e.g. 1% or 0.01")
    return found


def seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 < found <= _LONGEST_WAIT:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not a time; expected seconds above 0")
    return found


def _share(text: str) -> float:
    digits = text.removesuffix("%")
    try:
        # "1%" must equal 0.01 exactly, which a division by 100 would not give.
        return float(f"{digits}e-2") if digits != text else float(text)
    except ValueError:
        return -1.0  # below the range of every option, so that each refuses it


def change(text: str) -> tuple[int, str]:
    """Parse "ENTRY:CONF", e.g. "1200:max_split_size_mb:64"; return (index of the entry, conf)."""
    entry, colon, conf = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not ENTRY:CONF")
    return count(entry), conf


def processes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST_PROCESSES):
        what = f"{text[:80]!r} is not a number of processes; expected 1 to {_MOST_PROCESSES}"
        raise argparse.ArgumentTypeError(what)
    return int(text)


def is_there(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # a name that is too long, or contains NUL
        return False


def one_line(text: str) -> str:
    """Return `text` for a message: one line, shortened, with control characters escaped."""
    if len(text) > _LONGEST_SENTENCE:
        text = f"{text[:_LONGEST_SENTENCE]}..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))


_FILE = "a snapshot, a profiler trace or rows of requests (docs/reference/formats.md)"
_SHARED: dict[str, dict[str, Any]] = {
    "file": {"metavar": "FILE", "help": _FILE},
    "files": {"metavar": "FILE", "nargs": "+", "help": _FILE},
    "--conf": {"metavar": "CONF", "help": "PYTORCH_CUDA_ALLOC_CONF of the replay; '' for none"},
    "--device-memory": {"metavar": "SIZE", "type": device_size,
        "help": "memory of the device, e.g. 24GiB (default: as recorded)"},
    "--host-spill": {"metavar": "SIZE", "type": memory_size, "default": 0,
        "help": "host memory that the driver uses when the card is full, e.g. 32GiB (Windows)"},
    "--torch": {"metavar": "VERSION",
        "help": "release of PyTorch, {releases} (default: detected from the recording)"},
    "--device": {"metavar": "N", "type": count, "help": "use only this device (default: all)"},
    "--try": {"metavar": "CONF", "action": "append", "dest": "confs"},
    "--memory-fraction": {"metavar": "F", "type": fraction,
        "help": "replay as if the program had called set_per_process_memory_fraction(F) first"},
    "--empty-cache": {"choices": ("never", "recorded"), "default": "recorded",
        "help": "recorded: released segments may come from empty_cache; never: none do "
        "(default: recorded)"},
    "--set": {"metavar": "ENTRY:CONF", "type": change, "action": "append", "dest": "settings",
        "help": "replay as if the program had set options before that entry; may be repeated"},
    "--edit": {"metavar": "EDIT", "action": "append", "dest": "edits",
        "help": "replay an edited program, e.g. 'empty-cache after step 2', 'largest step first' "
        "(docs/commands/replay.md); may be repeated"},
    "--dask": {"metavar": "tcp://HOST:PORT",
        "help": "a Dask scheduler whose workers can read the files"},
    "--by": {"choices": ("line", "stack", "module", "category", "stream", "pool"),
        "default": "line", "help": "meaning of a row (default: line)"},
    "-n": {"metavar": "N", "type": count, "dest": "count",
        "help": "rows to print, 0 for all (default: one screen)"},
    "--fail-on-oom": {"action": "store_true", "help": "exit 3 if the device runs out of memory"},
    "--verbose": {"action": "store_true",
        "help": "print the full answer, not only the first screen"},
    "--json": {"action": "store_true", "help": "print JSON instead of text"},
}  # fmt: skip
"""Keyword arguments of argparse's `add_argument` for each argument that commands share."""

_SHORT = {"--verbose": ("-v",)}

HINTS = ("--memory-fraction", "--empty-cache", "--set")
"""Options that state facts about the recorded program which its recording does not show."""


def hints_of(arguments: argparse.Namespace) -> Hints | None:
    """Return the facts about the recorded run that options such as --empty-cache give, or None."""
    from allocsim.simulation import Hints

    settings = tuple(arguments.settings or ())
    hints = Hints(arguments.memory_fraction, arguments.empty_cache, settings)
    return None if hints == Hints() else hints


def edited_by(
    arguments: argparse.Namespace, devices: Sequence[Prepared]
) -> tuple[EditedDevice, ...]:
    """Return every device with the edits of --edit applied; an empty tuple without --edit."""
    if not arguments.edits:
        return ()
    from allocsim.editing import edit_devices

    return edit_devices(devices, arguments.edits)


def expanded(text: str) -> str:
    """Return a help text with `{releases}` replaced by the supported releases of PyTorch."""
    if "{releases}" not in text:
        return text
    from allocsim.core import RELEASES

    versions = list(RELEASES)
    return text.replace("{releases}", f"{versions[0]} to {versions[-1]}")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help formatter that keeps the line breaks of the description and fills in the releases."""

    def _expand_help(self, action: argparse.Action) -> str:
        return expanded(super()._expand_help(action))


def add_command(
    commands: Commands,
    name: str,
    summary: str,
    description: str,
    run: Callable[[argparse.Namespace], int],
    **more: str,
) -> Parser:
    """Add a command that calls `run`, and return its parser, which has no arguments yet.

    summary, description: help texts of one line and of the command's own --help.
    more: further keyword arguments of argparse's `add_parser`.
    """
    about: dict[str, Any] = {"help": summary, "description": description, **more}
    parser = commands.add_parser(name, formatter_class=_Help, allow_abbrev=False, **about)
    parser.set_defaults(run=run)
    return parser


def add_shared(parser: Parser, *names: str, text: str | None = None) -> None:
    """Add the shared arguments `names`, e.g. "--conf"; `text` replaces their help text."""
    for name in names:
        options = _SHARED[name] if text is None else {**_SHARED[name], "help": text}
        parser.add_argument(*_SHORT.get(name, ()), name, **options)


def dask_executor(address: str, stack: ExitStack) -> Executor:
    """Return an executor that runs calls on the workers of the Dask scheduler at `address`.

    stack: context that closes the connection at its end.
    """
    from importlib import import_module

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
