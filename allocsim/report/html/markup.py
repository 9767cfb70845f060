"""Pieces of HTML: text that was escaped, tables, sections.

Rule: nothing from a recording gets into a page but through `text` or `json_text`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence

from allocsim.report.layout import printable

__all__ = ["definitions", "json_text", "table", "text"]


def text(words: object) -> str:
    """Words as they shall be read, whatever characters they are."""
    return html.escape(printable(str(words)))


def json_text(document: object) -> str:
    """JSON that no script element can be ended from within."""
    plain = json.dumps(document, separators=(",", ":"))
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    ends_in_words: bool = False,
) -> str:
    """A table whose first cell of each row is its head.  rows: cells as HTML, made by `text`."""
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


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names and what each is."""
    return (
        "<dl>"
        + "".join(
            f"<div><dt>{text(name)}</dt><dd>{text(what)}</dd></div>\n" for name, what in pairs
        )
        + "</dl>\n"
    )
