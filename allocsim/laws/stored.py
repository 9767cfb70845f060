"""Laws in files of the package: one for each program of a family, a law for each regime.

Rule: plain columns, read without running anything; a file of another format is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError
from allocsim.laws.formula import Formula
from allocsim.laws.law import Law
from allocsim.laws.variables import VARIABLES
from allocsim.trace import Frame, FrameTable

__all__ = ["DATA", "Laws", "find_laws", "known_laws", "write_laws"]

DATA = Path(__file__).parent / "data"

_FORMAT = 1
_NONE = -1
_PER_ROW = ("kind", "kin", "number", "by_copy", "by_copies")


@dataclass(frozen=True, slots=True, eq=False)
class Laws:
    """The laws of one program, by regime.

    torch_version: the release that ran it.  stacks: what kins number.
    """

    name: str
    torch_version: str
    stacks: FrameTable
    by_regime: Mapping[str, Law]


def known_laws() -> tuple[str, ...]:
    """The names of the programs that there are laws for."""
    return tuple(sorted(path.stem for path in DATA.glob("*.npz")))


def find_laws(name: str) -> Laws | None:
    """The laws of the program `name`; None if there are none."""
    path = DATA / f"{name}.npz"
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as columns:
        if int(columns["format"]) != _FORMAT:
            raise ConfigError(f"{path} has format {int(columns['format'])}; expected {_FORMAT}")
        numbers = [VARIABLES.index(name) for name in columns["variables"].tolist()]
        regimes = sorted({key.partition("/")[0] for key in columns.files if "/" in key})
        return Laws(
            name,
            str(columns["torch_version"]),
            _stacks(columns),
            {regime: _law(regime, columns, numbers) for regime in regimes},
        )


def write_laws(laws: Laws, folder: Path = DATA) -> Path:
    """Write the file of one program; where it is."""
    columns: dict[str, NDArray[np.generic]] = {
        "format": np.array(_FORMAT),
        "torch_version": np.array(laws.torch_version),
        "frames": np.array(
            [f"{frame.line}\t{frame.name}\t{frame.filename}" for frame in laws.stacks.frames]
        ),
        "variables": np.array(VARIABLES),
        "flat": laws.stacks.flat.astype(np.uint16),
        "offsets": laws.stacks.offsets.astype(np.uint32),
    }
    for regime, law in laws.by_regime.items():
        width = max((len(formula.variables) for formula in law.formulas), default=0)
        columns |= {f"{regime}/{name}": _narrow(getattr(law, name)) for name in _PER_ROW}
        columns |= {
            f"{regime}/parts": _narrow(np.array(law.parts, dtype=np.int64).reshape(-1, 2)),
            f"{regime}/shares": np.array([(f.numerator, f.denominator) for f in law.formulas]),
            f"{regime}/variables": np.array(
                [
                    [*formula.variables, *[_NONE] * (width - len(formula.variables))]
                    for formula in law.formulas
                ],
                dtype=np.int8,
            ),
            f"{regime}/about": np.array([law.layers, law.reset, law.proofs, law.period]),
        }
    folder.mkdir(exist_ok=True)
    path = folder / f"{laws.name}.npz"
    np.savez_compressed(path, allow_pickle=False, **columns)
    return path


def _narrow(column: NDArray[np.generic]) -> NDArray[np.generic]:
    """The column in the narrowest whole numbers that hold it."""
    for dtype in (np.int8, np.int16, np.int32):
        narrow = column.astype(dtype)
        if np.array_equal(narrow, column):
            return narrow
    return column


def _law(regime: str, columns: Mapping[str, NDArray[np.generic]], variables: Sequence[int]) -> Law:
    """variables: what the file's numbers of them are here."""

    def column(name: str) -> NDArray[np.int64]:
        return columns[f"{regime}/{name}"].astype(np.int64)

    layers, reset, proofs, *period = column("about").tolist()
    formulas = zip(column("shares").tolist(), column("variables").tolist(), strict=True)
    return Law(
        kind=column("kind").astype(np.uint8),
        kin=column("kin"),
        number=column("number"),
        by_copy=column("by_copy"),
        by_copies=column("by_copies"),
        parts=[(start, stop) for start, stop in column("parts").tolist()],
        formulas=tuple(
            Formula(numerator, denominator, tuple(variables[n] for n in numbers if n != _NONE))
            for (numerator, denominator), numbers in formulas
        ),
        layers=layers,
        reset=reset,
        proofs=proofs,
        period=period[0] if period else 1,
    )


def _stacks(columns: Mapping[str, NDArray[np.generic]]) -> FrameTable:
    frames = []
    for text in columns["frames"].tolist():
        line, name, filename = str(text).split("\t", 2)
        frames.append(Frame(filename, name, int(line)))
    flat, offsets = columns["flat"].astype(np.int32), columns["offsets"].astype(np.int64)
    return FrameTable(tuple(frames), flat, offsets)
