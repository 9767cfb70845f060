"""The GPU that a program is to find: memory, name and what else changes allocations.

Rule: a device answers whatever PyTorch asks it as the card of that name does.  PyTorch and its
libraries size launches, and with them buffers, by the limits of a multiprocessor, so a card with
another's limits would reserve other amounts.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.units import KIB, MIB, TIB

__all__ = ["CONTEXT_MEMORY", "CONTEXT_MEMORY_SEEN", "Gpu", "Limits", "limits_of"]

CONTEXT_MEMORY = 512 * MIB
"""What a named card's CUDA context and its libraries are taken to hold, unless told or seen to be
less on that card (`cards.py`)."""

CONTEXT_MEMORY_SEEN = (112 * MIB, 687 * MIB)
"""The least and the most that out-of-memory texts leave beside PyTorch's own in a process: about
112 MiB on an RTX 4060, 180 on an RTX 3070, 204 on an RTX A4000, 426 on an RTX 6000 Ada, 522 on a
card of 23.65 GiB, 600 on an RTX 5090, 687 on one of 79.14 GiB.  It grows with the kernels that
were loaded, and no card's figure is known beforehand."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one multiprocessor offers to kernels.

    threads, blocks: how many are resident at once.
    shared_memory: bytes.
    block_shared_memory: bytes that one block may have on request; 48 KiB without one.
    l2: bytes of the device's second cache.
    registers: of 32 bits each.
    """

    threads: int = 2048
    blocks: int = 32
    shared_memory: int = 164 * KIB
    block_shared_memory: int = 163 * KIB
    l2: int = 40 * MIB
    registers: int = 65536


_BY_CAPABILITY = {
    (6, 0): (2048, 32, 64, 48),
    (6, 1): (2048, 32, 96, 48),
    (7, 0): (2048, 32, 96, 96),
    (7, 5): (1024, 16, 64, 64),
    (8, 0): (2048, 32, 164, 163),
    (8, 6): (1536, 16, 100, 99),
    (8, 9): (1536, 24, 100, 99),
    (9, 0): (2048, 32, 228, 227),
    (10, 0): (2048, 32, 228, 227),
    (10, 3): (2048, 32, 228, 227),
    (12, 0): (1536, 24, 100, 99),
}
"""Threads, blocks, KiB of shared memory of a multiprocessor and of a block on request, from the
table of technical specifications by compute capability in NVIDIA's CUDA C++ programming guide.
Registers are 65,536 in all of them."""


def limits_of(capability: tuple[int, int], l2: int) -> Limits:
    """The limits of a compute capability, with a card's L2 in bytes.

    Raises ConfigError for a capability that is not in the table.
    """
    if capability not in _BY_CAPABILITY:
        known = ", ".join(f"{major}.{minor}" for major, minor in _BY_CAPABILITY)
        raise ConfigError(f"compute capability {capability}: expected one of {known}")
    threads, blocks, shared, of_block = _BY_CAPABILITY[capability]
    return Limits(threads, blocks, shared * KIB, of_block * KIB, l2)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device.  Without more than a size it is like an A100.

    memory: bytes of the card.
    capability: (major, minor).
    multiprocessors: their number.
    context_memory: bytes of the card that the CUDA context holds.
    limits: those of its multiprocessors.
    context_chunks: address space of the CUDA context, as `arena_add_context` of the stub reads it;
        "" if unknown.
    """

    name: str
    memory: int
    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    context_memory: int = 0
    limits: Limits = Limits()
    context_chunks: str = ""

    @property
    def room(self) -> int:
        """Bytes of the card that its CUDA context leaves."""
        return self.memory - self.context_memory

    def __post_init__(self) -> None:
        if not 0 < self.memory <= TIB:
            raise ConfigError(f"device memory {self.memory}: expected 1 byte to 1 TiB")
        if not 0 <= self.context_memory < self.memory:
            most = f"less than the device's {self.memory} bytes"
            raise ConfigError(f"context memory {self.context_memory}: expected {most}")
