"""Report of a recording as one HTML file that needs no network and no server.

Tables repeat the numbers that scripts draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Template

from allocsim.analysis.explain import DeviceExplanation, Shortage
from allocsim.analysis.picture import Picture, WhatIf
from allocsim.analysis.top import Course, StackAnswers, Top
from allocsim.report.html import sections
from allocsim.report.html.embedding import embedded
from allocsim.report.html.markup import (
    json_text,
    packed_strip,
    page_part,
    state_legend,
    still_curve,
    stylesheet,
    text,
)
from allocsim.report.html.panels import device_tabs, flame_panel, labelled, owners_tables, to_paste
from allocsim.report.layout import plural, shown_of
from allocsim.report.run_sections import verdict_sentence
from allocsim.simulation import Parting

_SCRIPTS = (
    "columns.js", "device_data.js", "view.js", "axis.js", "copy.js", "owners.js", "bands.js",
    "timeline.js", "areas.js", "map.js", "strip.js", "state.js", "flame.js", "devices.js",
    "moments.js", "main.js",
)  # fmt: skip
_NO_OWNERS = (
    "<p>The owners of the memory are known for the recorded run only; this run has other "
    "settings.</p>\n"
)


@dataclass(frozen=True, slots=True, eq=False)
class DevicePage:
    """Contents of a page for one device.

    explanation: remedies and recommended setting; None if no other settings were tried.
    runs: replays under other settings; empty if none were tried.
    answers: memory by line of code and by category; None for a what-if replay.
    """

    picture: Picture
    shortages: tuple[Shortage, ...]
    explanation: DeviceExplanation | None = None
    runs: tuple[WhatIf, ...] = ()
    answers: StackAnswers | None = None

    @property
    def number(self) -> int:
        return self.picture.device_run.device

    @property
    def parting(self) -> Parting | None:
        """First difference between replay and recording; None if they are equal."""
        return self.picture.device_run.parting

    @property
    def tops(self) -> tuple[Top, ...]:
        """Owners of the memory, first by line of code; empty if unknown."""
        return () if self.answers is None else self.answers.tops

    @property
    def course(self) -> Course | None:
        """Steps and phases of the program; None if unknown."""
        return None if self.answers is None else self.answers.course


def html_report(devices: Sequence[DevicePage]) -> str:
    """Return the page of a recording as HTML; several devices have tabs."""
    first = devices[0].picture
    run, n_entries = first.run, first.lives.n_entries

    def each(part: Callable[[DevicePage], str]) -> str:
        return _for_each_device(devices, part)

    return Template(page_part("page.html")).substitute(
        title=text(run.path.rsplit("/", 1)[-1]),
        tabs=device_tabs([page.picture for page in devices]),
        verdict=each(_verdict),
        to_paste=to_paste([page.explanation for page in devices if page.explanation is not None]),
        owners=each(lambda page: owners_tables(page.tops) if page.tops else _NO_OWNERS),
        still_curve=each(lambda page: still_curve(page.picture, page.course)),
        overview=each(_overview),
        last=str(n_entries - 1),
        stacks=each(lambda page: _stacks(page, page is devices[0])),
        ooms=each(
            lambda page: sections.ooms_section(page.shortages, page.explanation, page.parting)
        ),
        what_if=each(
            lambda page: sections.what_if_section(
                page.runs, page.explanation, is_proved=page.parting is None
            )
        ),
        tables=each(_tables),
        data="".join(_data(page) for page in devices),
        style=stylesheet("uplot.min.css", "page.css"),
        library=page_part("uplot.min.js"),
        licence=text(page_part("uplot.LICENSE.txt").strip()),
        script="\n".join(map(page_part, _SCRIPTS)),
    )


def _for_each_device(devices: Sequence[DevicePage], part: Callable[[DevicePage], str]) -> str:
    if len(devices) == 1:
        return part(devices[0])
    return "".join(
        f'<div class="device" data-device="{page.number}"><p class="device-name">Device '
        f"{page.number}</p>\n{part(page)}</div>\n"
        for page in devices
    )


def _verdict(page: DevicePage) -> str:
    sentence = verdict_sentence(page.picture.device_run, page.shortages)
    return labelled("Warning", *shown_of(page.picture)) + labelled("Verdict", sentence)


def _stacks(page: DevicePage, is_first: bool) -> str:
    if not page.tops:
        return _NO_OWNERS
    return flame_panel(page.tops[0], "flame" if is_first else f"flame-{page.number}")


def _overview(page: DevicePage) -> str:
    notes = "".join(f"<li>{text(note)}</li>\n" for note in page.picture.run.named_notes)
    inferred = "<details><summary>What had to be inferred</summary>\n"
    return f"{sections.overview(page.picture)}{inferred}<ul>{notes}</ul>\n</details>\n"


def _tables(page: DevicePage) -> str:
    entries = plural(page.picture.lives.n_entries, "entry", "entries")
    instant = page.picture.at()
    blocks = plural(len(page.picture.lives.blocks), "block")
    return (
        f"<p>{entries}, {blocks}. These tables need no script.</p>\n"
        f"<details open><summary>Memory over time</summary>\n"
        f"{sections.memory_table(page.picture)}</details>\n"
        f"<details open><summary>Segments at the peak</summary>\n"
        f"{state_legend(instant)}{packed_strip(instant)}"
        f"{sections.segments_table(page.picture)}</details>\n"
    )


def _data(page: DevicePage) -> str:
    about, columns = embedded(page.picture, page.answers)
    number = page.number
    return (
        f'<script type="application/json" id="about-{number}" data-about="{number}">'
        f"{json_text(about)}</script>\n"
        f'<script type="text/plain" id="columns-{number}">{columns}</script>\n'
    )
