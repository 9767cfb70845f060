"""Plain text of 80 columns: labelled rows, wrapped and aligned, the same in a pipe.

Rule: characters that a terminal could take as commands are escaped in every text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from allocsim.display import printable
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.engine import Parting
    from allocsim.questions.picture import Instant, Picture, Still
    from allocsim.trace import CardMemory

__all__ = [
    "LABEL",
    "WIDTH",
    "and_more",
    "card_document",
    "clipped",
    "earlier_errors",
    "exact_size",
    "number",
    "others_text",
    "paragraph",
    "parting_document",
    "plural",
    "printable",
    "row",
    "rows",
    "shortened",
    "shown_of",
    "table",
    "warned",
    "when",
    "with_status",
]

WIDTH = 80
LABEL = 16
_SEPARATORS = ("/", "\\", " ")


def row(label: str, text: str, indent: int = LABEL) -> list[str]:
    """`text` beside a label, wrapped with a hanging indent."""
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=f"{label:{indent}}",
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    ) or [label]


def rows(label: str, texts: Iterable[str]) -> list[str]:
    """A row for each text, the first with the label."""
    lines: list[str] = []
    for text in texts:
        lines += row("" if lines else label, text)
    return lines


def warned(warnings: Sequence[str]) -> list[str]:
    """What stands above everything else, and an empty line; nothing where there is nothing."""
    return [line for each in warnings for line in row("Warning", each)] + [""] * bool(warnings)


def parting_document(parting: Parting | None) -> dict[str, Any] | None:
    """A parting in every command's JSON; None where the replay is the recorded run."""
    return None if parting is None else {"entry": parting.entry, "note": str(parting)}


def card_document(card: CardMemory | None) -> dict[str, Any] | None:
    """Return who held the recorded card's memory, as JSON; None where that is unknown."""
    if card is None:
        return None
    return {
        "total_bytes": card.total,
        "outside_bytes": card.outside,
        "context_bytes": card.context,
        "other_processes_bytes": card.others,
        "other_processes_range": [card.others_low, card.others_high],
        "other_processes": card.processes,
        "is_estimated": card.is_estimated,
        "is_shared": card.is_shared,
    }


def shown_of(picture: Picture | Still) -> tuple[str, ...]:
    """What is to be said of a picture first: that it is not the recorded run, or not all of it."""
    return (*picture.warnings, *others_text(picture.trace.device, picture.others))


def when(instant: Instant) -> str:
    """ "after entry 26,059"."""
    if instant.entry is None:
        return "as the snapshot was taken"
    return f"after entry {number(instant.entry)}"


def others_text(device: int, others: Sequence[int]) -> tuple[str, ...]:
    """That a recording has other devices than the one that is shown; nothing where it has none."""
    if not others:
        return ()
    noun = "devices" if len(others) > 1 else "device"
    numbers = ", ".join(map(str, others))
    return (f"device {device} is shown; the recording has {noun} {numbers} too (--device)",)


def paragraph(text: str, indent: int = LABEL) -> list[str]:
    """`text` wrapped, indented as far as the text of a row."""
    return textwrap.wrap(
        printable(text), WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent
    )


def table(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Aligned rows, the first cell left, the others right; a long first cell has its own line."""
    lines = []
    for first, *others in rows:
        cells = "".join(f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        name = printable(first)
        if len(name) < widths[0]:
            lines.append(f"{name:{widths[0]}}{cells}".rstrip())
        else:
            lines += [name, f"{'':{widths[0]}}{cells}"]
    return lines


def exact_size(size: int) -> str:
    """ "5.46 GiB (5,865,734,144 bytes)"."""
    short = format_size(size)
    return short if short.endswith("bytes") else f"{short} ({size:,} bytes)"


def number(count: int) -> str:
    """ "26,064"."""
    return f"{count:,}"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """ "1 retry", "3 retries"."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def with_status(status: str, text: str) -> str:
    """`text` of an owner, behind "new" or "gone" where only one of two moments has it."""
    return f"{status}: {text}" if status in ("new", "gone") else text


def and_more(hidden: int) -> str:
    """The end of a table's last row: so many are not shown, and -n shows them."""
    return f"… and {number(hidden)} more: -n 0"


def earlier_errors(hidden: int) -> list[str]:
    """That so many errors are not shown, which came before those that are; nothing for none."""
    if hidden <= 0:
        return []
    return row("", f"({plural(hidden, 'error')} before these; --json lists them all)")


def clipped(text: str, width: int) -> str:
    """`text` in `width` columns, fit to be printed; what is cut is its end."""
    text = printable(text)
    return text if len(text) <= width else text[: width - 2].rstrip() + " …"


def shortened(text: str, width: int) -> str:
    """`text` in `width` columns; what is cut is its beginning, at a separator of paths or words."""
    if len(text) <= width:
        return text
    tail = text[len(text) - width + 1 :]
    at = min((i for mark in _SEPARATORS if (i := tail.find(mark)) >= 0), default=-1)
    return "…" + (tail[at:] if 0 <= at < len(tail) // 2 else tail)
