"""Outputs of a cell that must be equal on every machine.

Text is compared exactly.  For an image only its presence is compared, because its bytes depend on
the version of matplotlib and on the fonts of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from nbformat import NotebookNode

__all__ = ["IMAGES", "differences", "shown"]

IMAGES = ("image/png", "image/svg+xml")


def shown(cell: NotebookNode) -> list[tuple[str, str]]:
    """(kind, text) of each output of a cell; an image has no text."""
    found = []
    for output in cell.get("outputs", ()):
        if output.output_type == "stream":
            found.append((output.name, output.text))
            continue
        data = output.get("data", {})
        if any(kind in data for kind in IMAGES):
            found.append(("image", ""))
        else:
            found.append(("text/plain", data.get("text/plain", "")))
    return found


def differences(ours: NotebookNode, theirs: NotebookNode) -> Iterator[str]:
    """Yield the differences of two runs of a notebook: in the file (ours) and now (theirs)."""
    for mine, other in zip(ours.cells, theirs.cells, strict=True):
        if shown(mine) != shown(other):
            yield f"cell {mine.id}: the file shows {shown(mine)}, the run {shown(other)}"
