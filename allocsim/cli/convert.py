"""`allocsim convert`: a recording in the format of another tool, as it is or under other settings.

Rule: the input is never overwritten, and the output is there whole or not at all.  The names of the
formats are written here once more, so that --help needs no NumPy; a test compares them.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.options import HINTS, Commands, add_command, add_shared, hints_of
from allocsim.cli.output import refuse_output, write_result, write_warnings, writing
from allocsim.cli.progress import ProgressBar
from allocsim.cli.usage import Parser, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocsim.engine import Run
    from allocsim.report.formats import Format
    from allocsim.trace import Recording

__all__ = ["FORMAT_NAMES", "add_to", "run"]

FORMAT_NAMES = (
    *("snapshot", "columns", "perfetto", "speedscope", "minimalloc", "csv", "jsonl", "parquet"),
)
_OF_A_RUN = ("snapshot", "perfetto")
"""What tells addresses and segments, which a file of requests alone does not have."""
_SUMMARY = "write a recording for another tool, as it is or as a what-if"
_DESCRIPTION = """\
Writes FILE as OUT, in the format that OUT's name tells: .pickle (PyTorch's own
viewer), .npz (what allocsim loads fastest), .perfetto.json, .speedscope.json,
.minimalloc.csv, .csv, .jsonl, .parquet; each may be packed (.gz).  With --conf,
--device-memory or --torch it is the run under those settings that is written,
as PyTorch would have recorded it; so it is where FILE holds requests alone."""


def add_to(commands: Commands[Parser]) -> None:
    parser = add_command(commands, "convert", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add_shared(parser, "file")
    add("output", metavar="OUT", help="the file to write; its name tells the format")
    add(
        "--to",
        metavar="FORMAT",
        choices=FORMAT_NAMES,
        help=f"the format, whatever OUT is called: {', '.join(FORMAT_NAMES)}",
    )
    add_shared(parser, "--conf", text="write the run under this PYTORCH_CUDA_ALLOC_CONF instead")
    add_shared(parser, "--device-memory", text="write the run on a device of this size instead")
    add_shared(parser, "--torch", text="write the run of this release instead, {releases}")
    add_shared(parser, "--device", *HINTS, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.report import convert_document, convert_text  # noqa: PLC0415
    from allocsim.report.formats import write_as  # noqa: PLC0415
    from allocsim.trace import load  # noqa: PLC0415

    output: str = arguments.output
    chosen = _format(output, arguments.to)
    refuse_output(output, [arguments.file])
    runs: Sequence[Run] = ()
    with ProgressBar() as bar:
        recording = load(arguments.file)
        if arguments.device is not None:
            recording = replace(recording, devices=(recording.device(arguments.device),))
        if _is_simulated(arguments, recording, chosen):
            recording, runs = _simulated(arguments, recording, bar)
        with writing(output):
            write_as(chosen, recording, output)
    write_warnings(warning for each in runs for warning in each.warnings)
    size = Path(output).stat().st_size
    shown = (output, size, chosen, recording, runs)
    write_result(arguments.json, convert_document, convert_text, *shown)
    return 0


def _format(output: str, to: str | None) -> Format:
    """The format to write.  Raises UsageError where none can be written under that name."""
    from allocsim.report.formats import endings, format_of  # noqa: PLC0415

    chosen = format_of(output, to)
    if chosen is None:
        raise UsageError(
            f"{output} does not tell its format by its ending; expected one of {endings()}, or --to"
        )
    if chosen.needs and find_spec(chosen.needs) is None:
        raise UsageError(
            f"{output} needs {chosen.needs}, which is not installed: "
            f"pip install 'allocsim[{chosen.name}]'"
        )
    place = Path(output).absolute()
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise UsageError(f"{output} is not a regular file; expected the name of a file")
    if not place.parent.is_dir():
        raise UsageError(f"{output} cannot be written: there is no such folder")
    return chosen


def _is_simulated(arguments: argparse.Namespace, recording: Recording, chosen: Format) -> bool:
    """Whether it is a run that is asked for, and not what was recorded.

    Of requests alone there are no addresses and segments but those of a run.
    """
    if recording.is_requests and chosen.name in _OF_A_RUN:
        return True
    asked = (arguments.conf, arguments.device_memory, arguments.torch)
    return any(value is not None for value in (*asked, hints_of(arguments)))


def _simulated(
    arguments: argparse.Namespace, recording: Recording, bar: ProgressBar
) -> tuple[Recording, Sequence[Run]]:
    from allocsim.engine import simulate  # noqa: PLC0415

    made = simulate(
        recording,
        arguments.conf,
        device_memory=arguments.device_memory,
        torch_version=arguments.torch,
        device=arguments.device,
        hints=hints_of(arguments),
        command="allocsim convert",
        progress=bar.stage("replaying"),
    )
    return made.recording, made.runs
