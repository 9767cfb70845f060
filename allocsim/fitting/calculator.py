"""Models, cards and first question of the calculator page, which answers by laws.

Rule: a model is listed if its configuration belongs to a family with laws; the laws decide whether
a program has one, as in `by_law.py`. The page supports every family, with LoRA adapters on all
linear modules or none. The command supports more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.fitting.by_law import (
    OLDEST_CAPABILITY,
    config_of,
    laws_name,
    positions_of,
    refuse_card_without_law,
)
from allocsim.fitting.laws import FAMILIES, family_of, known_laws
from allocsim.fitting.model import Model, model_of
from allocsim.fitting.presets import CONFIGURATIONS, TORCHVISION
from allocsim.fitting.task import OPTIMIZERS, Task
from allocsim.phantom import CARDS, Gpu

__all__ = [
    "LawModel",
    "Opening",
    "law_cards",
    "law_model",
    "law_models",
    "law_programs",
    "opening_at",
]

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
