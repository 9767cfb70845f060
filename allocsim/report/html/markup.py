"""HTML helpers: escaped text, tables, lists, sparklines.

All text from a recording must pass through `text` or `json_text`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files

from allocsim._repr import printable
from allocsim.metrics import Extremes

_WIDTH, _HEIGHT = 220, 40
"""Size of a sparkline, in pixels."""


def page_part(name: str) -> str:
    """Return the text of a template, style or script in allocsim/report/html."""
    return (files("allocsim.report") / "html" / name).read_text(encoding="utf-8")


def stylesheet(*names: str) -> str:
    """Return the common styles of all pages, followed by the files `names` in allocsim/report/html.

    A page without scripts follows the system's choice of dark or light, except in print.
    """
    theme = page_part("theme.css")
    dark = theme.partition(':root[data-theme="dark"] ')[2].partition("}")[0]
    system = (
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme]) {dark}}} }}\n"
    )
    return theme + system + "".join(map(page_part, names))


def text(words: object) -> str:
    return html.escape(printable(str(words)))


def json_text(document: object) -> str:
    """Return JSON that cannot end the surrounding script element."""
    plain = json.dumps(document, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], ends_in_words: bool = False
) -> str:
    """Return an HTML table; the first cell of each row is a header.

    rows: cells as HTML, already escaped by `text`.
    ends_in_words: align the last column to the left, since it holds text and not numbers.
    """
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>\n'
        for first, *rest in rows
    )
    kind = ' class="words"' if ends_in_words else ""
    return (
        f'<div class="scroll"><table{kind}><caption>{text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )


def legend(items: Iterable[tuple[str, str]]) -> str:
    """Return a legend; `items` are pairs of label and CSS class."""
    shown = (
        f'<span><i style="color: var({paint})"></i>{text(name)}</span>' for name, paint in items
    )
    return f'<p class="legend">{" ".join(shown)}</p>\n'


def moment_link(entry: int, words: str, *, is_button: bool = False) -> str:
    """Return a link with the text `words`; it shows the moment after an entry in the charts.

    is_button: return a button, which is hidden without scripts.
    """
    kind = ' class="go"' if is_button else ""
    return f'<a{kind} href="#entry={entry}" data-entry="{entry}">{text(words)}</a>'


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """Return an HTML definition list; `pairs` are term and definition."""
    items = (f"<div><dt>{text(name)}</dt><dd>{text(what)}</dd></div>\n" for name, what in pairs)
    return f"<dl>{''.join(items)}</dl>\n"


def sparkline(extremes: Extremes, top: int, length: int) -> str:
    """Return inline SVG of a small curve: the maximum of each range of entries.

    top: value at the upper edge.
    length: number of ranges in the full width; equal for all curves of a table.
    """
    width = _WIDTH * len(extremes.high) / max(length, 1)
    high = steps(extremes.high.tolist(), width, _HEIGHT - 1, (_HEIGHT - 2) / max(top, 1))
    area = f"0,{_HEIGHT} {high} {width:.1f},{_HEIGHT}"
    return (
        f'<svg class="spark" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'aria-hidden="true"><polygon points="{area}"/><polyline points="{high}"/></svg>'
    )


def steps(values: Sequence[int], width: float, bottom: int, scale: float) -> str:
    """Return the points of an SVG polyline with one horizontal step for each value.

    width: width of the whole line.
    bottom: y of the value 0; y grows downwards.
    scale: image units per unit of the values.
    """
    x = width / len(values)
    heights = enumerate(bottom - value * scale for value in values)
    return " ".join(f"{i * x:.1f},{y:.1f} {(i + 1) * x:.1f},{y:.1f}" for i, y in heights)
