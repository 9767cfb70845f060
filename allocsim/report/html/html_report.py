"""One recording as one HTML file that needs no network and no server.

Rule: the page loads nothing from outside, and its own policy forbids it; tables show what scripts
draw.  The parts lie in allocsim/report/html, uPlot (MIT) with its licence.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from string import Template

from allocsim.questions.explain import DeviceExplanation, Shortage
from allocsim.questions.picture import Picture, WhatIf
from allocsim.questions.top import Top
from allocsim.report.html import sections
from allocsim.report.html.embedding import embedded
from allocsim.report.html.flame_panel import flame_panel
from allocsim.report.html.markup import json_text, text
from allocsim.report.layout import plural, shown_of
from allocsim.report.replay import verdict_sentence

__all__ = ["html_report"]

_SCRIPTS = (
    "columns.js", "view.js", "timeline.js", "map.js", "state.js", "flame.js", "main.js",
)  # fmt: skip
_NO_OWNERS = (
    "<p>Who held the memory is told of the recorded run, and this is the run under other "
    "settings.</p>\n"
)


def html_report(
    picture: Picture,
    shortages: Sequence[Shortage],
    explanation: DeviceExplanation | None = None,
    runs: Sequence[WhatIf] = (),
    owners: Top | None = None,
) -> str:
    """The page.

    shortages: of the picture.  explanation, runs: where other settings were tried.  owners: who
    held the memory, None where the replay is not under the recorded settings.
    """
    about, columns = embedded(picture)
    run = picture.run
    notes = "".join(f"<li>{text(note)}</li>\n" for note in run.named_notes)
    warnings = "".join(
        f'<p class="verdict"><strong>Warning:</strong> {text(each)}</p>\n'
        for each in shown_of(picture)
    )
    return Template(_part("page.html")).substitute(
        title=text(run.path.rsplit("/", 1)[-1]),
        warnings=warnings,
        verdict=text(verdict_sentence(picture.device_run, shortages)),
        to_paste=sections.to_paste(explanation),
        overview=sections.overview(picture),
        notes=f"<ul>{notes}</ul>\n" if notes else "",
        entries=plural(picture.lives.n_entries, "entry", "entries"),
        last=str(picture.lives.n_entries - 1),
        blocks=plural(len(picture.lives.blocks), "block"),
        memory_table=sections.memory_table(picture),
        segments_table=sections.segments_table(picture),
        owners=_NO_OWNERS if owners is None else flame_panel(owners),
        ooms=sections.ooms_section(shortages, explanation, picture.device_run.parting),
        what_if=sections.what_if_section(
            runs, explanation, is_proved=picture.device_run.parting is None
        ),
        about=json_text(about),
        columns=columns,
        style=_part("uplot.min.css") + _part("page.css"),
        library=_part("uplot.min.js"),
        licence=text(_part("uplot.LICENSE.txt").strip()),
        script="\n".join(map(_part, _SCRIPTS)),
    )


def _part(name: str) -> str:
    return (files("allocsim.report") / "html" / name).read_text(encoding="utf-8")
