"""Properties of a GPU, other than its memory, that affect the sizes of requests."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Card"]


@dataclass(frozen=True, slots=True)
class Card:
    """Processors of a GPU.

    capability: compute capability.
    multiprocessors: number of multiprocessors.
    threads: most resident threads of a multiprocessor.
    """

    capability: tuple[int, int]
    multiprocessors: int
    threads: int

    def blocks(self, threads: int) -> int:
        """Return the number of blocks of `threads` threads each that fill the GPU."""
        return self.multiprocessors * (self.threads // threads)
