"""What several commands ask for, said once: FILE, --conf, --device-memory, --torch, --device.

Rule: an option of one name means one thing in every command; only its help may say more.  Which
releases there are is asked of the model when a help text is printed, not before.
"""

from __future__ import annotations

import argparse

from allocsim.cli.usage import Parser, count, memory_size

__all__ = [
    "Commands",
    "add_command",
    "add_conf",
    "add_device",
    "add_device_memory",
    "add_fail_on_oom",
    "add_file",
    "add_json",
    "add_torch",
    "expanded",
]

Commands = argparse._SubParsersAction  # argparse has no public name for what add_subparsers returns


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
    commands: Commands[Parser], name: str, summary: str, description: str, **more: str
) -> Parser:
    """A command without options.  more: its epilog and usage."""
    return commands.add_parser(
        name,
        help=summary,
        description=description,
        formatter_class=_Help,
        allow_abbrev=False,
        **more,  # type: ignore[arg-type]
    )


def add_file(parser: Parser, *, many: bool = False) -> None:
    """FILE, or with many FILE ...: a recording."""
    text = "a snapshot: pickle, JSON or .npz, plain or gzip"
    if many:
        parser.add_argument("files", metavar="FILE", nargs="+", help=text)
    else:
        parser.add_argument("file", metavar="FILE", help=text)


def add_conf(
    parser: Parser, text: str = "PYTORCH_CUDA_ALLOC_CONF to replay under; '' for none"
) -> None:
    """--conf: an option string."""
    parser.add_argument("--conf", metavar="CONF", help=text)


def add_device_memory(
    parser: Parser, text: str = "memory of the device, as 24GiB (default: what the recording tells)"
) -> None:
    """--device-memory: bytes of a device."""
    parser.add_argument("--device-memory", metavar="SIZE", type=memory_size, help=text)


def add_torch(
    parser: Parser, text: str = "PyTorch's release, {releases} (default: likewise)"
) -> None:
    """--torch: the release to model."""
    parser.add_argument("--torch", metavar="VERSION", help=text)


def add_device(parser: Parser, text: str = "this device only (default: every one)") -> None:
    """--device: one of several."""
    parser.add_argument("--device", metavar="N", type=count, help=text)


def add_fail_on_oom(parser: Parser) -> None:
    """--fail-on-oom: exit code 3."""
    text = "exit 3 if the device runs out of memory"
    parser.add_argument("--fail-on-oom", action="store_true", help=text)


def add_json(parser: Parser, text: str = "print JSON instead of text") -> None:
    """--json: the document in place of the text."""
    parser.add_argument("--json", action="store_true", help=text)
