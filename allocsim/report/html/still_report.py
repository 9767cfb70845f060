"""Report of a snapshot without a history, as one HTML file.

All sizes are recorded, except for the largest request that fits, which the model computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from string import Template

from allocsim.analysis.picture import STILL_KINDS, Still
from allocsim.analysis.top import Top
from allocsim.metrics import code_of
from allocsim.replaying import StateSource
from allocsim.report.html.markup import (
    definition_list,
    packed_strip,
    page_part,
    sizes_table,
    state_legend,
    stylesheet,
    table,
    text,
)
from allocsim.report.html.panels import flame_panel, labelled, owners_tables
from allocsim.report.layout import exact_size, plural, shown_of
from allocsim.report.packing import SEGMENT_HEADS, segment_cells, segment_pool
from allocsim.state import ALLOCATED, INACTIVE, PENDING, BlockState, SegmentState
from allocsim.units import format_size

_SCRIPTS = ("view.js", "owners.js", "flame.js")
_SHOWN_HOLES = 30
_SHOWN_SEGMENTS = 60
_BAR_WIDTH, _BAR_HEIGHT = 420, 14
"""Size of a bar in pixels, as `.bar` in the page's style."""
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

    still: recorded segments of a device.
    source: settings and device memory that the model used.
    fitting: bytes of the largest request that fits, by stream.
    tops: owners of the memory, e.g. by line and by category; each gets a table.
    """
    return Template(page_part("still.html")).substitute(
        title=text(still.path.rsplit("/", 1)[-1]),
        warnings=labelled("Warning", *shown_of(still)),
        summary=text(_summary(still)),
        overview=_overview(still, source, fitting),
        cannot=text(_CANNOT),
        kinds=_kinds(still),
        owners=owners_tables(tops) + flame_panel(tops[0]),
        holes=_holes_table(still),
        legend=state_legend(still.instant),
        strip=packed_strip(still.instant),
        segments=_segments(still),
        style=stylesheet("page.css"),
        script="\n".join(map(page_part, _SCRIPTS)),
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


def _overview(still: Still, source: StateSource, fitting: Mapping[int, int]) -> str:
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
