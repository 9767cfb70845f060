"""Training and serving runs of a card against the same programs over the phantom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.real_gpu.tables import bytes_text, error_text, signed_percent, table

__all__ = ["case_lines", "case_summary"]

Row = Mapping[str, Any]

_CAUSES = {
    "sdpa_attention.py": "kernel of attention",
    "activation.py": "kernel of attention",
    "masking_utils.py": "values of position ids decide whether a mask is built",
    "conv.py": "workspace of a convolution",
    "functional.py": "workspace of a normalization",
    "modeling_mixtral.py": "routing of tokens to experts",
    "moe.py": "routing of tokens to experts",
}
"""Causes by the file whose code requests first what the phantom does not."""


def case_summary(real: Mapping[str, Row], predicted: Mapping[str, Row]) -> str:
    """Return how many peaks are exact, and the worst error, in a sentence.  Both are by id.

    Runs that the card has no memory for are left out: their peaks depend on what others held.
    """
    real = {name: row for name, row in real.items() if not row.get("oom")}
    known = [name for name in real if name in predicted]
    exact = sum(predicted[name]["peak_reserved"] == real[name]["peak_reserved"] for name in known)
    return f"{exact} of {len(known)} peaks of reserved memory are exact{_worst(real, predicted)}."


def case_lines(real: Mapping[str, Row], predicted: Mapping[str, Row]) -> list[str]:
    """Return the table with its summary as Markdown.  Both are by id."""
    same = sum(_is_same(row) for name, row in predicted.items() if name in real)
    lines = [
        f"**{case_summary(real, predicted)}** Runs whose entries are all the card's: {same}.",
        "",
    ]
    head = ("case", "task", "reserved, real", "predicted", "error", "allocated, error")
    return lines + table(
        (*head, "same entries", "same requests", "cause of the first other request"),
        (_cells(name, real[name], predicted.get(name)) for name in real),
    )


def _cells(name: str, real: Row, predicted: Row | None) -> tuple[str, ...]:
    peaks = None if predicted is None else predicted["peak_reserved"]
    allocated = None if predicted is None else predicted["peak_allocated"]
    entries = requests = place = "-"
    if predicted is not None and "entries" in predicted:
        entries = _counted(predicted["same_entries"], predicted["entries"])
        requests = _counted(predicted["same_requests"], predicted["requests"])
        place = _cause(predicted["first_request"])
    return (
        name,
        _task(real),
        bytes_text(real["peak_reserved"]),
        bytes_text(peaks),
        error_text(real["peak_reserved"], peaks),
        error_text(real["peak_allocated"], allocated),
        entries,
        requests,
        place,
    )


def _cause(place: str) -> str:
    """Return the cause and the place of a request; "" for none."""
    if not place:
        return ""
    return f"{_CAUSES.get(place.split(':', maxsplit=1)[0], 'not known')} ({place})"


def _counted(same: int, total: int) -> str:
    return f"all {total:,}" if same == total else f"{same:,} of {total:,}"


def _is_same(predicted: Row) -> bool:
    return "entries" in predicted and predicted["same_entries"] == predicted["entries"]


def _task(row: Row) -> str:
    """Return the task in short."""
    length = row.get("seq") or row.get("prompt") or row.get("image")
    words = [row["model"], row["dtype"].replace("_", "-")]
    words.append(row["optimizer"].replace("_", "-") if row["kind"] == "train" else "serving")
    words.append(f"{row['batch']} x {length}")
    words += ["checkpointing"] * bool(row.get("gc")) + ["LoRA"] * bool(row.get("lora"))
    words += ["channels-last"] * bool(row.get("channels_last"))
    words += ["(out of memory)"] * bool(row.get("oom"))
    return " ".join(words)


def _worst(real: Mapping[str, Row], predicted: Mapping[str, Row]) -> str:
    errors = {
        name: signed_percent(real[name]["peak_reserved"], row["peak_reserved"])
        for name, row in predicted.items()
        if name in real
    }
    if not any(errors.values()):
        return ""
    name = max(errors, key=lambda each: abs(errors[each]))
    below = sum(abs(error) <= 1 for error in errors.values())
    return f", {below} within 1 %; the worst is {name}, {errors[name]:+.3f} %"
