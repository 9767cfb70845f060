"""`allocsim plot`: draw a chart of a recording, or of the settings tried on a recording."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from allocsim.cli.options import Commands, UsageError, add_command, add_shared, moment
from allocsim.cli.output import ProgressBar, refuse_output, write_warnings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from allocsim.analysis.picture import Still
    from allocsim.recording import Recording
    from allocsim.report.figures import Theme

_SUMMARY = "draw a recording as a figure: memory, address map, flame graph"
_DESCRIPTION = """\
Draws FILE, a recording of torch.cuda.memory._record_memory_history(), replayed
under its own settings or others, into a PNG or SVG file:

  memory       reserved, allocated, requested and ideal memory over the run,
               with driver calls and out-of-memory errors
  address-map  blocks by address over the run, which shows fragmentation
  segments     every segment at one moment, with its blocks (--at)
  sizes        block sizes: requested over the run, and in use and free at one
               moment (--at)
  flame        owners of the memory at one moment (--at), by stack; as recorded
  front        the settings that allocsim tune tried; FILE is the output of its
               --json, or its --results file
  fit          the need of a model beside the memory of cards, or the largest
               sizes that fit (--find batch,seq); FILE is the output of
               allocsim fit --json

segments, sizes and flame also work for a snapshot without a history."""
_KINDS = ("memory", "address-map", "segments", "sizes", "flame", "front", "fit")
_OF_ANSWERS = ("front", "fit")
"""Kinds of chart whose FILE is the output of another command."""
_OF_A_STATE = ("segments", "sizes")
"""Kinds of chart, besides flame, that can be drawn from a snapshot without a history."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "plot", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add("kind", metavar="KIND", choices=_KINDS, help=", ".join(_KINDS))
    add_shared(parser, "file")
    add("-o", "--output", metavar="FILE", required=True, help="file to write, .png or .svg")
    add_shared(parser, "--conf", "--device-memory", "--torch")
    add_shared(parser, "--device", text="device to draw (default: the first with entries)")
    at = (
        "moment to draw: peak of allocated memory, oom (the last out-of-memory error), end, or "
        "the number of an entry (the moment after it) (default: the peak of reserved memory; for "
        "flame oom if there is one, else peak)"
    )
    add("--at", metavar="MOMENT", type=moment, help=at)
    colour = "meaning of colours in an address map (default: state)"
    add("--colour", choices=("state", "size", "owner"), default="state", help=colour)
    add("--dark", action="store_true", help="use colours for a dark page")


def run(arguments: argparse.Namespace) -> int:
    from allocsim.report.figures import DARK, LIGHT, require_matplotlib, save_figure

    if not arguments.output.lower().endswith((".png", ".svg")):
        raise UsageError(f"{arguments.output}: a figure's name must end in .png or .svg")
    refuse_output(arguments.output, [arguments.file])
    require_matplotlib()
    theme = DARK if arguments.dark else LIGHT
    save_figure(_figure(arguments, theme), arguments.output)
    return 0


def _figure(arguments: argparse.Namespace, theme: Theme) -> Figure:
    from allocsim.analysis.picture import others_of, picture_prepared, shown_device
    from allocsim.analysis.top import answers_of_run
    from allocsim.recording import load
    from allocsim.replaying import prepare
    from allocsim.report import shown_of
    from allocsim.report.figures import (
        address_map_figure,
        block_sizes_figure,
        memory_figure,
        segments_figure,
    )
    from allocsim.simulation import Setting

    if arguments.kind in _OF_ANSWERS:
        return _of_an_answer(arguments, theme)
    if arguments.kind == "flame":
        return _flame(arguments, theme)
    recording = load(arguments.file)
    still = _snapshot_without_history(arguments, recording)
    if still is not None:
        write_warnings(shown_of(still))
        draw = segments_figure if arguments.kind == "segments" else block_sizes_figure
        return draw(still, theme, arguments.at)
    with ProgressBar() as bar:
        (prepared,) = prepare(recording, shown_device(recording, arguments.device), arguments.torch)
        picture = picture_prepared(
            prepared,
            None if arguments.conf is None else Setting(arguments.conf),
            device_memory=arguments.device_memory,
            progress=bar.stage("replaying"),
            others=others_of(recording, prepared),
        )
    write_warnings(shown_of(picture))
    if arguments.kind == "memory":
        course = None
        # Steps and phases are known for the recorded run only.
        if picture.device_run.fidelity is not None:
            course = answers_of_run(prepared, picture.device_run, bys=()).course
        return memory_figure(picture, theme, course)
    if arguments.kind == "address-map":
        return address_map_figure(picture, theme, arguments.colour)
    draw = segments_figure if arguments.kind == "segments" else block_sizes_figure
    return draw(picture, theme, arguments.at)


def _of_an_answer(arguments: argparse.Namespace, theme: Theme) -> Figure:
    from allocsim.analysis.tune import read_tried
    from allocsim.report.figures import (
        cards_figure,
        front_figure,
        frontier_figure,
        read_answers,
        read_frontier,
    )

    if arguments.kind == "front":
        return front_figure(read_tried(arguments.file), theme)
    if (frontier := read_frontier(arguments.file)) is not None:
        return frontier_figure(frontier, theme)
    return cards_figure(read_answers(arguments.file), theme)


def _snapshot_without_history(arguments: argparse.Namespace, recording: Recording) -> Still | None:
    from allocsim.analysis.picture import shown_device, still_of

    device = shown_device(recording, arguments.device)
    if (
        arguments.kind not in _OF_A_STATE
        or device is None
        or not recording.device(device).is_state_only
    ):
        return None
    if arguments.conf is not None or arguments.device_memory is not None:
        raise UsageError(
            f"{arguments.file} holds a state only, which cannot be replayed under other settings; "
            "leave --conf and --device-memory out"
        )
    return still_of(recording, device)


def _flame(arguments: argparse.Namespace, theme: Theme) -> Figure:
    from allocsim.analysis.picture import shown_device
    from allocsim.analysis.top import top
    from allocsim.recording import load
    from allocsim.report import others_text
    from allocsim.report.figures import flame_figure

    if arguments.conf is not None or arguments.device_memory is not None:
        raise UsageError(
            "a flame graph shows the recorded run; leave --conf and --device-memory out"
        )
    with ProgressBar() as bar:
        recording = load(arguments.file)
        answer = top(
            recording,
            arguments.at,
            device=shown_device(recording, arguments.device),
            torch_version=arguments.torch,
            progress=bar.stage("replaying"),
        )
    others = [trace.device for trace in recording.devices if trace.device != answer.device]
    write_warnings([*others_text(answer.device, others), *answer.notes])
    return flame_figure(answer, theme, is_one_of=bool(others))
