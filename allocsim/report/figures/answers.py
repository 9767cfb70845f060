"""Charts of answers that `allocsim tune` and `allocsim fit` stored, and the reader of the latter.

A setting with a failed request is drawn as a cross.  Nothing is interpolated between points.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from allocsim._repr import printable
from allocsim.analysis.tune import SavedTrials, TriedSetting
from allocsim.errors import ConfigError
from allocsim.report.figures.canvas import (
    LIGHT,
    Theme,
    caption,
    legend,
    new_figure,
    styled,
    unit_of,
    whole_numbers,
)
from allocsim.report.layout import plural
from allocsim.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


_MOST_BYTES = 1 << 24
_MOST_NAMES = 9
_NAME_WIDTH = 40
_MOST_LINES = 27
"""Largest number of lines in the legend beside the axes."""
_PLACES = tuple(
    (far * x, far * y) for far in (8, 14, 20) for x, y in ((1, 1), (-1, -1), (1, -1), (-1, 1))
)
"""Offsets in points from a marker of the chart to its label, in order of preference."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer of `fit` for one card, as read from its JSON.

    name: name of the card.
    device_memory, context_memory: bytes of the card, and of the CUDA context.
    needed_bytes: bytes that suffice, without the CUDA context; if unknown, the peak of reserved
        memory.
    breakdown: dictionary from purposes, such as weights, to bytes; empty if the JSON has none.
    """

    name: str
    fits: bool
    device_memory: int
    context_memory: int
    needed_bytes: int
    breakdown: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ReadFront:
    """Answer of `fit --find` with two sizes, such as batch and sequence, as read from its JSON.

    gpu: name of the card.
    name: size that was maximized, such as "batch".
    other: size whose values were given, such as "seq".
    points: tuples (value of `other`, largest value of `name` that fits with it or 0, bytes reserved
        at the peak).
    """

    gpu: str
    name: str
    other: str
    points: tuple[tuple[int, int, int], ...]


def front_figure(tried: SavedTrials, theme: Theme = LIGHT) -> Figure:
    """Draw each tried setting as a marker: peak of reserved memory against driver calls.

    A marker is larger if more requests had to empty the cache and try again. Settings on the Pareto
    front are named.
    """
    figure, (axes,) = new_figure(theme)
    whole = [each for each in tried.settings if each.is_whole]
    points = {each.point for each in tried.front}
    good = [each for each in whole if each.survives and each.point not in points]
    failed = [each for each in whole if not each.survives]
    front = sorted(tried.front, key=lambda each: each.point)
    unit, name = unit_of(max((each.peak_reserved_bytes for each in whole), default=0))
    for group, colour, marker, label in (
        (failed, theme.alarm, "x", f"out of memory ({len(failed):,})"),
        (good, theme.allocated, "o", f"no request failed ({len(good):,})"),
        (front, theme.ideal, "D", "Pareto front"),
    ):
        if group:
            sizes = [30 + 8 * min(each.num_alloc_retries, 40) for each in group]
            x, y = _points(group, unit)
            axes.scatter(x, y, s=sizes, c=colour, marker=marker, label=label, zorder=3)
    _axes(axes, front, theme, unit)
    styled(axes, theme, f"peak of reserved memory ({name})", "driver calls (count)")
    named = front[:_MOST_NAMES]
    handles = [*axes.get_legend_handles_labels()[0], *_handles(_legend_texts(named, whole), theme)]
    legend(axes, theme, handles, loc="upper left", bbox_to_anchor=(1.01, 1.02), labelspacing=0.8)
    notes = [
        f"{plural(len(tried.settings), 'setting')}. Left and down is better; a larger mark has "
        "more retries (each empties the whole cache)."
    ]
    if given_up := len(tried.settings) - len(whole):
        notes.append(f"Not drawn: {given_up:,} stopped early, because others were already better.")
    if len(front) > _MOST_NAMES:
        notes.append(f"The first {_MOST_NAMES} on the front are named.")
    caption(figure, theme, f"{tried.path.rsplit('/', 1)[-1]}: settings tried", *notes)
    _numbers(figure, axes, _points(named, unit), theme)
    return figure


def _axes(axes: Axes, front: Sequence[TriedSetting], theme: Theme, unit: int) -> None:
    x, y = _points(front, unit)
    least = np.minimum.accumulate(np.array(y, dtype=np.int64))
    axes.plot(x, least, color=theme.ideal, linewidth=1, drawstyle="steps-post", zorder=2)
    if axes.collections:
        axes.margins(x=0.06, y=0.12)
        low, high = axes.get_ylim()
        axes.set_ylim(bottom=max(low, -0.04 * high))
    else:
        axes.set(xlim=(0, 1), ylim=(0, 1))
    whole_numbers(axes.yaxis)


def _legend_texts(named: Sequence[TriedSetting], whole: Sequence[TriedSetting]) -> list[str]:
    figures = []
    for each in named:
        size, calls = format_size(each.peak_reserved_bytes), plural(each.driver_calls, "call")
        retries = plural(each.num_alloc_retries, "retry", "retries")
        alike = sum(other.survives and other.point == each.point for other in whole) - 1
        figures.append(f"{size}, {calls}, {retries}" + (f"; {alike:,} more alike" * bool(alike)))
    for most in (9, 5, 4, 3, 2, 1):
        confs = [_conf(each, most) for each in named]
        names = [f"{conf}\n{figure}" for conf, figure in zip(confs, figures, strict=True)]
        if sum(name.count("\n") + 1 for name in names) <= _MOST_LINES:
            break
    return names


def _conf(setting: TriedSetting, most: int) -> str:
    conf = printable(setting.conf or "(defaults)").replace(",", ", ")
    return "\n".join(textwrap.wrap(conf, _NAME_WIDTH, max_lines=most, placeholder=" …"))


def _handles(names: Sequence[str], theme: Theme) -> list[Line2D]:
    from matplotlib.lines import Line2D  # noqa: PLC0415

    style: dict[str, Any] = {"linestyle": "", "markeredgewidth": 0, "color": theme.ink}
    return [Line2D([], [], marker=f"${i}$", label=name, **style) for i, name in enumerate(names, 1)]


def _numbers(
    figure: Figure, axes: Axes, points: tuple[list[float], list[int]], theme: Theme
) -> None:
    # Distances between markers are known only after the layout.
    figure.draw_without_rendering()
    marks = (axes.transData.transform(np.column_stack(points)) * 72 / figure.dpi).tolist()
    taken = [(x, y) for x, y in marks]
    for row, (at, (x, y)) in enumerate(zip(zip(*points, strict=True), marks, strict=True), 1):
        free = (
            (right, up)
            for right, up in _PLACES
            if all(abs(x + right - a) > 7 or abs(y + up - b) > 7 for a, b in taken)
        )
        place = next(free, _PLACES[0])
        taken.append((x + place[0], y + place[1]))
        axes.annotate(
            str(row), at, xytext=place, textcoords="offset points", ha="center", va="center",
            fontsize=9, fontweight="bold", color=theme.ink, zorder=5,
        )  # fmt: skip


def _points(settings: Sequence[TriedSetting], unit: int) -> tuple[list[float], list[int]]:
    peaks = [each.peak_reserved_bytes / unit for each in settings]
    return peaks, [each.driver_calls for each in settings]


_MOST = 24
"""Largest number of cards in a figure."""
_HEIGHT = 0.6


def cards_figure(answers: Sequence[Answered], theme: Theme = LIGHT) -> Figure:
    """Draw the memory that a model needs on each card as a bar.

    If there is only one card, its bar is divided into categories of memory.
    """
    shown = sorted(answers[:_MOST], key=lambda each: each.device_memory)
    figure, (axes,) = new_figure(theme)
    unit, name = unit_of(max(max(each.device_memory, each.needed_bytes) for each in shown))
    for row, each in enumerate(shown):
        room = each.device_memory - each.context_memory
        axes.barh(row, each.device_memory / unit, _HEIGHT + 0.2, color=theme.faint, zorder=1)
        axes.vlines(room / unit, row - 0.4, row + 0.4, color=theme.ink, lw=1, zorder=4)
        _bar(axes, row, each, theme, unit, by_use=len(shown) == 1)
    axes.set_yticks(range(len(shown)), [printable(each.name) for each in shown])
    axes.set_ylim(-0.7, max(len(shown) - 0.3, 1.2))
    styled(axes, theme, f"memory ({name})", "")
    if len(shown) == 1:
        legend(axes, theme, loc="upper left", ncols=3)
    notes = ["Grey: the card; the line: what its CUDA context leaves of it."]
    if len(answers) > _MOST:
        notes.append(f"Drawn are the first {_MOST} of {plural(len(answers), 'card')}.")
    caption(figure, theme, _title(answers), *notes)
    return figure


def _bar(axes: Axes, row: int, each: Answered, theme: Theme, unit: int, *, by_use: bool) -> None:
    if not by_use or not each.breakdown or not each.fits:
        colour = theme.allocated if each.fits else theme.alarm
        label = "reserved at the peak" if each.fits else "needed"
        axes.barh(row, each.needed_bytes / unit, _HEIGHT, color=colour, label=label, zorder=3)
        return
    left, most = 0, len(theme.kinds) - 1
    parts = sorted(each.breakdown.items(), key=lambda part: -part[1])
    rest = sum(size for _, size in parts[most:])
    for (name, size), colour in zip([*parts[:most], ("other", rest)], theme.kinds, strict=False):
        if size:
            axes.barh(row, size / unit, _HEIGHT, left / unit, color=colour, label=name, zorder=3)
        left += size


def _title(answers: Sequence[Answered]) -> str:
    if len(answers) > 1:
        fitting = sum(each.fits for each in answers)
        return f"{format_size(answers[0].needed_bytes)}: {fitting} of {len(answers)} cards have it"
    (one,) = answers
    verb = "fits" if one.fits else "does not fit"
    return f"{format_size(one.needed_bytes)} {verb} {printable(one.name)}"


def frontier_figure(front: ReadFront, theme: Theme = LIGHT) -> Figure:
    """Draw the largest size that fits, e.g. batch, for each value of another size, e.g. seq."""
    figure, (axes,) = new_figure(theme)
    values = [value for value, _, _ in front.points]
    largest = [value for _, value, _ in front.points]
    axes.plot(values, largest, color=theme.faint, lw=1, zorder=2)
    axes.plot(values, largest, "o", color=theme.allocated, zorder=3)
    for value, most, peak in front.points:
        text = f"{most:,}: {format_size(peak)}" if most else "none"
        axes.annotate(text, (value, most), (6, 6), textcoords="offset points", color=theme.ink)
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{each:,}" for each in values])
    axes.set_xticks([], minor=True)
    axes.set_xlim(min(values) / 1.3, max(values) * 1.6)
    axes.set_ylim(0, max(largest) * 1.2 + 1)
    styled(axes, theme, printable(front.other), f"largest {printable(front.name)}")
    whole_numbers(axes.yaxis)
    title = f"the largest {printable(front.name)} that fits {printable(front.gpu)}"
    caption(figure, theme, title, "Each was run, and so was the next, which does not fit.")
    return figure


def read_answers(path: str) -> tuple[Answered, ...]:
    """Return the answers of `fit` in a JSON file, one for each card."""
    return _read(path, lambda document: tuple(map(_answered, document.get("cards", [document]))))


def read_frontier(path: str) -> ReadFront | None:
    """Return the answer of `fit --find` with two sizes in a JSON file; None for another answer."""
    return _read(path, lambda document: _frontier(document) if "frontier" in document else None)


_T = TypeVar("_T")


def _read(path: str, parse: Callable[[Any], _T]) -> _T:
    try:
        with Path(path).open("rb") as file:
            document = json.loads(file.read(_MOST_BYTES))
        return parse(document)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(
            f"{path}: has no answer; expected the output of `allocsim fit --json`"
        ) from None


def _frontier(document: Mapping[str, Any]) -> ReadFront:
    name, other = map(str, document["find"])
    points = tuple(
        (row["at"][other], row["largest"] or 0, row["peak_reserved_bytes"] or 0)
        for row in document["frontier"]
    )
    numbers = [number for point in points for number in point]
    if not points or not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError
    return ReadFront(str(document["gpu"]), name, other, points)


def _answered(document: Mapping[str, Any]) -> Answered:
    breakdown = dict(document.get("breakdown", {}))
    sizes = [document["device_memory"], document["context_memory"], *breakdown.values()]
    # needed_bytes is null if the memory that would suffice is unknown.
    needed = document["needed_bytes"] or document["peak_reserved_bytes"]
    if not all(type(size) is int and size >= 0 for size in (*sizes, needed)):
        raise ValueError
    return Answered(
        name=str(document["gpu"]),
        fits=bool(document["fits"]),
        device_memory=sizes[0],
        context_memory=sizes[1],
        needed_bytes=needed,
        breakdown={str(name): size for name, size in breakdown.items()},
    )
