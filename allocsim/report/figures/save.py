"""A figure into a file, PNG or SVG by its name.

Rule: the same figure gives the same file: no date, and names within an SVG that chance does not
choose.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from allocsim.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SUFFIXES", "save_figure"]

SUFFIXES = (".png", ".svg")
_DOTS_PER_INCH = 170


def save_figure(figure: Figure, path: str) -> None:
    """Write `figure` to `path`.  Raises ConfigError for another suffix or a place out of reach."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(f"{path}: a figure's name must end in .png or .svg")
    from matplotlib import rc_context  # noqa: PLC0415

    metadata: dict[str, str | None] = {"Date": None} if suffix == ".svg" else {}
    try:
        with (
            rc_context({"svg.hashsalt": "allocsim", "svg.fonttype": "none"}),
            warnings.catch_warnings(),
        ):
            # A letter that the font lacks is drawn as a box, which says enough.
            warnings.filterwarnings("ignore", r"Glyph \d+ ")
            figure.savefig(path, dpi=_DOTS_PER_INCH, metadata=metadata)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None
