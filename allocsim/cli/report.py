"""`allocsim report`: write a recording as one interactive HTML page."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from allocsim.cli.options import HINTS, Commands, UsageError, add_command, add_shared, hints_of
from allocsim.cli.output import ProgressBar, refuse_output, save_page, write_warnings

if TYPE_CHECKING:
    from allocsim.recommend import Case, Recommendation
    from allocsim.recording import Recording
    from allocsim.replaying import Prepared
    from allocsim.report.html import DevicePage

_SUMMARY = "write a recording as one HTML page: timeline, map, errors"
_DESCRIPTION = """\
Replays FILE, a recording of torch.cuda.memory._record_memory_history(), and
writes one HTML file that opens without a network: memory over the run, a linked
address map, every block with its size, lifetime and stack, the state after any
entry, the reason for each failed request, and the run under other settings.
For a snapshot without a history, the page shows the state: segments, holes,
owners, and the largest request that fits."""
_WHAT_IF_UP_TO = 100_000
"""Largest recording, in entries, that is also replayed under other settings by default."""


def add_to(commands: Commands) -> None:
    parser = add_command(commands, "report", _SUMMARY, _DESCRIPTION, run)
    add = parser.add_argument
    add_shared(parser, "file")
    add("-o", "--output", metavar="FILE", required=True, help="HTML file to write")
    add_shared(parser, "--conf", "--device-memory", "--torch")
    add_shared(parser, "--device", text="show only this device (default: all with entries)")
    add_shared(parser, *HINTS, "--edit")
    what_if = f"also replay other settings (default: up to {_WHAT_IF_UP_TO:,} entries)"
    add("--what-if", action=argparse.BooleanOptionalAction, help=what_if)
    settings = "also replay this setting, and no others; may be repeated"
    add_shared(parser, "--try", text=settings)


def run(arguments: argparse.Namespace) -> int:
    from allocsim.analysis.picture import shown_device
    from allocsim.recording import load

    refuse_output(arguments.output, [arguments.file])
    recording = load(arguments.file)
    device = shown_device(recording, arguments.device)
    if device is not None and recording.device(device).is_state_only:
        page = _page_of_state(arguments, recording, device)
    else:
        page = _page_of_run(arguments, recording)
    save_page(page, arguments.output)
    return 0


def _page_of_state(arguments: argparse.Namespace, recording: Recording, device: int) -> str:
    from allocsim.analysis.picture import still_of
    from allocsim.analysis.top import top
    from allocsim.replaying import state_source
    from allocsim.report import shown_of
    from allocsim.report.html import still_report

    tries = arguments.conf is not None or arguments.confs or arguments.what_if
    if tries or hints_of(arguments) is not None:
        raise UsageError(
            f"{arguments.file} holds a state only, which cannot be replayed; leave --conf, --try, "
            f"--what-if, {', '.join(HINTS)} out"
        )
    still = still_of(recording, device)
    source = state_source(
        recording, still.trace, device_memory=arguments.device_memory, torch_version=arguments.torch
    )
    tops = [top(recording, by=by, device=device) for by in ("line", "category")]
    page = still_report(still, source, source.largest_requests(), tops)
    write_warnings(shown_of(still))
    return page


def _page_of_run(arguments: argparse.Namespace, recording: Recording) -> str:
    from allocsim.analysis.picture import what_if
    from allocsim.recommend import recommend
    from allocsim.replaying import prepare
    from allocsim.report import shown_of
    from allocsim.report.html import html_report
    from allocsim.simulation import Setting

    with ProgressBar() as bar:
        hints = hints_of(arguments)
        if arguments.edits:
            from allocsim.editing import edited_recording

            recording = edited_recording(
                recording, arguments.edits, torch_version=arguments.torch, hints=hints
            )
            hints = None  # the edited recording contains the calls
        ready = prepare(recording, arguments.device, arguments.torch, hints=hints)
        devices = [each.on(arguments.device_memory) for each in ready]
        shown = [each for each in devices if len(each.trace)] or devices[:1]
        numbers = {each.trace.device for each in shown}
        others = tuple(t.device for t in recording.devices if t.device not in numbers)
        replayed = [_replayed(arguments, each, others, bar) for each in shown]
        wants = arguments.what_if
        if wants is None:
            entries = sum(page.picture.device_run.entries for page, _ in replayed)
            wants = entries <= _WHAT_IF_UP_TO and not arguments.confs
        # These replays come first, because they keep their curves and the search below reuses them.
        confs = [Setting(conf) for conf in arguments.confs or ()]
        if wants or confs:
            replayed = [
                (replace(page, runs=what_if(case.trials, page.picture.run, confs)), case)
                for page, case in replayed
            ]
        found = None
        if wants:
            conf = replayed[0][0].picture.run.conf
            found = recommend([case for _, case in replayed], Setting(conf))
        pages = [_explained(page, case, found) for page, case in replayed]
        page = html_report(pages)
    write_warnings(dict.fromkeys(said for each in pages for said in shown_of(each.picture)))
    return page


def _replayed(
    arguments: argparse.Namespace, prepared: Prepared, others: tuple[int, ...], bar: ProgressBar
) -> tuple[DevicePage, Case]:
    from allocsim.analysis.explain import OomWatch, shortages_of
    from allocsim.analysis.picture import picture_prepared
    from allocsim.recommend import Case
    from allocsim.replaying import Trials, effects_on
    from allocsim.report.html import DevicePage
    from allocsim.simulation import Setting

    watch = OomWatch((prepared.on(arguments.device_memory),))
    picture = picture_prepared(
        prepared,
        None if arguments.conf is None else Setting(arguments.conf),
        device_memory=arguments.device_memory,
        observers=(watch,),
        progress=bar.stage("replaying"),
        others=others,
    )
    shortages = shortages_of(picture.device_run, picture.trace, watch)
    trying = partial(bar.trying, more=" (--no-what-if skips)")
    case = Case(Trials(prepared, trying, effects_on(prepared)), picture.device_run)
    return DevicePage(picture, shortages), case


def _explained(page: DevicePage, case: Case, found: Recommendation | None) -> DevicePage:
    from allocsim.analysis.explain import explain_device
    from allocsim.analysis.top import answers_of_run

    picture, explanation, answers = page.picture, None, None
    if found is not None:
        explanation = explain_device(case, picture.run, page.shortages, found)
    if picture.device_run.fidelity is not None:
        answers = answers_of_run(case.prepared, picture.device_run)
    return replace(page, explanation=explanation, answers=answers)
