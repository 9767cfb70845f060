"""One recording as one HTML file that needs no network and no server.

Rule: the page loads nothing from outside, and its own policy forbids it; tables show what scripts
draw.  The parts lie in allocsim/report/html, uPlot (MIT) with its licence.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from string import Template

from allocsim.questions.explain import DeviceExplanation, Shortage
from allocsim.questions.picture import Picture, WhatIf
from allocsim.questions.top import Told
from allocsim.report.html import sections
from allocsim.report.html.answer_panel import to_paste, verdict
from allocsim.report.html.embedding import embedded
from allocsim.report.html.flame_panel import flame_panel
from allocsim.report.html.markup import json_text, text
from allocsim.report.html.owners_table import owners_tables
from allocsim.report.html.still_curve import still_curve
from allocsim.report.layout import plural, shown_of
from allocsim.report.replay import verdict_sentence

__all__ = ["DevicePage", "html_report"]

_SCRIPTS = (
    "columns.js", "view.js", "copy.js", "owners.js", "bands.js", "timeline.js", "map.js",
    "state.js", "flame.js", "moments.js", "main.js",
)  # fmt: skip
_NO_OWNERS = (
    "<p>Who held the memory is told of the recorded run, and this is the run under other "
    "settings.</p>\n"
)


@dataclass(frozen=True, slots=True, eq=False)
class DevicePage:
    """What a page shows of one device.

    shortages: of the picture.  explanation, runs: where other settings were tried.  told: by line
    and by category, None where the replay is not under the recorded settings.
    """

    picture: Picture
    shortages: tuple[Shortage, ...]
    explanation: DeviceExplanation | None = None
    runs: tuple[WhatIf, ...] = ()
    told: Told | None = None


def html_report(shown: DevicePage) -> str:
    """The page."""
    picture, shortages, explanation = shown.picture, shown.shortages, shown.explanation
    course = None if shown.told is None else shown.told.course
    about, columns = embedded(picture, course)
    run, parting = picture.run, picture.device_run.parting
    notes = "".join(f"<li>{text(note)}</li>\n" for note in run.named_notes)
    sentence = verdict_sentence(picture.device_run, shortages)
    tops = () if shown.told is None else shown.told.tops
    return Template(_part("page.html")).substitute(
        title=text(run.path.rsplit("/", 1)[-1]),
        answer=verdict(sentence, shown_of(picture)) + to_paste(explanation),
        owners=owners_tables(tops) if tops else _NO_OWNERS,
        still_curve=still_curve(picture, course),
        overview=sections.overview(picture),
        notes=f"<ul>{notes}</ul>\n" if notes else "",
        entries=plural(picture.lives.n_entries, "entry", "entries"),
        last=str(picture.lives.n_entries - 1),
        blocks=plural(len(picture.lives.blocks), "block"),
        memory_table=sections.memory_table(picture),
        segments_table=sections.segments_table(picture),
        stacks=flame_panel(tops[0]) if tops else _NO_OWNERS,
        ooms=sections.ooms_section(shortages, explanation, parting),
        what_if=sections.what_if_section(shown.runs, explanation, is_proved=parting is None),
        about=json_text(about),
        columns=columns,
        style=_part("uplot.min.css") + _part("page.css"),
        library=_part("uplot.min.js"),
        licence=text(_part("uplot.LICENSE.txt").strip()),
        script="\n".join(map(_part, _SCRIPTS)),
    )


def _part(name: str) -> str:
    return (files("allocsim.report") / "html" / name).read_text(encoding="utf-8")
