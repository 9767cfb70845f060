"""`allocsim report`: a recording as one HTML page to look into.

Rule: the file is written once, whole, when everything in it is known.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.options import (
    Commands,
    add_command,
    add_conf,
    add_device,
    add_device_memory,
    add_file,
    add_torch,
)
from allocsim.cli.output import refuse_input
from allocsim.cli.progress import ProgressBar
from allocsim.cli.usage import Parser, UsageError

if TYPE_CHECKING:
    from allocsim.engine import Trials, Watch
    from allocsim.questions.explain import Shortage
    from allocsim.questions.picture import Picture, WhatIf

__all__ = ["add_to", "run"]

_SUMMARY = "write a recording as one HTML page: timeline, address map, errors"
_DESCRIPTION = """\
Replays FILE, a recording of torch.cuda.memory._record_memory_history(), and
writes one HTML file that opens without a network: memory over the run, the map
of addresses linked to it, every block with its size, lifetime and stack, the
state after any entry, what stood in the way of each request that failed, and
the run under other settings."""
_WHAT_IF_UP_TO = 100_000
"""Entries up to which other settings are replayed unasked."""


def add_to(commands: Commands[Parser]) -> None:
    """Add the command and its options."""
    parser = add_command(commands, "report", _SUMMARY, _DESCRIPTION)
    add = parser.add_argument
    add_file(parser)
    add("-o", "--output", metavar="FILE", required=True, help="the HTML file to write")
    add_conf(parser)
    add_device_memory(parser)
    add_torch(parser)
    add_device(parser, "this device (default: the first with entries)")
    add(
        "--what-if",
        action=argparse.BooleanOptionalAction,
        help=f"replay other settings too (default: up to {_WHAT_IF_UP_TO:,} entries)",
    )
    add(
        "--try",
        metavar="CONF",
        action="append",
        default=[],
        dest="tries",
        help="replay this setting beside it, and no others; may be repeated",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry the command out; returns its exit code."""
    from allocsim.engine import Setting, Trials  # noqa: PLC0415
    from allocsim.measures import effects_on  # noqa: PLC0415
    from allocsim.questions.explain import OomWatch, shortages_of  # noqa: PLC0415
    from allocsim.questions.picture import picture_prepared, prepare_one  # noqa: PLC0415
    from allocsim.trace import load  # noqa: PLC0415

    if Path(arguments.output).is_dir():
        raise UsageError(f"{arguments.output} is a directory; expected the name of a file")
    refuse_input(arguments.output, arguments.file)
    watch = OomWatch()
    with ProgressBar() as bar:
        prepared = prepare_one(load(arguments.file), arguments.device, arguments.torch)
        picture = picture_prepared(
            prepared,
            None if arguments.conf is None else Setting(arguments.conf),
            device_memory=arguments.device_memory,
            observers=(watch,),
            progress=bar.stage("replaying"),
        )
        shortages = shortages_of(picture.device_run, picture.trace, watch)
        page = _page(
            arguments, picture, shortages, Trials(prepared, _watch(bar), effects_on(prepared))
        )
    try:
        Path(arguments.output).write_text(page, encoding="utf-8")
    except OSError as error:
        what = f"{arguments.output} cannot be written ({error.strerror})"
        raise UsageError(what) from None
    return 0


def _watch(bar: ProgressBar) -> Watch:
    return lambda conf: bar.stage(f"trying {conf[:32] or 'the defaults'} (--no-what-if skips)")


def _page(
    arguments: argparse.Namespace,
    picture: Picture,
    shortages: tuple[Shortage, ...],
    trials: Trials,
) -> str:
    from allocsim.engine import Setting  # noqa: PLC0415
    from allocsim.questions.explain import explain_device  # noqa: PLC0415
    from allocsim.questions.picture import what_if  # noqa: PLC0415
    from allocsim.report.html import html_report  # noqa: PLC0415

    wants = arguments.what_if
    if wants is None:
        wants = picture.device_run.entries <= _WHAT_IF_UP_TO and not arguments.tries
    explanation = None
    runs: tuple[WhatIf, ...] = ()
    if wants or arguments.tries:
        runs = what_if(trials, picture.run, [Setting(conf) for conf in arguments.tries])
    if wants and shortages:
        explanation = explain_device(trials, picture.run, picture.device_run, shortages)
    return html_report(picture, shortages, explanation, runs)
