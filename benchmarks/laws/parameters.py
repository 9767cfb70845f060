"""Shapes of the parameters that programs train, from models without data.

Rule: a dimension is the same monomial of the model's sizes in every sample, as the bytes of a
request are.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import Mapping, Sequence

import numpy as np

from allocsim.fitting.by_law import card_of
from allocsim.fitting.laws import FAMILIES, Parameters, variables_of
from allocsim.phantom import find_gpu
from benchmarks.laws.recorded import CARD
from benchmarks.laws.samples import Variant, sizes_of
from benchmarks.laws.taken import formulas_of

__all__ = ["parameters_of"]

_SAMPLES = 9
_LAYER = re.compile(r"\.(?:encoder_layer_)?(\d+)\.")
_PRINT = """
import json
print(json.dumps([
    [name, list(each.shape), each.element_size()]
    for name, each in model.named_parameters() if each.requires_grad
]))
"""


def parameters_of(variants: Sequence[Variant], python: str) -> list[Parameters]:
    """Return the parameters that each training program has.

    python: path of a Python with PyTorch.
    """
    chance, card = random.Random(0), card_of(find_gpu(CARD))
    sizes = [[sizes_of(variant, chance) for _ in range(_SAMPLES)] for variant in variants]
    programs = [
        _without_data(variant.text(at))
        for variant, samples in zip(variants, sizes, strict=True)
        for at in samples
    ]
    code = "import json, sys\nfor text in json.load(sys.stdin): exec(text, {})"
    done = subprocess.run(
        [python, "-c", code], input=json.dumps(programs), capture_output=True, text=True, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[[")]
    return [
        _parameters(
            found[_SAMPLES * number : _SAMPLES * (number + 1)],
            [variables_of(at, card) for at in samples],
            FAMILIES[variant.family].period,
        )
        for number, (variant, samples) in enumerate(zip(variants, sizes, strict=True))
    ]


def _without_data(text: str) -> str:
    """Return the beginning of a program, with a model without data, and a print of its shapes."""
    made = text.partition("\nparameters = ")[0].replace("cuda", "meta")
    return "\n".join(each for each in made.splitlines() if "torch.meta." not in each) + _PRINT


def _parameters(
    found: Sequence[Sequence[tuple[str, Sequence[int], int]]],
    values: Sequence[Mapping[str, int]],
    period: int,
) -> Parameters:
    """Return the parameters, from those of the same program at several sizes."""
    names, shapes, widths = zip(*found[0], strict=True)
    columns = np.array(
        [[size for _, shape, _ in each for size in shape] for each in found], dtype=np.int64
    ).T
    formulas, numbers = formulas_of(columns, values, lambda number: f"dimension {number}")
    dimensions = iter(numbers.tolist())
    named = [
        (name, tuple(formulas[next(dimensions)] for _ in shape))
        for name, shape in zip(names, shapes, strict=True)
    ]
    layers = [None if (each := _LAYER.search(name)) is None else int(each[1]) for name in names]
    within = [i for i, layer in enumerate(layers) if layer is not None]
    (width,) = set(widths)
    return Parameters(
        width=width,
        before=tuple(shape for _, shape in named[: within[0]]),
        layer=tuple(named[i][1] for i in within if (layers[i] or 0) < period),
        after=tuple(shape for _, shape in named[within[-1] + 1 :]),
        period=period,
    )
