"""A training program, composed of the laws of its parts.

Rule: a step runs the model forward and backward, then the optimizer, then frees the gradients. The
optimizer sees only the parameters, and the model never sees the optimizer. So each has laws of its
own, and any model trains with any optimizer for any number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from allocsim.fitting.laws.law import Law, Requests, requests_of
from allocsim.fitting.laws.optimizers import Steps
from allocsim.fitting.laws.repeated import refuse_too_long
from allocsim.fitting.laws.serving import MAKE
from allocsim.fitting.laws.sums import Card
from allocsim.fitting.laws.variables import Sizes, variables_of

FIRST, AGAIN, ZERO, LAST = "first", "again", "zero", "last"
"""Parts by regime.

first: input, forward and backward of the first step.
again: forward and backward of a later step.
zero: frees of the gradients after a step.
last: frees after the last step, except those of the optimizer's state and of the model.
"""
DROP = "drop"
"""Frees of the model at the end of the program."""


def made_by(regime: str) -> str:
    """Return the name of the law for building a model that is then trained in a regime.

    regime: name of the regime, as from `regime_of`.
    """
    narrow = ".narrow"  # few enough positions for one block to check them
    return MAKE + narrow if regime.endswith(narrow) else MAKE


OPTIMIZER = "optimizer"
"""Steps of the optimizer, and the frees of its state, by the names of `Steps.by_name`."""


@dataclass(frozen=True, slots=True)
class Training:
    """Training workload: model, card, input and number of steps.

    sizes: sizes of the model, the `batch`, and as `length` the tokens of a sequence.
    card: GPU that trains.
    regime: name of the regime (the kernels that run), which selects the model's laws.
    steps: number of training steps.
    """

    sizes: Sizes
    card: Card
    regime: str
    steps: int

    @property
    def names(self) -> list[str]:
        """Names of the program's parts in order, such as the forward pass of each step."""
        first, next_, end = (f"{OPTIMIZER}.{each}" for each in ("first", "next", "end"))
        found = [made_by(self.regime), f"{FIRST}.{self.regime}", first]
        for _ in range(1, self.steps):
            found += [f"{ZERO}.{self.regime}", f"{AGAIN}.{self.regime}", next_]
        return [*found, f"{LAST}.{self.regime}", end, DROP]

    def program(self, laws: Mapping[str, Law], optimizer: Steps, layers: int) -> Requests:
        """Return the requests and frees of the workload, for a model of `layers` layers.

        laws: law of each part of the model.
        optimizer: laws of the optimizer.

        Raises ConfigError for too many steps and for a number of layers without a law.
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
