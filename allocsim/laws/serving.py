"""A program that serves, put together from the laws of its stretches.

Rule: every request to the model is a prompt and steps of one token each; what a step requests
depends on the tokens that the cache holds by then and on nothing else that came before.  So a step
has a law of its own, in regimes of its own, and any number of them makes the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from allocsim.laws.card import Card
from allocsim.laws.law import Law, Requests, requests_of
from allocsim.laws.repeated import refuse_too_long
from allocsim.laws.variables import Sizes, prompt_regime, step_regime, variables_of

__all__ = ["AFTER", "BETWEEN", "END", "MAKE", "START", "STEP", "Serving"]

MAKE, END = "make", "end"
"""Stretches by kind of positions: the model, up to where the peaks are reset; what is let go at
last."""

START, BETWEEN = "start", "between"
"""Stretches by regime of the prompt: the first one; what is let go of a request and the next one's
prompt."""

STEP, AFTER = "step", "after"
"""Stretches by regime of a step: up to its token; what is let go before the next."""

_FEWEST_ROWS = 80
"""Of a step, whatever the model: far too many steps are refused before they are listed."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What is served.

    sizes: of the model and the work, `length` that of the prompt.  is_fused: whether attention is
    FlashAttention's, which splits keys.  decode: steps of a request.  requests: one by one.
    positions: how the model is told them, which decides what making it requests.
    is_eager: whether attention is no kernel of its own.
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
        """The stretches in their order, each with the tokens that its attention is over.

        Raises ConfigError for too many steps.
        """
        refuse_too_long(self.requests * self.decode * _FEWEST_ROWS)
        prompt = self.sizes["length"]
        attention = {"is_fused": self.is_fused, "is_eager": self.is_eager}
        before = prompt_regime(self.sizes, self.card, **attention)
        steps = []
        for cached in range(prompt + 1, prompt + self.decode + 1):
            sizes = {**self.sizes, "length": cached}
            regime = step_regime(sizes, self.card, **attention)
            steps += [(f"{STEP}.{regime}", cached), (f"{AFTER}.{regime}", cached)]
        del steps[-1]
        found = [(f"{MAKE}.{self.positions}", prompt), (f"{START}.{before}", prompt), *steps]
        for _ in range(1, self.requests):
            found += [(f"{BETWEEN}.{before}", prompt), *steps]
        return [*found, (f"{END}.{self.positions}", prompt)]

    def program(self, laws: Mapping[str, Law], layers: int) -> Requests:
        """The program by the laws of its stretches.

        Raises ConfigError for too many steps and as `Law.rows`, KeyError for a law that is missing.
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
        """What the requests of a stretch depend on."""
        stretch, length = name
        is_step = stretch.startswith((STEP, AFTER))
        return variables_of({**self.sizes, "length": length}, self.card, is_step=is_step)
