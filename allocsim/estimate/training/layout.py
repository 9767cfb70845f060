"""How a training is laid out over ranks, and what is computed again instead of kept.

Rule: a layout is possible once it exists beside its shape (`refuse_impossible`).
"""

from __future__ import annotations

from dataclasses import dataclass

from allocsim.errors import ConfigError
from allocsim.estimate.training.shape import Shape

__all__ = ["Layout", "RECOMPUTE", "refuse_impossible"]

RECOMPUTE = ("none", "selective", "ops", "full")
"""What is computed again in backward: nothing; the core of attention (Megatron's "selective"); all
but attention's outputs and every second matrix product's (torchtitan's "selective" of operations);
whole layers."""
_MOST = 1 << 20
_STAGES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Ranks by what they share, and one micro-batch's size.

    tensor, pipeline, data, context, expert: sizes of the groups; experts are spread over some of
    the data and context parallel ranks, each split among tensor parallel ones as well.
    chunks: of layers on a stage, more than 1 when stages are interleaved.
    zero: stage 0 to 3 of ZeRO; 1 is Megatron's distributed optimizer, 3 is FSDP.
    sequence_parallel: norms and dropout are split among tensor parallel ranks too.
    recompute: one of `RECOMPUTE`.  flash: no scores of attention are kept.
    micro_batch: sequences at a time.  micro_batches: in a step, and so at most in flight.
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
            raise ConfigError("chunks are of a pipeline's stages; there is one stage only")

    @property
    def ranks(self) -> int:
        """Cards in all."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def shards(self) -> int:
        """Ranks that hold the same weights, and may share their state: data and context."""
        return self.data * self.context

    @property
    def expert_shards(self) -> int:
        """Ranks that hold the same experts."""
        return self.shards // self.expert

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a rank, before tensor parallel ranks split them."""
        return -(-self.micro_batch * self.seq // self.context)

    @property
    def split(self) -> int:
        """Among how many ranks norms and dropout are split."""
        return self.tensor if self.sequence_parallel else 1

    def layers_of(self, stage: int, layers: int) -> range:
        """The layers of a stage; the first stages have one more where they do not divide.

        With chunks a stage has others than these, and as many.
        """
        each, more = divmod(layers, self.pipeline)
        first = stage * each + min(stage, more)
        return range(first, first + each + (stage < more))

    def in_flight(self, stage: int) -> float:
        """Micro-batches whose activations a stage holds at most.

        1F1B: those of the stages from it on (Narayanan et al. 2021, section 2.2); interleaved,
        1 + (p-1)/(pm) times that of the first stage (Korthikanti et al., 4.2.3).
        """
        depth: float = self.pipeline - stage
        if self.chunks > 1:
            warm = (self.pipeline - stage - 1) * 2 + (self.chunks - 1) * self.pipeline + 1
            depth = warm / self.chunks
        return min(depth, float(self.micro_batches))


def refuse_impossible(shape: Shape, layout: Layout) -> None:
    """Raises ConfigError for a layout that the shape cannot be divided by."""
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
            f"{layout.expert} expert parallel ranks are among the {layout.shards} data and context "
            "parallel ones, and do not divide them"
        )
