"""The GPU that a program is to find: memory, name and what else changes allocations.

Rule: the memory of a card in `CARDS` is the total capacity that PyTorch's out-of-memory texts
print, to two decimals, which is less than the maker's figure; where texts differ by a few MiB
between drivers, one of them.  Capability and multiprocessors are the maker's figures; cuBLAS
workspaces and attention kernels depend on them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.units import GIB, MIB, TIB

__all__ = ["CARDS", "Gpu", "find_gpu"]

CONTEXT_MEMORY = 512 * MIB
"""What a CUDA context and its libraries hold: out-of-memory texts that name the process's memory
leave 522 MiB on a card of 23.65 GiB and 686 MiB on one of 79.14 GiB beside PyTorch's own."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device.

    memory: bytes of the card.
    capability: (major, minor).
    multiprocessors: their number.
    context_memory: bytes of the card that the CUDA context holds.
    """

    name: str
    memory: int
    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    context_memory: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.memory <= TIB:
            raise ConfigError(f"device memory {self.memory}: expected 1 byte to 1 TiB")
        if not 0 <= self.context_memory < self.memory:
            most = f"less than the device's {self.memory} bytes"
            raise ConfigError(f"context memory {self.context_memory}: expected {most}")


CARDS = {
    short: Gpu(name, round(gib * GIB / MIB) * MIB, capability, multiprocessors, CONTEXT_MEMORY)
    for short, name, gib, capability, multiprocessors in (
        ("RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti", 10.75, (7, 5), 68),
        ("RTX 3060", "NVIDIA GeForce RTX 3060", 11.76, (8, 6), 28),
        ("RTX 3080", "NVIDIA GeForce RTX 3080", 9.77, (8, 6), 68),
        ("RTX 3090", "NVIDIA GeForce RTX 3090", 23.69, (8, 6), 82),
        ("RTX 4060", "NVIDIA GeForce RTX 4060", 7.75, (8, 9), 24),
        ("RTX 4070", "NVIDIA GeForce RTX 4070", 11.72, (8, 9), 46),
        ("RTX 4080", "NVIDIA GeForce RTX 4080", 15.70, (8, 9), 76),
        ("RTX 4090", "NVIDIA GeForce RTX 4090", 23.65, (8, 9), 128),
        ("RTX 5090", "NVIDIA GeForce RTX 5090", 31.36, (12, 0), 170),
        ("RTX A6000", "NVIDIA RTX A6000", 47.54, (8, 6), 84),
        ("T4", "Tesla T4", 14.58, (7, 5), 40),
        ("V100 16GB", "Tesla V100-SXM2-16GB", 15.77, (7, 0), 80),
        ("V100 32GB", "Tesla V100-SXM2-32GB", 31.74, (7, 0), 80),
        ("A10G", "NVIDIA A10G", 22.09, (8, 6), 80),
        ("L4", "NVIDIA L4", 22.03, (8, 9), 58),
        ("L40S", "NVIDIA L40S", 44.40, (8, 9), 142),
        ("A100 40GB", "NVIDIA A100-SXM4-40GB", 39.39, (8, 0), 108),
        ("A100 80GB", "NVIDIA A100-SXM4-80GB", 79.14, (8, 0), 108),
        ("H100", "NVIDIA H100 80GB HBM3", 79.10, (9, 0), 132),
        ("H200", "NVIDIA H200", 139.72, (9, 0), 132),
        ("B200", "NVIDIA B200", 178.36, (10, 0), 148),
    )
}
"""By the name that people use.  Without its size a name is the first here: A100 is 40 GB."""

_NOISE = re.compile(r"nvidia|geforce|tesla|[^a-z0-9]")


def _key(name: str) -> str:
    return _NOISE.sub("", name.lower())


def find_gpu(name: str) -> Gpu:
    """The card of that name; case, spaces, dashes and the maker's name do not matter.

    "RTX 4090", "rtx4090", "4090" and "NVIDIA GeForce RTX 4090" are the same.  Raises
    ConfigError, naming the cards there are.
    """
    wanted = _key(name)
    for short, card in CARDS.items():
        key = _key(short)
        alone = re.sub(r"\d+gb$", "", key)
        if wanted in {key, alone, key.removesuffix("gb"), key.removeprefix("rtx"), _key(card.name)}:
            return card
    known = ", ".join(CARDS)
    raise ConfigError(
        f"GPU {name!r} is not known: expected one of {known}; any other is --device-memory"
    )
