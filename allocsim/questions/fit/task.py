"""What a model is to do: training or serving, how much at a time, in which precision.

Rule: a task is complete and possible once it exists; the program that runs it is made from nothing
else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from allocsim.errors import ConfigError
from allocsim.questions.fit.model import Configured, Model, UserModel, most_positions

__all__ = [
    "ATTENTION",
    "DTYPES",
    "OPTIMIZERS",
    "PARALLEL",
    "STARTS",
    "Task",
    "most_of",
    "usual_lengths",
]

DTYPES = {
    "fp32": ("float32", None),
    "bf16": ("bfloat16", None),
    "fp16": ("float16", None),
    "autocast-bf16": ("float32", "bfloat16"),
    "autocast-fp16": ("float32", "float16"),
}
"""By name, the parameters' type and that of torch.autocast."""
OPTIMIZERS = {
    "adamw": "torch.optim.AdamW(parameters, lr=1e-4)",
    "adamw-fused": "torch.optim.AdamW(parameters, lr=1e-4, fused=True)",
    "adamw-foreach-off": "torch.optim.AdamW(parameters, lr=1e-4, foreach=False)",
    "adam8bit": "bitsandbytes.optim.Adam8bit(parameters, lr=1e-4)",
    "adafactor": "torch.optim.Adafactor(parameters)",
    "sgd": "torch.optim.SGD(parameters, lr=1e-4)",
    "momentum": "torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)",
}
"""By name, how a program makes each of its parameters."""
ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}
"""By name, transformers' attn_implementation."""
STARTS = ("clean", "made")
"""How a model begins: "clean", loaded in place, with what making it left behind given back and the
peaks reset; "made" on the device, all of which counts."""
PARALLEL = ("fsdp", "ddp")
"""FSDP2, every layer sharded by itself, or DistributedDataParallel."""
_COUNTS = (
    *("batch", "seq", "image", "accumulate", "steps", "prompt", "decode", "requests", "ranks"),
)
_NAMED = {
    "dtype": tuple(DTYPES),
    "optimizer": tuple(OPTIMIZERS),
    "attention": tuple(ATTENTION),
    "start": STARTS,
    "parallel": ("", *PARALLEL),
}
"""The fields of a task that are one of some names."""
_MOST = 1 << 24
_USUAL = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One model at work.

    is_training: else it serves.
    batch: sequences or images at a time.  seq: tokens of a sequence in training.
    image: pixels of a side.  lengths: of sequences or prompts, one for each in turn, padded to the
    longest of a batch; empty for `seq` or `prompt`.
    checkpointing: of activations, without reentrance.  accumulate: micro-batches a step.
    lora: rank of the adapters, 0 for training all.  lora_targets: names of modules, empty for all
    linear ones.
    steps: of training.  prompt, decode: tokens in and out of a request.  requests: one by one.
    parallel: how `ranks` GPUs share the training, one of `PARALLEL`, "" for one alone.  rank: the
    one that is run.
    """

    model: Model
    is_training: bool = True
    dtype: str = "bf16"
    optimizer: str = "adamw"
    batch: int = 1
    seq: int = 1024
    image: int = 224
    lengths: tuple[int, ...] = ()
    checkpointing: bool = False
    accumulate: int = 1
    lora: int = 0
    lora_targets: tuple[str, ...] = ()
    attention: str = "sdpa"
    compiles: bool = False
    channels_last: bool = False
    steps: int = 4
    prompt: int = 1024
    decode: int = 64
    requests: int = 2
    start: str = "clean"
    parallel: str = ""
    ranks: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        self._refuse_unknown()
        for name in _COUNTS:
            value = getattr(self, name)
            if not 0 < value <= _MOST:
                raise ConfigError(f"{name} {value} is not possible; expected 1 to {_MOST:,}")
        if not all(0 < length <= _MOST for length in self.lengths):
            raise ConfigError(f"lengths of sequences are 1 to {_MOST:,} tokens")
        self._refuse_unfit()
        self._refuse_alone()
        self._refuse_too_long()

    def _refuse_unknown(self) -> None:
        """Names that stand in none of the tables."""
        for name, known in _NAMED.items():
            value = getattr(self, name)
            if value not in known:
                expected = ", ".join(filter(None, known))
                raise ConfigError(f"{name} {value!r} is not known; expected one of {expected}")

    def _refuse_unfit(self) -> None:
        """Options that the model has no use for."""
        model = self.model
        is_of_transformers = isinstance(model, Configured)
        if not self.is_training and not (isinstance(model, Configured) and model.writes):
            raise ConfigError(f"{model.name} answers no prompts; serving is for language models")
        if self.lora and isinstance(model, UserModel):
            raise ConfigError(f"{model.name} makes its own model; its function adds the adapters")
        if self.checkpointing and not is_of_transformers:
            raise ConfigError(
                f"{model.name} is not of transformers; checkpointing is for its models"
            )
        if not self.is_training and self.dtype.startswith("autocast"):
            raise ConfigError(f"serving in {self.dtype} is not usual; expected fp32, bf16 or fp16")

    def _refuse_alone(self) -> None:
        """Ranks that share nothing, and sharing without ranks."""
        if self.ranks > 1 and not self.parallel:
            raise ConfigError(f"{self.ranks} ranks share a model by fsdp or ddp; say which")
        if self.parallel and not self.is_training:
            raise ConfigError(f"{self.parallel} is for training")
        if self.parallel and isinstance(self.model, UserModel):
            raise ConfigError(f"{self.model.name} makes its own model; its function shards it")
        if not 0 <= self.rank < self.ranks:
            raise ConfigError(f"there is no rank {self.rank} of {self.ranks}; they begin at 0")

    def _refuse_too_long(self) -> None:
        most, name = most_positions(self.model), self.model.name
        longest = max(self.lengths, default=self.seq if self.is_training else self.prompt)
        longest += 0 if self.is_training else self.decode
        if most is not None and longest > most:
            raise ConfigError(f"{name} has {most:,} positions; {longest:,} tokens are too many")

    def at(self, size: str, value: int) -> Task:
        """The same task with another batch, seq, image or prompt."""
        changed: dict[str, Any] = {size: value}
        return replace(self, **changed)

    @property
    def parameters_dtype(self) -> str:
        """torch's name for the type of the parameters."""
        return DTYPES[self.dtype][0]

    @property
    def autocast_dtype(self) -> str | None:
        """torch's name for the type of torch.autocast, None without."""
        return DTYPES[self.dtype][1]

    @property
    def text(self) -> str:
        """ "4 training steps of gpt2, batch 8 x 1,024 tokens, bf16, adamw, checkpointing"."""
        return self.text_with(self._amount())

    def text_with(self, amount: str) -> str:
        """The text with other words for how much there is at a time."""
        what = [self._work(), amount, self.dtype]
        if self.is_training:
            what.append(self.optimizer)
            what += ["checkpointing"] * self.checkpointing
            what += [f"accumulating {self.accumulate}"] * (self.accumulate > 1)
            what += [f"LoRA of rank {self.lora}"] * bool(self.lora)
            what += [f"{self.parallel} over {self.ranks} GPUs"] * bool(self.parallel)
        if self.attention != "sdpa":
            what.append(f"{self.attention} attention")
        return ", ".join(what + ["compiled"] * self.compiles)

    def _work(self) -> str:
        if self.is_training:
            return f"{self.steps} training step{'s' * (self.steps > 1)} of {self.model.name}"
        return f"{self.requests} request{'s' * (self.requests > 1)} to {self.model.name}"

    def _amount(self) -> str:
        if self.model.sees:
            return f"batch {self.batch} of {self.image} x {self.image} pixels"
        if isinstance(self.model, UserModel):
            return "its own batch"
        length = self.seq if self.is_training else self.prompt
        tokens = f"{length:,} tokens"
        if self.lengths:
            tokens = f"{min(self.lengths):,} to {max(self.lengths):,} tokens"
        more = "" if self.is_training else f" and {self.decode:,} generated"
        return f"batch {self.batch} x {tokens}{more}"


def usual_lengths(model: Model, decode: int = 64) -> dict[str, int]:
    """`seq` and `prompt` where none are asked for: 1,024 tokens, or what the model has positions
    for, `decode` tokens after the prompt among them."""
    most = most_positions(model) or _MOST
    return {"seq": min(_USUAL, most), "prompt": max(min(_USUAL, most - decode), 1)}


def most_of(task: Task, size: str) -> int:
    """The largest value that a size of `task` can have: tokens end with the model's positions."""
    most = most_positions(task.model) or _MOST
    if size == "seq":
        return most
    return {"prompt": most - task.decode, "decode": most - task.prompt}.get(size, _MOST)
