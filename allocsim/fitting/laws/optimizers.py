"""Allocator requests of an optimizer's steps, for any list of parameters.

For each optimizer, a short function lists the requests and frees that torch.optim makes.  An
optimizer handles only a model's parameters, so one function suffices for every model.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import prod

import numpy as np

from allocsim.errors import ConfigError
from allocsim.fitting.laws.law import FREE, REQUEST, Formula, Law
from allocsim.fitting.laws.sums import (
    AT_ONCE,
    INDEXED,
    MATRICES,
    Card,
    in_two_passes,
    parts_of,
)
from allocsim.fitting.laws.variables import COLUMNS, VARIABLES

Shape = tuple[Formula, ...]
"""Dimensions of a parameter, each a formula in the model's sizes."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Trained parameters of a model, in the order of `Module.parameters()`.

    width: bytes of an element.
    before, after: shapes of the parameters before the first layer, and after the last.
    layer: shapes of the parameters of one layer, or of `period` layers.
    period: number of layers after which their kinds repeat, more than 1 if they alternate.
    """

    width: int
    before: tuple[Shape, ...]
    layer: tuple[Shape, ...]
    after: tuple[Shape, ...]
    period: int = 1


@dataclass(frozen=True, slots=True)
class Steps:
    """Laws (formulas for requests and frees) of an optimizer's steps for one model.

    first: law of the first step, which creates the state.
    next: law of every later step.
    end: law of the end of the program, which frees the state.
    """

    first: Law
    next: Law
    end: Law

    @property
    def by_name(self) -> dict[str, Law]:
        return {f"optimizer.{each.name}": getattr(self, each.name) for each in fields(self)}


_Block = tuple[str, int, int | None]
"""Block as (key of its stack in `OPTIMIZER_STACKS`, index of its request, layer or None)."""


@dataclass(slots=True)
class _Rows:
    """Requests and frees of an optimizer's steps on a small model, as lists with one item per call.

    repetitions: number of the model's layers, or of groups of `Parameters.period` layers.
    groups: for each call, the name in `OPTIMIZER_STACKS` of the stack that requested the block.
    alive: indices of the requests that are not freed yet, keyed by names in `OPTIMIZER_STACKS`.
    """

    parameters: Parameters
    repetitions: int
    kinds: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    # For a request, its formula; for a free, the number of allocated blocks of the same stack that
    # were requested later.
    values: list[Formula | int] = field(default_factory=list)
    # Index of the row's layer (or `period` layers); None outside the layers.
    tags: list[int | None] = field(default_factory=list)
    alive: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    tag: int | None = None

    def each(self) -> Iterator[Shape]:
        # Rows that the caller adds before the next parameter belong to this parameter's repetition.
        yield from self.parameters.before
        for repetition in range(self.repetitions):
            self.tag = repetition
            yield from self.parameters.layer
        self.tag = None
        yield from self.parameters.after

    def request(self, kind: str, size: Formula) -> _Block:
        number = len(self.kinds)
        self._add(REQUEST, kind, size)
        self.alive[kind].append(number)
        return kind, number, self.tag

    def scratch(self, kind: str, *sizes: Formula) -> None:
        self.free([self.request(kind, size) for size in sizes])

    def free(self, blocks: Iterable[_Block | None]) -> None:
        for kind, number, _ in filter(None, blocks):
            place = self.alive[kind].index(number)
            self._add(FREE, kind, len(self.alive[kind]) - 1 - place)
            del self.alive[kind][place]

    def free_lists(self, *lists: list[_Block]) -> None:
        for block in (block for blocks in zip(*lists, strict=True) for block in blocks):
            self.tag = block[2]
            self.free([block])
        self.tag = None

    def _add(self, kind: int, group: str, value: Formula | int) -> None:
        self.kinds.append(kind)
        self.groups.append(group)
        self.values.append(value)
        self.tags.append(self.tag)


def _bytes(width: int, *dimensions: Formula) -> Formula:
    variables = sorted(itertools.chain.from_iterable(each.variables for each in dimensions))
    return Formula(width * prod(each.numerator for each in dimensions), 1, tuple(variables))


_Calls = Iterator[None]
"""Generator that appends an optimizer's calls to `_Rows`; it yields after each of two steps."""


def _adamw(rows: _Rows, sums: _Sums, *, temporary: bool = True, steps: bool = False) -> _Calls:
    # `temporary`: a list of square roots in each step, as with foreach. `steps`: a step counter on
    # the GPU for each parameter.
    del sums
    width = rows.parameters.width
    kinds = ["step"] * steps + ["exp_avg", "exp_avg_sq"]
    states: list[list[_Block]] = [[] for _ in kinds]
    for shape in rows.each():
        for state, kind in zip(states, kinds, strict=True):
            size = Formula(4, 1, ()) if kind == "step" else _bytes(width, *shape)
            state.append(rows.request(kind, size))
    for _ in range(2):
        if temporary:
            rows.free_lists(
                [rows.request("square roots", _bytes(width, *shape)) for shape in rows.each()]
            )
        yield
    rows.free_lists(*states)


def _adamw_foreach_off(rows: _Rows, _sums: _Sums) -> _Calls:
    width = rows.parameters.width
    averages, squares = list[_Block](), list[_Block]()
    for shape in rows.each():
        averages.append(rows.request("exp_avg", _bytes(width, *shape)))
        squares.append(rows.request("exp_avg_sq", _bytes(width, *shape)))
    for _ in range(2):
        held = None
        for shape in rows.each():
            root = rows.request("denominator", _bytes(width, *shape))
            denominator = rows.request("denominator", _bytes(width, *shape))
            rows.free([held, root])
            held = denominator
        rows.free([held])
        yield
    rows.free_lists(averages, squares)


def _momentum(rows: _Rows, _: _Sums) -> _Calls:
    width = rows.parameters.width
    states = [rows.request("momentum", _bytes(width, *shape)) for shape in rows.each()]
    yield
    yield
    rows.free_lists(states)


def _adafactor(rows: _Rows, sums: _Sums) -> _Calls:
    # As in torch.optim, local variables hold their blocks until they are assigned again.
    width = rows.parameters.width
    one, workspace = Formula(width, 1, ()), Formula(1, 1, (VARIABLES.index("workspace"),))
    states = []
    for shape in rows.each():
        if len(shape) > 1:
            states.append(rows.request("row_var", _bytes(width, *shape[:-1])))
            states.append(rows.request("col_var", _bytes(width, *shape[:-2], shape[-1])))
        else:
            states.append(rows.request("variance", _bytes(width, *shape)))
    for _ in range(2):
        held: dict[str, _Block] = {}

        def assign(name: str, block: _Block, held: dict[str, _Block] = held) -> None:
            rows.free([held.get(name)])
            held[name] = block

        for shape in rows.each():
            rows.scratch("norm", one, *sums.parts(shape))
            if len(shape) > 1:
                assign("rows", rows.request("row_mean", _bytes(width, *shape[:-1])))
                means = rows.request("col_mean", _bytes(width, *shape[:-2], shape[-1]))
                storage = [rows.request("col_mean", size) for size in sums.storage(shape)]
                assign("columns", means)
                rows.free(storage)
                estimate = rows.request("estimate", _bytes(width, *shape))
                if len(shape) == 2:  # a product of several matrices has no workspace
                    rows.scratch("estimate", workspace)
                mean = _bytes(width, *shape[:-2])
                rows.scratch("mean", mean, *(sums.parts(shape[:1]) if len(shape) == 2 else ()))
                assign("update", estimate)
            else:
                assign("squares", rows.request("squares", _bytes(width, *shape)))
                assign("update", rows.request("update", _bytes(width, *shape)))
            rows.scratch("rms", one, *sums.parts(shape))
        rows.free(held.values())
        yield
    rows.free_lists(states)


def _adam_8bit(rows: _Rows, sums: _Sums, *, is_paged: bool = False) -> _Calls:
    # As in bitsandbytes: 8-bit states have tables of values, shared by all parameters, and a scale
    # for each 256 elements; small parameters have 32-bit states. The driver allocates paged states.
    states, tables = list[_Block](), list[_Block]()
    for shape in rows.each():
        count = _bytes(1, *shape).at(sums.values)
        kinds = ["state1", "state2"]
        if count < _FEWEST_IN_8_BITS:
            states += [rows.request(kind, _bytes(4, *shape)) for kind in kinds]
            continue
        tables = tables or [rows.request("qmap", Formula(1024, 1, ())) for _ in kinds]
        if not is_paged or count < _FEWEST_PAGED:
            states += [rows.request(kind, _bytes(1, *shape)) for kind in kinds]
        scales = replace(_bytes(4, *shape), denominator=_SCALED)
        if count % _SCALED:
            scales = Formula(4 * -(-count // _SCALED), 1, ())
        states += [rows.request(kind, scales) for kind in ("absmax1", "absmax2")]
    yield
    yield
    rows.free_lists(states)
    rows.free(tables)


_FEWEST_IN_8_BITS, _FEWEST_PAGED, _SCALED = 4096, 100_000, 256
"""Minimum elements of a parameter with 8-bit state, and of a parameter with paged state.

The third number is the number of elements that share a scale."""

_MAKERS: Mapping[str, Callable[[_Rows, _Sums], _Calls]] = {
    "adamw": _adamw,
    "adamw-fused": partial(_adamw, temporary=False, steps=True),
    "adamw-foreach-off": _adamw_foreach_off,
    "sgd": lambda _, __: iter((None, None)),
    "momentum": _momentum,
    "adafactor": _adafactor,
    "adam8bit": _adam_8bit,
    "adamw8bit": _adam_8bit,
    "paged-adamw8bit": partial(_adam_8bit, is_paged=True),
}
OPTIMIZERS = tuple(_MAKERS)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Temporary memory that Adafactor takes to sum the elements of a parameter.

    values: value of each name in `VARIABLES`, such as the batch size.
    width: bytes of an element of a parameter.
    """

    values: Mapping[str, int]
    card: Card
    width: int

    def parts(self, shape: Shape) -> list[Formula]:
        count = _bytes(1, *shape).at(self.values)
        if count * self.width > INDEXED:
            raise ConfigError(f"Adafactor sums a matrix of {count * self.width:,} bytes in parts")
        if count <= AT_ONCE:
            return []
        parts = parts_of(count, self.card.blocks(512))
        return [self._variable(4, f"{_matrix(shape)}_parts", parts), Formula(4, 1, ())]

    def storage(self, shape: Shape) -> list[Formula]:
        *copies, rows, columns = (each.at(self.values) for each in shape)
        stored, blocks = in_two_passes(rows, columns, self.card, prod(copies))
        if not stored:
            return []
        names = (_matrix(shape), _columns(shape[1])) if len(shape) == 2 else ("", "")
        return [
            self._variable(1, f"{names[0]}_column_storage", stored),
            self._variable(4, f"{names[1]}_by_128", blocks),
        ]

    def _variable(self, factor: int, name: str, value: int) -> Formula:
        if self.values.get(name) == value:
            return Formula(factor, 1, (VARIABLES.index(name),))
        return Formula(factor * value, 1, ())


def _matrix(shape: Shape) -> str:
    names = tuple(_names(each) for each in shape)
    return {sizes: name for name, sizes in _KNOWN.items()}.get(names, "")


def _columns(dimension: Formula) -> str:
    own = (dimension.numerator, tuple(sorted(_names(dimension)[1])))
    known = {(factor, tuple(sorted(of))): name for name, (factor, of) in COLUMNS.items()}
    return known.get(own, "")


def _names(dimension: Formula) -> tuple[int, tuple[str, ...]]:
    return dimension.numerator, tuple(sorted(VARIABLES[number] for number in dimension.variables))


_KNOWN = {
    **{
        name: tuple((1 + 2 * ("three" in d), tuple(sorted({*d} - {"three"}))) for d in of)
        for name, of in MATRICES.items()
    },
    "row": ((1, ("vocabulary",)),),
}
_REPETITIONS = 3
_Numbers = Mapping[str, int]


def steps_of(
    optimizer: str, parameters: Parameters, values: _Numbers, card: Card, stacks: _Numbers
) -> Steps:
    """Return formulas for the requests and frees of an optimizer's steps on a model's parameters.

    optimizer: one of `OPTIMIZERS`.
    values: value of each name in `VARIABLES`, such as the batch size.
    stacks: dictionary from names in `OPTIMIZER_STACKS` to indices into the program's Python stacks.
    """
    if optimizer not in _MAKERS:
        raise ConfigError(f"there is no law for optimizer {optimizer!r}")
    sums = _Sums(values, card, parameters.width)
    some, more = (
        _stretches(_MAKERS[optimizer], parameters, sums, _REPETITIONS + extra) for extra in (0, 1)
    )
    return Steps(*(_law(a, b, parameters.period, stacks) for a, b in zip(some, more, strict=True)))


_Columns = tuple[list[int], list[str], list[Formula | int], list[int | None]]


def _stretches(
    maker: Callable[[_Rows, _Sums], _Calls], parameters: Parameters, sums: _Sums, repetitions: int
) -> list[_Columns]:
    rows = _Rows(parameters, repetitions)
    cuts = [0, *(len(rows.kinds) for _ in maker(rows, sums)), len(rows.kinds)]
    columns = (rows.kinds, rows.groups, rows.values, rows.tags)
    return [
        tuple(column[start:stop] for column in columns)  # type: ignore[misc]
        for start, stop in itertools.pairwise(cuts)
    ]


def _law(some: _Columns, more: _Columns, period: int, stacks: _Numbers) -> Law:
    # `some` has three repetitions of the layers, `more` four. The law repeats the second of `some`.
    kinds, groups, values, tags = some
    copied = [tag == 1 for tag in tags]
    values_of = {
        place: [v for v, tag in zip(more[2], more[3], strict=True) if tag == place]
        for place in (1, 2)
    }
    fixed = iter(v for v, tag in zip(more[2], more[3], strict=True) if tag not in (1, 2))
    copies = iter(zip(values_of[1], values_of[2], strict=True))
    formulas: dict[Formula, int] = {}
    number, by_copy, by_copies = [], [], []
    for value, is_copied in zip(values, copied, strict=True):
        first, second = next(copies) if is_copied else (next(fixed),) * 2
        if isinstance(value, Formula):
            number.append(formulas.setdefault(value, len(formulas)))
            by_copy.append(0)
            by_copies.append(0)
        else:
            assert isinstance(first, int) and isinstance(second, int)
            number.append(value)
            by_copy.append(second - first)
            by_copies.append(first - value)
    edges = np.flatnonzero(np.diff(np.array([0, *copied, 0], dtype=np.int8))).tolist()
    return Law(
        kind=np.array(kinds, dtype=np.uint8),
        group=np.array([stacks[name] for name in groups], dtype=np.int64),
        number=np.array(number, dtype=np.int64),
        by_copy=np.array(by_copy, dtype=np.int64),
        by_copies=np.array(by_copies, dtype=np.int64),
        parts=list(zip(edges[::2], edges[1::2], strict=True)),
        formulas=tuple(formulas),
        layers=_REPETITIONS * period,
        period=period,
    )
