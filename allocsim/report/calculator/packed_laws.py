"""Compress the laws of a model family for a page: columns of numbers, and a description of them.

The compression is lossless.  The category of each request is added.  A column holds the numbers of
all laws, one after another; equal laws are stored once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.core import FreeBlockOrder, find_release
from allocsim.errors import ConfigError
from allocsim.fitting import PageLaws
from allocsim.fitting.laws import REQUEST, VARIABLES, Formula, Law
from allocsim.report.html import Packer

_PER_ROW = ("kind", "group", "number", "by_copy", "by_copies")


@dataclass(frozen=True, slots=True)
class PackedLaws:
    """Compressed laws of the model family `name`.

    about: description of the columns, for JSON.
    text: compressed columns; `about["columns"]` has their places.
    programs: names of the parts of each program.
    n_laws: number of laws.
    releases: releases of PyTorch and transformers, as text.
    """

    name: str
    about: dict[str, Any]
    text: str
    programs: dict[str, list[str]]
    n_laws: int
    releases: str


def packed_laws(laws: PageLaws) -> PackedLaws:
    """Return the compressed laws of a model family.

    Raises ConfigError for a release that orders free blocks otherwise than by address, since the
    page does not implement it.
    """
    release = ".".join(laws.torch_version.split(".")[:2])
    if find_release(release).free_block_order is FreeBlockOrder.CREATION:
        raise ConfigError(f"laws of {laws.family} are of PyTorch {release}, whose allocator the "
                          "page does not have")  # fmt: skip
    numbers: dict[bytes, int] = {}
    found: list[tuple[Law, NDArray[np.int64]]] = []
    parts: dict[str, dict[str, int]] = {}
    for part, by_name in laws.parts.items():
        for name, (law, purposes) in by_name.items():
            key = b"".join(getattr(law, each).tobytes() for each in _PER_ROW)
            key += repr((law.parts, law.formulas)).encode() + purposes.tobytes()
            if key not in numbers:
                numbers[key] = len(found)
                found.append((law, purposes))
            parts.setdefault(part, {})[name] = numbers[key]
    packer = Packer()
    for name in _PER_ROW:
        packer.add(name, _joined(getattr(law, name) for law, _ in found))
    requests = _joined(law.kind == REQUEST for law, _ in found).astype(bool)
    purpose = np.zeros(len(requests), dtype=np.int64)
    purpose[requests] = _joined(purposes for _, purposes in found)
    packer.add("purpose", purpose)
    repeated = [np.array(law.parts, dtype=np.int64).reshape(-1) for law, _ in found]
    flat = [_flat(law.formulas) for law, _ in found]
    packer.add("parts", _joined(repeated))
    packer.add("formulas", _joined(flat))
    spans = zip(_spans([law.kind for law, _ in found]), _spans(repeated), _spans(flat), strict=True)
    about = {
        "release": laws.torch_version,
        "variables": list(VARIABLES),
        "parts": parts,
        "laws": [
            {"layers": law.layers, "period": law.period, "spans": each}
            for (law, _), each in zip(found, spans, strict=True)
        ],
        "columns": packer.index,
    }
    releases = f"PyTorch {laws.torch_version} and transformers {laws.transformers}"
    n_laws = sum(map(len, parts.values()))
    programs = {name: list(of) for name, of in laws.programs.items()}
    return PackedLaws(laws.family, about, packer.text(), programs, n_laws, releases)


def _joined(columns: Iterable[NDArray[Any]]) -> NDArray[np.int64]:
    return np.concatenate([column.astype(np.int64) for column in columns])


def _spans(columns: Sequence[NDArray[Any]]) -> list[tuple[int, int]]:
    """Return (begin, end) of each column in the concatenation of all columns."""
    ends = np.cumsum([0, *map(len, columns)]).tolist()
    return list(itertools.pairwise(ends))


def _flat(formulas: Iterable[Formula]) -> NDArray[np.int64]:
    """Return the formulas as one column of numbers.

    Each formula gives its numerator, denominator, number of variables, and variables.
    """
    return np.array(
        [
            number
            for each in formulas
            for number in (
                *(each.numerator, each.denominator, len(each.variables)),
                *each.variables,
            )
        ],
        dtype=np.int64,
    )
