"""Common parts of charts: colours, title, axes, caption and output file.

Text from a recording is never parsed as a formula.  Equal charts give equal files.
"""

# Categories use the colours of Okabe and Ito, which are distinct with any common colour blindness;
# sizes use steps of viridis. Source: Okabe and Ito, "Color Universal Design" (2008).

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from allocsim._repr import printable
from allocsim.errors import ConfigError
from allocsim.units import GIB, MIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


LEAST, MOST = 0.25, 0.9
_TRACE = 1e-4
"""Share of a pixel's area; smaller shares are rounding errors and count as 0."""

BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW = "#56B4E9", "#D55E00", "#F0E442"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a chart by meaning.

    page, ink, faint: background, text and axes, grid lines.
    free: reserved memory that is not allocated.
    reserved, allocated, requested, ideal: curves of memory over the run.  Ideal is the
        memory that an allocator without fragmentation would reserve.
    alarm: out-of-memory errors.
    kinds: categories of memory, in order; the last colour is for all other categories.
    sizes: block sizes, from small to large.
    phases: phases of a training step; the first colour is for "no phase".
    """

    page: str
    ink: str
    faint: str
    free: str
    reserved: str
    allocated: str
    alarm: str
    kinds: tuple[str, ...]
    sizes: tuple[str, ...]
    requested: str = PURPLE
    ideal: str = GREEN
    phases: tuple[str, ...] = ("#8A8A8A", "#B8B0C8", SKY, ORANGE, GREEN)


LIGHT = Theme(
    page="#FFFFFF",
    ink="#1A1A1A",
    faint="#D9D9D9",
    free="#DDDDDD",
    reserved="#555555",
    allocated=BLUE,
    alarm=VERMILION,
    kinds=(BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, "#8A8A8A"),
    sizes=("#440154", "#414487", "#2A788E", "#22A884", "#7AD151", "#E8D51B"),
)
DARK = Theme(
    page="#14171A",
    ink="#E8E8E8",
    faint="#3A3F45",
    free="#4A5058",
    reserved="#C4C4C4",
    allocated=SKY,
    alarm="#FF7B39",
    kinds=(SKY, ORANGE, GREEN, PURPLE, YELLOW, VERMILION, "#A0A0A0"),
    sizes=("#5B3A8C", "#4A6FB5", "#2F93A5", "#2BB58A", "#8ADB5A", "#FDE725"),
)


def pixels(
    reserved: NDArray[np.float32],
    layers: Sequence[NDArray[np.float32]],
    colours: Sequence[str],
    free: str,
    page: str,
) -> NDArray[np.float32]:
    """Return an image of shape (rows, columns, 3): red, green and blue from 0 to 1.

    reserved: share of each pixel that is reserved memory, shape (rows, columns).
    layers: share that is allocated, one array for each of `colours`.
    free, page: colours of reserved memory that is not allocated, and of the rest.
    """
    used = np.zeros_like(reserved)
    for layer in layers:
        used += layer
    shown = np.where((used > _TRACE) & (used < LEAST), LEAST, used)
    shown = np.where((reserved - used > _TRACE) & (shown > MOST), MOST, shown)
    scale = np.where(used > _TRACE, shown / np.maximum(used, _TRACE), 0)
    background = np.clip(np.maximum(reserved, used) - shown, 0, 1)
    nothing = np.clip(1 - background - shown, 0, 1)
    image = background[..., None] * _rgb(free) + nothing[..., None] * _rgb(page)
    for layer, colour in zip(layers, colours, strict=True):
        image += (layer * scale)[..., None] * _rgb(colour)
    clipped: NDArray[np.float32] = np.clip(image, 0, 1).astype(np.float32)
    return clipped


def _rgb(colour: str) -> NDArray[np.float32]:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)], dtype=np.float32)


WIDTH, HEIGHT = 10.0, 5.6
"""Size of a figure, in inches."""
_SMALL = 8
"""Font size of legends, in points."""
_MOST_COLUMNS = 5
_LEGEND_WIDTH = 0.86 * WIDTH * 72
"""Width available to a legend beside the axis labels, in points."""
_HANDLE, _GAP = 2.8 * _SMALL, 2.0 * _SMALL
"""Widths in a legend in points: a handle with its padding, and the space between columns."""
_TITLE_LETTERS, _CAPTION_LETTERS = 100, 170
_DOTS_PER_INCH = 170


def require_matplotlib() -> None:
    """Raise ConfigError if matplotlib, an optional dependency, is not installed."""
    try:
        import matplotlib  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        raise ConfigError(
            "figures need matplotlib, which is not installed: pip install 'allocsim[plot]'"
        ) from None


def new_figure(
    theme: Theme, rows: int = 1, columns: int = 1, *, height: float = HEIGHT, **grid: Any
) -> tuple[Figure, Sequence[Axes]]:
    """Return an empty figure of `height` inches, and its axes, row by row."""
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(WIDTH, height), facecolor=theme.page, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **grid)
    return figure, list(axes.flat)


def styled(axes: Axes, theme: Theme, x: str, y: str) -> None:
    """Set the colours of the axes, and the labels `x` and `y`, which end with "(unit)"."""
    axes.set_facecolor(theme.page)
    axes.set_xlabel(x, color=theme.ink)
    axes.set_ylabel(y, color=theme.ink)
    axes.tick_params(colors=theme.ink, which="both")
    for side, spine in axes.spines.items():
        spine.set_color(theme.ink if side in ("left", "bottom") else theme.page)
    axes.grid(color=theme.faint, linewidth=0.5, alpha=0.7)
    axes.set_axisbelow(True)


def unit_of(most: int) -> tuple[int, str]:
    """Return (bytes, name) of the unit for an axis up to `most` bytes, e.g. (1048576, "MiB")."""
    return (GIB, "GiB") if most >= 2 * GIB else (MIB, "MiB")


def whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter  # noqa: PLC0415

    axis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 2.5, 5, 10], integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def legend(axes: Axes, theme: Theme, handles: Sequence[Any] | None = None, **where: Any) -> None:
    """Add a legend in the theme's colours; handles are by default those of the axes."""
    options: dict[str, Any] = {"frameon": False, "labelcolor": theme.ink, "fontsize": _SMALL}
    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    # Labels are set afterwards, because matplotlib may drop labels that begin with "_".
    made = axes.legend(shown, [" "] * len(shown), **options, **where)
    for text, handle in zip(made.get_texts(), shown, strict=True):
        text.set_parse_math(False)
        text.set_text(handle.get_label())


def legend_above(
    axes: Axes, theme: Theme, handles: Sequence[Any] | None = None, *, lift: float = 0
) -> None:
    """Add a legend between the axes and the title, `lift` points above the axes."""
    from matplotlib.transforms import ScaledTranslation  # noqa: PLC0415

    shown = axes.get_legend_handles_labels()[0] if handles is None else handles
    columns = _legend_columns([str(handle.get_label()) for handle in shown])
    over = axes.transAxes + ScaledTranslation(0, lift / 72, axes.figure.dpi_scale_trans)
    where = {"loc": "lower left", "bbox_to_anchor": (0, 1), "bbox_transform": over}
    legend(axes, theme, shown, ncols=columns, **where)


def _legend_columns(labels: Sequence[str]) -> int:
    widths = np.array([points(label) + _HANDLE for label in labels])
    for count in range(min(len(widths), _MOST_COLUMNS), 1, -1):
        columns = np.array_split(widths, count)
        if sum(column.max() + _GAP for column in columns) <= _LEGEND_WIDTH:
            return count
    return 1


def points(text: str, size: float = _SMALL) -> float:
    """Return the width of `text` in points at a font size of `size` points."""
    from matplotlib.font_manager import FontProperties  # noqa: PLC0415
    from matplotlib.textpath import text_to_path  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ ")
        width: float = text_to_path.get_text_width_height_descent(
            text, FontProperties(size=size), ismath=False
        )[0]
    return width


def caption(figure: Figure, theme: Theme, title: str, *notes: str) -> None:
    left: dict[str, Any] = {"color": theme.ink, "x": 0.01, "ha": "left", "parse_math": False}
    figure.suptitle(textwrap.fill(printable(title), _TITLE_LETTERS), fontsize=11, **left)
    text = textwrap.fill(" ".join(note for note in notes if note), _CAPTION_LETTERS)
    figure.supxlabel(text, fontsize=7.5, **left)


def save_figure(figure: Figure, path: str) -> None:
    """Write `figure` to `path`.  Raises ConfigError for an unknown suffix or a write error."""
    suffix = Path(path).suffix.lower()
    if suffix not in (".png", ".svg"):
        raise ConfigError(f"{path}: a figure's name must end in .png or .svg")
    from matplotlib import rc_context  # noqa: PLC0415

    metadata: dict[str, str | None] = {"Date": None} if suffix == ".svg" else {}
    try:
        with (
            rc_context({"svg.hashsalt": "allocsim", "svg.fonttype": "none"}),
            warnings.catch_warnings(),
        ):
            # A glyph that the font lacks is drawn as a box; no warning is needed.
            warnings.filterwarnings("ignore", r"Glyph \d+ ")
            figure.savefig(path, dpi=_DOTS_PER_INCH, metadata=metadata)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
