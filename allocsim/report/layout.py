"""Functions that lay out plain text in 80 columns, or return parts of JSON documents."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from allocsim._repr import printable
from allocsim.units import format_size

if TYPE_CHECKING:
    from allocsim.analysis.picture import Instant, Picture, Still
    from allocsim.recording import CardMemory
    from allocsim.simulation import Parting, SimulatedOom

WIDTH = 80
LABEL = 16
_SEPARATORS = ("/", "\\", " ")


def row(label: str, text: str, indent: int = LABEL) -> list[str]:
    """Return the wrapped lines of `text`, with a label to the left of the first line.

    indent: column where the text begins.
    """
    return textwrap.wrap(
        printable(text),
        WIDTH,
        initial_indent=f"{label:{indent}}",
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    ) or [label]


def rows(label: str, texts: Iterable[str]) -> list[str]:
    """Return the lines of several texts below each other; the label is in the first line."""
    lines: list[str] = []
    for text in texts:
        lines += row("" if lines else label, text)
    return lines


def warned(warnings: Sequence[str]) -> list[str]:
    """Return lines of warnings and an empty line after them; [] without warnings."""
    return [line for each in warnings for line in row("Warning", each)] + [""] * bool(warnings)


def fields(value: object, keys: str) -> dict[str, Any]:
    """Return attributes of `value` as part of a JSON document; all are None if `value` is None.

    keys: attribute names separated by spaces. "num_ooms=ooms" writes the attribute `ooms` under the
        key "num_ooms". "size_bytes=form.size" writes `value.form.size`; None if `form` is None.
    """
    found = {}
    for each in keys.split():
        key, _, path = each.partition("=")
        part = value
        for name in (path or key).split("."):
            part = None if part is None else getattr(part, name)
        found[key] = part
    return found


def unproved(parting: Parting | None, entry: int | None = None) -> str:
    """Return "unproved: " as the beginning of a sentence that the recording does not confirm.

    Return "" if the replay equals the recording up to `entry`.

    parting: first difference between replay and recording; None if they are equal.
    entry: index of the history entry that the sentence is about; None for the whole run.
    """
    if parting is None or (entry is not None and not parting.is_before(entry)):
        return ""
    return "unproved: "


def known_text(oom: SimulatedOom) -> str:
    return "as recorded" if oom.is_recorded else "not in the recording"


def parting_document(parting: Parting | None) -> dict[str, Any] | None:
    return None if parting is None else {"entry": parting.entry, "note": str(parting)}


def card_document(card: CardMemory | None) -> dict[str, Any] | None:
    if card is None:
        return None
    return {
        **fields(card, "total_bytes=total outside_bytes=outside context_bytes=context"),
        "other_processes_bytes": card.others,
        "other_processes_range": [card.others_low, card.others_high],
        **fields(card, "other_processes=processes is_estimated is_shared"),
    }


def shown_of(picture: Picture | Still) -> tuple[str, ...]:
    """Return warnings for a chart: that its settings are not the recorded, or of other devices."""
    return (*picture.warnings, *others_text(picture.trace.device, picture.others))


def when(instant: Instant) -> str:
    if instant.entry is None:
        return "as the snapshot was taken"
    return f"after entry {instant.entry:,}"


def others_text(device: int, others: Sequence[int]) -> tuple[str, ...]:
    """Return a note that only one recorded device is shown; () if there are no others.

    device, others: indices, as in "cuda:0", of the shown device and of the other recorded devices.
    """
    if not others:
        return ()
    noun = "devices" if len(others) > 1 else "device"
    numbers = ", ".join(map(str, others))
    return (f"device {device} is shown; the recording also has {noun} {numbers} (--device)",)


def paragraph(text: str, indent: int = LABEL) -> list[str]:
    """Return the lines of `text`, wrapped; `indent` is their first column."""
    return textwrap.wrap(
        printable(text), WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent
    )


def table(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Return the lines of a table; all columns but the first are right-aligned."""
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
    """Return a size, e.g. "5.46 GiB (5,865,734,144 bytes)"."""
    short = format_size(size)
    return short if short.endswith("bytes") else f"{short} ({size:,} bytes)"


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun: "1 retry", "3 retries"."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def with_status(status: str, text: str) -> str:
    """Return "new: gradients" for the status "new", "gone: …" for "gone", else `text` alone."""
    return f"{status}: {text}" if status in ("new", "gone") else text


def and_more(hidden: int) -> str:
    return f"… and {hidden:,} more (-n 0)"


def earlier_errors(hidden: int) -> list[str]:
    """Return a line with the number of earlier errors that are not shown; [] if it is 0."""
    if hidden <= 0:
        return []
    return row("", f"({plural(hidden, 'earlier error')}; --json lists them all)")


def clipped(text: str, width: int) -> str:
    """Return printable `text` cut at its end to `width` columns."""
    text = printable(text)
    return text if len(text) <= width else text[: width - 2].rstrip() + " …"


def shortened(text: str, width: int) -> str:
    """Return `text` cut at its beginning to `width` columns, at a separator if possible."""
    if len(text) <= width:
        return text
    tail = text[len(text) - width + 1 :]
    at = min((i for mark in _SEPARATORS if (i := tail.find(mark)) >= 0), default=-1)
    return "…" + (tail[at:] if 0 <= at < len(tail) // 2 else tail)
