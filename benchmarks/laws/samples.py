"""Sizes of models at work, drawn at random within a regime.

Rule: the same seed gives the same sizes; they are such that a kernel's units divide them or not, as
published models' do.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allocsim.laws import FAMILIES, regime_of
from allocsim.phantom import find_gpu
from allocsim.questions.fit import Task, program_of
from allocsim.questions.fit.by_law import card_of, laws_name, mask_unit
from allocsim.questions.fit.model import Configured
from benchmarks.laws.recorded import CARD

__all__ = ["Variant", "configured", "drawn", "regimes"]

_TRIES = 20_000


@dataclass(frozen=True, slots=True)
class Variant:
    """One program: a family and what is done with it.

    options: of `Task`, beside model, batch and length.
    """

    family: str
    is_tied: bool
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """As its file is called."""
        return laws_name(self.task(_sizes(self, random.Random(0))))

    def text(self, sizes: Mapping[str, int]) -> str:
        """The program at some sizes."""
        return program_of(self.task(sizes))

    def task(self, sizes: Mapping[str, int]) -> Task:
        """The task at some sizes."""
        own = {"lora": sizes["lora"]} if "lora" in self.options else {}
        return Task(
            model=configured(self.family, self.is_tied, sizes),
            batch=sizes["batch"],
            seq=sizes["length"],
            **{**self.options, **own},
        )


def regimes(variant: Variant) -> Iterator[str]:
    """The regimes that a variant is recorded in."""
    shared = ("own",) if variant.family == "gpt2" else ("shared", "own")
    has_mask = "checkpointing" in variant.options
    usual, seldom = ("masked", "padded") if has_mask else ("whole", "split")
    for batch in ("single", "several"):
        for tokens in ("few", "two", "sorted"):
            if variant.family == "gpt2" and (batch, tokens) == ("single", "sorted"):
                continue  # so long a sequence is another regime there
            for heads in shared:
                yield f"{batch}.{tokens}.{heads}.{usual}"
                if heads == shared[0] and (has_mask or tokens != "sorted"):
                    yield f"{batch}.{tokens}.{heads}.{seldom}"


def drawn(variant: Variant, regime: str, count: int, seed: int) -> list[dict[str, int]]:
    """`count` sizes in a regime, of three layers; fewer if it hardly ever comes."""
    chance, found = random.Random(f"{variant.name} {regime} {seed}"), []
    card = card_of(find_gpu(CARD))
    for _ in range(_TRIES):
        sizes = _sizes(variant, chance)
        if regime_of(sizes, card, mask_unit(variant.task(sizes))) == regime:
            found.append(sizes)
            if len(found) == count:
                break
    return found


def _sizes(variant: Variant, chance: random.Random) -> dict[str, int]:
    head_dim = chance.choice([64, 96, 128])
    kv_heads = chance.choice([2, 3, 4, 5, 8])
    heads = kv_heads * chance.choice([1, 1, 2, 3, 4, 7])
    hidden = heads * chance.choice([64, 96, 128, 160, 192])
    if variant.family == "gpt2":
        heads = chance.randrange(3, 40)
        hidden = heads * head_dim
    length = chance.choice([chance.randrange(40, 1000), chance.randrange(40, 5000)])
    if chance.random() < 0.5:
        length = -(-length // 64) * 64
    sizes = {
        "hidden": hidden,
        "intermediate": 64 * chance.randrange(10, 300),
        "layers": 3,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocabulary": chance.randrange(5_000, 160_000),
        "batch": chance.choice([1, 2, 3, 4, 5, 6, 7, 8, 12, 16]),
        "length": length,
    }
    if variant.family == "gpt2":
        sizes |= {"kv_heads": heads, "positions": 64 * chance.randrange(80, 200)}
    if "lora" in variant.options:
        sizes["lora"] = chance.choice([4, 8, 16, 24, 32, 64])
    return sizes


def configured(family: str, is_tied: bool, sizes: Mapping[str, int]) -> Configured:
    """The model of a family with these sizes."""
    keys = FAMILIES[family].keys
    config: dict[str, Any] = {"model_type": family, "tie_word_embeddings": is_tied}
    config |= {key: sizes[name] for name, key in keys.items()}
    if family != "gpt2":
        config["max_position_embeddings"] = 1 << 17
    return Configured("a model made up", config, "AutoModelForCausalLM")
