"""Description of a phantom GPU: name, memory and all properties that affect allocations.

Rule: a phantom GPU reports the same properties as the real GPU.  PyTorch and its libraries compute
the size of kernel launches, and then of buffers, from the limits of a multiprocessor, so other
limits would change the allocated memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.units import KIB, MIB, TIB

CONTEXT_MEMORY = 512 * MIB
"""Assumed bytes of the CUDA context and libraries, if the GPU's are unknown (`cards.py`)."""

CONTEXT_MEMORY_SEEN = (112 * MIB, 687 * MIB)
"""Smallest and largest context memory of one process in bytes, from out-of-memory errors: about
112 MiB on an RTX 4060, 180 on an RTX 3070, 204 on an RTX A4000, 426 on an RTX 6000 Ada, 522 on a
GPU of 23.65 GiB, 600 on an RTX 5090, 687 on a GPU of 79.14 GiB.  It grows with the loaded kernels,
so it is not known in advance."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one multiprocessor.

    threads, blocks: largest number of resident threads and thread blocks.
    shared_memory: bytes of shared memory.
    block_shared_memory: largest shared memory of one thread block in bytes, if it opts in to more
        than 48 KiB.
    l2: bytes of the L2 cache, which all multiprocessors share.
    registers: number of 32-bit registers.
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
    (8, 7): (1536, 16, 164, 163),
    (8, 9): (1536, 24, 100, 99),
    (9, 0): (2048, 32, 228, 227),
    (10, 0): (2048, 32, 228, 227),
    (10, 3): (2048, 32, 228, 227),
    (12, 0): (1536, 24, 100, 99),
    (12, 1): (1536, 24, 100, 99),
}
"""(threads, thread blocks, KiB of shared memory, KiB for one thread block that opts in) of a
multiprocessor, by compute capability.  Source:
technical specifications per compute capability in NVIDIA's CUDA C++ programming guide.  All have
65,536 registers."""


def limits_of(capability: tuple[int, int], l2: int) -> Limits:
    """Return the limits of a compute capability, with `l2` bytes of L2 cache.

    Raises ConfigError for a capability that is not in the table.
    """
    if capability not in _BY_CAPABILITY:
        known = ", ".join(f"{major}.{minor}" for major, minor in _BY_CAPABILITY)
        raise ConfigError(f"compute capability {capability}: expected one of {known}")
    threads, blocks, shared, of_block = _BY_CAPABILITY[capability]
    return Limits(threads, blocks, shared * KIB, of_block * KIB, l2)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One phantom GPU; the defaults describe an A100.

    name: name in CUDA.
    memory: capacity in bytes.
    capability: compute capability (major, minor).
    multiprocessors: number of multiprocessors.
    context_memory: bytes of `memory` that the CUDA context holds.
    limits: limits of one multiprocessor.
    assumed: sentence on the assumptions about a card of another maker or kind; "" if there are
        none.
    context_chunks: address ranges of the CUDA context, highest first, as "size:used" in MiB, then
        the MiB for the first kernels (`cards.py`); "" if unknown.
    """

    name: str
    memory: int
    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    context_memory: int = 0
    limits: Limits = Limits()
    context_chunks: str = ""
    assumed: str = ""

    @property
    def room(self) -> int:
        """Bytes of `memory` that the CUDA context leaves free."""
        return self.memory - self.context_memory

    def __post_init__(self) -> None:
        if not 0 < self.memory <= TIB:
            raise ConfigError(f"device memory {self.memory}: expected 1 byte to 1 TiB")
        if not 0 <= self.context_memory < self.memory:
            most = f"less than the device's {self.memory} bytes"
            raise ConfigError(f"context memory {self.context_memory}: expected {most}")


def context_range(gpu: Gpu) -> tuple[int, int]:
    """Return the least and most bytes of the CUDA context on `gpu`; (0, 0) if it has none."""
    return CONTEXT_MEMORY_SEEN if gpu.context_memory else (0, 0)
