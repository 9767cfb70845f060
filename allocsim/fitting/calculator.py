"""Data of the calculator page, which answers by laws: models, cards, first question, and purposes.

Rule: a model is listed if its configuration belongs to a family with laws; the laws decide whether
a program has one, as in `by_law.py`. The page supports every family, with LoRA adapters on all
linear modules or none. The command supports more.

The purposes of requests are found by the rules of `allocsim top`. A purpose depends on stacks and
lifetimes, which do not change with sizes. So it is found once for each request of a law, at sizes
where tensors of different purposes differ in size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
    BETWEEN,
    END,
    FAMILIES,
    FREE,
    MAKE,
    REQUEST,
    START,
    STEP,
    Card,
    Law,
    LawRows,
    Laws,
    Requests,
    Serving,
    family_of,
    known_laws,
    requests_of,
    variables_of,
)
from allocsim.fitting.model import Model, model_of
from allocsim.fitting.presets import CONFIGURATIONS, TORCHVISION
from allocsim.fitting.task import OPTIMIZERS, Task
from allocsim.ownership import purposes_of
from allocsim.phantom import CARDS, Gpu

_ON_PAGE = re.compile(
    rf"({'|'.join(FAMILIES)})(_(un)?tied)?_[a-z\d-]+_"
    rf"(serve(_eager)?|({'|'.join(OPTIMIZERS)})(_checkpointing)?(_eager)?(_lora)?)"
)


@dataclass(frozen=True, slots=True)
class LawModel:
    """A model whose configuration has laws.

    family: transformers' model_type.
    is_tied: True if the output layer shares the embedding's weights.
    sizes: sizes that the configuration gives, by the names of the laws; the remaining sizes follow
        from `Family.sizes_of`.
    sees: True if the model classifies images.
    scaling: scaling of rotary positions.
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
    """The question that a calculator page shows when it is opened.

    card: common name of the GPU, or "".
    """

    model: LawModel
    card: str
    gpu: Gpu
    task: Task


def law_programs() -> tuple[str, ...]:
    """Return the names of the programs with laws that the calculator supports."""
    return tuple(name for name in known_laws() if _ON_PAGE.fullmatch(name))


def law_model(model: Model) -> LawModel:
    """Return the properties of `model` that the calculator needs.

    Raises ConfigError if it has no laws.
    """
    config = config_of(model)
    family = family_of(config)
    if family is None:
        raise ConfigError(f"there is no law for {model.name}: its architecture has none")
    found = family.sizes_of(config)
    name = family.name_of(config)
    sizes = {name: config[key] for name, key in family.keys.items() if config.get(key)}
    sizes |= {name: found[name] for name in ("window", "vocabulary") if name in found}
    has_law = any(program.startswith(f"{name}_") for program in law_programs())
    is_tied = name == f"{family.model_type}_tied"
    scaling = positions_of(model)
    return LawModel(model.name, family.model_type, is_tied, sizes, family.sees, scaling, has_law)


def law_models() -> tuple[LawModel, ...]:
    """Return the presets that have laws."""
    known = {name.partition("_")[0] for name in law_programs()}
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
    """Return the GPUs that laws support, by common name."""
    return {name: gpu for name, gpu in CARDS.items() if gpu.capability >= OLDEST_CAPABILITY}


def opening_at(task: Task, gpu: Gpu) -> Opening:
    """Return the question that a calculator page shows first: `task` on `gpu`.

    Raises ConfigError for an option that the calculator does not have, and for a model or card
    without laws.
    """
    name = laws_name(task)
    if task.start != "clean" or not _ON_PAGE.fullmatch(name):
        law_model(task.model)
        raise ConfigError(f"the page of --html has no {name}, {task.start}; use --engine laws")
    refuse_card_without_law(gpu)
    short = next((name for name, card in CARDS.items() if card == gpu), "")
    return Opening(law_model(task.model), short, gpu, task)


_SIZES = {
    "hidden": 2304, "intermediate": 6208, "heads": 18, "kv_heads": 6, "head_dim": 128,
    "vocabulary": 61_007, "positions": 2048, "batch": 3, "length": 777, "lora": 8, "patch": 14,
}  # fmt: skip
_REPETITION = 2
"""Repetition of a program part whose purposes are used: it follows another of the same law."""
_CARD = Card((8, 0), 108, 2048)
_SERVED = Serving(_SIZES, _CARD, is_fused=True, decode=1, requests=1)


def purposes_of_laws(laws: Laws) -> dict[str, NDArray[np.int64]]:
    """Return the purpose of each request of each law, as an index into `CATEGORIES`, by regime."""
    if any(name.startswith(f"{MAKE}.") for name in laws.by_regime):
        return _of_serving(laws)
    variables = variables_of(_SIZES, _CARD)
    return {
        regime: _purposes(laws, law.requests(variables, law.layers))
        for regime, law in laws.by_regime.items()
    }


def _purposes(laws: Laws, made: Requests) -> NDArray[np.int64]:
    n = len(made.kind)
    requests, frees = np.flatnonzero(made.kind == REQUEST), np.flatnonzero(made.kind == FREE)
    freed = np.full(len(requests), n)
    freed[made.block[frees]] = frees
    return purposes_of(laws.stacks, made.stack[requests], made.size[requests], (requests, freed), n)


def _of_serving(laws: Laws) -> dict[str, NDArray[np.int64]]:
    """Return the purposes of the requests of a serving program, by part and regime."""
    found: dict[str, NDArray[np.int64]] = {}
    for names in _programs(laws.by_regime):
        stretches = _stretches(laws.by_regime, names)
        layers = laws.by_regime[names[0]].layers
        made = requests_of(stretches, names, 0, layers)
        purposes, counts, at = _purposes(laws, made), dict[str, int](), 0
        for name, rows in zip(names, stretches, strict=True):
            count = int((rows.kind == REQUEST).sum())
            counts[name] = counts.get(name, 0) + 1
            # The first repetition is overwritten by the second, which follows one of its kind.
            if counts[name] <= _REPETITION:
                found[name] = purposes[at : at + count]
            at += count
    return found


def _programs(known: Mapping[str, Law]) -> Iterator[Sequence[str]]:
    """Yield programs that serve two prompts of three tokens each; together they use every law."""
    regimes = {kind: _regimes(known, kind) for kind in (MAKE, START, STEP)}
    most = max(map(len, regimes.values()))
    for i in range(most):
        make, start, step = (of[i % len(of)] for of in regimes.values())
        tokens = [f"{STEP}.{step}", f"{AFTER}.{step}"] * 3
        del tokens[-1]
        yield [
            *(f"{MAKE}.{make}", f"{START}.{start}", *tokens),
            *(f"{BETWEEN}.{start}", *tokens, f"{END}.{make}"),
        ]


def _regimes(known: Mapping[str, Law], kind: str) -> list[str]:
    return [name.partition(".")[2] for name in known if name.startswith(f"{kind}.")]


def _stretches(known: Mapping[str, Law], names: Sequence[str]) -> list[LawRows]:
    """Return the rows of each law in `names`; the cache grows by one token with every step."""
    found, length = [], _SIZES["length"]
    for name in names:
        kind = name.partition(".")[0]
        length = _SIZES["length"] if kind in (START, BETWEEN) else length + (kind == STEP)
        found.append(known[name].rows(_SERVED.variables((name, length)), known[name].layers))
    return found
