"""Write the requests of cases and kernels on the phantom GPU to one file.

The file is made from a folder that `python -m benchmarks.on_gpu OUT --phantom CARD` wrote, and from
the folder of the real GPU.  The recordings in both folders are compared entry by entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.recording import Action, Recording, load
from benchmarks.real_gpu.alignment import Codes, differences, run_order

__all__ = [
    "COMMAND", "RESULTS", "kernels_of", "predictions_of", "read_predictions", "rows_by_id",
    "same_entries",
]  # fmt: skip

RESULTS = Path(__file__).parents[1] / "results" / "h200-phantom.json"
COMMAND = "python -m benchmarks.on_gpu PHANTOM --python PYTHON --phantom H200"
Predictions = dict[str, Any]
_ALL = tuple(each for each in Action if each is not Action.SNAPSHOT)
_FREES = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)
_REQUESTS = (Action.ALLOC, *_FREES, Action.OOM)
_N_ACTIONS = len(Action)


def read_predictions(path: Path = RESULTS) -> Predictions:
    """Return what `predictions_of` wrote."""
    found: Predictions = json.loads(path.read_text())
    return found


def predictions_of(card: Path, phantom: Path) -> Predictions:
    """Compare the folders of a real and of a phantom GPU, for the parts that both have."""
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
    """Return the rows of the cases in a folder, by id; empty if the folder has no cases."""
    path = folder / "cases" / "cases.jsonl"
    return rows_by_id(path) if path.exists() else {}


def rows_by_id(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the rows of a file of JSON lines, by id and in its order."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["id"]: row for row in sorted(rows, key=lambda row: str(row["id"]))}


def kernels_of(folder: Path) -> dict[str, list[Any]]:
    """Return [requests forward, requests backward, error] of each shape, by kind of call.

    Empty if the folder has no kernels.
    """
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
    found["differences"] = asdict(differences(*_compared(real, other)))
    same, total, where = same_entries(real, other, kinds=_REQUESTS)
    found |= {"same_requests": same, "requests": total, "first_request": where}
    same, _, _ = same_entries(real, other, frees_in_order=False)
    found["same_entries_frees_unordered"] = same
    same, _, where = same_entries(real, other, kinds=_REQUESTS, frees_in_order=False)
    return found | {"same_requests_frees_unordered": same, "first_request_frees_unordered": where}


def same_entries(
    card: Recording,
    phantom: Recording,
    kinds: Sequence[Action] = _ALL,
    *,
    frees_in_order: bool = True,
) -> tuple[int, int, str]:
    """Return (number of equal entries, number of entries, place of the first difference).

    Entries are equal if action and size are equal; addresses depend on the driver.  They are
    counted up to the last request on the real GPU.  After it the objects of the program are freed,
    in an order that Python decides.
    kinds: actions of the entries to compare.
    frees_in_order: False to compare the frees between two other entries without regard to order.
    """
    real, other = (_codes(each, kinds, frees_in_order) for each in (card, phantom))
    total = _length(real[1])
    n = min(total, len(other[1]))
    differing = np.flatnonzero(real[1][:n] != other[1][:n])
    if not len(differing):
        return n, total, "" if n == total else "the phantom's program ends"
    first = int(differing[0])
    row = int(real[0][first])
    stack = card.frame_table.stack(int(card.devices[0].frames[row]))
    place = next((f"{frame.filename}:{frame.line} {frame.name}" for frame in stack), "no stack")
    return first, total, place


def _compared(card: Recording, phantom: Recording) -> tuple[Codes, Codes]:
    """Return the codes of the entries of both recordings, each up to its last request."""
    real, other = (_codes(each, _ALL, frees_in_order=True)[1] for each in (card, phantom))
    return real[: _length(real)], other[: _length(other)]


def _codes(
    recording: Recording, kinds: Sequence[Action], frees_in_order: bool
) -> tuple[NDArray[np.intp], Codes]:
    """Return the numbers of the entries of some kinds, and a code for action and size of each."""
    [device] = recording.devices
    rows = np.flatnonzero(np.isin(device.action, kinds))
    actions = device.action[rows].astype(np.int64)
    codes = device.size[rows].astype(np.int64) * _N_ACTIONS + actions
    if frees_in_order:
        return rows, codes
    order = run_order(codes, np.isin(actions, _FREES))
    return rows[order], codes[order]


def _length(codes: Codes) -> int:
    """Return the number of entries up to the last request."""
    requests = np.flatnonzero(codes % _N_ACTIONS == int(Action.ALLOC))
    return int(requests[-1]) + 1 if len(requests) else 0


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
