"""`allocsim convert`: write a recording, or a replay under other settings, in another format.

The names of the formats are repeated here so that --help needs no NumPy.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.cli.options import HINTS, Commands, UsageError, add_command, add_shared, hints_of
from allocsim.cli.output import ProgressBar, refuse_output, write_report, write_warnings, writing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from allocsim.recording import Recording
    from allocsim.report.formats import Format
    from allocsim.simulation import Run

FORMAT_NAMES = (
    *("snapshot", "columns", "perfetto", "speedscope", "minimalloc", "csv", "jsonl", "parquet"),
)
_OF_A_RUN = ("snapshot", "perfetto")
"""Formats that need addresses and segments, which a file with only requests does not have."""
_SUMMARY = "write a recording, or a what-if replay of it, in another format"
_DESCRIPTION = """\
Writes FILE as OUT, in the format that OUT's name selects: .pickle (PyTorch's
viewer), .npz (the fastest for allocsim to load), .perfetto.json,
.speedscope.json, .minimalloc.csv, .csv, .jsonl, .parquet; each may end in .gz.
With --conf, --device-memory or --torch, it replays FILE under those settings
and writes that run as PyTorch would have recorded it.  A FILE that holds only
requests is always replayed."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "convert", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add_shared(parser, "file")
    add("output", metavar="OUT", help="file to write; the ending of its name selects the format")
    form = f"format of OUT, whatever its name: {', '.join(FORMAT_NAMES)}"
    add("--to", metavar="FORMAT", choices=FORMAT_NAMES, help=form)
    add_shared(parser, "--conf", text="write a replay under this PYTORCH_CUDA_ALLOC_CONF")
    add_shared(parser, "--device-memory", text="write a replay on a device of this size")
    add_shared(parser, "--torch", text="write a replay under this release of PyTorch, {releases}")
    add_shared(parser, "--device", *HINTS, "--json")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.recording import load
    from allocsim.report import convert as report
    from allocsim.report.formats import write_as

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
    write_report(arguments, report, output, size, chosen, recording, runs)
    return 0


def _format(output: str, to: str | None) -> Format:
    from allocsim.report.formats import endings, format_of

    chosen = format_of(output, to)
    if chosen is None:
        raise UsageError(
            f"{output} has no ending of a known format; expected one of {endings()}, or --to"
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
    # Some formats need addresses; for a file of requests, only a replay has them.
    if recording.is_requests and chosen.name in _OF_A_RUN:
        return True
    asked = (arguments.conf, arguments.device_memory, arguments.torch)
    return any(value is not None for value in (*asked, hints_of(arguments)))


def _simulated(
    arguments: argparse.Namespace, recording: Recording, bar: ProgressBar
) -> tuple[Recording, Sequence[Run]]:
    from allocsim.export import simulate

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
