"""Training and serving programs, composed of parts such as the optimizer's step.

Each part has a law: formulas for its requests and frees.  Model and optimizer have separate laws,
so the laws of any model can be combined with any optimizer, for any number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from allocsim.fitting.laws.law import Law, Requests, requests_of
from allocsim.fitting.laws.optimizers import Steps
from allocsim.fitting.laws.repeated import refuse_too_long
from allocsim.fitting.laws.sums import Card
from allocsim.fitting.laws.variables import (
    Sizes,
    prompt_regime,
    served_window,
    step_regime,
    variables_of,
)

MAKE, END = "make", "end"
"""First and last part of a serving program.

Each has a law for every kind of scaling of rotary positions, with a name such as "make.default".
The name ends in ".window" for a model with a sliding window.

make: creation of the model, up to the reset of PyTorch's peak counters.
end: frees at the end of the program.
"""

START, BETWEEN = "start", "between"
"""Parts of a serving program that run prompts; each has a law for every regime.

A regime is a range of sizes with the same kernels.

start: first batch of prompts.
between: frees after the last token of a batch, and the prompts of the next batch.
"""

STEP, AFTER = "step", "after"
"""Parts of a serving program that generate a token; each has a law for every regime.

A regime is a range of sizes with the same kernels.

step: forward pass until the token is chosen.
after: frees before the next step.
"""

_FEWEST_ROWS = 80
"""Least number of requests and frees per generated token, over all models.

It serves to refuse a workload of too many tokens before its parts are listed.
"""


@dataclass(frozen=True, slots=True)
class Serving:
    """Serving workload: a model, a card, and batches of prompts, served one after another.

    sizes: dimensions of the model by name, with "batch" and "length" (tokens of a prompt).
    is_fused: True if attention is FlashAttention, which may split keys.
    decode: tokens generated for each prompt.
    requests: number of batches of prompts.
    positions: kind of scaling of rotary positions, which affects the creation of the model.
    is_eager: True if attention is eager, without a fused kernel.
    """

    sizes: Sizes
    card: Card
    is_fused: bool
    decode: int
    requests: int
    positions: str = "default"
    is_eager: bool = False

    @property
    def names(self) -> list[tuple[str, int]]:
        """Parts of the program in order, as pairs (name, number of tokens in the KV cache)."""
        # Listing the parts of an enormous workload would itself take too long.
        refuse_too_long(self.requests * self.decode * _FEWEST_ROWS)
        prompt = self.sizes["length"]
        attention = {"is_fused": self.is_fused, "is_eager": self.is_eager}
        before = prompt_regime(self.sizes, self.card, **attention)
        has_window = served_window(self.sizes, is_eager=self.is_eager)
        made = f"{self.positions}.window" if has_window else self.positions
        steps = []
        for cached in range(prompt + 1, prompt + self.decode + 1):
            sizes = {**self.sizes, "length": cached}
            regime = step_regime(sizes, self.card, **attention)
            steps += [(f"{STEP}.{regime}", cached), (f"{AFTER}.{regime}", cached)]
        # After the last token no further token frees its temporaries.
        del steps[-1]
        found = [(f"{MAKE}.{made}", prompt), (f"{START}.{before}", prompt), *steps]
        for _ in range(1, self.requests):
            found += [(f"{BETWEEN}.{before}", prompt), *steps]
        return [*found, (f"{END}.{made}", prompt)]

    def program(self, laws: Mapping[str, Law], layers: int) -> Requests:
        """Return the requests and frees of the workload, for a model of `layers` layers.

        laws: dictionary from the name of each part of the program to its law.
        """
        names = self.names
        refuse_too_long(sum(laws[name].n_rows(layers) for name, _ in names))
        known = {name: laws[name[0]].rows(self.variables(name), layers) for name in set(names)}
        stretches = [known[name] for name in names]
        ends = np.cumsum([len(each.row) for each in stretches]).tolist()
        starts = [ends[i - 1] for i, (name, _) in enumerate(names) if name.startswith(STEP)]
        return requests_of(
            stretches, [name for name, _ in names], ends[0], layers, (*starts, ends[-1])
        )

    def variables(self, name: tuple[str, int]) -> dict[str, int]:
        """Return the values of the formulas' variables, such as "length", in a part of the program.

        name: an item of `names`.
        """
        stretch, length = name
        is_step = stretch.startswith((STEP, AFTER))
        return variables_of({**self.sizes, "length": length}, self.card, is_step=is_step)


FIRST, AGAIN, ZERO, LAST = "first", "again", "zero", "last"
"""Parts of a training program; each has a law for every regime.

A regime is a range of sizes with the same kernels.

first: input, forward and backward of the first step.
again: forward and backward of a later step.
zero: frees of the gradients after a step.
last: frees after the last step, except those of the optimizer's state and of the model.
"""
DROP = "drop"
"""Part of a training program: frees of the model at its end."""


def made_by(regime: str) -> str:
    """Return the name of the law for creating a model that is then trained: "make…".

    regime: regime of the training, as returned by `regime_of`.
    """
    narrow = ".narrow"  # few enough positions for one block to check them
    return MAKE + narrow if regime.endswith(narrow) else MAKE


OPTIMIZER = "optimizer"
"""Prefix of the names of a training program's optimizer parts, such as "optimizer.first".

The names are the keys of `Steps.by_name`.
"""


@dataclass(frozen=True, slots=True)
class Training:
    """Training workload: model, card, input and number of steps.

    sizes: dimensions of the model by name, with "batch" and "length" (tokens of a sequence).
    regime: name of the range of sizes with the same kernels, which selects the model's laws.
    """

    sizes: Sizes
    card: Card
    regime: str
    steps: int

    @property
    def names(self) -> list[str]:
        """Names of the program's parts in order, such as "optimizer.first"."""
        first, next_, end = (f"{OPTIMIZER}.{each}" for each in ("first", "next", "end"))
        found = [made_by(self.regime), f"{FIRST}.{self.regime}", first]
        for _ in range(1, self.steps):
            found += [f"{ZERO}.{self.regime}", f"{AGAIN}.{self.regime}", next_]
        return [*found, f"{LAST}.{self.regime}", end, DROP]

    def program(self, laws: Mapping[str, Law], optimizer: Steps, layers: int) -> Requests:
        """Return the requests and frees of the workload, for a model of `layers` layers.

        laws: dictionary from the name of each part of the program, except the optimizer's, to its
            law.
        optimizer: laws of the optimizer's parts.
        """
        names, variables = self.names, variables_of(self.sizes, self.card)
        own = optimizer.by_name
        known = {name: own.get(name) or laws[name] for name in dict.fromkeys(names)}
        refuse_too_long(sum(known[name].n_rows(layers) for name in names))
        rows = {name: law.rows(variables, layers) for name, law in known.items()}
        stretches = [rows[name] for name in names]
        reset = len(stretches[0].row)
        ends = list(accumulate(len(each.row) for each in stretches))
        starts = [
            ends[i - 1]
            for i, name in enumerate(names)
            if name.startswith((f"{FIRST}.", f"{AGAIN}."))
        ]
        return requests_of(stretches, names, reset, layers, (*starts, ends[-1]))
