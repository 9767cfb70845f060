"""HTML page that calculates the memory of a model; it loads nothing from outside.

Its scripts, in allocsim/report/calculator, compute all sizes from embedded laws.  A law is a set of
formulas, one for each request of a part of a program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allocsim.core import FreeBlockOrder, find_release
from allocsim.errors import ConfigError
from allocsim.fitting import (
    CONVOLUTIONS_NOTE,
    CUDNN_ATTENTION,
    CUDNN_NOTE,
    DTYPES,
    EAGER_NOTE,
    EXPERTS_NOTE,
    MASK_NOTE,
    OPTIMIZERS,
    LawModel,
    Opening,
    PageLaws,
)
from allocsim.fitting.laws import FAMILIES, REQUEST, VARIABLES, Family, Formula, Law
from allocsim.ownership import CATEGORIES
from allocsim.phantom import CONTEXT_MEMORY_SEEN, Gpu, context_seen
from allocsim.report.html import Packer, json_text, stylesheet
from allocsim.report.layout import fields

__all__ = ["calculator_page", "packed_laws"]

_PER_ROW = ("kind", "group", "number", "by_copy", "by_copies")


@dataclass(frozen=True, slots=True)
class PackedLaws:
    """Compressed laws (formulas of requests) of a model family, such as "llama".

    name: transformers' model_type of the family.
    about: description of the columns, for JSON.
    text: columns of numbers, compressed; `about["columns"]` has the place of each.
    programs: names of the parts of each program, such as the optimizer step.
    n_laws: number of laws.
    releases: releases of PyTorch and transformers, as text.
    """

    name: str
    about: dict[str, Any]
    text: str
    programs: dict[str, list[str]]
    n_laws: int
    releases: str


def packed_laws(laws: PageLaws) -> PackedLaws:
    """Return the compressed laws (formulas of requests) of a model family.

    Raises ConfigError for a PyTorch release that prefers the oldest of equal free blocks, since the
    scripts of the calculator cannot simulate it.
    """
    release = ".".join(laws.torch_version.split(".")[:2])
    if find_release(release).free_block_order is FreeBlockOrder.CREATION:
        raise ConfigError(f"laws of {laws.family} are of PyTorch {release}, whose allocator the "
                          "page does not have")  # fmt: skip
    numbers: dict[bytes, int] = {}
    found: list[tuple[Law, NDArray[np.int64]]] = []
    parts: dict[str, dict[str, int]] = {}
    for part, by_name in laws.parts.items():
        for name, (law, purposes) in by_name.items():
            key = b"".join(getattr(law, each).tobytes() for each in _PER_ROW)
            key += repr((law.parts, law.formulas)).encode() + purposes.tobytes()
            if key not in numbers:
                numbers[key] = len(found)
                found.append((law, purposes))
            parts.setdefault(part, {})[name] = numbers[key]
    packer = Packer()
    for name in _PER_ROW:
        packer.add(name, _joined(getattr(law, name) for law, _ in found))
    requests = _joined(law.kind == REQUEST for law, _ in found).astype(bool)
    purpose = np.zeros(len(requests), dtype=np.int64)
    purpose[requests] = _joined(purposes for _, purposes in found)
    packer.add("purpose", purpose)
    repeated = [np.array(law.parts, dtype=np.int64).reshape(-1) for law, _ in found]
    flat = [_flat_column(law.formulas) for law, _ in found]
    packer.add("parts", _joined(repeated))
    packer.add("formulas", _joined(flat))
    spans = zip(_spans([law.kind for law, _ in found]), _spans(repeated), _spans(flat), strict=True)
    about = {
        "release": laws.torch_version,
        "variables": list(VARIABLES),
        "parts": parts,
        "laws": [
            {"layers": law.layers, "period": law.period, "spans": each}
            for (law, _), each in zip(found, spans, strict=True)
        ],
        "columns": packer.index,
    }
    releases = f"PyTorch {laws.torch_version} and transformers {laws.transformers}"
    n_laws = sum(map(len, parts.values()))
    programs = {name: list(of) for name, of in laws.programs.items()}
    return PackedLaws(laws.family, about, packer.text(), programs, n_laws, releases)


def _joined(columns: Iterable[NDArray[Any]]) -> NDArray[np.int64]:
    return np.concatenate([column.astype(np.int64) for column in columns])


def _spans(columns: Sequence[NDArray[Any]]) -> list[tuple[int, int]]:
    """Return (begin, end) of each column in the concatenation of all columns."""
    ends = np.cumsum([0, *map(len, columns)]).tolist()
    return list(itertools.pairwise(ends))


def _flat_column(formulas: Iterable[Formula]) -> NDArray[np.int64]:
    # For each formula: numerator, denominator, number of variables, and variables.
    return np.array(
        [
            number
            for each in formulas
            for number in (
                *(each.numerator, each.denominator, len(each.variables)),
                *each.variables,
            )
        ],
        dtype=np.int64,
    )


_ENGINE = (
    *("html/columns.js", "calculator/variables.js", "calculator/allocator.js"),
    *("calculator/law.js", "calculator/engine.js"),
)
"""Scripts of the simulation, which run in the HTML page and in its web worker."""
_PAGE = ("calculator/question.js", "calculator/answer.js", "calculator/page.js")


def calculator_page(
    laws: Sequence[PackedLaws],
    models: Sequence[LawModel],
    cards: Mapping[str, Gpu],
    opening: Opening,
) -> str:
    """Return the calculator, an HTML page.

    laws: formulas of each family of models.
    models: models to choose from.
    cards: dictionary from the name of a card to its properties.
    opening: model, card and sizes that the page shows first.
    """
    about = {
        "models": [_model(model) for model in _with_first(models, opening.model)],
        "keys": {name: _config_keys(family) for name, family in FAMILIES.items()},
        "cards": [_card(name, gpu) for name, gpu in cards.items()],
        "dtypes": list(DTYPES),
        "optimizers": list(OPTIMIZERS),
        "attentions": ["sdpa", "eager"],
        "eager": [name for name, family in FAMILIES.items() if family.is_eager],
        "outputBias": [name for name, family in FAMILIES.items() if family.has_output_bias],
        "headNorms": [name for name, family in FAMILIES.items() if family.norms_heads],
        "heads": {name: family.head_dim for name, family in FAMILIES.items() if family.head_dim},
        "purposes": CATEGORIES,
        "process": CONTEXT_MEMORY_SEEN,
        "cudnnAttention": CUDNN_ATTENTION,
        "notes": {
            "eager": EAGER_NOTE,
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


def _with_first(models: Sequence[LawModel], more: LawModel) -> list[LawModel]:
    return [*([] if more in models else [more]), *models]


def _model(model: LawModel) -> dict[str, Any]:
    return {
        **fields(model, "name family tied=is_tied sees"),
        "sizes": dict(model.sizes),
        **fields(model, "scaling hasLaw=has_law"),
    }


def _config_keys(family: Family) -> dict[str, str]:
    window = {} if family.window is None else {"window": "sliding_window"}
    return {**family.keys, **window}


def _card(name: str, gpu: Gpu) -> dict[str, Any]:
    return {
        "short": name,
        **fields(gpu, "name memory context=context_memory"),
        "process": context_seen(gpu),
        **fields(gpu, "capability multiprocessors threads=limits.threads"),
    }


def _opening(opening: Opening) -> dict[str, Any]:
    task = opening.task
    return {
        "model": opening.model.name,
        "card": opening.card,
        "memory": None if opening.card else opening.gpu.memory,
        "work": "train" if task.is_training else "serve",
        **fields(task, "dtype attention optimizer checkpointing lora batch"),
        **fields(task, "seq prompt decode requests"),
    }


def _part(name: str) -> str:
    return (files("allocsim.report") / name).read_text(encoding="utf-8")
