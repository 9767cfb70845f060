"""Compress the laws of a program for a page: columns of numbers, and a description of them.

The compression is lossless.  The category of each request is added.  A program has one law for each
regime, a range of sizes; a column holds the numbers of all laws, one after another.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.core import FreeBlockOrder, find_release
from allocsim.errors import ConfigError
from allocsim.fitting.laws import REQUEST, VARIABLES, Formula, Laws
from allocsim.report.html import Packer

_PER_ROW = ("kind", "group", "number", "by_copy", "by_copies")


@dataclass(frozen=True, slots=True)
class PackedLaws:
    """Compressed laws of the program `name`.

    about: description of the columns, for JSON.
    text: compressed columns; `about["columns"]` has the offset and length of each.
    n_laws: number of laws, one for each range of sizes.
    releases: releases of PyTorch and transformers, as text.
    """

    name: str
    about: dict[str, Any]
    text: str
    n_laws: int
    releases: str


def packed_laws(laws: Laws, purposes: Mapping[str, NDArray[np.int64]]) -> PackedLaws:
    """Return the compressed laws of a program.

    purposes: for each law, by its range of sizes, the category number of each request.
    Raises ConfigError for a release that orders free blocks otherwise than by address, since the
    page does not implement it.
    """
    release = ".".join(laws.torch_version.split(".")[:2])
    if find_release(release).free_block_order is FreeBlockOrder.CREATION:
        raise ConfigError(f"laws of {laws.name} are of PyTorch {release}, whose allocator the "
                          "page does not have")  # fmt: skip
    packer, found = Packer(), laws.by_regime.items()
    for name in _PER_ROW:
        packer.add(name, _joined(getattr(law, name) for _, law in found))
    requests = [law.kind == REQUEST for _, law in found]
    purpose = np.zeros(sum(map(len, requests)), dtype=np.int64)
    purpose[_joined(requests).astype(bool)] = _joined(purposes[regime] for regime, _ in found)
    packer.add("purpose", purpose)
    parts = [np.array(law.parts, dtype=np.int64).reshape(-1) for _, law in found]
    flat = [_flat(law.formulas) for _, law in found]
    packer.add("parts", _joined(parts))
    packer.add("formulas", _joined(flat))
    kinds = [law.kind for _, law in found]
    spans = zip(_spans(kinds), _spans(parts), _spans(flat), strict=True)
    about = {
        "release": laws.torch_version,
        "variables": list(VARIABLES),
        "regimes": {
            regime: {"layers": law.layers, "period": law.period, "reset": law.reset, "spans": each}
            for (regime, law), each in zip(found, spans, strict=True)
        },
        "columns": packer.index,
    }
    releases = f"PyTorch {laws.torch_version} and transformers {laws.transformers}"
    return PackedLaws(laws.name, about, packer.text(), len(laws.by_regime), releases)


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
