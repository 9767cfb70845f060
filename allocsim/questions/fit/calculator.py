"""What a calculator by laws offers: models, cards, and the question that it opens at.

Rule: a model is offered where its configuration is one that laws hold for; whether there is one for
the program asked about, the laws themselves say, as `by_law.py` has them say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.laws import family_of, known_laws
from allocsim.phantom import CARDS, Gpu
from allocsim.questions.fit.by_law import laws_name
from allocsim.questions.fit.model import Configured, Model
from allocsim.questions.fit.presets import CONFIGURATIONS
from allocsim.questions.fit.task import Task

__all__ = ["LawModel", "Opening", "law_cards", "law_model", "law_models", "opening_at"]

_OLDEST_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class LawModel:
    """A model whose configuration laws hold for.

    sizes: those that the configuration gives, by the names that laws have for them; the others
    follow (`Family.sizes_of`).  has_law: whether there are laws for any program of it.
    """

    name: str
    family: str
    is_tied: bool
    sizes: Mapping[str, int]
    has_law: bool


@dataclass(frozen=True, slots=True)
class Opening:
    """The question that a calculator opens at."""

    model: LawModel
    card: str
    gpu: Gpu
    task: Task


def law_model(model: Model) -> LawModel:
    """`model` as a calculator has it.  Raises ConfigError for one that no laws hold for."""
    family = family_of(model.config) if isinstance(model, Configured) else None
    if not isinstance(model, Configured) or family is None:
        raise ConfigError(f"there is no law for {model.name}: its architecture has none")
    family.sizes_of(model.config)
    is_tied = family.is_tied_in(model.config)
    sizes = {name: model.config[key] for name, key in family.keys.items() if model.config.get(key)}
    start = f"{family.model_type}_{'tied' if is_tied else 'untied'}_"
    has_law = any(name.startswith(start) for name in known_laws())
    return LawModel(model.name, family.model_type, is_tied, sizes, has_law)


def law_models() -> tuple[LawModel, ...]:
    """The presets that laws hold for."""
    known = {name.partition("_")[0] for name in known_laws()}
    found = []
    for name, config in CONFIGURATIONS.items():
        family = family_of(config)
        if family is None or family.model_type not in known:
            continue
        try:
            found.append(law_model(Configured(name, config, "AutoModelForCausalLM")))
        except ConfigError:
            continue
    return tuple(found)


def law_cards() -> dict[str, Gpu]:
    """The cards that laws hold for, by the name that people use."""
    return {name: gpu for name, gpu in CARDS.items() if gpu.capability >= _OLDEST_CAPABILITY}


def opening_at(task: Task, gpu: Gpu) -> Opening:
    """A calculator that opens at `task` on `gpu`.

    Raises ConfigError for an option that the calculator does not have, or a model or a card that
    no laws hold for.
    """
    laws_name(task)
    if gpu.capability < _OLDEST_CAPABILITY:
        raise ConfigError(f"{gpu.name}: laws are for cards of compute capability 8.0 or later")
    short = next((name for name, card in CARDS.items() if card == gpu), "")
    return Opening(law_model(task.model), short, gpu, task)
