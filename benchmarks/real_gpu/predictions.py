"""Requests of cases and kernels over the phantom, in one file beside other results.

The file is made from a folder that `python -m benchmarks.on_gpu OUT --phantom CARD` wrote, and from
the folder of the card, whose recordings are compared with those over the phantom entry by entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from allocsim.trace import Action, Recording, load

__all__ = ["COMMAND", "RESULTS", "kernels_of", "predictions_of", "read_predictions", "same_entries"]

RESULTS = Path(__file__).parents[1] / "results" / "h200-phantom.json"
COMMAND = "python -m benchmarks.on_gpu PHANTOM --python PYTHON --phantom H200"
Predictions = dict[str, Any]
_ALL = tuple(each for each in Action if each is not Action.SNAPSHOT)
_REQUESTS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.OOM)


def read_predictions(path: Path = RESULTS) -> Predictions:
    """Return what `predictions_of` wrote."""
    found: Predictions = json.loads(path.read_text())
    return found


def predictions_of(card: Path, phantom: Path) -> Predictions:
    """Compare the folder of a phantom with that of a card; parts that either lacks are left out."""
    properties = _read(phantom / "properties.json")
    names = ("torch", "transformers", "peft", "cudnn", "python", "date")
    found: Predictions = {"command": COMMAND}
    found |= {name: properties[name] for name in names if name in properties}
    rows = case_rows(phantom)
    found["cases"] = {
        name: {key: row[key] for key in ("peak_allocated", "peak_reserved")}
        | _entries(card / "cases" / f"{name}.npz.gz", phantom / "cases" / f"{name}.npz.gz")
        for name, row in rows.items()
        if name in case_rows(card)
    }
    if (phantom / "kernels.json").exists():
        found["kernels"] = kernels_of(phantom)
    return found


def case_rows(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the rows of a folder's cases by id; empty without any."""
    path = folder / "cases" / "cases.jsonl"
    if not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["id"]: row for row in sorted(rows, key=lambda row: str(row["id"]))}


def kernels_of(folder: Path) -> dict[str, list[Any]]:
    """Return [forward, backward, error] of each shape, by kind; empty without the part."""
    found = _read(folder / "kernels.json")
    return {
        kind: [[row["forward"], row["backward"], row["error"]] for row in found[kind]]
        for kind in ("attention", "conv")
        if kind in found
    }


def _entries(card: Path, phantom: Path) -> dict[str, Any]:
    if not (card.exists() and phantom.exists()):
        return {}
    real, other = load(card), load(phantom)
    same, total, where = same_entries(real, other)
    found: dict[str, Any] = {"same_entries": same, "entries": total, "first_difference": where}
    same, total, where = same_entries(real, other, kinds=_REQUESTS)
    return found | {"same_requests": same, "requests": total, "first_request": where}


def same_entries(
    card: Recording, phantom: Recording, kinds: Sequence[Action] = _ALL
) -> tuple[int, int, str]:
    """Return (entries that are the same, entries, place of the first difference).

    kinds: entries that are compared.  Requests and frees are the program's; segments depend on
    addresses of the driver too.  They are counted up to the card's last request: after it the
    objects of the program are freed, in an order that Python decides.  Entries are the same if
    action and size are; addresses are the driver's.
    """
    [real], [other] = card.devices, phantom.devices
    rows, others = (np.flatnonzero(np.isin(each.action, kinds)) for each in (real, other))
    actions, sizes = real.action[rows], real.size[rows]
    ends = np.flatnonzero(actions == int(Action.ALLOC))
    total = int(ends[-1]) + 1 if len(ends) else 0
    n = min(total, len(others))
    is_other = (actions[:n] != other.action[others][:n]) | (sizes[:n] != other.size[others][:n])
    differing = np.flatnonzero(is_other)
    if not len(differing):
        return n, total, "" if n == total else "the phantom's program ends"
    first = int(differing[0])
    stack = card.frame_table.stack(int(real.frames[rows[first]]))
    place = next((f"{frame.filename}:{frame.line} {frame.name}" for frame in stack), "no stack")
    return first, total, place


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
