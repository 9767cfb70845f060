"""Files of laws (formulas for requests): one file `data/FAMILY.zip` per model family.

A file has a JSON text named `about`, and a NumPy array for each group of laws, such as those for
serving.  Files are read without running code.
"""

# The array of a group has five rows of integers: kind, group, number, by_copy and by_copies of
# `Law`. Its columns are divided into ranges, called pieces; each law is one piece, and equal laws
# share a piece. The text has the releases of PyTorch and transformers, the stacks, formulas
# and shapes of parameters. For each group it has the index of each law's piece, keyed by the law's
# name, and the columns and repeated ranges of each piece.

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import numpy as np
from numpy.lib.format import read_array
from numpy.typing import NDArray

from allocsim._fast_numpy import numbered
from allocsim.errors import ConfigError
from allocsim.fitting.laws.law import REQUEST, Formula, Law
from allocsim.fitting.laws.optimizers import OPTIMIZERS, Parameters
from allocsim.fitting.laws.programs import MAKE
from allocsim.recording import Frame, FrameTable

TRANSFORMERS = "5.23"
"""Release of transformers with which the laws and `traces/fit/truth.jsonl` were recorded."""

SERVE = "serve"
DATA = Path(__file__).parent / "data"
_FORMAT = 3
_ADAPTED = "lora"

_PROGRAM = "program.py:32:<module>"
_WRAPPED = f"optim/optimizer.py:567:wrapper {_PROGRAM}"
_ADAM = f"optim/adam.py:239:step optim/optimizer.py:79:_use_grad {_WRAPPED}"
_ADAM_RUNS = (
    "optim/adam.py:967:adam optim/optimizer.py:157:maybe_fallback optim/adam.py:249:step "
    f"optim/optimizer.py:79:_use_grad {_WRAPPED}"
)
_SGD_RUNS = "optim/sgd.py:303:sgd optim/sgd.py:128:step optim/optimizer.py:79:_use_grad " + _WRAPPED
_FACTORED = f"utils/_contextlib.py:158:no_grad {_WRAPPED}"
_FACTORED_RUNS = (
    "optim/_adafactor.py:641:adafactor optim/optimizer.py:157:maybe_fallback "
    f"optim/_adafactor.py:156:step {_FACTORED}"
)
_INIT = f"optim/_adafactor.py:146:step {_FACTORED}"
_BNB = "../bitsandbytes/optim/optimizer.py"
_8_BIT = f"utils/_contextlib.py:158:no_grad {_BNB}:331:step {_FACTORED}"
_NORM = "functional.py:1888:norm _tensor.py:902:norm optim/_adafactor.py"

OPTIMIZER_STACKS = {
    "step": f"optim/adam.py:170:_init_group {_ADAM}",
    "exp_avg": f"optim/adam.py:179:_init_group {_ADAM}",
    "exp_avg_sq": f"optim/adam.py:183:_init_group {_ADAM}",
    "square roots": f"optim/adam.py:791:_multi_tensor_adam {_ADAM_RUNS}",
    "denominator": f"optim/adam.py:545:_single_tensor_adam {_ADAM_RUNS}",
    "momentum": f"optim/sgd.py:454:_multi_tensor_sgd {_SGD_RUNS}",
    "row_var": f"optim/_adafactor.py:105:_init_group {_INIT}",
    "col_var": f"optim/_adafactor.py:110:_init_group {_INIT}",
    "variance": f"optim/_adafactor.py:112:_init_group {_INIT}",
    "norm": f"{_NORM}:382:_single_tensor_adafactor {_FACTORED_RUNS}",
    "row_mean": f"optim/_adafactor.py:395:_single_tensor_adafactor {_FACTORED_RUNS}",
    "col_mean": f"optim/_adafactor.py:402:_single_tensor_adafactor {_FACTORED_RUNS}",
    "estimate": f"optim/_adafactor.py:407:_single_tensor_adafactor {_FACTORED_RUNS}",
    "mean": f"optim/_adafactor.py:408:_single_tensor_adafactor {_FACTORED_RUNS}",
    "squares": f"optim/_adafactor.py:412:_single_tensor_adafactor {_FACTORED_RUNS}",
    "update": f"optim/_adafactor.py:415:_single_tensor_adafactor {_FACTORED_RUNS}",
    "qmap": f"{_BNB}:515:init_state {_8_BIT}",
    "state1": f"{_BNB}:384:get_state_buffer {_BNB}:518:init_state {_8_BIT}",
    "state2": f"{_BNB}:384:get_state_buffer {_BNB}:521:init_state {_8_BIT}",
    "absmax1": f"{_BNB}:528:init_state {_8_BIT}",
    "absmax2": f"{_BNB}:529:init_state {_8_BIT}",
    "rms": f"{_NORM}:420:_single_tensor_adafactor {_FACTORED_RUNS}",
}
"""Stack of an optimizer's requests for each purpose, innermost frame first.

Paths are relative to the folder of torch.

Source: recordings of PyTorch 2.15.0 and bitsandbytes 0.50.2.
"""


@cache
def installed_transformers() -> str | None:
    if find_spec("transformers") is None:
        return None
    from importlib import metadata  # noqa: PLC0415  (slow to import)

    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return None


def numbers_of(text: str) -> tuple[int, int]:
    """Return (major, minor) of a version of transformers; ConfigError for any other text."""
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdecimal() and minor.isdecimal()):
        raise ConfigError(
            f"{text!r} is not a version of transformers; expected a version such as 5.23"
        )
    return int(major), int(minor)


class ProgramName(NamedTuple):
    """Name under which the laws (formulas for requests) of a program are stored.

    Its text is such as "llama_tied_bf16_adamw" or "llama_tied_16-bit_serve".

    family: model family, such as "llama_tied".
    dtype: precision, such as "bf16"; "16-bit" for serving, if bf16 and fp16 make equal requests.
    work: name of the optimizer; "serve" for serving.
    options: further options, such as ("checkpointing", "lora").
    """

    family: str
    dtype: str
    work: str
    options: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return "_".join((self.family, self.dtype, self.work, *self.options))

    @property
    def part(self) -> str:
        """Name of the array, in the family's file, with the program's laws, such as "bf16.lora"."""
        first = (SERVE, self.dtype) if self.work == SERVE else (self.dtype,)
        return ".".join((*first, *self.options))

    @property
    def make(self) -> str:
        """Name of the array, in the family's file, with the laws for creating the model."""
        adapted = [each for each in self.options if each.startswith(_ADAPTED)]
        return ".".join((MAKE, _PARAMETERS[self.dtype], *adapted))


_PARAMETERS = {
    "bf16": "bfloat16",
    "fp16": "bfloat16",
    "fp32": "float32",
    "autocast-bf16": "float32",
    "autocast-fp16": "float32",
}
"""Dictionary from a precision to the data type in the name of the laws for creating a model.

The name is such as "make.bfloat16".  Creation makes the same requests in both 16-bit types."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Laws of one array in a family's file, such as those for serving.

    Each law is a range of the array's columns.
    """

    # Kind, group, number, by_copy and by_copies (see `Law`), a column for each row of a law.
    rows: NDArray[np.int64]
    # A law is a piece, a range of columns; for each piece, its first column, the column after its
    # last, and the ranges of rows of `Law.parts`.
    pieces: Sequence[tuple[int, int, Sequence[tuple[int, int]]]]
    # Index of the piece of each law.
    by_name: Mapping[str, int]
    formulas: tuple[Formula, ...]
    # Number of consecutive layers after which the kinds of layers repeat.
    period: int

    def law(self, name: str) -> Law:
        start, stop, parts = self.pieces[self.by_name[name]]
        kind, group, number, by_copy, by_copies = self.rows[:, start:stop].copy()
        is_request = kind == REQUEST
        used, number[is_request] = numbered(number[is_request])
        return Law(
            kind.astype(np.uint8),
            group,
            number,
            by_copy,
            by_copies,
            parts=[(first, last) for first, last in parts],
            formulas=tuple(self.formulas[each] for each in used.tolist()),
            layers=3 * self.period,
            period=self.period,
        )


class Laws(Mapping[str, Law]):
    """Formulas for the requests of one program: a law for each of its parts, such as "make".

    The laws of the optimizer's steps are not included.

    torch_version, transformers: releases of PyTorch and transformers that ran the program.
    stacks: Python stacks of the requests; `Law.group` is an index into them.
    parameters: shapes of the trained parameters; None in serving.
    groups: dictionary from names in `OPTIMIZER_STACKS` to indices into `stacks`.
    """

    def __init__(self, name: ProgramName, family: FamilyAbout, parts: Sequence[Part]) -> None:
        self.name = name
        self.torch_version = family.torch_version
        self.transformers = family.transformers
        self.stacks = family.stacks
        self.groups = {name: family.base + n for n, name in enumerate(OPTIMIZER_STACKS)}
        self.parameters = family.parameters.get(name.make) if name.work != SERVE else None
        self._parts = {each: part for part in parts for each in part.by_name}
        self._known: dict[str, Law] = {}

    def __getitem__(self, name: str) -> Law:
        if name not in self._known:
            self._known[name] = self._parts[name].law(name)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


@dataclass(frozen=True, slots=True, eq=False)
class FamilyAbout:
    """Contents of a family's file of laws, without its numeric arrays.

    torch_version, transformers: releases of PyTorch and transformers that made the requests.
    stacks: Python stacks of the requests.
    base: number of stacks in `stacks` before those of optimizers.
    formulas: formulas of all laws, to which the arrays refer by index.
    parameters: shapes of the trained parameters, keyed by `ProgramName.make`.
    parts: dictionary from each array's name to the ranges of its columns that form the laws.
    period: number of layers after which their kinds repeat.
    """

    torch_version: str
    transformers: str
    stacks: FrameTable
    base: int
    formulas: tuple[Formula, ...]
    parameters: Mapping[str, Parameters]
    parts: Mapping[str, Any]
    period: int


def known_laws() -> tuple[str, ...]:
    """Return the names of all programs with laws, such as "llama_tied_bf16_adamw"."""
    return tuple(sorted(name.text for name in known_programs()))


def known_programs() -> Iterator[ProgramName]:
    """Yield the names of all programs with laws; training is listed once for each optimizer."""
    for path in sorted(DATA.glob("*.zip")):
        for part in family_file(path).parts:
            first, *more = part.split(".")
            if first == SERVE:
                yield ProgramName(path.stem, more[0], SERVE, tuple(more[1:]))
            elif first != MAKE:
                for optimizer in OPTIMIZERS:
                    name = ProgramName(path.stem, first, optimizer, tuple(more))
                    if name.make in family_file(path).parts:
                        yield name


def find_laws(name: ProgramName) -> Laws | None:
    """Return the formulas for a program's requests, or None if the package has none."""
    path = DATA / f"{name.family}.zip"
    if not path.is_file():
        return None
    family = family_file(path)
    needed = [name.part] if name.work == SERVE else [name.make, name.part]
    if any(each not in family.parts for each in needed):
        return None
    if name.work != SERVE and name.work not in OPTIMIZERS:
        return None
    return Laws(name, family, [part_of(path, each) for each in needed])


@cache
def family_file(path: Path) -> FamilyAbout:
    with ZipFile(path) as file:
        about = json.loads(file.read("about.json"))
    if about["format"] != _FORMAT:
        raise ConfigError(f"{path} has format {about['format']}; expected {_FORMAT}")
    own = _stacks(about["frames"], about["stacks"])
    return FamilyAbout(
        about["torch"],
        about["transformers"],
        _with_optimizers(own),
        len(own),
        tuple(Formula.parsed(text) for text in about["formulas"]),
        {name: _parameters(each) for name, each in about["parameters"].items()},
        about["parts"],
        about["period"],
    )


@cache
def part_of(path: Path, name: str) -> Part:
    family = family_file(path)
    with ZipFile(path) as file, file.open(f"{name}.npy") as member:
        rows = read_array(member, allow_pickle=False).astype(np.int64)
    about = family.parts[name]
    return Part(rows, about["pieces"], about["laws"], family.formulas, family.period)


def _parameters(about: Mapping[str, Any]) -> Parameters:
    shapes = {
        place: tuple(tuple(map(Formula.parsed, shape)) for shape in about[place])
        for place in ("before", "layer", "after")
    }
    return Parameters(about["width"], period=about["period"], **shapes)


def _stacks(frames: Sequence[str], stacks: Sequence[Sequence[int]]) -> FrameTable:
    found = []
    for text in frames:
        filename, line, name = text.rsplit(":", 2)
        found.append(Frame(filename, name, int(line)))
    flat = np.array([number for stack in stacks for number in stack], dtype=np.int32)
    return FrameTable(tuple(found), flat, np.cumsum([0, *map(len, stacks)]))


def _with_optimizers(stacks: FrameTable) -> FrameTable:
    frames: dict[Frame, int] = {}
    flat, lengths = [], []
    for text in OPTIMIZER_STACKS.values():
        each = [_frame(word) for word in text.split()]
        flat += [len(stacks.frames) + frames.setdefault(frame, len(frames)) for frame in each]
        lengths.append(len(each))
    return FrameTable(
        (*stacks.frames, *frames),
        np.concatenate([stacks.flat, np.array(flat, dtype=np.int32)]),
        np.concatenate([stacks.offsets, stacks.offsets[-1] + np.cumsum(lengths)]),
    )


def _frame(text: str) -> Frame:
    file, line, name = text.split(":")
    folder = "" if text == _PROGRAM else "site-packages/torch/"
    return Frame((folder + file).replace("torch/../", ""), name, int(line))
