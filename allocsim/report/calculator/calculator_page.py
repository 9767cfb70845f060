"""Build the calculator page with embedded laws, models, cards and scripts.

The page loads nothing from outside, and its content security policy forbids it.  Its scripts, in
allocsim/report/calculator, compute all sizes from the embedded laws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from allocsim.fitting import (
    CONVOLUTIONS_NOTE,
    CUDNN_ATTENTION,
    CUDNN_NOTE,
    DTYPES,
    EXPERTS_NOTE,
    MASK_NOTE,
    OPTIMIZERS,
    LawModel,
    Opening,
)
from allocsim.fitting.laws import FAMILIES, Family
from allocsim.ownership import CATEGORIES
from allocsim.phantom import CONTEXT_MEMORY_SEEN, Gpu
from allocsim.report.calculator.packed_laws import PackedLaws
from allocsim.report.html import json_text, stylesheet

_ENGINE = (
    *("html/columns.js", "calculator/variables.js", "calculator/allocator.js"),
    *("calculator/law.js", "calculator/engine.js"),
)
"""Scripts that the web worker also runs."""
_PAGE = ("calculator/question.js", "calculator/answer.js", "calculator/page.js")


def calculator_page(
    laws: Sequence[PackedLaws],
    models: Sequence[LawModel],
    cards: Mapping[str, Gpu],
    opening: Opening,
) -> str:
    """Return the calculator page as HTML.

    laws: compressed laws of each program that the page can evaluate.
    models, cards: models and GPUs among which the reader can choose.
    opening: model, card and sizes that the page shows first.
    """
    about = {
        "models": [_model(model) for model in _with(models, opening.model)],
        "keys": {name: _keys(family) for name, family in FAMILIES.items()},
        "cards": [_card(name, gpu) for name, gpu in cards.items()],
        "dtypes": list(DTYPES),
        "optimizers": list(OPTIMIZERS),
        "attentions": ["sdpa", "eager"],
        "eager": [name for name, family in FAMILIES.items() if family.is_eager],
        "outputBias": [name for name, family in FAMILIES.items() if family.has_output_bias],
        "heads": {name: family.head_dim for name, family in FAMILIES.items() if family.head_dim},
        "purposes": CATEGORIES,
        "process": CONTEXT_MEMORY_SEEN,
        "cudnnAttention": CUDNN_ATTENTION,
        "notes": {
            "cudnn": CUDNN_NOTE,
            "mask": MASK_NOTE,
            "experts": EXPERTS_NOTE,
            "convolutions": CONVOLUTIONS_NOTE,
        },
        "families": {each.name: each.about for each in laws},
        "programs": {each.name: each.programs for each in laws},
        "opening": _opening(opening),
    }
    n_laws = sum(each.n_laws for each in laws)
    return Template(_part("calculator/page.html")).substitute(
        style=stylesheet() + _part("calculator/page.css"),
        engine="\n".join(map(_part, _ENGINE)),
        script="\n".join(map(_part, _PAGE)),
        about=json_text(about),
        n_programs=str(sum(len(each.programs) for each in laws)),
        n_laws=str(n_laws),
        releases=", ".join(sorted({each.releases for each in laws})),
        laws="".join(
            f'<script type="text/plain" data-laws="{each.name}">{each.text}</script>\n'
            for each in laws
        ),
    )


def _with(models: Sequence[LawModel], more: LawModel) -> list[LawModel]:
    """Return the models, with `more` first if it is not among them."""
    return [*([] if more in models else [more]), *models]


def _model(model: LawModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "family": model.family,
        "tied": model.is_tied,
        "sees": model.sees,
        "sizes": dict(model.sizes),
        "scaling": model.scaling,
        "hasLaw": model.has_law,
    }


def _keys(family: Family) -> dict[str, str]:
    """Return the key in a model's configuration of each of its sizes, e.g. of its hidden size."""
    window = {} if family.window is None else {"window": "sliding_window"}
    return {**family.keys, **window}


def _card(name: str, gpu: Gpu) -> dict[str, Any]:
    return {
        "short": name,
        "name": gpu.name,
        "memory": gpu.memory,
        "context": gpu.context_memory,
        "capability": gpu.capability,
        "multiprocessors": gpu.multiprocessors,
        "threads": gpu.limits.threads,
    }


def _opening(opening: Opening) -> dict[str, Any]:
    task = opening.task
    return {
        "model": opening.model.name,
        "card": opening.card,
        "memory": None if opening.card else opening.gpu.memory,
        "work": "train" if task.is_training else "serve",
        "dtype": task.dtype,
        "attention": task.attention,
        "optimizer": task.optimizer,
        "checkpointing": task.checkpointing,
        "lora": task.lora,
        "batch": task.batch,
        **{name: getattr(task, name) for name in ("seq", "prompt", "decode", "requests")},
    }


def _part(name: str) -> str:
    return (files("allocsim.report") / name).read_text(encoding="utf-8")
