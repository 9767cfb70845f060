"""Laws of a program for a page: packed columns, and a small dictionary that describes them.

Rule: what the page unpacks is the law row for row and number for number, with the purpose of each
request beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.core import FreeBlockOrder, find_release
from allocsim.errors import ConfigError
from allocsim.laws import REQUEST, VARIABLES, Formula, Law, Laws
from allocsim.report.html import Packer

__all__ = ["PackedLaws", "Purposes", "packed_laws"]

Purposes = Callable[[Laws, Law], NDArray[np.int64]]
"""What the requests of a law are for, by number, in their order."""

_PER_ROW = ("kind", "kin", "number", "by_copy", "by_copies")


@dataclass(frozen=True, slots=True)
class PackedLaws:
    """The laws of the program `name`, as a page carries them.

    about: for JSON.  text: the columns that its `columns` describes.  n_laws: one a regime.
    """

    name: str
    about: dict[str, Any]
    text: str
    n_laws: int


def packed_laws(laws: Laws, purposes: Purposes) -> PackedLaws:
    """The laws of a program.

    Raises ConfigError for a release whose allocator the page does not have: it knows no order of
    free blocks but that of addresses.
    """
    release = ".".join(laws.torch_version.split(".")[:2])
    if find_release(release).free_block_order is FreeBlockOrder.CREATION:
        raise ConfigError(f"laws of {laws.name} are of PyTorch {release}, whose allocator the "
                          "page does not have")  # fmt: skip
    packer = Packer()
    for regime, law in laws.by_regime.items():
        for name in _PER_ROW:
            packer.add(f"{regime}/{name}", getattr(law, name))
        purpose = np.zeros(len(law.kind), dtype=np.int64)
        purpose[law.kind == REQUEST] = purposes(laws, law)
        packer.add(f"{regime}/purpose", purpose)
        packer.add(f"{regime}/parts", np.array(law.parts, dtype=np.int64).reshape(-1))
        flat = [number for formula in law.formulas for number in _flat(formula)]
        packer.add(f"{regime}/formulas", np.array(flat, dtype=np.int64))
    about = {
        "release": laws.torch_version,
        "variables": list(VARIABLES),
        "regimes": {
            regime: {"layers": law.layers, "reset": law.reset}
            for regime, law in laws.by_regime.items()
        },
        "columns": packer.index,
    }
    return PackedLaws(laws.name, about, packer.text(), len(laws.by_regime))


def _flat(formula: Formula) -> list[int]:
    """Numerator, denominator, how many variables, and they."""
    variables = formula.variables
    return [formula.numerator, formula.denominator, len(variables), *variables]
