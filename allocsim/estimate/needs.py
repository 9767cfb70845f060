"""What serving a model needs of a card: its parts, each a figure or a range with its reason.

Rule: a part whose low and high differ says why; nothing that an engine takes is left out, and what
lies on the host stands apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from allocsim.estimate.growing import WORKSPACE
from allocsim.estimate.logged import NOTHING_LOGGED, Logged
from allocsim.estimate.shapes import Sizes
from allocsim.estimate.weights import Weights

__all__ = ["AS_LOGGED", "Needs", "Part", "Work", "known_or"]

AS_LOGGED = "as the log says"
"""Why a part is what it is that the engine printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is served, and where.

    memory: bytes of the card.  context: least and most bytes of its CUDA context.
    batch: sequences at a time, each of `prompt` tokens and `decode` more; `requests` one by one.
    kv_type: one of `KV_TYPES`, "" for what the engine takes by itself.
    gpu_layers: llama.cpp's -ngl, None for all.  workspace: bytes of cuBLAS's.
    logged: what the engine printed when it held the model, in place of assumptions.
    cards: how many share each layer; sizes and weights are then those of one of them.
    """

    sizes: Sizes
    weights: Weights
    memory: int
    context: tuple[int, int]
    batch: int = 1
    prompt: int = 1024
    decode: int = 64
    requests: int = 2
    kv_type: str = ""
    gpu_layers: int | None = None
    workspace: int = WORKSPACE
    logged: Logged = NOTHING_LOGGED
    cards: int = 1

    @property
    def tokens(self) -> int:
        """Tokens that one sequence comes to."""
        return self.prompt + self.decode

    @property
    def number_size(self) -> int:
        """Bytes of a number in activations."""
        return 4 if self.weights.name in ("fp32", "F32") else 2

    @property
    def computed_in(self) -> str:
        """The type of a cache that nobody chose."""
        return self.kv_type or ("fp32" if self.number_size == 4 else "bf16")


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one thing.  why: where the range comes from, or the figure."""

    name: str
    low: int
    high: int
    why: str = ""


def known_or(part: Part, logged: float | None) -> Part:
    """`part`, or the bytes of it that the engine printed."""
    if logged is None:
        return part
    return Part(part.name, round(logged), round(logged), AS_LOGGED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """The answer of one engine.

    parts: on the card.  host: in the host's memory.
    taken: least and most bytes that the engine takes of the card as it comes, None where that is
    what it needs.  room: least and most tokens that its cache then has room for, None without.
    paste: the settings for this work, "" without.  notes: what was assumed, in sentences.
    source: where the engine's behaviour is documented.
    """

    engine: str
    parts: tuple[Part, ...]
    source: str
    host: tuple[Part, ...] = ()
    taken: tuple[int, int] | None = None
    room: tuple[int, int] | None = None
    paste: str = ""
    notes: tuple[str, ...] = ()

    @property
    def low(self) -> int:
        """The least bytes that it needs of the card."""
        return sum(part.low for part in self.parts)

    @property
    def high(self) -> int:
        """The most."""
        return sum(part.high for part in self.parts)


def biggest_matrix(weights: Weights) -> int:
    """Numbers in the largest quantised matrix, which a product may need in 16 bits."""
    found: Iterable[int] = (
        each.shape.elements // max(each.shape.dims[0] if len(each.shape.dims) > 2 else 1, 1)
        for each in weights.tensors
        if each.is_quantised
    )
    return max(found, default=0)
