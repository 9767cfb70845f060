"""Bytes per parameter of a training, and the memory of one rank, part by part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Bytes that a training stores per parameter and per element of activations.

    weights, gradients: bytes per parameter.
    optimizer: bytes of its state per parameter, including 32-bit weights if `weights` are 16-bit.
    compute: bytes per element of activations.
    """

    weights: int = 2
    gradients: int = 2
    optimizer: float = 12
    compute: int = 2


MIXED = Precision()
"""16-bit weights and gradients with Adam in 32 bits: ZeRO's 2 + 2 + 12."""


@dataclass(frozen=True, slots=True)
class RankPart:
    """One use of a rank's memory, such as weights or gradients.

    size: bytes.
    arithmetic: computation of `size`, as text.
    """

    name: str
    size: int
    arithmetic: str


@dataclass(frozen=True, slots=True)
class Rank:
    """Memory of a rank of one pipeline stage, at the moment when it allocates most.

    moment: description of that moment.
    parameters: parameters of such a rank before ZeRO shares anything.
    parts: uses of memory at that moment.
    """

    stage: int
    moment: str
    parameters: int
    parts: tuple[RankPart, ...]

    @property
    def allocated(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)
