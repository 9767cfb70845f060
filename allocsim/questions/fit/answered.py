"""Answers of `allocsim fit`, read again from what its --json printed.

Rule: a file that holds none is refused in a sentence; figures are bytes, none below 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError

__all__ = ["Answered", "read_answers"]

_MOST_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Answered:
    """One card's answer.  breakdown: bytes by what they are for, empty where it was not asked."""

    name: str
    fits: bool
    device_memory: int
    context_memory: int
    needed_bytes: int
    breakdown: Mapping[str, int]


def read_answers(path: str) -> tuple[Answered, ...]:
    """The answers in the file at `path`.  Raises ConfigError for anything else."""
    try:
        with Path(path).open("rb") as file:
            document = json.loads(file.read(_MOST_BYTES))
        return tuple(map(_answered, document.get("cards", [document])))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(
            f"{path}: holds no answer; expected what `allocsim fit --json` prints"
        ) from None


def _answered(document: Mapping[str, Any]) -> Answered:
    breakdown = dict(document.get("breakdown", {}))
    sizes = [document["device_memory"], document["context_memory"], *breakdown.values()]
    needed = document["needed_bytes"] or document["peak_reserved_bytes"]
    if not all(type(size) is int and size >= 0 for size in (*sizes, needed)):
        raise ValueError
    return Answered(
        name=str(document["gpu"]),
        fits=bool(document["fits"]),
        device_memory=sizes[0],
        context_memory=sizes[1],
        needed_bytes=needed,
        breakdown={str(name): size for name, size in breakdown.items()},
    )
