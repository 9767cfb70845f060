"""`allocsim report`: a recording as one HTML page to look into.

Rule: the file is written once, whole, when everything in it is known.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.output import refuse_input
from allocsim.cli.progress import ProgressBar
from allocsim.cli.usage import Parser, UsageError, count, memory_size

if TYPE_CHECKING:
    from allocsim.analysis.picture import Picture
    from allocsim.engine import Progress
    from allocsim.trace import Recording

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


def add_to(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "report",
        help=_SUMMARY,
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="a snapshot: pickle, JSON or .npz, plain or gzip")
    add("-o", "--output", metavar="FILE", required=True, help="the HTML file to write")
    add("--conf", metavar="CONF", help="PYTORCH_CUDA_ALLOC_CONF to replay under; '' for none")
    add(
        "--device-memory",
        metavar="SIZE",
        type=memory_size,
        help="memory of the device, as 24GiB (default: what the recording tells)",
    )
    add("--torch", metavar="VERSION", help="PyTorch's release, 2.1 to 2.15 (default: likewise)")
    add("--device", metavar="N", type=count, help="this device (default: the first with entries)")
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
    from allocsim.analysis.picture import picture_of  # noqa: PLC0415
    from allocsim.trace import load  # noqa: PLC0415

    if Path(arguments.output).is_dir():
        raise UsageError(f"{arguments.output} is a directory; expected the name of a file")
    refuse_input(arguments.output, arguments.file)
    with ProgressBar() as bar:
        recording = load(arguments.file)
        picture = picture_of(
            recording,
            arguments.conf,
            device_memory=arguments.device_memory,
            torch_version=arguments.torch,
            device=arguments.device,
            progress=bar.stage("replaying"),
        )
        page = _page(arguments, recording, picture, bar)
    try:
        Path(arguments.output).write_text(page, encoding="utf-8")
    except OSError as error:
        what = f"{arguments.output} cannot be written ({error.strerror})"
        raise UsageError(what) from None
    return 0


def _page(
    arguments: argparse.Namespace, recording: Recording, picture: Picture, bar: ProgressBar
) -> str:
    from allocsim.analysis import shortages_of  # noqa: PLC0415
    from allocsim.report.html_report import html_report  # noqa: PLC0415
    from allocsim.tuning import explain_recording  # noqa: PLC0415
    from allocsim.tuning.what_if import what_if  # noqa: PLC0415

    def watch(conf: str) -> Progress | None:
        return bar.stage(f"trying {conf[:32] or 'the defaults'} (--no-what-if skips)")

    shortages = shortages_of(picture.device_run, picture.trace, picture.watch)
    wants = arguments.what_if
    if wants is None:
        wants = picture.device_run.entries <= _WHAT_IF_UP_TO and not arguments.tries
    runs = (
        what_if(recording, picture.run, arguments.tries, watch) if wants or arguments.tries else ()
    )
    if not (wants and shortages):
        return html_report(picture, shortages, None, runs)
    _, (explanation,) = explain_recording(
        recording,
        picture.run.conf,
        device_memory=arguments.device_memory,
        torch_version=picture.run.torch_version,
        device=picture.trace.device,
        watch=watch,
    )
    return html_report(picture, shortages, explanation, runs)
