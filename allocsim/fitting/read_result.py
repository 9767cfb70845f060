"""Reader of the answers that `allocsim fit --json` writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from allocsim.errors import ConfigError

_MOST_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer of `fit` for one card, as read from its JSON.

    name: name of the card.
    device_memory, context_memory: bytes of the card, and of the CUDA context.
    needed_bytes: bytes that suffice, without the CUDA context; if unknown, the peak of reserved
        memory.
    breakdown: dictionary from purposes, such as weights, to bytes; empty if the JSON has none.
    """

    name: str
    fits: bool
    device_memory: int
    context_memory: int
    needed_bytes: int
    breakdown: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ReadFront:
    """Answer of `fit --find` with two sizes, such as batch and sequence, as read from its JSON.

    gpu: name of the card.
    name: size that was maximized, such as "batch".
    other: size whose values were given, such as "seq".
    points: tuples (value of `other`, largest value of `name` that fits with it or 0, bytes reserved
        at the peak).
    """

    gpu: str
    name: str
    other: str
    points: tuple[tuple[int, int, int], ...]


def read_answers(path: str) -> tuple[Answered, ...]:
    """Return the answers of `fit` in a JSON file, one for each card."""
    return _read(path, lambda document: tuple(map(_answered, document.get("cards", [document]))))


def read_frontier(path: str) -> ReadFront | None:
    """Return the answer of `fit --find` with two sizes in a JSON file; None for another answer."""
    return _read(path, lambda document: _frontier(document) if "frontier" in document else None)


_T = TypeVar("_T")


def _read(path: str, parse: Callable[[Any], _T]) -> _T:
    try:
        with Path(path).open("rb") as file:
            document = json.loads(file.read(_MOST_BYTES))
        return parse(document)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ConfigError(
            f"{path}: has no answer; expected the output of `allocsim fit --json`"
        ) from None


def _frontier(document: Mapping[str, Any]) -> ReadFront:
    name, other = map(str, document["find"])
    points = tuple(
        (row["at"][other], row["largest"] or 0, row["peak_reserved_bytes"] or 0)
        for row in document["frontier"]
    )
    numbers = [number for point in points for number in point]
    if not points or not all(type(each) is int and each >= 0 for each in numbers):
        raise ValueError
    return ReadFront(str(document["gpu"]), name, other, points)


def _answered(document: Mapping[str, Any]) -> Answered:
    breakdown = dict(document.get("breakdown", {}))
    sizes = [document["device_memory"], document["context_memory"], *breakdown.values()]
    # needed_bytes is null if the memory that would suffice is unknown.
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
