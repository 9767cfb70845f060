"""Layout of a training over ranks, and recomputation in backward.

Rule: `refuse_impossible` checks that a model can have a layout.
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.fitting.formulas.training.shape import TransformerShape

RECOMPUTE = ("none", "selective", "ops", "full")
"""Activations that are recomputed in backward instead of saved.

none: nothing.
selective: the core of attention, as Megatron's "selective".
ops: all but the outputs of attention and of every second matrix product, as torchtitan's
    "selective".
full: whole layers.
"""
_MOST = 1 << 20
_STAGES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Division of a training over ranks, and its micro-batches.

    tensor, pipeline, data, context, expert: number of ranks in each kind of group. Experts are
        spread over some of the data and context parallel ranks, and each expert is also split by
        tensor parallelism.
    chunks: model chunks per stage, more than 1 for interleaved stages.
    zero: stage of ZeRO, 0 to 3; 1 is Megatron's distributed optimizer, 3 is FSDP.
    sequence_parallel: True if tensor parallel ranks also split norms and dropout.
    recompute: one of `RECOMPUTE`.
    flash: True if no attention scores are saved.
    seq: tokens of a sequence.
    micro_batch: sequences in a micro-batch.
    micro_batches: micro-batches in a step, which limits those in flight.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    expert: int = 1
    chunks: int = 1
    zero: int = 0
    sequence_parallel: bool = True
    recompute: str = "none"
    flash: bool = True
    seq: int = 4096
    micro_batch: int = 1
    micro_batches: int = _MOST

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "data", "context", "expert", "chunks", "seq",
                     "micro_batch", "micro_batches"):  # fmt: skip
            value = getattr(self, name)
            if not 0 < value <= _MOST << 4:
                raise ConfigError(f"{name.replace('_', ' ')} {value} is not possible; 1 or more")
        if not 0 <= self.zero <= _STAGES:
            raise ConfigError(f"ZeRO has stages 0 to 3, not {self.zero}")
        if self.recompute not in RECOMPUTE:
            raise ConfigError(f"recompute is one of {', '.join(RECOMPUTE)}, not {self.recompute}")
        if self.chunks > 1 and self.pipeline == 1:
            raise ConfigError("chunks need a pipeline with more than one stage")

    @property
    def ranks(self) -> int:
        """Number of ranks, each on its own card."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def shards(self) -> int:
        """Number of ranks that share the same weights: data times context parallel ranks."""
        return self.data * self.context

    @property
    def expert_shards(self) -> int:
        """Number of ranks that share the same experts."""
        return self.shards // self.expert

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a rank, before tensor parallel ranks split them."""
        return -(-self.micro_batch * self.seq // self.context)

    @property
    def split(self) -> int:
        """Number of ranks that divide the activations of norms and dropout among them."""
        return self.tensor if self.sequence_parallel else 1

    def layers_of(self, stage: int, layers: int) -> range:
        """Return the indices of the layers of a pipeline stage, without interleaving.

        layers: number of layers of the model. If they do not divide evenly, each of the first
            stages has one more.

        With interleaved `chunks`, a stage has the same number of layers, but other indices.
        """
        each, more = divmod(layers, self.pipeline)
        first = stage * each + min(stage, more)
        return range(first, first + each + (stage < more))

    def in_flight(self, stage: int) -> float:
        """Return the most micro-batches whose activations a pipeline stage holds at a time.

        1F1B: the number of stages from this one on (Narayanan et al. 2021, section 2.2).
        Interleaved: for the first stage 1 + (p-1)/(pm) times as many (Korthikanti et al., 4.2.3).
        """
        depth: float = self.pipeline - stage
        if self.chunks > 1:
            warm = (self.pipeline - stage - 1) * 2 + (self.chunks - 1) * self.pipeline + 1
            depth = warm / self.chunks
        return min(depth, float(self.micro_batches))


def refuse_impossible(shape: TransformerShape, layout: ParallelLayout) -> None:
    """Raise ConfigError for a layout that a model of this shape cannot have."""
    t, p = layout.tensor, layout.pipeline
    if shape.heads % t:
        raise ConfigError(f"{t} tensor parallel ranks do not divide {shape.heads} heads")
    if p * layout.chunks > shape.layers:
        stages = p * layout.chunks
        raise ConfigError(f"{stages} pipeline stages are more than {shape.layers} layers")
    if layout.expert > 1 and not shape.experts:
        raise ConfigError("expert parallelism is for models with experts")
    if layout.expert > 1 and shape.experts % layout.expert:
        raise ConfigError(
            f"{layout.expert} expert parallel ranks do not divide {shape.experts} experts"
        )
    if layout.shards % layout.expert:
        raise ConfigError(
            f"{layout.expert} expert parallel ranks do not divide the {layout.shards} data and "
            "context parallel ranks"
        )
