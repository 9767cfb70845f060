"""Laws in files of the package: one for each program of a family, a law for each regime.

A folder has those of a release of transformers (`library.py`); a program that asks no otherwise
than in the release before has no file there.

Rule: plain columns, read without running anything; a file of another format is refused.  A column
holds the rows of every regime, one after the other: the regimes of a program are nearly alike, and
what is alike packs well when it lies together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np
from numpy.lib.format import write_array
from numpy.typing import ArrayLike, NDArray

from allocsim.errors import ConfigError
from allocsim.laws.formula import Formula
from allocsim.laws.law import Law
from allocsim.laws.library import TRANSFORMERS
from allocsim.laws.variables import VARIABLES
from allocsim.trace import Frame, FrameTable

__all__ = ["DATA", "Laws", "find_laws", "known_laws", "write_laws"]

DATA = Path(__file__).parent / "data"

_FORMAT = 2
_PER_ROW = ("kind", "kin", "number", "by_copy", "by_copies")


@dataclass(frozen=True, slots=True, eq=False)
class Laws:
    """The laws of one program, by regime.

    torch_version: the release that ran it.  transformers: the row of `TRANSFORMERS` that they are
    for.  stacks: what kins number.
    """

    name: str
    torch_version: str
    transformers: str
    stacks: FrameTable
    by_regime: Mapping[str, Law]


def known_laws() -> tuple[str, ...]:
    """The names of the programs that there are laws for."""
    return tuple(sorted({path.stem for path in DATA.glob("*/*.npz")}))


def find_laws(name: str, transformers: str = TRANSFORMERS[0]) -> Laws | None:
    """The laws of the program `name`, in a release of `TRANSFORMERS`; None if there are none."""
    upto = TRANSFORMERS[: TRANSFORMERS.index(transformers) + 1]
    paths = [_folder(each) / f"{name}.npz" for each in reversed(upto)]
    path = next((each for each in paths if each.is_file()), None)
    if path is None:
        return None
    with np.load(path, allow_pickle=False) as file:
        if int(file["format"]) != _FORMAT:
            raise ConfigError(f"{path} has format {int(file['format'])}; expected {_FORMAT}")
        columns = {column: file[column] for column in file.files}
    if not str(columns["regimes"]):
        return None  # those of the release before were refuted, and none took their place
    torch_version = str(columns["torch_version"])
    return Laws(name, torch_version, transformers, _stacks(columns), _by_regime(columns))


def _folder(transformers: str) -> Path:
    return DATA / f"transformers-{transformers}"


def write_laws(laws: Laws) -> Path:
    """Write the file of one program; where it is.  One without laws says that there are none."""
    found = list(laws.by_regime.values())
    formulas = [formula for law in found for formula in law.formulas]
    columns: dict[str, NDArray[np.generic]] = {
        "format": np.array(_FORMAT),
        "torch_version": np.array(laws.torch_version),
        "frames": np.array(
            "\n".join(f"{each.line}\t{each.name}\t{each.filename}" for each in laws.stacks.frames)
        ),
        "flat": laws.stacks.flat.astype(np.uint16),
        "offsets": laws.stacks.offsets.astype(np.uint32),
        "regimes": np.array("\n".join(laws.by_regime)),
        "about": np.array([(law.layers, law.reset, law.proofs, law.period) for law in found]),
        "parts": _narrow([number for law in found for part in law.parts for number in part]),
        "shares": _narrow([(each.numerator, each.denominator) for each in formulas]),
        "variables": np.array(" ".join(VARIABLES)),
        "factors": _narrow([number for each in formulas for number in each.variables]),
        "n_factors": _narrow([len(each.variables) for each in formulas]),
        "n_rows": np.array([len(law.kind) for law in found]),
        "n_parts": np.array([2 * len(law.parts) for law in found]),
        "n_formulas": np.array([len(law.formulas) for law in found]),
    }
    for name in _PER_ROW:
        rows = [getattr(law, name) for law in found]
        columns[name] = _narrow(np.concatenate(rows) if rows else [])
    folder = _folder(laws.transformers)
    folder.mkdir(exist_ok=True)
    path = folder / f"{laws.name}.npz"
    # NumPy's own writer packs a sixth less.
    with ZipFile(path, "w") as file:
        for name, column in columns.items():
            part = BytesIO()
            write_array(part, column, allow_pickle=False)
            # A part without a time, so that equal laws make equal files.
            file.writestr(ZipInfo(f"{name}.npy"), part.getvalue(), ZIP_DEFLATED, compresslevel=9)
    return path


def _narrow(numbers: ArrayLike) -> NDArray[np.generic]:
    """The column in the narrowest whole numbers that hold it."""
    column: NDArray[np.generic] = np.asarray(numbers, dtype=np.int64)
    for dtype in (np.int8, np.int16, np.int32):
        narrow = column.astype(dtype)
        if np.array_equal(narrow, column):
            return narrow
    return column


def _by_regime(columns: Mapping[str, NDArray[np.generic]]) -> dict[str, Law]:
    """The laws of a file, out of columns that each holds the rows of all of them."""
    formulas = _formulas(columns)
    rows = {name: _cut(columns[name], columns["n_rows"]) for name in _PER_ROW}
    parts = _cut(columns["parts"], columns["n_parts"])
    ends = np.cumsum(columns["n_formulas"]).tolist()
    found = {}
    for i, regime in enumerate(str(columns["regimes"]).split("\n")):
        layers, reset, proofs, period = columns["about"][i].tolist()
        found[regime] = Law(
            kind=rows["kind"][i].astype(np.uint8),
            kin=rows["kin"][i].astype(np.int64),
            number=rows["number"][i].astype(np.int64),
            by_copy=rows["by_copy"][i].astype(np.int64),
            by_copies=rows["by_copies"][i].astype(np.int64),
            parts=[(start, stop) for start, stop in parts[i].reshape(-1, 2).tolist()],
            formulas=tuple(formulas[ends[i - 1] if i else 0 : ends[i]]),
            layers=layers,
            reset=reset,
            proofs=proofs,
            period=period,
        )
    return found


def _formulas(columns: Mapping[str, NDArray[np.generic]]) -> list[Formula]:
    """The monomials of all laws of a file, one after the other."""
    numbers = [VARIABLES.index(name) for name in str(columns["variables"]).split()]
    factors = [each.tolist() for each in _cut(columns["factors"], columns["n_factors"])]
    shares = columns["shares"].reshape(-1, 2).tolist()
    return [
        Formula(numerator, denominator, tuple(numbers[number] for number in of))
        for (numerator, denominator), of in zip(shares, factors, strict=True)
    ]


def _cut(column: NDArray[np.generic], counts: NDArray[np.generic]) -> list[NDArray[np.generic]]:
    """A column in stretches of so many rows each."""
    return np.split(column, np.cumsum(counts)[:-1])


def _stacks(columns: Mapping[str, NDArray[np.generic]]) -> FrameTable:
    frames = []
    for text in str(columns["frames"]).split("\n"):
        line, name, filename = text.split("\t", 2)
        frames.append(Frame(filename, name, int(line)))
    flat, offsets = columns["flat"].astype(np.int32), columns["offsets"].astype(np.int64)
    return FrameTable(tuple(frames), flat, offsets)
