"""Memory of the rank that needs most in a parallel training, by formula, compared with a card.

Rule: bytes of tensors are a sum that is shown part by part. Allocator overhead, CUDA context and
NCCL are ranges with their source and are never added to the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from allocsim._repr import Shown
from allocsim.fitting.formulas.training import Precision, Rank, Training
from allocsim.phantom import CONTEXT_MEMORY_SEEN, Gpu
from allocsim.units import format_size

RESERVED_SEEN = (1.02, 1.07, 1.26)
"""Ratio of reserved to allocated memory at the peak: 10th, 50th and 90th percentile.

Measured on the 53 trainings of traces/fit/truth.jsonl that allocate more than 8 GiB and complete.
"""
NCCL_SEEN = (544 * 10**6, 688 * 10**6)
"""Bytes of an NCCL communicator on an A100: of two ranks, and of more ranks."""
_STATE = {
    "adamw": 2.0,
    "adamw-fused": 2.0,
    "adamw-foreach-off": 2.0,
    "momentum": 1.0,
    "sgd": 0.0,
}
"""Size of an optimizer's state, in multiples of the weights."""
_ADAM_8BIT = 2
"""Bytes per parameter of the state of 8-bit Adam, without its scales."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sharded(Shown):
    """Answer of `shard`: whether a parallel training fits a card.

    worst: peak of the rank that allocates most.
    """

    training: Training
    gpu: Gpu
    worst: Rank

    @property
    def allocated_bytes(self) -> int:
        """Bytes of tensors at the worst rank's peak."""
        return self.worst.allocated

    @property
    def stages_bytes(self) -> tuple[int, ...]:
        """Bytes of tensors at the peak of each pipeline stage."""
        return tuple(rank.allocated for rank in self.training.stages())

    @property
    def reserved_bytes(self) -> tuple[int, int, int]:
        """Bytes that the allocator reserves for the tensors at the peak: low, likely, high."""
        low, likely, high = (round(self.allocated_bytes * each) for each in RESERVED_SEEN)
        return low, likely, high

    @property
    def communicators(self) -> int:
        """Number of the rank's groups of ranks, each with its own NCCL communicator."""
        layout = self.training.layout
        return sum(n > 1 for n in (layout.tensor, layout.pipeline, layout.shards, layout.expert))

    @property
    def outside_bytes(self) -> tuple[int, int]:
        """Lowest and highest bytes of the CUDA context and NCCL."""
        (low, high), (two, more) = CONTEXT_MEMORY_SEEN, NCCL_SEEN
        return low + two * self.communicators, high + more * self.communicators

    @property
    def room_bytes(self) -> int:
        """Bytes of the card that the CUDA context and NCCL leave for the allocator."""
        return max(self.gpu.room - NCCL_SEEN[0] * self.communicators, 0)

    @property
    def spare_bytes(self) -> int:
        """Bytes of `room_bytes` that likely stay free; negative if the training does not fit."""
        return self.room_bytes - self.reserved_bytes[1]

    @property
    def process_bytes(self) -> tuple[int, int]:
        """Lowest and highest bytes of the card that the process uses at its peak."""
        (low, _, high), (least, most) = self.reserved_bytes, self.outside_bytes
        return low + least, high + most

    @property
    def fits(self) -> bool | None:
        """True if the upper end of the range fits, None if only the lower end does."""
        return fits_in(self.gpu.memory, self.process_bytes)

    @property
    def likely_fits(self) -> bool:
        """True if the likely size of the process, between lowest and highest, fits the card."""
        return self.spare_bytes >= 0

    def headline(self) -> str:
        """Return the verdict and the margin, as one line."""
        name, size = self.gpu.name, format_size(abs(self.spare_bytes))
        if self.fits is None:
            likely = f"likely {size} {'to spare' if self.likely_fits else 'short'}"
            return f"may not fit {name}: {likely}"
        if self.fits:
            return f"fits {name} with {size} to spare"
        return f"does not fit {name}: {size} more than it has"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Yield the names and sizes of the peaks."""
        yield "allocated at the peak", format_size(self.allocated_bytes)
        yield "reserved, likely", format_size(self.reserved_bytes[1])


def fits_in(memory: int, process: tuple[int, int]) -> bool | None:
    """Return whether a process fits in `memory` bytes; None if only its lower end does.

    process: lowest and highest bytes of the process.
    """
    low, high = process
    return high <= memory or (None if low <= memory else False)


def shard(training: Training, gpu: Gpu) -> Sharded:
    """Return whether `training` fits `gpu`, from the peak of its worst rank.

    Raises ConfigError for a layout that the model cannot have.
    """
    return Sharded(training, gpu, training.worst())


def precision_of(dtype: str | None, optimizer: str = "adamw", gradients: int = 2) -> Precision:
    """Return the bytes per parameter of weights, gradients and optimizer.

    dtype: one of `DTYPES`, or None for mixed precision: 16-bit weights with 32-bit copies in the
        optimizer.
    optimizer: one of `OPTIMIZERS`.
    gradients: bytes per gradient in mixed precision.
    """
    if dtype is None:
        return Precision(weights=2, gradients=gradients, optimizer=4 + _state(optimizer, 4))
    if dtype in ("bf16", "fp16"):
        return Precision(weights=2, gradients=2, optimizer=_state(optimizer, 2))
    compute = 2 if dtype.startswith("autocast") else 4
    return Precision(weights=4, gradients=4, optimizer=_state(optimizer, 4), compute=compute)


def _state(optimizer: str, each: int) -> float:
    """Return the optimizer's state in bytes per parameter, with elements of `each` bytes."""
    if optimizer == "adam8bit":
        return _ADAM_8BIT
    # Adafactor keeps one row and one column per matrix, which is negligible.
    return _STATE.get(optimizer, 0.0) * each
