"""Representation of results: one line at a Python prompt, a small table in a notebook.

Text from a recording is escaped, so that it cannot contain HTML tags or terminal commands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

_LONGEST_LINE = 300


class Shown(ABC):
    """Base class of results: a prompt shows one line (`headline`), and a notebook shows a table."""

    __slots__ = ()

    @abstractmethod
    def headline(self) -> str:
        """Return the result in one line."""

    @abstractmethod
    def figures_shown(self) -> Iterable[tuple[str, str]]:
        """Return the rows of the notebook's table, each as (label, text)."""

    def __repr__(self) -> str:
        line = printable(self.headline())
        if len(line) > _LONGEST_LINE:
            line = f"{line[:_LONGEST_LINE]}…"
        return f"{type(self).__name__}({line})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{_escaped(name)}</th>'
            f'<td style="text-align:left">{_escaped(value)}</td></tr>'
            for name, value in self.figures_shown()
        )
        caption = f'<caption style="text-align:left">{_escaped(self.headline())}</caption>'
        return f"<table>{caption}<tbody>{rows}</tbody></table>"


def printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _escaped(text: str) -> str:
    from html import escape  # noqa: PLC0415  (slow; only for notebooks)

    return escape(printable(text))
