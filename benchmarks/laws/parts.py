"""Cut the law of a whole program into the laws of its parts, and write them to a family's file.

Rule: a row belongs to a part by the line of the program that requested its block: making the model,
running it, or the optimizer's step. A block is always freed in the part that requested it, so parts
fit in any combination.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

import numpy as np
from numpy.lib.format import write_array
from numpy.typing import NDArray

from allocsim.fitting.laws import (
    AGAIN,
    DATA,
    DROP,
    FIRST,
    LAST,
    REQUEST,
    SERVE,
    VARIABLES,
    ZERO,
    Formula,
    Law,
    Parameters,
    made_by,
)
from allocsim.fitting.laws.stored import family_file, part_of
from allocsim.recording import Frame, FrameInterner, FrameTable

__all__ = ["FamilyFile", "parts_of_training"]

_MADE, _RUN, _STEPPED = "made", "run", "stepped"
_PROGRAM = "program.py"
_MAKERS = ("from_config", "__init__", "to", "get_peft_model")
_LINES = {_MADE: 19, _RUN: 30, _STEPPED: 32}


def _part_of(stack: Sequence[Frame]) -> str:
    """Return the part of a program to which the requests of a stack belong."""
    if not stack or stack[-1].filename != _PROGRAM or len(stack) == 1:
        return _RUN  # autograd's threads have no Python stack
    called = stack[-2].name
    return _MADE if called in _MAKERS else _STEPPED if called == "wrapper" else _RUN


def parts_of_training(
    law: Law, stacks: FrameTable, reset: int, steps: int, regime: str
) -> dict[str, Law]:
    """Return the laws of the parts of a training program, without those of the optimizer.

    reset: row of the law at which the program resets the peaks.
    steps: number of steps.
    regime: regime of the law.
    """
    of_stack = [*(_part_of(stacks.stack(number)) for number in range(len(stacks))), _RUN]
    part = np.array([of_stack[group] for group in law.group.tolist()])
    is_request = law.kind == REQUEST
    ends = [
        last
        for last in np.flatnonzero(is_request & (part == _STEPPED)).tolist()
        if (later := np.flatnonzero(is_request[last + 1 :])).size == 0
        or part[last + 1 + later[0]] != _STEPPED
    ]
    if len(ends) != steps:
        raise ValueError(f"{len(ends)} steps of the optimizer; expected {steps}")
    runs = []
    start = reset
    for end in ends:
        stepped = np.flatnonzero(is_request[start:] & (part[start:] == _STEPPED))[0] + start
        runs.append(np.arange(start, stepped))
        later = np.flatnonzero(is_request[end + 1 :])
        start = end + 1 + (int(later[0]) if later.size else len(law.kind) - end - 1)
        runs.append(np.arange(end + 1, start))
    firsts, zeros = runs[::2], [rows[part[rows] == _RUN] for rows in runs[1::2]]
    made = runs[-1][part[runs[-1]] == _MADE]
    found = {
        made_by(regime): _rows(law, np.arange(reset)),
        f"{FIRST}.{regime}": _rows(law, firsts[0]),
        f"{AGAIN}.{regime}": _rows(law, firsts[1]),
        f"{ZERO}.{regime}": _rows(law, zeros[0]),
        f"{LAST}.{regime}": _rows(law, zeros[-1]),
        DROP: _rows(law, made),
    }
    again = [_rows(law, rows) for rows in firsts[1:]]
    zero = [_rows(law, rows) for rows in zeros[:-1]]
    if _differ(again) or _differ(zero):
        raise ValueError("the steps of the program differ")
    return found


def _differ(laws: Sequence[Law]) -> bool:
    """Return whether laws give different rows; equal rows can be stored with different parts."""
    variables = {name: 1009 + number for number, name in enumerate(VARIABLES)}
    for layers in (laws[0].layers, laws[0].layers + 2 * laws[0].period):
        first, *others = (law.rows(variables, layers) for law in laws)
        for other in others:
            for name in ("kind", "group", "value"):
                if not np.array_equal(getattr(first, name), getattr(other, name)):
                    return True
    return False


def _rows(law: Law, rows: NDArray[np.intp]) -> Law:
    """Return a law of some rows of a law, in order."""
    repeated = np.zeros(len(law.kind), dtype=np.int64)
    for number, (start, stop) in enumerate(law.parts):
        repeated[start:stop] = number + 1
    found, at = [], 0
    for number, run in groupby(repeated[rows].tolist()):
        length = len(list(run))
        if number:
            start, stop = law.parts[number - 1]
            if length != stop - start:
                raise ValueError("a layer is cut")
            found.append((at, at + length))
        at += length
    columns = ("kind", "group", "number", "by_copy", "by_copies")
    return replace(law, parts=found, **{name: getattr(law, name)[rows] for name in columns})


@dataclass(slots=True)
class FamilyFile:
    """Contents of a family's file.

    parts: laws of each part by name, with groups numbered by `interner`.
    parameters: trained parameters of each part that makes a model.
    """

    torch: str
    transformers: str
    period: int
    interner: FrameInterner = field(default_factory=FrameInterner)
    parts: dict[str, dict[str, Law]] = field(default_factory=dict)
    parameters: dict[str, Parameters] = field(default_factory=dict)

    @classmethod
    def read(cls, family: str) -> FamilyFile | None:
        """Return the contents of a family's file, or None if there is none."""
        path = DATA / f"{family}.zip"
        if not path.is_file():
            return None
        for cached in (family_file, part_of):
            cached.cache_clear()  # the file may have been written since
        about = family_file(path)
        found = cls(about.torch_version, about.transformers, about.period)
        found.parameters = dict(about.parameters)
        for number in range(about.base):
            stack = about.stacks.stack(number)
            found._stack(stack, stack[-1].line if stack else 0)
        for name in about.parts:
            part = part_of(path, name)
            found.add(name, {each: part.law(each) for each in part.by_name}, about.stacks)
        return found

    def remove(self, part: str, regime: str) -> None:
        """Remove the laws of a regime from a part."""
        laws = self.parts.get(part, {})
        for name in [each for each in laws if each.partition(".")[2] == regime]:
            del laws[name]

    def add(self, part: str, laws: Mapping[str, Law], stacks: FrameTable) -> None:
        """Add laws to a part; `stacks` are those of their groups."""
        numbers = np.full(len(stacks) + 1, -1, dtype=np.int64)
        groups = np.unique(np.concatenate([law.group for law in laws.values()])).tolist()
        lines: dict[int, int] = {}
        for group in groups:
            if group >= 0:
                stack, line = stacks.stack(group), 0
                if part.startswith(SERVE) and len(stack) == 1:
                    # The prompt and the chosen token are blocks of separate groups.
                    line = lines.setdefault(stack[0].line, _LINES[_RUN] + len(lines))
                numbers[group] = self._stack(stack, line)
        into = self.parts.setdefault(part, {})
        for name, law in laws.items():
            into[name] = replace(law, group=numbers[law.group])

    def _stack(self, stack: Sequence[Frame], line: int = 0) -> int:
        """Return the number of a stack.

        line: line of the program; 0 for the usual line of the part that the stack belongs to.
        """
        usual = line or _LINES[_part_of(stack)]
        frames = [
            replace(frame, line=usual) if frame.filename == _PROGRAM else frame for frame in stack
        ]
        return self.interner.stack([self.interner.frame(frame) for frame in frames])

    def write(self, family: str) -> Path:
        """Write the file of a family and return its path."""
        laws = [law for part in self.parts.values() for law in part.values()]
        known = {formula for law in laws for formula in law.formulas}
        ordered = sorted(known, key=lambda each: (each.variables, each.numerator, each.denominator))
        formulas = {formula: number for number, formula in enumerate(ordered)}
        parts, members = {}, {}
        for name, own in sorted((name, own) for name, own in self.parts.items() if own):
            parts[name], members[name] = _packed(own, formulas)
        stacks = self.interner.table()
        offsets = stacks.offsets.tolist()
        about = {
            "format": 3,
            "torch": self.torch,
            "transformers": self.transformers,
            "period": self.period,
            "frames": [f"{each.filename}:{each.line}:{each.name}" for each in stacks.frames],
            "stacks": [stacks.flat[start:stop].tolist() for start, stop in pairwise(offsets)],
            "formulas": [formula.text for formula in ordered],
            "parts": parts,
            "parameters": {name: _about(each) for name, each in self.parameters.items()},
        }
        path = DATA / f"{family}.zip"
        with ZipFile(path, "w") as file:
            lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in about.items())
            _write(file, "about.json", ("{" + ",\n".join(lines) + "}\n").encode())
            for name, rows in members.items():
                data = BytesIO()
                write_array(data, rows, allow_pickle=False)
                _write(file, f"{name}.npy", data.getvalue())
        return path


def _write(file: ZipFile, name: str, data: bytes) -> None:
    # An entry without a time, so that equal laws make equal files.
    file.writestr(ZipInfo(name), data, ZIP_LZMA)


def _packed(
    laws: Mapping[str, Law], formulas: Mapping[Formula, int]
) -> tuple[dict[str, Any], NDArray[Any]]:
    """Return the description of a part's laws and the rows of their pieces."""
    pieces: list[list[Any]] = []
    numbers: dict[bytes, int] = {}
    by_name, rows, at = {}, [], 0
    for name, law in laws.items():
        place = np.array([formulas[each] for each in law.formulas])
        number = law.number.copy()
        is_request = law.kind == REQUEST
        if is_request.any():
            number[is_request] = place[number[is_request]]
        columns = np.array([law.kind, law.group, number, law.by_copy, law.by_copies])
        key = columns.tobytes() + repr(law.parts).encode()
        if key not in numbers:
            numbers[key] = len(pieces)
            pieces.append([at, at + columns.shape[1], [list(part) for part in law.parts]])
            rows.append(columns)
            at += columns.shape[1]
        by_name[name] = numbers[key]
    return {"laws": by_name, "pieces": pieces}, _narrow(np.concatenate(rows, axis=1))


def _narrow(numbers: NDArray[np.int64]) -> NDArray[Any]:
    for dtype in (np.int8, np.int16, np.int32):
        narrow = numbers.astype(dtype)
        if np.array_equal(narrow, numbers):
            return narrow
    return numbers


def _about(parameters: Parameters) -> dict[str, Any]:
    shapes = {
        place: [[each.text for each in shape] for shape in getattr(parameters, place)]
        for place in ("before", "layer", "after")
    }
    return {"width": parameters.width, "period": parameters.period, **shapes}
