"""The properties of a card, other than its memory, that decide how much a program requests."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Card"]


@dataclass(frozen=True, slots=True)
class Card:
    """capability: of its kernels.  multiprocessors; threads: that one of them holds."""

    capability: tuple[int, int]
    multiprocessors: int
    threads: int

    def blocks(self, threads: int) -> int:
        """How many blocks of so many threads fill the card."""
        return self.multiprocessors * (self.threads // threads)
