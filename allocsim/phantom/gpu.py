"""Phantom GPUs: the properties that affect allocations, with a table of real GPU models by name.

PyTorch and its libraries compute launch sizes, and then buffer sizes, from the limits of a
multiprocessor, so a phantom GPU reports the limits of the real one.

The memory of a model is the total capacity that PyTorch prints in out-of-memory errors, in GiB with
two decimals, for Linux drivers and the default setting of error correction. Capability,
multiprocessors and L2 are from NVIDIA's whitepapers and data sheets (Turing, GA100, GA102, Ada,
GH100, Blackwell); L2 sizes agree with all public deviceQuery listings that print them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

from allocsim.errors import ConfigError
from allocsim.units import GIB, KIB, MIB, TIB

CONTEXT_MEMORY = 512 * MIB
"""Assumed bytes of the CUDA context and libraries, if the GPU's are unknown."""

CONTEXT_MEMORY_SEEN = (112 * MIB, 871 * MIB)
"""Smallest and largest context memory of one process that was seen on any GPU, in bytes."""

THREAD_STACK = KIB
"""Bytes of stack that a CUDA context holds for each thread that a GPU runs at once.  Source: an
H100, where a kernel with a larger stack takes the difference for all threads (traces/h100)."""

_CONTEXT_BESIDE_STACKS = (76 * MIB, 607 * MIB)
"""Smallest and largest context memory of one process without stacks, in bytes.  Sources: texts of
out-of-memory errors, which show a context of 112 MiB on an RTX 4060, 180 on an RTX 3070, 204 on an
RTX A4000, 426 on an RTX 6000 Ada, 600 on an RTX 5090, 687 on a GPU of 79.14 GiB; and 527 to 871 MiB
on an H100 and an H200 (traces/h100, traces/h200).  It grows with the loaded kernels."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one multiprocessor.

    threads, blocks: largest number of resident threads and thread blocks.
    shared_memory: bytes of shared memory.
    block_shared_memory: largest shared memory of one thread block in bytes, if it opts in to more
        than 48 KiB.
    l2: bytes of the L2 cache, which all multiprocessors share.
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
    if capability not in _BY_CAPABILITY:
        known = ", ".join(f"{major}.{minor}" for major, minor in _BY_CAPABILITY)
        raise ConfigError(f"compute capability {capability}: expected one of {known}")
    threads, blocks, shared, of_block = _BY_CAPABILITY[capability]
    return Limits(threads, blocks, shared * KIB, of_block * KIB, l2)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One phantom GPU; the defaults describe an A100.

    context_memory: bytes of `memory` that the CUDA context holds.
    assumed: sentence about properties that are assumed, for a card that is not modelled exactly,
        such as one of another maker; "" if none are assumed.
    context_chunks: address ranges of the CUDA context, highest first, as text such as "32:8 64:64
        416:414 26": size and used size of each range in MiB.  The last number is the MiB that the
        first kernels take.  "" if unknown.
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

    @property
    def threads(self) -> int:
        return self.multiprocessors * self.limits.threads

    @property
    def has_nvlink(self) -> bool:
        """True if servers connect all their cards of this kind by NVLink."""
        is_of_servers = self.capability[0] >= 7 and self.capability[1] in (0, 3)
        return is_of_servers and not re.search(r"PCIe|NVL|A30|RTX", self.name, re.IGNORECASE)

    def __post_init__(self) -> None:
        if not 0 < self.memory <= TIB:
            raise ConfigError(f"device memory {self.memory}: expected 1 byte to 1 TiB")
        if not 0 <= self.context_memory < self.memory:
            most = f"less than the device's {self.memory} bytes"
            raise ConfigError(f"context memory {self.context_memory}: expected {most}")


def context_range(gpu: Gpu) -> tuple[int, int]:
    """Return the smallest and the largest size of the CUDA context on `gpu`, in bytes.

    The context grows with the kernels that a program loads, so its exact size is unknown.  Return
    (0, 0) for a GPU described without a context.
    """
    return context_seen(gpu) if gpu.context_memory else (0, 0)


def context_seen(gpu: Gpu) -> tuple[int, int]:
    """Return the smallest and the largest size of a CUDA context on GPUs like `gpu`, in bytes.

    For a GPU described without a context, return the range of all GPUs.
    """
    if not gpu.context_memory:
        return CONTEXT_MEMORY_SEEN
    is_of_cuda = not gpu.assumed.startswith(_OTHER_MAKERS)
    stacks = is_of_cuda * THREAD_STACK * gpu.threads
    low, high = _CONTEXT_BESIDE_STACKS
    return low + stacks, high + stacks


_Row = tuple[str, str, float, tuple[int, int], int, float]
"""(short name, name in CUDA, GiB as printed, compute capability, number of multiprocessors,
MiB of L2 cache)"""

_PRINTED: tuple[_Row, ...] = (
    ("GTX 1080 Ti", "NVIDIA GeForce GTX 1080 Ti", 10.91, (6, 1), 28, 2.75),
    ("P100", "Tesla P100-PCIE-16GB", 15.90, (6, 0), 56, 4),
    ("V100 16GB", "Tesla V100-SXM2-16GB", 15.77, (7, 0), 80, 6),
    ("V100 32GB", "Tesla V100-SXM2-32GB", 31.74, (7, 0), 80, 6),
    ("T4", "Tesla T4", 14.58, (7, 5), 40, 4),
    ("RTX 2060", "NVIDIA GeForce RTX 2060", 5.79, (7, 5), 30, 3),
    ("RTX 2070 SUPER", "NVIDIA GeForce RTX 2070 SUPER", 7.79, (7, 5), 40, 4),
    ("RTX 2080", "NVIDIA GeForce RTX 2080", 7.79, (7, 5), 46, 4),
    ("RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti", 10.75, (7, 5), 68, 5.5),
    ("TITAN RTX", "NVIDIA TITAN RTX", 23.65, (7, 5), 72, 6),
    ("Quadro RTX 8000", "Quadro RTX 8000", 47.46, (7, 5), 72, 6),
    ("RTX 3060", "NVIDIA GeForce RTX 3060", 11.76, (8, 6), 28, 3),
    ("RTX 3070", "NVIDIA GeForce RTX 3070", 7.78, (8, 6), 46, 4),
    ("RTX 3080", "NVIDIA GeForce RTX 3080", 9.77, (8, 6), 68, 5),
    ("RTX 3090", "NVIDIA GeForce RTX 3090", 23.69, (8, 6), 82, 6),
    ("RTX A4000", "NVIDIA RTX A4000", 15.61, (8, 6), 48, 4),
    ("RTX A5000", "NVIDIA RTX A5000", 23.66, (8, 6), 64, 6),
    ("RTX A6000", "NVIDIA RTX A6000", 47.54, (8, 6), 84, 6),
    ("A10G", "NVIDIA A10G", 22.09, (8, 6), 80, 6),
    ("RTX 4060", "NVIDIA GeForce RTX 4060", 7.75, (8, 9), 24, 24),
    ("RTX 4070", "NVIDIA GeForce RTX 4070", 11.72, (8, 9), 46, 36),
    ("RTX 4070 Ti", "NVIDIA GeForce RTX 4070 Ti", 11.70, (8, 9), 60, 48),
    ("RTX 4080", "NVIDIA GeForce RTX 4080", 15.70, (8, 9), 76, 64),
    ("RTX 4090", "NVIDIA GeForce RTX 4090", 23.65, (8, 9), 128, 72),
    ("L4", "NVIDIA L4", 22.03, (8, 9), 58, 48),
    ("L40S", "NVIDIA L40S", 44.40, (8, 9), 142, 96),
    ("A100 40GB", "NVIDIA A100-SXM4-40GB", 39.39, (8, 0), 108, 40),
    ("A100 80GB", "NVIDIA A100-SXM4-80GB", 79.14, (8, 0), 108, 40),
    ("H100", "NVIDIA H100 80GB HBM3", 79.10, (9, 0), 132, 50),
    ("H100 NVL", "NVIDIA H100 NVL", 93.10, (9, 0), 132, 50),
    ("H20", "NVIDIA H20", 95.00, (9, 0), 78, 60),
    ("H200", "NVIDIA H200", 139.72, (9, 0), 132, 50),
    ("RTX 5060 Ti 16GB", "NVIDIA GeForce RTX 5060 Ti", 15.45, (12, 0), 36, 32),
    ("RTX 5090", "NVIDIA GeForce RTX 5090", 31.36, (12, 0), 170, 96),
    ("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
     94.97, (12, 0), 188, 128),
    ("B200", "NVIDIA B200", 178.36, (10, 0), 148, 126),
)  # fmt: skip

_DERIVED: tuple[_Row, ...] = (
    ("RTX 2060 SUPER", "NVIDIA GeForce RTX 2060 SUPER", 7.79, (7, 5), 34, 4),
    ("RTX 2070", "NVIDIA GeForce RTX 2070", 7.79, (7, 5), 36, 4),
    ("RTX 2080 SUPER", "NVIDIA GeForce RTX 2080 SUPER", 7.79, (7, 5), 48, 4),
    ("Quadro RTX 6000", "Quadro RTX 6000", 23.65, (7, 5), 72, 6),
    ("RTX 3050", "NVIDIA GeForce RTX 3050", 7.78, (8, 6), 20, 2),
    ("RTX 3060 Ti", "NVIDIA GeForce RTX 3060 Ti", 7.78, (8, 6), 38, 4),
    ("RTX 3070 Ti", "NVIDIA GeForce RTX 3070 Ti", 7.78, (8, 6), 48, 4),
    ("RTX 3080 12GB", "NVIDIA GeForce RTX 3080", 11.76, (8, 6), 70, 6),
    ("RTX 3080 Ti", "NVIDIA GeForce RTX 3080 Ti", 11.76, (8, 6), 80, 6),
    ("RTX 3090 Ti", "NVIDIA GeForce RTX 3090 Ti", 23.69, (8, 6), 84, 6),
    ("RTX A2000", "NVIDIA RTX A2000 12GB", 11.76, (8, 6), 26, 3),
    ("RTX A4500", "NVIDIA RTX A4500", 19.69, (8, 6), 56, 6),
    ("RTX A5500", "NVIDIA RTX A5500", 23.66, (8, 6), 80, 6),
    ("A2", "NVIDIA A2", 14.58, (8, 6), 10, 2),
    ("A10", "NVIDIA A10", 22.09, (8, 6), 72, 6),
    ("A16", "NVIDIA A16", 14.58, (8, 6), 10, 2),
    ("A40", "NVIDIA A40", 44.40, (8, 6), 84, 6),
    ("RTX 4060 Ti", "NVIDIA GeForce RTX 4060 Ti", 7.75, (8, 9), 34, 32),
    ("RTX 4060 Ti 16GB", "NVIDIA GeForce RTX 4060 Ti", 15.70, (8, 9), 34, 32),
    ("RTX 4070 SUPER", "NVIDIA GeForce RTX 4070 SUPER", 11.72, (8, 9), 56, 48),
    ("RTX 4070 Ti SUPER", "NVIDIA GeForce RTX 4070 Ti SUPER", 15.70, (8, 9), 66, 48),
    ("RTX 4080 SUPER", "NVIDIA GeForce RTX 4080 SUPER", 15.70, (8, 9), 80, 64),
    ("RTX 2000 Ada", "NVIDIA RTX 2000 Ada Generation", 15.61, (8, 9), 22, 12),
    ("RTX 4000 Ada", "NVIDIA RTX 4000 Ada Generation", 19.69, (8, 9), 48, 48),
    ("RTX 4500 Ada", "NVIDIA RTX 4500 Ada Generation", 23.65, (8, 9), 60, 48),
    ("RTX 5000 Ada", "NVIDIA RTX 5000 Ada Generation", 31.50, (8, 9), 100, 72),
    ("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation", 47.50, (8, 9), 142, 96),
    ("L20", "NVIDIA L20", 44.40, (8, 9), 92, 96),
    ("L40", "NVIDIA L40", 44.40, (8, 9), 142, 96),
    ("A30", "NVIDIA A30", 23.60, (8, 0), 56, 24),
    ("A100 PCIe 40GB", "NVIDIA A100-PCIE-40GB", 39.39, (8, 0), 108, 40),
    ("A100 PCIe 80GB", "NVIDIA A100 80GB PCIe", 79.14, (8, 0), 108, 40),
    ("A800", "NVIDIA A800-SXM4-80GB", 79.14, (8, 0), 108, 40),
    ("H100 PCIe", "NVIDIA H100 PCIe", 79.10, (9, 0), 114, 50),
    ("H800", "NVIDIA H800", 79.10, (9, 0), 132, 50),
    ("H200 NVL", "NVIDIA H200 NVL", 139.72, (9, 0), 132, 50),
    ("GH200", "NVIDIA GH200 480GB", 94.50, (9, 0), 132, 60),
    ("RTX 5050", "NVIDIA GeForce RTX 5050", 7.53, (12, 0), 20, 32),
    ("RTX 5060", "NVIDIA GeForce RTX 5060", 7.53, (12, 0), 30, 32),
    ("RTX 5060 Ti 8GB", "NVIDIA GeForce RTX 5060 Ti", 7.53, (12, 0), 36, 32),
    ("RTX 5070", "NVIDIA GeForce RTX 5070", 11.50, (12, 0), 48, 48),
    ("RTX 5070 Ti", "NVIDIA GeForce RTX 5070 Ti", 15.47, (12, 0), 70, 48),
    ("RTX 5080", "NVIDIA GeForce RTX 5080", 15.47, (12, 0), 84, 64),
    ("RTX PRO 4000", "NVIDIA RTX PRO 4000 Blackwell", 23.50, (12, 0), 70, 48),
    ("RTX PRO 4500", "NVIDIA RTX PRO 4500 Blackwell", 31.36, (12, 0), 82, 64),
    ("RTX PRO 5000", "NVIDIA RTX PRO 5000 Blackwell", 47.30, (12, 0), 110, 96),
    ("GB200", "NVIDIA GB200", 184.30, (10, 0), 152, 126),
    ("B300", "NVIDIA B300 SXM6 AC", 267.70, (10, 3), 148, 126),
)
"""GPUs whose memory is that of another GPU of the same size and generation.  If there is no such
GPU, it is the memory that nvidia-smi prints, less 300 to 500 MiB."""


_AMD = (
    "AMD: PyTorch has the same allocator on ROCm; requests are assumed to be those of CUDA's "
    "kernels, and workspaces of ROCm's libraries and their context were not measured"
)
_INTEL = (
    "Intel: PyTorch has a similar allocator for XPU; requests are assumed to be those of CUDA's "
    "kernels, and its own rules, workspaces and context were not measured"
)
_OTHER_MAKERS = (_AMD, _INTEL)
_UNIFIED = (
    "unified memory: the operating system and other programs use a part of it, which is not "
    "subtracted"
)
_ASSUMED: dict[str, tuple[_Row, ...]] = {
    _AMD: (
        ("MI100", "AMD Instinct MI100", 31.98, (8, 0), 120, 8),
        ("MI210", "AMD Instinct MI210", 63.98, (8, 0), 104, 8),
        ("MI250X", "AMD Instinct MI250X (one of two dies)", 63.98, (8, 0), 110, 8),
        ("MI300X", "AMD Instinct MI300X", 191.98, (8, 0), 304, 4),
        ("MI325X", "AMD Instinct MI325X", 255.98, (8, 0), 304, 4),
        ("MI350X", "AMD Instinct MI350X", 287.98, (8, 0), 256, 4),
        ("MI355X", "AMD Instinct MI355X", 287.98, (8, 0), 256, 4),
        ("RX 6800 XT", "AMD Radeon RX 6800 XT", 15.98, (8, 0), 36, 4),
        ("RX 6900 XT", "AMD Radeon RX 6900 XT", 15.98, (8, 0), 40, 4),
        ("RX 7800 XT", "AMD Radeon RX 7800 XT", 15.98, (8, 0), 30, 4),
        ("RX 7900 XT", "AMD Radeon RX 7900 XT", 19.98, (8, 0), 42, 6),
        ("RX 7900 XTX", "AMD Radeon RX 7900 XTX", 23.98, (8, 0), 48, 6),
        ("RX 9070 XT", "AMD Radeon RX 9070 XT", 15.92, (8, 0), 32, 8),
        ("PRO W7900", "AMD Radeon PRO W7900", 47.98, (8, 0), 48, 6),
    ),
    _INTEL: (
        ("Max 1100", "Intel Data Center GPU Max 1100", 48.0, (8, 0), 56, 108),
        ("Max 1550", "Intel Data Center GPU Max 1550 (one of two tiles)", 64.0, (8, 0), 64, 204),
        ("Arc A770", "Intel Arc A770", 15.56, (8, 0), 32, 16),
        ("Arc B580", "Intel Arc B580", 11.60, (8, 0), 20, 18),
    ),
    _UNIFIED: (
        ("GB10", "NVIDIA GB10", 119.68, (12, 1), 48, 24),
        ("Jetson AGX Orin 64GB", "Jetson AGX Orin 64GB", 61.37, (8, 7), 16, 4),
        ("Jetson AGX Orin 32GB", "Jetson AGX Orin 32GB", 29.99, (8, 7), 14, 4),
        ("Jetson Orin NX 16GB", "Jetson Orin NX 16GB", 15.29, (8, 7), 8, 4),
        ("Jetson Orin Nano 8GB", "Jetson Orin Nano 8GB", 7.44, (8, 7), 8, 2),
    ),
}
"""GPUs of other kinds, by the assumptions about them.  Memory: as PyTorch or the vendor's tools
print it, else the nominal size less that of a similar GPU.  AMD's and Intel's get the limits of an
A100's multiprocessors, and the number of units that PyTorch reports as multiprocessors."""
_ALIASES = {
    "DGX Spark": "GB10",
    "Jetson AGX Orin": "Jetson AGX Orin 64GB",
    "Jetson Orin": "Jetson AGX Orin 64GB",
    "DGX A100": "A100 80GB",
    "DGX H100": "H100",
    "DGX H200": "H200",
    "DGX B200": "B200",
    "DGX B300": "B300",
    "GB300": "B300",
}
"""Names of machines, with one of their GPUs."""

_CONTEXTS = {"RTX 3070": 180, "RTX A4000": 204, "RTX 4060": 112, "RTX 6000 Ada": 426, "L40S": 298}
"""MiB of context memory of GPUs whose context is known to be smaller than `CONTEXT_MEMORY`.
Source: out-of-memory errors; for the L40S a program that used all other memory."""


_CONTEXT_CHUNKS = {"H200": "32:8 64:64 416:414 26"}
"""Address ranges that the CUDA context occupies, highest address first, as "size:used" in MiB.  The
last number is MiB for the first kernels, which are loaded before the used part of the last range is
released.  Source: segment addresses in `traces/h200`, PyTorch 2.11 with
CUDA 13.0, driver 580.159."""


def _card(row: _Row, assumed: str = "") -> Gpu:
    short, name, gib, capability, multiprocessors, l2 = row
    limits = limits_of(capability, round(l2 * MIB))
    memory = round(gib * GIB / MIB) * MIB
    context = _CONTEXTS.get(short, CONTEXT_MEMORY // MIB) * MIB
    chunks = _CONTEXT_CHUNKS.get(short, "")
    return Gpu(name, memory, capability, multiprocessors, context, limits, chunks, assumed)


CARDS = {row[0]: _card(row) for row in (*_PRINTED, *_DERIVED)} | {
    row[0]: _card(row, assumed) for assumed, rows in _ASSUMED.items() for row in rows
}
"""GPUs by short name.  `find_gpu` returns the first match, so "A100" is the A100 with 40 GB."""

_NOISE = re.compile(
    r"nvidia|geforce|tesla|generation|blackwell|workstation|edition|sxm\d?|hbm\de?|[^a-z0-9]"
)
_SIZE = re.compile(r" ?(\d+) ?gi?b")


def _comparable_name(name: str) -> str:
    return _NOISE.sub("", _SIZE.sub("", name.lower())).removeprefix("rtx")


def _key(name: str) -> str:
    size = _SIZE.search(name.lower())
    return _comparable_name(name) + (f"{size[1]}gb" if size else "")


def _is_named(wanted: str, short: str, card: Gpu) -> bool:
    if wanted in (_comparable_name(short), _key(short), _key(card.name)):
        return True
    size = re.fullmatch(re.escape(_comparable_name(short)) + r"(\d+)(gb?)?", wanted)
    # PyTorch reports at least 90 % of the nominal size.
    return size is not None and card.memory <= int(size[1]) * GIB <= card.memory / 0.9


def find_gpu(name: str) -> Gpu:
    """Return the GPU with this name; case, spaces, dashes and "NVIDIA" are ignored."""
    wanted = _key(name)
    for alias, short in _ALIASES.items():
        if wanted == _key(alias):
            return CARDS[short]
    for short, card in CARDS.items():
        if _is_named(wanted, short, card):
            return card
    near = get_close_matches(
        _comparable_name(name), {_comparable_name(short): short for short in CARDS}, n=3
    )
    shorts = [short for each in near for short in CARDS if _comparable_name(short) == each][:3]
    meant = f"; did you mean {' or '.join(shorts)}?" if shorts else ""
    raise ConfigError(
        f"GPU {name[:80]!r} is not known: expected a name of --list-gpus, or --device-memory{meant}"
    )
