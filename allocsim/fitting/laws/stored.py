"""Files of laws in the package: one file per program of a model family, one law per regime.

Each folder belongs to a release of transformers that changed a program's requests. It has no file
for a program whose requests are the same as in the release before. So the laws of a program are in
the folder of the last such release that has a file for the program and is not later than the
intended release.

Rule: files have plain columns and are read without running code; a file of another format is
refused. A column holds the rows of all regimes one after another, because the regimes of a program
are similar and compress well together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np
from numpy.lib.format import write_array
from numpy.typing import ArrayLike, NDArray

from allocsim.errors import ConfigError
from allocsim.fitting.laws.law import Formula, Law
from allocsim.fitting.laws.variables import VARIABLES
from allocsim.recording import Frame, FrameTable

TRANSFORMERS = ("5.23", "5.24")
"""Releases with laws. The first is the release that `traces/fit/truth.jsonl` was recorded with.

Under autocast, 5.24 keeps the values of a cache in their own dtype. It builds the masks of a single
sequence, packed or not, in another order.
"""


def installed_transformers() -> str | None:
    """Return the version of transformers in this Python, or None."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def transformers_release(meant: str | None = None) -> str:
    """Return the entry of `TRANSFORMERS` that covers a version such as "5.24.1".

    meant: the version; default: the installed version, else the first entry.

    Versions before the first entry use the first entry, which `fit` notes. Raises ConfigError for
    text that is not a version.
    """
    text = installed_transformers() or TRANSFORMERS[0] if meant is None else meant
    upto = [each for each in TRANSFORMERS if numbers_of(each) <= numbers_of(text)]
    return max(upto, key=numbers_of, default=TRANSFORMERS[0])


def numbers_of(text: str) -> tuple[int, int]:
    """Return the major and minor number of a version. Raises ConfigError for any other text."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        raise ConfigError(
            f"{text!r} is not a version of transformers; expected a version such as 5.24"
        )
    return int(major), int(minor)


DATA = Path(__file__).parent / "data"

_FORMAT = 2
_PER_ROW = {
    **{"kind": "kind", "group": "kin", "number": "number"},
    **{"by_copy": "by_copy", "by_copies": "by_copies"},
}
"""Name in the file of each column of `Law` that has one element per row."""


@dataclass(frozen=True, slots=True, eq=False)
class Laws:
    """Laws of one program, by regime.

    name: name of the program and its file.
    torch_version: release of PyTorch that ran the program.
    transformers: entry of `TRANSFORMERS`.
    stacks: stacks of the requests; the groups of blocks are indices into it.
    """

    name: str
    torch_version: str
    transformers: str
    stacks: FrameTable
    by_regime: Mapping[str, Law]


def known_laws() -> tuple[str, ...]:
    """Return the names of the programs with laws."""
    return tuple(sorted({path.stem for path in DATA.glob("*/*.npz")}))


def find_laws(name: str, transformers: str = TRANSFORMERS[0]) -> Laws | None:
    """Return the laws of a program for an entry of `TRANSFORMERS`, or None if there are none."""
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
        return None  # the laws of the release before do not hold, and there are no new ones
    torch_version = str(columns["torch_version"])
    return Laws(name, torch_version, transformers, _stacks(columns), _by_regime(columns))


def _folder(transformers: str) -> Path:
    return DATA / f"transformers-{transformers}"


def write_laws(laws: Laws) -> Path:
    """Write the file of one program's laws and return its path.

    Without laws, the file says that the program has none in this release.
    """
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
    for field, name in _PER_ROW.items():
        rows = [getattr(law, field) for law in found]
        columns[name] = _narrow(np.concatenate(rows) if rows else [])
    folder = _folder(laws.transformers)
    folder.mkdir(exist_ok=True)
    path = folder / f"{laws.name}.npz"
    # NumPy's own writer compresses less; the files would be a sixth larger.
    with ZipFile(path, "w") as file:
        for name, column in columns.items():
            part = BytesIO()
            write_array(part, column, allow_pickle=False)
            # An entry without a time, so that equal laws make equal files.
            file.writestr(ZipInfo(f"{name}.npy"), part.getvalue(), ZIP_DEFLATED, compresslevel=9)
    return path


def _narrow(numbers: ArrayLike) -> NDArray[np.generic]:
    """Return the column in the narrowest integer type that holds its values."""
    column: NDArray[np.generic] = np.asarray(numbers, dtype=np.int64)
    for dtype in (np.int8, np.int16, np.int32):
        narrow = column.astype(dtype)
        if np.array_equal(narrow, column):
            return narrow
    return column


def _by_regime(columns: Mapping[str, NDArray[np.generic]]) -> dict[str, Law]:
    """Return the laws of a file by regime, from columns that hold the rows of all laws."""
    formulas = _formulas(columns)
    rows = {field: _cut(columns[name], columns["n_rows"]) for field, name in _PER_ROW.items()}
    parts = _cut(columns["parts"], columns["n_parts"])
    ends = np.cumsum(columns["n_formulas"]).tolist()
    found = {}
    for i, regime in enumerate(str(columns["regimes"]).split("\n")):
        layers, reset, proofs, period = columns["about"][i].tolist()
        found[regime] = Law(
            kind=rows["kind"][i].astype(np.uint8),
            group=rows["group"][i].astype(np.int64),
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
    """Return the formulas of all laws of a file, one after another."""
    numbers = [VARIABLES.index(name) for name in str(columns["variables"]).split()]
    factors = [each.tolist() for each in _cut(columns["factors"], columns["n_factors"])]
    shares = columns["shares"].reshape(-1, 2).tolist()
    return [
        Formula(numerator, denominator, tuple(numbers[number] for number in of))
        for (numerator, denominator), of in zip(shares, factors, strict=True)
    ]


def _cut(column: NDArray[np.generic], counts: NDArray[np.generic]) -> list[NDArray[np.generic]]:
    """Split a column into parts with the given numbers of rows."""
    return np.split(column, np.cumsum(counts)[:-1])


def _stacks(columns: Mapping[str, NDArray[np.generic]]) -> FrameTable:
    frames = []
    for text in str(columns["frames"]).split("\n"):
        line, name, filename = text.split("\t", 2)
        frames.append(Frame(filename, name, int(line)))
    flat, offsets = columns["flat"].astype(np.int32), columns["offsets"].astype(np.int64)
    return FrameTable(tuple(frames), flat, offsets)
