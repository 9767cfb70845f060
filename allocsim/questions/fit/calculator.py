"""What a calculator by laws offers: models, cards, and the question that it opens with.

Rule: a model is offered if its configuration is of a family that has laws; whether the program
asked about has one, the laws themselves say, as in `by_law.py`.  The page has every family, with
adapters on all linear modules or on none, which its fields can express; the command has more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.laws import FAMILIES, family_of, known_laws
from allocsim.phantom import CARDS, Gpu
from allocsim.questions.fit.by_law import (
    OLDEST_CAPABILITY,
    config_of,
    laws_name,
    positions_of,
    refuse_card_without_law,
)
from allocsim.questions.fit.model import Model, model_of
from allocsim.questions.fit.presets import CONFIGURATIONS, TORCHVISION
from allocsim.questions.fit.task import OPTIMIZERS, Task

__all__ = [
    "LawModel",
    "Opening",
    "law_cards",
    "law_model",
    "law_models",
    "law_programs",
    "opening_at",
]

_CARRIED = re.compile(
    rf"({'|'.join(FAMILIES)})(_(un)?tied)?_[a-z\d-]+_"
    rf"(serve(_eager)?|({'|'.join(OPTIMIZERS)})(_checkpointing)?(_eager)?(_lora)?)"
)


@dataclass(frozen=True, slots=True)
class LawModel:
    """A model whose configuration laws hold for.

    sizes: those that the configuration gives, by the names that laws have for them; the others
    follow (`Family.sizes_of`).  sees: whether it tells images apart.  scaling: how its positions
    are scaled.  has_law: whether there are laws for any program of it.
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
    """The question that a calculator opens at."""

    model: LawModel
    card: str
    gpu: Gpu
    task: Task


def law_programs() -> tuple[str, ...]:
    """The programs with laws that a calculator can ask about."""
    return tuple(name for name in known_laws() if _CARRIED.fullmatch(name))


def law_model(model: Model) -> LawModel:
    """`model` as a calculator has it.  Raises ConfigError for one that it has no laws of."""
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
    """The presets that laws hold for."""
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
    """The cards that laws hold for, by the name that people use."""
    return {name: gpu for name, gpu in CARDS.items() if gpu.capability >= OLDEST_CAPABILITY}


def opening_at(task: Task, gpu: Gpu) -> Opening:
    """A calculator that opens at `task` on `gpu`.

    Raises ConfigError for an option that the calculator does not have, or a model or a card that
    no laws hold for.
    """
    name = laws_name(task)
    if task.start != "clean" or not _CARRIED.fullmatch(name):
        law_model(task.model)
        raise ConfigError(f"the page of --html has no {name}, {task.start}; --engine laws answers")
    refuse_card_without_law(gpu)
    short = next((name for name, card in CARDS.items() if card == gpu), "")
    return Opening(law_model(task.model), short, gpu, task)
