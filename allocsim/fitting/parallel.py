"""Memory of parallel training, by formula: the rank that needs most, and the fewest GPUs.

A rank is the process of one GPU.  The bytes of its tensors are one number; allocator overhead, the
CUDA context and NCCL are given as separate ranges.  `find_layouts` considers every layout (division
of the training over ranks) in its search space, so it finds the fewest GPUs of that space.
"""

# The search space: tensor parallelism of 1 to 8; pipelines of any depth; ZeRO 0 to 3, in a pipeline
# only 0 and 1, because its micro-batches would communicate too often; no recomputation or full
# recomputation; micro-batches of 1, 2, 4 and 8 sequences: the largest that surely fits, else 1.

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from allocsim._repr import Shown
from allocsim.fitting.formulas import fits_in
from allocsim.fitting.formulas.training import ParallelLayout, Precision, Rank, Training
from allocsim.phantom import Gpu, context_seen
from allocsim.units import format_size, round_up

RESERVED_SEEN = (1.02, 1.07, 1.26)
"""Ratio of reserved to allocated memory at the peak: 10th, 50th and 90th percentile.

Measured on the 53 trainings of traces/fit/truth.jsonl that allocate more than 8 GiB and complete.
"""
_LINEAR_SEEN = 1.65
"""Assumed largest ratio of reserved to allocated memory for models with linear attention.

It is for training without checkpointing. Five measured runs had 1.09 to 1.62."""
_SCORES_SEEN = (1.00, 1.45)
"""Assumed smallest and largest ratio of reserved to allocated memory for T5 with checkpointing.

T5 has attention scores in 32 bits. Four measured runs had 1.00 to 1.34.
"""
_PAIRS_SEEN = (1.00, 1.35)
"""Assumed smallest and largest ratio of reserved to allocated memory for trainings on pairs (DPO).

Between their passes, the large blocks of logits are freed and requested in other sizes. Measured
runs of TRL had 1.00 to 1.28.
"""
NCCL_SEEN = (544 * 10**6, 688 * 10**6)
"""Bytes of one NCCL communicator on an A100: in a group of two ranks, and in a larger group."""
_STATE = {
    "adamw": 2.0,
    "adamw-fused": 2.0,
    "adamw-foreach-off": 2.0,
    "momentum": 1.0,
    "sgd": 0.0,
}
"""Elements of optimizer state per parameter; 0 for optimizers not in this table."""
_ADAM_8BIT = 2
"""Bytes per parameter of the state of 8-bit Adam, without its scales."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sharded(Shown):
    """Verdict on whether each rank of a parallel training run fits its GPU.

    worst: memory of the rank with the highest peak of allocated memory, at that peak.
    """

    training: Training
    gpu: Gpu
    worst: Rank

    @property
    def allocated_bytes(self) -> int:
        """Bytes of tensors on the rank with the highest peak, at that peak."""
        return self.worst.allocated

    @property
    def stages_bytes(self) -> tuple[int, ...]:
        """Bytes of tensors at the peak of each pipeline stage."""
        return tuple(rank.allocated for rank in self.training.stages())

    @property
    def reserved_bytes(self) -> tuple[int, int, int]:
        """(low, likely, high) estimate of the highest reserved memory of any rank, in bytes."""
        low, likely, high = RESERVED_SEEN
        is_kept = self.training.layout.recompute == "none"
        if is_kept and any(each.linear for each in self.training.shape.kinds):
            high = _LINEAR_SEEN
        encoder = self.training.shape.encoder
        if not is_kept and encoder is not None and encoder.buckets:
            low, high = _SCORES_SEEN
        if self.training.practice.pairs is not None:
            low, high = _PAIRS_SEEN[0], max(high, _PAIRS_SEEN[1])
        size = self.allocated_bytes
        return round(size * low), round(size * likely), round(size * high)

    @property
    def communicators(self) -> int:
        """Number of NCCL communicators of a rank: one for each group of ranks, such as tensor."""
        layout = self.training.layout
        return sum(n > 1 for n in (layout.tensor, layout.pipeline, layout.shards, layout.expert))

    @property
    def outside_bytes(self) -> tuple[int, int]:
        """Range (low, high) of the memory of the CUDA context and NCCL, in bytes."""
        (low, high), (two, more) = context_seen(self.gpu), NCCL_SEEN
        return low + two * self.communicators, high + more * self.communicators

    @property
    def room_bytes(self) -> int:
        """Bytes of the card that the CUDA context and NCCL leave for PyTorch's allocator.

        The smaller size in `NCCL_SEEN` is used for each communicator.
        """
        return max(self.gpu.room - NCCL_SEEN[0] * self.communicators, 0)

    @property
    def spare_bytes(self) -> int:
        """Bytes of the card that likely stay free; negative if training likely does not fit."""
        return self.room_bytes - self.reserved_bytes[1]

    @property
    def process_bytes(self) -> tuple[int, int]:
        """Range (low, high) of the card memory that a process uses at its peak, in bytes."""
        (low, _, high), (least, most) = self.reserved_bytes, self.outside_bytes
        return low + least, high + most

    @property
    def fits(self) -> bool | None:
        """True if the high end of `process_bytes` fits, None if only the low end, else False."""
        return fits_in(self.gpu.memory, self.process_bytes)

    @property
    def likely_fits(self) -> bool:
        """True if the rank that needs most fits the card with its likely reserved memory."""
        return self.spare_bytes >= 0

    def headline(self) -> str:
        name, size = self.gpu.name, format_size(abs(self.spare_bytes))
        if self.fits is None:
            likely = f"likely {size} {'to spare' if self.likely_fits else 'short'}"
            return f"may not fit {name}: {likely}"
        if self.fits:
            return f"fits {name} with {size} to spare"
        return f"does not fit {name}: {size} more than it has"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield "allocated at the peak", format_size(self.allocated_bytes)
        yield "reserved, likely", format_size(self.reserved_bytes[1])


def shard(training: Training, gpu: Gpu) -> Sharded:
    """Return the verdict, computed by formula, on whether each rank of `training` fits `gpu`."""
    return Sharded(training, gpu, training.worst())


def precision_of(dtype: str | None, optimizer: str = "adamw", gradients: int = 2) -> Precision:
    """Return the bytes per parameter of weights, gradients and optimizer state.

    dtype: precision such as "autocast-bf16", one of `DTYPES`; None for mixed precision: 16-bit
        weights with 32-bit copies in the optimizer.
    gradients: bytes per gradient, if `dtype` is None.
    """
    if dtype is None:
        return Precision(weights=2, gradients=gradients, optimizer=4 + _state(optimizer, 4))
    if dtype in ("bf16", "fp16"):
        return Precision(weights=2, gradients=2, optimizer=_state(optimizer, 2))
    compute = 2 if dtype.startswith("autocast") else 4
    return Precision(weights=4, gradients=4, optimizer=_state(optimizer, 4), compute=compute)


def _state(optimizer: str, each: int) -> float:
    if optimizer.endswith("8bit"):
        return _ADAM_8BIT
    # Adafactor keeps one row and one column per matrix, which is negligible.
    return _STATE.get(optimizer, 0.0) * each


_TENSOR = (1, 2, 4, 8)
_MICRO_BATCHES = (1, 2, 4, 8)
_IN_A_MACHINE = 8
_MOST_CARDS = 1 << 13
_RECOMPUTE_SHARE = 1 / 3
"""Extra work of full activation checkpointing, as a share of a step's work.

It repeats the forward pass; a backward pass is twice the work of a forward pass.
"""
_CARD_FACTORS = (1.25, 1.5, 2, 3, 4, 6, 8)
"""Multiples of the fewest cards that `find_layouts` also tries, to reduce the extra work."""
_VISIBLE = 0.0005
"""Smallest difference of extra work (`Planned.extra`) that is visible in the printed table."""
_PER_STAGE = 4
"""Default number of micro-batches per pipeline stage and step."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Layout (division of a training run over ranks) with which each rank fits its GPU.

    answer: verdict on this layout, with its memory.
    extra: time for recomputation and for waiting in the pipeline, as a fraction of the useful work.
    """

    answer: Sharded
    extra: float

    @property
    def cards(self) -> int:
        return self.answer.training.layout.ranks

    @property
    def sort_key(self) -> tuple[float, ...]:
        """Key that sorts the fastest layout first: least extra time, then least communication."""
        layout = self.answer.training.layout
        return (
            *(round(self.extra, 3), layout.zero, layout.tensor, layout.pipeline),
            -layout.micro_batch,
        )


@dataclass(frozen=True, slots=True)
class GpuCount:
    """Fewest cards that a training run needs, and its best layouts (divisions over ranks).

    fewest: least number of cards; None if no tried number suffices.
    choices: layouts that fit on `fewest` cards, best first.
    front: the best layout on `fewest` cards, then layouts on more cards, each with less extra
        time (`Planned.extra`) than the layout before it.
    tried: number of layouts that were computed.
    """

    fewest: int | None
    choices: tuple[Planned, ...]
    front: tuple[Planned, ...]
    tried: int


def find_layouts(
    training: Training, gpu: Gpu, *, cards: int | None = None, micro_batch: int | None = None
) -> GpuCount:
    """Find the fewest cards like `gpu` on which `training` fits.

    Tensor and pipeline parallelism, ZeRO, recomputation and the size of micro-batches are searched.

    cards: the only number of cards to try; default: all numbers, from the fewest up.
    micro_batch: sequences in a micro-batch; default: the largest number that fits.
    """
    search = _Search(training, gpu, micro_batch)
    tried = 0
    choices: list[Planned] = []
    for count in [cards] if cards is not None else search.counts():
        layouts = list(search.layouts(count))
        tried += len(layouts)
        choices = search.fitting(layouts)
        if choices:
            break
    if not choices:
        return GpuCount(None, (), (), tried)
    front = choices[:1]
    for factor in _CARD_FACTORS if cards is None else ():
        if not front[-1].extra:
            break
        layouts = list(search.layouts(round_up(round(front[0].cards * factor), _IN_A_MACHINE)))
        tried += len(layouts)
        best = search.fitting(layouts)[:1]
        # More cards must save visibly more work to be on the front.
        front += [each for each in best if each.extra < front[-1].extra - _VISIBLE]
    return GpuCount(choices[0].cards, tuple(choices), tuple(front), tried)


@dataclass(frozen=True, slots=True)
class _Search:
    training: Training
    gpu: Gpu
    micro_batch: int | None

    def counts(self) -> Iterator[int]:
        # With ZeRO 3 the states are spread over all cards, so fewer cards than this cannot hold
        # them.
        precision = self.training.precision
        each = precision.weights + precision.gradients + precision.optimizer
        least = ceil(self.training.shape.parameters * each / max(self.gpu.room, 1))
        counts = (1, 2, 4, *range(_IN_A_MACHINE, _MOST_CARDS + 1, _IN_A_MACHINE))
        return (count for count in counts if count >= least)

    def layouts(self, cards: int) -> Iterator[ParallelLayout]:
        shape, context = self.training.shape, self.training.layout.context
        for t in (t for t in _TENSOR if shape.heads % t == 0 and cards % (t * context) == 0):
            left = cards // (t * context)
            for p in (p for p in range(1, min(shape.layers, left) + 1) if left % p == 0):
                data = left // p
                shards = data * context
                groups = replace(
                    self.training.layout,
                    tensor=t,
                    pipeline=p,
                    data=data,
                    expert=self._experts(shards),
                    micro_batch=self.micro_batch or 1,
                )
                stages = (0,) if shards == 1 else (0, 1) if p > 1 else (0, 1, 2, 3)
                if self._is_hopeless(replace(groups, zero=stages[-1])):
                    continue
                for zero in stages:
                    for recompute in ("none", "full"):
                        yield replace(groups, zero=zero, recompute=recompute)

    def _experts(self, shards: int) -> int:
        experts = self.training.shape.experts
        return max((n for n in range(1, experts + 1) if experts % n == 0 and shards % n == 0),
                   default=1)  # fmt: skip

    def fitting(self, layouts: Iterable[ParallelLayout]) -> list[Planned]:
        found = [each for each in map(self.best, layouts) if each is not None]
        return sorted(found, key=lambda each: each.sort_key)

    def best(self, layout: ParallelLayout) -> Planned | None:
        # The smallest micro-batch must likely fit; a larger one must surely fit.
        least, *more = _MICRO_BATCHES if self.micro_batch is None else (self.micro_batch,)
        best = self._answer(layout, least)
        if not best.likely_fits:
            return None
        for size in more:
            answer = self._answer(layout, size)
            if answer.reserved_bytes[2] > answer.room_bytes:
                break
            best = answer
        return Planned(best, self._extra(layout))

    def _answer(self, layout: ParallelLayout, size: int) -> Sharded:
        return shard(replace(self.training, layout=replace(layout, micro_batch=size)), self.gpu)

    def _is_hopeless(self, layout: ParallelLayout) -> bool:
        training = replace(self.training, layout=layout)
        return training.least() * RESERVED_SEEN[1] > self.gpu.room

    def _extra(self, layout: ParallelLayout) -> float:
        recompute = _RECOMPUTE_SHARE if layout.recompute == "full" else 0.0
        p = layout.pipeline
        count = min(layout.micro_batches, _PER_STAGE * p)
        bubble = (p - 1) / (count * layout.chunks)
        layers = self.training.shape.layers
        # All stages wait for the one with the most layers.
        pace = ceil(layers / p) * p / layers
        return (1 + recompute) * (1 + bubble) * pace - 1
