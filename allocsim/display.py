"""How a result shows itself: one line at a prompt, a small table in a notebook.

Rule: both say the verdict and its figures and nothing else; what comes from a recording is escaped,
so that a name can neither be a tag nor a command of the terminal.
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable

__all__ = ["Shown", "printable"]

_LONGEST_LINE = 300


class Shown(ABC):
    """What results have in common: they say what they are."""

    __slots__ = ()

    @abstractmethod
    def headline(self) -> str:
        """The verdict with its figures, on one line."""

    @abstractmethod
    def figures_shown(self) -> Iterable[tuple[str, str]]:
        """The rows of the table in a notebook: what it is, and how much."""

    def __repr__(self) -> str:
        line = printable(self.headline())
        if len(line) > _LONGEST_LINE:
            line = f"{line[:_LONGEST_LINE]}…"
        return f"{type(self).__name__}({line})"

    def _repr_html_(self) -> str:
        """What Jupyter shows."""
        rows = "".join(
            f'<tr><th style="text-align:left">{_escaped(name)}</th>'
            f'<td style="text-align:left">{_escaped(value)}</td></tr>'
            for name, value in self.figures_shown()
        )
        caption = f'<caption style="text-align:left">{_escaped(self.headline())}</caption>'
        return f"<table>{caption}<tbody>{rows}</tbody></table>"


def printable(text: str) -> str:
    """`text` with what cannot be printed written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _escaped(text: str) -> str:
    return html.escape(printable(text))
