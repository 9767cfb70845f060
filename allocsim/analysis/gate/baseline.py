"""Baseline file: a small JSON file with the memory that a program is accepted to use.

The file is meant for version control.  It contains nothing that differs between runs of the same
program (no path, date or machine), and each number is on a separate line, in a fixed order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocsim.analysis.gate.body import PLACES
from allocsim.errors import ConfigError

__all__ = ["Baseline", "read_baseline", "write_baseline"]

_FORMAT = 1
_LARGEST = 16 << 20
_FIGURES = (
    "peak_reserved_bytes", "peak_allocated_bytes", "peak_requested_bytes", "driver_calls",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Baseline:
    """Memory of a recording that a baseline file stores; peaks are in bytes.

    path: path of the baseline file or of the recording.
    at: place where the measured part of the recording begins, such as ("step", "2"); None for the
        beginning of the recording.
    counts_held: True if memory counts that is held when the measured part begins.
    conf, torch_version: settings and release of the replay.
    driver_calls: number of allocations from the driver, without those for held memory.
    owners: requested bytes of the blocks allocated at the peak, by line of code.
    """

    path: str
    at: tuple[str, str] | None
    counts_held: bool
    conf: str
    torch_version: str
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    peak_requested_bytes: int
    driver_calls: int
    owners: Mapping[str, int]


def write_baseline(path: str | os.PathLike[str], found: Baseline) -> None:
    """Write `found` to the file at `path`.  Raises OSError if writing fails."""
    document: dict[str, Any] = {
        "allocsim_baseline": _FORMAT,
        "from": " ".join(found.at) if found.at else "",
        "counts_held": found.counts_held,
        "conf": found.conf,
        "torch_version": found.torch_version,
    }
    document |= {name: getattr(found, name) for name in _FIGURES}
    document["owners"] = dict(sorted(found.owners.items()))
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    target = Path(path)
    part = target.with_name(f"{target.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(target)


def read_baseline(path: str | os.PathLike[str]) -> Baseline:
    """Read a baseline file.  Raises ConfigError if it cannot be read or is not a baseline file."""
    name = os.fspath(path)
    try:
        with Path(name).open("rb") as file:
            data = file.read(_LARGEST + 1)
        document = json.loads(data.decode("utf-8")) if len(data) <= _LARGEST else None
    except OSError as error:
        raise ConfigError(f"{name} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        document = None
    try:
        return _read(name, document)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(f"{name} is not a baseline; --update writes one") from None


def _read(path: str, document: Any) -> Baseline:
    if document["allocsim_baseline"] != _FORMAT:
        raise ValueError
    place = document["from"].split(" ", 1)
    if document["from"] and (len(place) != 2 or place[0] not in PLACES):
        raise ValueError
    texts = {name: document[name] for name in ("conf", "torch_version")}
    figures = {name: document[name] for name in _FIGURES}
    owners = document["owners"]
    if not all(type(text) is str for text in texts.values()) or type(owners) is not dict:
        raise ValueError
    if not all(type(size) is int and size >= 0 for size in [*figures.values(), *owners.values()]):
        raise ValueError
    return Baseline(
        path=path,
        at=(place[0], place[1]) if document["from"] else None,
        counts_held=document["counts_held"] is True,
        owners=owners,
        **texts,
        **figures,
    )
