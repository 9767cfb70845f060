"""Compare training and serving on a real GPU with the same programs on the phantom GPU."""

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
"""Causes, by file of the first request that the phantom does not make."""


def case_summary(real: Mapping[str, Row], predicted: Mapping[str, Row]) -> str:
    """Return a sentence with the number of exact peaks and the worst error.

    real, predicted: rows of the real and the phantom GPU, by id.
    Cases that do not fit on the GPU are left out, because their peaks depend on other processes.
    """
    real = {name: row for name, row in real.items() if not row.get("oom")}
    known = [name for name in real if name in predicted]
    exact = sum(predicted[name]["peak_reserved"] == real[name]["peak_reserved"] for name in known)
    return f"{exact} of {len(known)} peaks of reserved memory are exact{_worst(real, predicted)}."


def case_lines(real: Mapping[str, Row], predicted: Mapping[str, Row]) -> list[str]:
    """Return the lines of the table and its summary in Markdown.

    real, predicted: rows of the real and the phantom GPU, by id.
    """
    rows = [row for name, row in predicted.items() if name in real]
    same = sum(_is_same(row) for row in rows)
    text = f"**{case_summary(real, predicted)}** Runs whose entries are all the card's: {same}"
    is_aligned = any("differences" in row for row in rows)
    if is_aligned:
        text += f"; {sum(map(_differs_in_frees, rows))} more differ in the order of frees alone"
    head = [
        *("case", "task", "reserved, real", "predicted", "error", "allocated, error"),
        *("same entries", "same requests", "cause of the first other request"),
    ]
    head += ["missing, added, moved"] * is_aligned
    cells = (_cells(name, real[name], predicted.get(name)) for name in real)
    return [text + ".", "", *table(head, (row[: len(head)] for row in cells))]


def _cells(name: str, real: Row, predicted: Row | None) -> tuple[str, ...]:
    peaks = None if predicted is None else predicted["peak_reserved"]
    allocated = None if predicted is None else predicted["peak_allocated"]
    entries = requests = place = counts = "-"
    if predicted is not None and "entries" in predicted:
        entries = _counted(predicted["same_entries"], predicted["entries"])
        requests = _counted(predicted["same_requests"], predicted["requests"])
        place = _cause(real, predicted)
        counts = _differences(predicted)
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
        counts,
    )


def _cause(real: Row, predicted: Row) -> str:
    """Return cause and place of the first request that differs; "" if all requests are equal."""
    place = predicted["first_request"]
    if not place:
        return "" if _is_same(predicted) else "no other request; addresses of the driver"
    if _differs_in_frees(predicted):
        chance = "order of frees"
        if real["dtype"].startswith("autocast"):
            chance += " when autocast clears its cache of weights, which PyTorch leaves to chance"
        return f"{chance} ({place})"
    place = predicted.get("first_request_frees_unordered") or place
    return f"{_CAUSES.get(place.split(':', maxsplit=1)[0], 'not known')} ({place})"


def _differs_in_frees(predicted: Row) -> bool:
    """Return True if the only difference is the order of frees between two requests."""
    same = predicted.get("same_entries_frees_unordered")
    return same is not None and not _is_same(predicted) and same == predicted["entries"]


def _differences(predicted: Row) -> str:
    """Return the numbers of missing, added and moved entries as text; "" if there are none."""
    found = predicted.get("differences", {})
    counts = [found.get(name, 0) for name in ("missing", "added", "moved")]
    return ", ".join(f"{count:,}" for count in counts) if any(counts) else ""


def _counted(same: int, total: int) -> str:
    return f"all {total:,}" if same == total else f"{same:,} of {total:,}"


def _is_same(predicted: Row) -> bool:
    return "entries" in predicted and predicted["same_entries"] == predicted["entries"]


def _task(row: Row) -> str:
    """Return a short description of the task of a row."""
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
    return f", {below} within 1 %; the worst is {_task(real[name])}, {errors[name]:+.3f} %"
