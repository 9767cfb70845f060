"""Data of the calculator, an HTML page that answers `fit` questions with formulas for requests.

The data are models, GPUs, the question that the page shows first, the formulas for the allocator
requests of each program (its laws), and the purpose of each request, such as "gradients".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError
from allocsim.fitting.by_law import (
    OLDEST_CAPABILITY,
    config_of,
    laws_name,
    positions_of,
    refuse_card_without_law,
)
from allocsim.fitting.laws import (
    AFTER,
    AGAIN,
    BETWEEN,
    DROP,
    END,
    FIRST,
    FREE,
    LAST,
    MAKE,
    OPTIMIZER,
    REQUEST,
    SERVE,
    START,
    STEP,
    ZERO,
    Card,
    Law,
    LawRows,
    Laws,
    ProgramName,
    Requests,
    Serving,
    Steps,
    Training,
    factored_way,
    family_of,
    find_laws,
    known_programs,
    made_by,
    requests_of,
    steps_of,
    variables_of,
)
from allocsim.fitting.model import Model, model_of
from allocsim.fitting.presets import CONFIGURATIONS, TORCHVISION
from allocsim.fitting.task import Task
from allocsim.ownership import purposes_of
from allocsim.phantom import CARDS, Gpu

_STEPS = next(each.default for each in fields(Task) if each.name == "steps")
_OPTIONS = frozenset(("checkpointing", "eager", "lora"))
"""Options of `fit` that the calculator page offers, apart from precision and optimizer."""


@dataclass(frozen=True, slots=True)
class LawModel:
    """Model whose requests can be computed by formulas (laws), as the calculator page needs it.

    family: transformers' model_type.
    is_tied: True if the output layer shares the embedding's weights.
    sizes: dimensions in the configuration, keyed by names such as "hidden".
    sees: True if the model classifies images.
    scaling: scaling of rotary position embeddings, such as "default" or "llama3".
    has_law: True if any program of the model has a law.
    """

    name: str
    family: str
    is_tied: bool
    sizes: Mapping[str, int]
    sees: bool
    scaling: str
    has_law: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """Question that a calculator page shows when it is opened: a task and a GPU.

    card: name of the GPU in `CARDS`, such as "RTX 4090"; "" if `gpu` is not in `CARDS`.
    """

    model: LawModel
    card: str
    gpu: Gpu
    task: Task


_Purposes = dict[str, tuple[Law, NDArray[np.int64]]]
"""Dictionary from a law's name to the law and the purpose of each request.

A purpose, such as "gradients", is an index into `CATEGORIES` of allocsim.ownership.
"""


@dataclass(frozen=True, slots=True)
class PageLaws:
    """Formulas for the requests of a model family (its laws) on the calculator page.

    torch_version, transformers: releases of PyTorch and transformers that made the requests.
    parts: dictionary from the name of each group of laws, such as the optimizer's, to its laws and
        the purposes of their requests.
    programs: dictionary from the name of each program to the names of its groups in `parts`.
    """

    family: str
    torch_version: str
    transformers: str
    parts: Mapping[str, _Purposes]
    programs: Mapping[str, Sequence[str]]


def law_programs() -> tuple[ProgramName, ...]:
    """Return the programs whose memory the HTML calculator can compute.

    A program, such as training GPT-2 with AdamW, has laws: formulas for its allocator requests.
    """
    return tuple(filter(_is_on_page, known_programs()))


def _is_on_page(name: ProgramName) -> bool:
    # Requests of 8-bit optimizers depend on the size of each parameter.
    return _OPTIONS.issuperset(name.options) and not name.work.endswith("8bit")


def law_families() -> tuple[str, ...]:
    """Return the model families that the calculator page supports, such as "llama_tied"."""
    return tuple(dict.fromkeys(name.family for name in law_programs()))


def page_laws(family: str) -> PageLaws:
    """Return the formulas for the requests of a model family, such as "llama_tied"."""
    parts: dict[str, _Purposes] = {}
    programs, laws = dict[str, list[str]](), None
    for name in law_programs():
        if name.family != family:
            continue
        laws = find_laws(name)
        assert laws is not None
        makers = dict(_serving_parts(name) if name.work == SERVE else _training_parts(name))
        programs[name.text] = list(makers)
        for part, make in makers.items():
            if part not in parts:
                parts[part] = make(laws)
    assert laws is not None
    return PageLaws(family, laws.torch_version, laws.transformers, parts, programs)


def law_model(model: Model) -> LawModel:
    config = config_of(model)
    family = family_of(config)
    if family is None:
        raise ConfigError(f"there is no law for {model.name}: its architecture has none")
    found = family.sizes_of(config)
    name = family.name_of(config)
    sizes = {name: config[key] for name, key in family.keys.items() if config.get(key)}
    sizes |= {name: found[name] for name in ("window", "vocabulary") if name in found}
    has_law = any(program.family == name for program in law_programs())
    is_tied = name == f"{family.model_type}_tied"
    scaling = positions_of(model)
    return LawModel(model.name, family.model_type, is_tied, sizes, family.sees, scaling, has_law)


def law_models() -> tuple[LawModel, ...]:
    """Return the built-in models whose requests can be computed by formulas (laws)."""
    known = {name.family.partition("_")[0] for name in law_programs()}
    found = []
    for name in (*CONFIGURATIONS, *TORCHVISION):
        model = model_of(name)
        family = family_of(config_of(model))
        if family is None or family.model_type not in known:
            continue
        try:
            found.append(law_model(model))
        except ConfigError:
            continue
    return tuple(found)


def law_cards() -> dict[str, Gpu]:
    """Return the GPUs that the HTML calculator offers, keyed by names such as "RTX 4090".

    The formulas for a program's allocator requests (laws) are valid for these GPUs.
    """
    return {
        name: gpu
        for name, gpu in CARDS.items()
        if gpu.capability >= OLDEST_CAPABILITY and not gpu.assumed
    }


def opening_at(task: Task, gpu: Gpu) -> Opening:
    """Return the question that a calculator page shows first: whether `task` fits `gpu`.

    Raises ConfigError for an option that the page does not offer, and for a task whose requests
    have no formulas (laws).
    """
    name = laws_name(task)
    if task.start != "clean" or not _is_on_page(name):
        law_model(task.model)
        raise ConfigError(f"the page of --html has no {name.text}, {task.start}; use --engine laws")
    if task.steps != _STEPS:
        raise ConfigError(f"the page of --html trains {_STEPS} steps; use --engine laws")
    refuse_card_without_law(gpu)
    short = next((name for name, card in CARDS.items() if card == gpu), "")
    return Opening(law_model(task.model), short, gpu, task)


_SIZES = {
    "hidden": 2304, "intermediate": 6208, "heads": 18, "kv_heads": 6, "head_dim": 128,
    "vocabulary": 61_007, "positions": 2048, "batch": 3, "length": 777, "lora": 8, "patch": 14,
}  # fmt: skip
_REPETITION = 2
"""Number, from 1, of the occurrence of a repeated part whose requests decide the purposes.

The second training step, for example, follows an equal step, as all later steps do.
"""
_CARD = Card((8, 0), 108, 2048)
_WINDOW = "window"
_SERVED = Serving(_SIZES, _CARD, is_fused=True, decode=1, requests=1)


def _serving_parts(name: ProgramName) -> Iterator[tuple[str, Callable[[Laws], _Purposes]]]:
    yield name.part, lambda laws: {each: (laws[each], of) for each, of in _of_serving(laws).items()}


def _training_parts(name: ProgramName) -> Iterator[tuple[str, Callable[[Laws], _Purposes]]]:
    # A request has the same purpose in every program, so each part is computed in one of them.
    yield name.make, lambda laws: _of_training(laws, _one_of_each(laws), (MAKE, DROP))
    yield (
        name.part,
        lambda laws: _of_training(laws, _regimes(laws, FIRST), (FIRST, AGAIN, ZERO, LAST)),
    )
    yield f"{name.work}.{name.make}", _of_optimizer


def _one_of_each(laws: Laws) -> list[str]:
    return list({made_by(regime): regime for regime in _regimes(laws, FIRST)}.values())


def _of_training(laws: Laws, regimes: Sequence[str], kinds: Sequence[str]) -> _Purposes:
    optimizer = _steps(laws, "sgd", _SIZES)
    found: _Purposes = {}
    for regime in regimes:
        known = _purposes_of_names(laws, optimizer, regime)
        found |= {each: of for each, of in known.items() if each.partition(".")[0] in kinds}
    return found


def _of_optimizer(laws: Laws) -> _Purposes:
    regime, found = _regimes(laws, FIRST)[0], dict[str, tuple[Law, NDArray[np.int64]]]()
    for ending, sizes in _ways(laws):
        try:
            optimizer = _steps(laws, laws.name.work, sizes)
        except ConfigError:
            continue
        for each, of in _purposes_of_names(laws, optimizer, regime).items():
            if each.startswith(f"{OPTIMIZER}."):
                found[each + ending] = of
    return found


def _steps(laws: Laws, optimizer: str, sizes: Mapping[str, int]) -> Steps:
    assert laws.parameters is not None
    return steps_of(optimizer, laws.parameters, variables_of(sizes, _CARD), _CARD, laws.groups)


def _ways(laws: Laws) -> Iterator[tuple[str, Mapping[str, int]]]:
    # Only Adafactor's requests depend on the shapes of the model's matrices. The page has only
    # matrices of the model itself, with numbers of columns that are multiples of 128.
    if laws.name.work != "adafactor":
        yield "", _SIZES
        return
    parameters = laws.parameters
    assert parameters is not None
    shapes = (*parameters.before, *parameters.layer, *parameters.after)
    if any(name.startswith("lora") for name in laws.name.options) or max(map(len, shapes)) > 2:
        return
    known = set()
    for name in CONFIGURATIONS:
        config = config_of(model_of(name))
        family = family_of(config)
        if family is None or family.name_of(config) != laws.name.family:
            continue
        try:
            sizes = {**_SIZES, "positions": 0, **family.sizes_of(config)}
        except ConfigError:  # not every model of a family has laws
            continue
        way = factored_way({**sizes, "factored": parameters.width})
        if way not in known and "odd" not in way.split("."):
            known.add(way)
            yield f".{way}", sizes


def _purposes_of_names(laws: Laws, optimizer: Steps, regime: str) -> _Purposes:
    training = Training(_SIZES, _CARD, regime, 3)
    known = {**laws, **optimizer.by_name}
    variables = variables_of(_SIZES, _CARD)
    layers = known[DROP].layers
    rows = [known[name].rows(variables, layers) for name in training.names]
    purposes = _of_stretches(laws, training.names, rows, layers)
    return {name: (known[name], purposes[name]) for name in training.names}


def _purposes(laws: Laws, made: Requests) -> NDArray[np.int64]:
    n = len(made.kind)
    requests, frees = np.flatnonzero(made.kind == REQUEST), np.flatnonzero(made.kind == FREE)
    freed = np.full(len(requests), n)
    freed[made.block[frees]] = frees
    return purposes_of(laws.stacks, made.stack[requests], made.size[requests], (requests, freed), n)


def _of_serving(laws: Laws) -> dict[str, NDArray[np.int64]]:
    found: dict[str, NDArray[np.int64]] = {}
    for names in _programs(laws):
        found |= _of_stretches(laws, names, _stretches(laws, names), laws[names[0]].layers)
    return found


def _of_stretches(
    laws: Laws, names: Sequence[str], stretches: Sequence[LawRows], layers: int
) -> dict[str, NDArray[np.int64]]:
    purposes = _purposes(laws, requests_of(stretches, names, 0, layers))
    found, counts, at = dict[str, NDArray[np.int64]](), dict[str, int](), 0
    for name, rows in zip(names, stretches, strict=True):
        count = int((rows.kind == REQUEST).sum())
        counts[name] = counts.get(name, 0) + 1
        # The first repetition is overwritten by the second, which follows an equal part.
        if counts[name] <= _REPETITION:
            found[name] = purposes[at : at + count]
        at += count
    return found


def _programs(known: Mapping[str, Law]) -> Iterator[Sequence[str]]:
    # Together the programs use every law of serving. Each serves two prompts and decodes three
    # tokens for each. Its parts are all of models with a sliding window, or all of models without.
    for has_window in (False, True):
        makes, starts, steps = (
            [name for name in _regimes(known, kind) if (_WINDOW in name.split(".")) == has_window]
            for kind in (MAKE, START, STEP)
        )
        for i in range(max(map(len, (makes, starts, steps)))):
            make, start, step = (of[i % len(of)] for of in (makes, starts, steps))
            tokens = [f"{STEP}.{step}", f"{AFTER}.{step}"] * 3
            del tokens[-1]
            yield [
                *(f"{MAKE}.{make}", f"{START}.{start}", *tokens),
                *(f"{BETWEEN}.{start}", *tokens, f"{END}.{make}"),
            ]


def _regimes(known: Mapping[str, Law], kind: str) -> list[str]:
    return [name.partition(".")[2] for name in known if name.startswith(f"{kind}.")]


def _stretches(known: Mapping[str, Law], names: Sequence[str]) -> list[LawRows]:
    # The cache grows by one token with every step.
    found, length = [], _SIZES["length"]
    for name in names:
        kind = name.partition(".")[0]
        length = _SIZES["length"] if kind in (START, BETWEEN) else length + (kind == STEP)
        found.append(known[name].rows(_SERVED.variables((name, length)), known[name].layers))
    return found
