"""GPUs that can be simulated: for each model in gpus.csv, the properties that affect allocations.

PyTorch and its libraries compute launch sizes from the limits of a multiprocessor, and sizes of
buffers from launch sizes, so a simulated ("phantom") GPU reports the limits of the real one.

The memory of a model is the total capacity that PyTorch prints in out-of-memory errors, in GiB with
two decimals, for Linux drivers and the default setting of error correction. Capability,
multiprocessors and L2 are from NVIDIA's whitepapers and data sheets (Turing, GA100, GA102, Ada,
GH100, Blackwell); L2 sizes agree with all public deviceQuery listings that print them.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from allocsim.errors import ConfigError
from allocsim.units import GIB, KIB, MIB, TIB

CONTEXT_MEMORY = 512 * MIB
"""Assumed bytes of the CUDA context, with libraries, on a GPU for which they were not measured."""

CONTEXT_MEMORY_SEEN = (112 * MIB, 871 * MIB)
"""Smallest and largest CUDA context of one process that was seen on any GPU, in bytes."""

THREAD_STACK = KIB
"""Bytes of stack (local memory) that a CUDA context holds for each thread that a GPU runs at once.

Source: an H100, where a kernel with a larger stack adds the difference for each of these threads
(traces/h100)."""

_CONTEXT_BESIDE_STACKS = (76 * MIB, 607 * MIB)
"""Smallest and largest context memory of one process without its threads' stacks, in bytes.

Sources: texts of out-of-memory errors, which show a context of 112 MiB on an RTX 4060, 180 on an
RTX 3070, 204 on an RTX A4000, 426 on an RTX 6000 Ada, 600 on an RTX 5090, 687 on a GPU of
79.14 GiB; and 527 to 871 MiB on an H100 and an H200 (traces/h100, traces/h200).  It grows with the
loaded kernels."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one multiprocessor of a GPU.

    threads, blocks: largest number of resident threads and of resident thread blocks.
    shared_memory: bytes of shared memory.
    block_shared_memory: largest bytes of shared memory for a thread block that opts in to more than
        48 KiB.
    l2: bytes of the GPU's L2 cache, which all multiprocessors share.
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
"""Limits of a multiprocessor, keyed by compute capability: (threads, thread blocks, KiB of shared
memory, KiB for one thread block that opts in).  Source:
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
    """GPU to simulate; the defaults describe an A100.

    memory: bytes of the GPU's memory.
    capability: compute capability, as (major, minor).
    multiprocessors: number of multiprocessors.
    context_memory: bytes of `memory` that the CUDA context holds.
    context_chunks: address ranges of the CUDA context, as text such as "32:8 64:64 416:414 26".
        Each pair is the size of a range and its used part, in MiB, highest address first.  The last
        number is the MiB that the first loaded kernels take.  "" if unknown.
    assumed: sentence about assumed properties of a GPU that is not modelled exactly, such as a GPU
        of AMD; "" if none are assumed.
    chosen: sentence that names the GPU taken for an ambiguous name, such as "A100", and the other
        GPUs of that name; "" if the user's name was not ambiguous.
    """

    name: str
    memory: int
    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    context_memory: int = 0
    limits: Limits = Limits()
    context_chunks: str = ""
    assumed: str = ""
    chosen: str = field(default="", compare=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user about the choice of this GPU and its assumed properties."""
        return tuple(filter(None, (self.chosen, self.assumed)))

    @property
    def room(self) -> int:
        """Bytes of `memory` that the CUDA context leaves free."""
        return self.memory - self.context_memory

    @property
    def threads(self) -> int:
        return self.multiprocessors * self.limits.threads

    @property
    def has_nvlink(self) -> bool:
        """True if the GPUs of a server are usually connected by NVLink."""
        is_of_servers = self.capability[0] >= 7 and self.capability[1] in (0, 3)
        return is_of_servers and not re.search(r"PCIe|NVL|A30|RTX", self.name, re.IGNORECASE)

    def __post_init__(self) -> None:
        if not 0 < self.memory <= TIB:
            raise ConfigError(f"device memory {self.memory}: expected 1 byte to 1 TiB")
        if not 0 <= self.context_memory < self.memory:
            most = f"less than the device's {self.memory} bytes"
            raise ConfigError(f"context memory {self.context_memory}: expected {most}")


def context_range(gpu: Gpu) -> tuple[int, int]:
    """Return the range (low, high) of the size of a CUDA context on `gpu`, in bytes.

    The context grows with the kernels that a program loads, so its exact size is unknown.  The
    range is (0, 0) if `gpu.context_memory` is 0, which means that no context must be counted.
    """
    return context_seen(gpu) if gpu.context_memory else (0, 0)


def context_seen(gpu: Gpu) -> tuple[int, int]:
    """Return the range (low, high) of context sizes seen on real GPUs, adjusted to `gpu`, in bytes.

    The adjustment accounts for the stacks of the threads that `gpu` runs at once.  If
    `gpu.context_memory` is 0, the range is not adjusted.
    """
    if not gpu.context_memory:
        return CONTEXT_MEMORY_SEEN
    is_of_cuda = not gpu.assumed.startswith(_OTHER_MAKERS)
    stacks = is_of_cuda * THREAD_STACK * gpu.threads
    low, high = _CONTEXT_BESIDE_STACKS
    return low + stacks, high + stacks


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
_ASSUMED = {"printed": "", "derived": "", "AMD": _AMD, "Intel": _INTEL, "unified": _UNIFIED}
"""Sentence about assumed properties of a GPU, keyed by the column "kind" of gpus.csv; "" if none.

The kind gives the source of the memory size in gpus.csv:
printed: an error message of PyTorch.
derived: a GPU of the same generation with equal memory; if there is none, the size that nvidia-smi
    prints, less 300 to 500 MiB.
Other kinds: PyTorch or the vendor's tools; if these are unknown, the nominal size, reduced as for a
    similar GPU.  GPUs of AMD and Intel get the limits of an A100's multiprocessors, and the number
    of units that PyTorch reports as multiprocessors.
"""
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
"""Dictionary from names that are not in gpus.csv, mostly of machines, to short names of GPUs."""

_CONTEXTS = {"RTX 3070": 180, "RTX A4000": 204, "RTX 4060": 112, "RTX 6000 Ada": 426, "L40S": 298}
"""MiB of the CUDA context on GPUs where it is known to be smaller than `CONTEXT_MEMORY`.
Source: out-of-memory errors; for the L40S, a program that used all other memory."""


_CONTEXT_CHUNKS = {"H200": "32:8 64:64 416:414 26"}
"""Value of `Gpu.context_chunks` (address ranges of the CUDA context), keyed by short name.

When a program loads its first kernels, the context takes memory for them (the last number, in MiB),
then releases the used part of its last range.  Source: segment addresses in `traces/h200`,
PyTorch 2.11 with CUDA 13.0, driver 580.159."""


def _card(row: dict[str, str]) -> Gpu:
    short = row["short"]
    major, minor = map(int, row["capability"].split("."))
    limits = limits_of((major, minor), round(float(row["l2_mib"]) * MIB))
    memory = round(float(row["memory_gib"]) * GIB / MIB) * MIB
    context = _CONTEXTS.get(short, CONTEXT_MEMORY // MIB) * MIB
    return Gpu(
        row["name"],
        memory,
        (major, minor),
        int(row["multiprocessors"]),
        context,
        limits,
        _CONTEXT_CHUNKS.get(short, ""),
        _ASSUMED[row["kind"]],
    )


with Path(__file__).with_name("gpus.csv").open(encoding="utf-8", newline="") as _file:
    CARDS = {row["short"]: _card(row) for row in csv.DictReader(_file)}
"""GPUs keyed by short name.  `find_gpu` returns the first match, so "A100" is that with 40 GB."""

_NOISE = re.compile(
    r"nvidia|geforce|radeon|amd|tesla|jetson|generation|blackwell|workstation|server|edition|sxm\d?|hbm\de?"
    r"|[^a-z0-9]"
)
_SIZE = re.compile(r" ?(\d+) ?gi?b")


def _comparable_name(name: str) -> str:
    plain = _NOISE.sub("", _SIZE.sub("", name.lower())).removeprefix("rtx").removeprefix("rx")
    plain = re.sub(r"^(\d{4})pro", r"pro\1", plain)  # some write "RTX 6000 PRO"
    return re.sub(r"^(\d{4}(?:ti)?)s$", r"\1super", plain)


def _key(name: str) -> str:
    size = _SIZE.search(name.lower())
    return _comparable_name(name) + (f"{size[1]}gb" if size else "")


def _is_named(wanted: str, short: str, card: Gpu) -> bool:
    if wanted in (_comparable_name(short), _key(short), _key(card.name)):
        return True
    size = re.fullmatch(re.escape(_comparable_name(short)) + r"(\d{1,5})(gb?)?", wanted)
    # PyTorch reports at least 90 % of the nominal size.
    return size is not None and card.memory <= int(size[1]) * GIB <= card.memory / 0.9


_FAMILY = re.compile(r"[a-z]+|\d\d")
"""First letters or two digits of a name; GPUs with the same beginning are suggested first."""
_MANY = re.compile(
    r"(?P<n>\d{1,3}) ?x ?(?P<name>\D.*|\d{4}.*)|(?P<of>.+?) ?[x:*] ?(?P<times>\d{1,3})"
)


def named_gpu(name: str) -> Gpu:
    """Return the GPU with this name, as `find_gpu` does; set `Gpu.chosen` if the name is ambiguous.

    A name such as "A100" is ambiguous: several GPUs with different memory have it.
    """
    return _with_choice(find_gpu(name), name)


def find_gpu(name: str) -> Gpu:
    """Return the GPU with this name; case, spaces, dashes and "NVIDIA" are ignored.

    A count of 1, as in "1xH100", is accepted too.

    Raises ConfigError if the name is not known.
    """
    card = _known_card(name) or _counted_card(name)
    if card is None:
        raise ConfigError(
            f"GPU {name[:80]!r} is not known: expected a name of allocsim fit --list-gpus, or "
            f"--device-memory{_meant(name)}"
        )
    return card


def _known_card(name: str) -> Gpu | None:
    wanted = _key(name)
    for alias, short in _ALIASES.items():
        if wanted == _key(alias):
            return CARDS[short]
    return next((card for short, card in CARDS.items() if _is_named(wanted, short, card)), None)


def _counted_card(name: str) -> Gpu | None:
    found = _MANY.fullmatch(name.strip().lower())
    if found is None:
        return None
    single, count = found["name"] or found["of"], found["n"] or found["times"]
    card = _known_card(single)
    if card is None or int(count) == 1:
        return None if card is None else _with_choice(card, single)
    raise ConfigError(
        f"GPU {name[:80]!r} is {count} cards: give --gpu {single.strip()!r} and, to serve, "
        f"--server ENGINE --tensor-parallel {count}; to train, --fsdp or --ddp with --ranks {count}"
    )


def _with_choice(card: Gpu, name: str) -> Gpu:
    wanted = _key(name)
    alike = [short for short in CARDS if _comparable_name(short) == wanted]
    if len(alike) < 2 or any(_key(short) == wanted for short in alike):
        return card
    first, *others = alike
    other = " or ".join(f'--gpu "{short}"' for short in others)
    return replace(card, chosen=f"card: {name[:80]!r} is taken as {first}; {other} is another one")


def _meant(name: str) -> str:
    # A wrong "GTX" must not lead to the only known GTX card.
    comparable = {short: _comparable_name(short).removeprefix("gtx") for short in CARDS}
    plain = _comparable_name(name).removeprefix("gtx")
    known = dict.fromkeys(comparable.values())
    family = _FAMILY.match(plain)
    of_family = [each for each in known if family and each.startswith(family[0])]
    near = get_close_matches(plain, of_family, n=3) or get_close_matches(plain, known, n=3)
    shorts = [short for each in near for short, own in comparable.items() if own == each][:3]
    return f"; did you mean {' or '.join(shorts)}?" if shorts else ""
