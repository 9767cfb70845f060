"""Report of a recording, or of a snapshot without a history, as one HTML file without a server.

Scripts draw the charts; tables give the same numbers without scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import Template

from allocsim.analysis.explain import DeviceExplanation, Shortage
from allocsim.analysis.picture import STILL_KINDS, Picture, Still, WhatIf
from allocsim.analysis.top import Course, StackAnswers, Top
from allocsim.metrics import code_of
from allocsim.replaying import StateSource
from allocsim.report.html import sections
from allocsim.report.html.embedding import embedded
from allocsim.report.html.markup import (
    definition_list,
    json_text,
    packed_strip,
    page_part,
    sizes_table,
    state_legend,
    still_curve,
    stylesheet,
    table,
    text,
)
from allocsim.report.html.panels import device_tabs, flame_panel, labelled, owners_tables, to_paste
from allocsim.report.layout import exact_size, plural, shown_of
from allocsim.report.packing import SEGMENT_HEADS, segment_cells, segment_pool
from allocsim.report.run_sections import verdict_sentence
from allocsim.simulation import Parting
from allocsim.state import ALLOCATED, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import format_size

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

    shortages: out-of-memory errors, in order.
    explanation: remedies and recommended setting; None if no other settings were tried.
    runs: replays under other settings; empty if none were tried.
    answers: memory by line of code and by category; None if the settings are not the recorded ones.
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


_STILL_SCRIPTS = ("view.js", "owners.js", "flame.js")
_SHOWN_HOLES = 30
_SHOWN_SEGMENTS = 60
_BAR_WIDTH, _BAR_HEIGHT = 420, 14
"""Width and height of a bar in pixels, the same as in the style `.bar` of page.css."""
_LEAST_WIDTH = 0.5
_COLOURS = {ALLOCATED: "--kind-0", PENDING: "--kind-1"}
_CANNOT = (
    "A state without a history: it does not show what was requested and when, how memory rose and "
    "fell, what failed, or what another setting would have done, and nothing in it can be proved "
    "by a replay. For that, record with torch.cuda.memory._record_memory_history()."
)


def still_report(
    still: Still, source: StateSource, fitting: Mapping[int, int], tops: Sequence[Top]
) -> str:
    """Return the page of a snapshot without a history as HTML.

    All sizes are recorded, except for the largest request that fits, which is simulated.

    still: recorded segments of a device.
    source: settings and device memory of the simulation.
    fitting: dictionary from a stream to the bytes of the largest request that fits.
    tops: owners of the memory, e.g. by line and by category; each gets a table.
    """
    return Template(page_part("still.html")).substitute(
        title=text(still.path.rsplit("/", 1)[-1]),
        warnings=labelled("Warning", *shown_of(still)),
        summary=text(_summary(still)),
        overview=_still_overview(still, source, fitting),
        cannot=text(_CANNOT),
        kinds=_kinds(still),
        owners=owners_tables(tops) + flame_panel(tops[0]),
        holes=_holes_table(still),
        legend=state_legend(still.instant),
        strip=packed_strip(still.instant),
        segments=_segments(still),
        style=stylesheet("page.css"),
        script="\n".join(map(page_part, _STILL_SCRIPTS)),
    )


def _summary(still: Still) -> str:
    instant, kinds = still.instant, still.kinds
    count = plural(len(instant.segments), "segment")
    return (
        f"{format_size(instant.reserved)} reserved in {count}, as the snapshot was taken: "
        f"{format_size(instant.held(ALLOCATED))} allocated, "
        f"{format_size(instant.held(PENDING))} waiting for a stream, "
        f"{format_size(instant.held(INACTIVE))} free, including "
        f"{format_size(kinds['interleaved'])} between live blocks."
    )


def _still_overview(still: Still, source: StateSource, fitting: Mapping[int, int]) -> str:
    segments = still.instant.segments
    blocks = sum(block.state == ALLOCATED for segment in segments for block in segment.blocks)
    memory = "unknown" if source.is_taken_full else exact_size(source.device_memory)
    largest = max((segment.largest_free for segment in segments), default=0)
    full = ", if the driver has no free memory (--device-memory)" if source.is_taken_full else ""
    fits = [
        (f"Largest request that fits{_of_stream(stream, fitting)}", exact_size(size) + full)
        for stream, size in fitting.items()
    ]
    return definition_list(
        [
            ("Snapshot", f"{still.path.rsplit('/', 1)[-1]}, device {still.trace.device}"),
            ("PyTorch", source.release_note.removeprefix("PyTorch ")),
            ("Settings", source.conf or "none recorded: PyTorch's defaults"),
            ("Device memory", memory),
            ("Reserved", exact_size(still.instant.reserved)),
            ("Allocated", f"{exact_size(still.instant.held(ALLOCATED))} in {blocks:,} blocks"),
            ("Largest free block", exact_size(largest)),
            *fits,
        ]
    )


def _of_stream(stream: int, fitting: Mapping[int, int]) -> str:
    return f" on stream {stream:#x}" if stream or len(fitting) > 1 else ""


def _kinds(still: Still) -> str:
    named = {STILL_KINDS[kind]: size for kind, size in still.kinds.items()}
    return sizes_table("Where the reserved memory is", named, still.instant.reserved)


def _holes_table(still: Still) -> str:
    found = sorted(_holes_with_neighbours(still), key=lambda hole: (-hole[1].size, hole[1].address))
    if not found:
        return "<p>No free block is in a segment that is in use.</p>\n"
    rows = [
        [
            text(f"{hole.address:#x}"),
            *map(text, (format_size(hole.size), segment_pool(segment), _code(still, before))),
            text(_code(still, after)),
        ]
        for segment, hole, before, after in found[:_SHOWN_HOLES]
    ]
    size = format_size(sum(hole.size for _, hole, _, _ in found))
    many = len(found) > _SHOWN_HOLES
    more = f"; the {_SHOWN_HOLES} largest" if many else ""
    caption = f"{plural(len(found), 'free block')} beside live ones, {size}{more}"
    return table(
        caption, ("hole", "size", "pool", "before it", "behind it"), rows, ends_in_words=True
    )


_Hole = tuple[SegmentState, BlockState, BlockState | None, BlockState | None]


def _holes_with_neighbours(still: Still) -> Iterator[_Hole]:
    # None is the end of the segment.
    for segment in still.instant.segments:
        if segment.is_idle:
            continue
        row = [None, *segment.blocks, None]
        for (before, hole), (_, after) in pairwise(pairwise(row)):
            if hole is not None and hole.state == INACTIVE:
                yield segment, hole, before, after


def _code(still: Still, block: BlockState | None) -> str:
    if block is None:
        return "the segment's end"
    code = code_of(still.trace.frame_table.stack(block.frames))
    what = "no frames recorded" if code is None else str(code)
    return f"{format_size(block.size)}, {what}"


def _segments(still: Still) -> str:
    segments = sorted(still.instant.segments, key=lambda s: (-s.total_size, s.address))
    longest = segments[0].total_size
    rows = []
    for segment in segments[:_SHOWN_SEGMENTS]:
        cells = map(text, (hex(segment.address), *segment_cells(segment)))
        rows.append([*cells, _bar(segment, longest)])
    many = len(segments) > _SHOWN_SEGMENTS
    more = f", the {_SHOWN_SEGMENTS} largest of {len(segments):,}" if many else ""
    return table(
        f"Segments{more}. Bars are to one scale",
        ("segment", *SEGMENT_HEADS, "blocks"),
        rows,
        ends_in_words=True,
    )


def _bar(segment: SegmentState, longest: int) -> str:
    scale = _BAR_WIDTH / longest
    ground = f'<rect width="{segment.total_size * scale:.1f}" height="100%" fill="var(--free)"/>'
    blocks = "".join(
        f'<rect x="{(block.address - segment.address) * scale:.1f}" '
        f'width="{max(block.size * scale, _LEAST_WIDTH):.1f}" height="100%" '
        f'fill="var({_COLOURS[block.state]})"/>'
        for block in segment.blocks
        if block.state in _COLOURS
    )
    return (
        f'<svg class="bar" width="{_BAR_WIDTH}" height="{_BAR_HEIGHT}" aria-hidden="true">'
        f"{ground}{blocks}</svg>"
    )
