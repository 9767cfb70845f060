"""Sizes of models and their inputs, drawn at random within a regime.

Rule: the same seed gives the same sizes. As in published models, a kernel's units divide some of
the sizes and not others.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from allocsim.fitting import Task, program_of
from allocsim.fitting.by_law import card_of, is_fused, laws_name, mask_unit, serving_of
from allocsim.fitting.laws import (
    FAMILIES,
    START,
    STEP,
    ProgramName,
    attention_splits,
    regime_of,
)
from allocsim.fitting.model import Classifier, Configured, Model
from allocsim.phantom import find_gpu
from benchmarks.laws.recorded import CARD

__all__ = ["Variant", "configured", "drawn", "drawn_to_serve", "regimes"]

_FOLDED = re.compile(r"\n    rope_parameters=\{[^}]*\}")
"""Configuration lines that are not in all programs of a variant."""

VIT = "torchvision-vit"
SEEING = tuple(name for name, family in FAMILIES.items() if family.sees)
_TRIES = 20_000
_SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Scaling of rotary positions of Llama 3.1 and later; no size depends on its values."""

_PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}
"""Rotary positions without scaling."""

_PER_SPLIT = 6
"""Samples of a regime's prompts for each number of parts into which keys are split."""

_DECODE = 3
"""Steps of a recorded request: the first, a middle step, and the last."""
_OWN_KEYS = ("gpt2", "bert", *SEEING)
"""Families where each head has its own keys."""
_SHARED_KEYS = ("qwen3", "glm4", "mistral")
"""Families whose published models all share keys among heads."""
_NEVER_SINGLE = {
    "gpt2": ("sorted",),
    "bert": ("two", "sorted"),
    **dict.fromkeys(SEEING, ("two", "sorted")),
}
"""Regimes that are too long for one sequence; GPT-2 has a regime for longer single sequences."""
_LARGE_VOCABULARY = ("qwen2", "gemma2", "qwen3", "glm4")
"""Families whose published vocabularies are so large that the argmax is split."""
_WINDOWED = {"mistral": ("shared",), "phi3": ("own", "shared")}
"""Families whose published models have a sliding window, with the sharing of keys among heads."""
_OWN_ENDINGS = {
    "bert": ("", ".ones", ".twos", ".fours"),
    "mixtral": ("", ".many"),
    "vit": ("", ".narrow"),
}
"""Endings of regimes above a thousand tokens that only these families have."""
_OWN_SHORT_ENDINGS = {"vit": ("", ".narrow")}
"""Endings of regimes up to a thousand tokens that only these families have."""
_CONSTRUCTOR = "torchvision.models.VisionTransformer(image_size=224, {})"
"""Call that torchvision's functions for vision transformers make."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One program: a model family and its options.

    options: fields of `Task`, except model, batch and length.
    """

    family: str
    is_tied: bool
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the program."""
        return self.program.text

    @property
    def program(self) -> ProgramName:
        """Name of the program, with the names of its parts."""
        return laws_name(self.task(sizes_of(self, random.Random(0))))

    def text(self, sizes: Mapping[str, int]) -> str:
        """Return the text of the program at some sizes, with the same line numbers at all sizes."""
        text = program_of(self.task(sizes))
        text = _FOLDED.sub(lambda found: found[0].replace("\n", " "), text)
        if self.family != VIT:
            return text
        own = {
            "patch_size": sizes["patch"],
            "num_layers": sizes["layers"],
            "num_heads": sizes["heads"],
            "hidden_dim": sizes["hidden"],
            "mlp_dim": sizes["intermediate"],
        }
        given = ", ".join(f"{name}={value}" for name, value in own.items())
        return text.replace("torchvision.models.vit_b_16(weights=None)", _CONSTRUCTOR.format(given))

    def task(self, sizes: Mapping[str, int]) -> Task:
        """Return the task at some sizes."""
        own: dict[str, Any] = {"lora": sizes["lora"]} if "lora" in self.options else {}
        if "is_fp16" in sizes:
            own["dtype"] = "fp16" if sizes["is_fp16"] else "bf16"
        length, more = ("prompt", {"decode": _DECODE}) if self.serves else ("seq", {})
        return Task(
            model=configured(self.family, self.is_tied, sizes),
            batch=sizes["batch"],
            **{length: sizes["length"], **more, **self.options, **own},
        )

    @property
    def serves(self) -> bool:
        """True if the program serves, False if it trains."""
        return not self.options.get("is_training", True)


def regimes(variant: Variant) -> Iterator[str]:
    """Yield the regimes at which a variant is recorded; for serving, the regimes of the prompt."""
    if variant.serves:
        yield from _regimes_of_prompts(variant)
        return
    yield from _regimes_of_training(variant)


def _regimes_of_training(variant: Variant) -> Iterator[str]:
    family = variant.family
    shared = _sharing(family)
    is_eager = variant.options.get("attention") == "eager"
    checkpoints = variant.options.get("checkpointing") and family not in SEEING
    has_mask = is_eager or checkpoints
    usual, seldom = ("masked", "padded") if has_mask else ("whole", "split")
    for batch in ("single", "several"):
        for tokens in ("few", "two", "sorted"):
            if batch == "single" and tokens in _NEVER_SINGLE.get(family, ()):
                continue
            way = f"{batch}.{tokens}"
            own = (_OWN_SHORT_ENDINGS if tokens == "few" else _OWN_ENDINGS).get(family)
            if own:
                may_split = family in SEEING and tokens != "sorted"
                ways = (usual, seldom) if may_split else (usual,)
                for heads, attention, more in product(shared, ways, own):
                    yield f"{way}.{heads}.{attention}{more}"
                continue
            for heads in shared:
                yield f"{way}.{heads}.{usual}"
                if heads == shared[0] and not is_eager and (has_mask or tokens != "sorted"):
                    yield f"{way}.{heads}.{seldom}"
            for heads in _WINDOWED.get(family, ()):
                for attention in dict.fromkeys((usual, "masked")):
                    yield f"{way}.{heads}.{attention}.window"


def _sharing(family: str) -> tuple[str, ...]:
    """Return the kinds of sharing of keys among heads that a family is recorded with."""
    if family in _OWN_KEYS:
        return ("own",)
    return ("shared",) if family in _SHARED_KEYS else ("shared", "own")


def _regimes_of_prompts(variant: Variant) -> Iterator[str]:
    may_split = is_fused(variant.task(sizes_of(variant, random.Random(0))))
    ways = itertools.product(
        ("single", "several"),
        _sharing(variant.family),
        ("whole", "split") if may_split else ("whole",),
        ("parts",) if variant.family in _LARGE_VOCABULARY else ("at-once",),
        ("", "window", "filled") if variant.family in _WINDOWED else ("",),
        ("", "many") if variant.family == "mixtral" else ("",),
    )
    yield from (".".join(filter(None, way)) for way in ways if not {"split", "filled"} <= set(way))


def drawn(variant: Variant, regime: str, count: int, seed: int) -> list[dict[str, int]]:
    """Draw `count` sizes in a regime, fewer if the regime is rare.

    The number of layers is three times the family's `period`.
    """
    card, found = card_of(find_gpu(CARD)), []
    for sizes in _draws(variant, f"{variant.name} {regime} {seed}"):
        if regime_of(sizes, card, mask_unit(variant.task(sizes))) == regime:
            found.append(sizes)
            if len(found) == count:
                break
    return found


def drawn_to_serve(variant: Variant, count: int) -> list[dict[str, int]]:
    """Draw sizes so that each regime of prompts and steps has `count`, or fewer if it is rare."""
    found: list[dict[str, int]] = []
    known: Counter[str] = Counter()
    gpu = find_gpu(CARD)
    for regime in regimes(variant):
        for stretch in (START, STEP) if not regime.endswith("many") else (START,):
            name = f"{stretch}.{regime}"
            for sizes in _draws(variant, f"{variant.name} {name}"):
                if known[name] >= count:
                    break
                names = {each for each, _ in serving_of(variant.task(sizes), gpu).names}
                # If all keys were split into two parts, a formula could not tell the factor 2 from
                # the variable.
                parts = f"{name} {attention_splits(sizes, gpu.multiprocessors)}"
                if name in names and (stretch == STEP or known[parts] < _PER_SPLIT):
                    found.append(sizes)
                    known.update({*names, parts} if "split" in regime else names)
    return found


def _draws(variant: Variant, seed: str) -> Iterator[dict[str, int]]:
    chance = random.Random(seed)
    return (sizes_of(variant, chance) for _ in range(_TRIES))


def sizes_of(variant: Variant, chance: random.Random) -> dict[str, int]:
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
    if variant.serves:
        sizes |= {
            "vocabulary": chance.randrange(5_000, 260_000),
            "length": chance.choice([length, chance.randrange(2, 300)]),
        }
        if variant.family == "llama":
            sizes["is_scaled"] = chance.randrange(2)
        if variant.family == "gemma2":
            sizes["window"] = chance.choice(_windows(sizes["length"], chance))
        if variant.options["dtype"] != "fp32" and variant.options["attention"] == "sdpa":
            sizes["is_fp16"] = chance.randrange(2)
    if variant.options["dtype"] == "fp32":
        sizes["logit_bytes"] = 4
    if "lora" in variant.options:
        sizes["lora"] = chance.choice([4, 8, 16, 24, 32, 64])
    return sizes | _own_sizes(variant.family, sizes, chance)


def _own_sizes(family: str, sizes: Mapping[str, int], chance: random.Random) -> dict[str, int]:
    """Return the sizes that only this family has, or has differently.

    sizes: sizes that were drawn for all families.
    """
    heads, head_dim, length = sizes["heads"], sizes["head_dim"], sizes["length"]
    own: dict[str, int] = {}
    if family == "bert" or family in SEEING:
        heads = chance.randrange(2, 21)
        batch = chance.choice([1, *range(2, 17), 24, 32, 48, 64, 96, 128, 200])
        own = {"heads": heads, "kv_heads": heads, "hidden": heads * head_dim, "batch": batch}
        if family == "bert":
            length = min(-(-length // 8), 512)
            own |= {"length": length, "positions": 64 * chance.randrange(8, 20)}
            return own | {"output_bias": 1, "vocabulary": chance.randrange(5_000, 60_000)}
        patch = chance.choice([8, 14, 16, 16, 28, 32])
        kinds = chance.choice([2, 10, 100, 1000, 21_843, chance.randrange(2, 3000)])
        own |= {"length": (224 // patch) ** 2 + 1, "patch": patch}
        return own | {"vocabulary": 0 if family == VIT else kinds}
    if family == "mixtral":
        experts = chance.randrange(3, 12)
        intermediate = 64 * chance.randrange(4, 60)
        chosen = chance.randrange(2, min(experts, 5))
        own = {"experts": experts, "chosen": chosen, "intermediate": intermediate, "window": 0}
    elif FAMILIES[family].norms_heads:
        own = {"head_dim": 128, "head_norms": 1}
    elif family == "gemma2":
        own = {"head_dim": chance.choice([64, 96, 128, 192, 256]), "layers": 6}
    elif family in _WINDOWED:
        own = {"window": chance.choice([0, 0, *_windows(length, chance)])}
    return own


def _windows(length: int, chance: random.Random) -> tuple[int, int]:
    """Draw a window that a sequence fills, and a window that it does not fill."""
    return chance.randrange(2, length + 1), length + chance.randrange(1, 4000)


def configured(family: str, is_tied: bool, sizes: Mapping[str, int]) -> Model:
    """Return the model of a family with these sizes; a vision transformer has published sizes."""
    if family == VIT:
        return Classifier("a model made up", "vit_b_16")
    known = FAMILIES[family]
    config: dict[str, Any] = {"model_type": family, "tie_word_embeddings": is_tied}
    config |= {key: sizes[name] for name, key in known.keys.items()}
    if "positions" not in known.keys and not known.sees:
        config["max_position_embeddings"] = 1 << 17
    if sizes.get("is_scaled"):
        config["rope_parameters"] = _SCALED
    if family in ("phi3", "glm4"):
        config["pad_token_id"] = 0  # the default is beyond a small vocabulary
    if known.rotated != 1.0:
        config["rope_parameters"] = {**_PLAIN, "partial_rotary_factor": known.rotated}
    if "window" in sizes:
        config["sliding_window"] = sizes.get("window") or None
    return Configured("a model made up", config, f"AutoModelFor{known.head}")
