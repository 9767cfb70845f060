"""Task: the work whose memory `fit` predicts, such as four training steps of a model in bf16.

A `Task` has every value that the generated program needs.  Random lengths of sequences are drawn
before, and written into that program.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.model import Configured, Model, UserModel, is_decoder, most_positions
from allocsim.fitting.presets import Generator

DTYPES = {
    "fp32": ("float32", None),
    "bf16": ("bfloat16", None),
    "fp16": ("float16", None),
    "autocast-bf16": ("float32", "bfloat16"),
    "autocast-fp16": ("float32", "float16"),
}
"""Dtype of the parameters and of torch.autocast (None without it), for each value of --dtype."""
OPTIMIZERS = {
    "adamw": "torch.optim.AdamW(parameters, lr=1e-4)",
    "adamw-fused": "torch.optim.AdamW(parameters, lr=1e-4, fused=True)",
    "adamw-foreach-off": "torch.optim.AdamW(parameters, lr=1e-4, foreach=False)",
    "adam8bit": "bitsandbytes.optim.Adam8bit(parameters, lr=1e-4)",
    "adamw8bit": "bitsandbytes.optim.AdamW8bit(parameters, lr=1e-4)",
    "paged-adamw8bit": "bitsandbytes.optim.PagedAdamW8bit(parameters, lr=1e-4)",
    "adafactor": "torch.optim.Adafactor(parameters)",
    "sgd": "torch.optim.SGD(parameters, lr=1e-4)",
    "momentum": "torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)",
}
"""Python expression that creates the optimizer in the generated program, for each --optimizer."""
ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}
"""Value of transformers' attn_implementation for each value of --attention."""
QUANTS = ("nf4", "nf4-double")
"""Formats of frozen weights in QLoRA: NF4 of bitsandbytes, with fp32 or with quantized scales."""
GENERATOR_QUANTS = (*QUANTS, "int8", "fp8")
"""Formats to which an image generator's denoiser and T5 text encoder can be quantized."""
STARTS = ("clean", "made")
"""Ways to create a model.

clean: the model is loaded; then unused memory is released and PyTorch's peaks are reset.
made: the model is built on the device, and the peaks include the memory of the construction.
"""
REFERENCES = ("copy", "half-copy", "adapter")
"""Reference models with which a training on pairs of sequences (DPO) compares the trained model.

copy: frozen copy of the model in the dtype of the weights.
half-copy: frozen copy in the dtype of torch.autocast.
adapter: the trained model with its LoRA adapters disabled.
"""
PARALLEL = ("fsdp", "ddp")
"""Ways to train on several GPUs: FSDP2, with each layer sharded separately, or DDP."""
_EAGER = ("gemma2", "gpt_oss")
"""Values of model_type for which transformers refuses PyTorch's fused attention."""
EAGER_NOTE = "attention is eager, because transformers runs this model with no fused kernel"
"""Note on a task whose model transformers runs only with eager attention."""
EXPERTS_IN_32_BITS = (
    "experts: transformers 5 stores them as tensors that are no linear modules, so bitsandbytes "
    "does not quantize them, and peft's prepare_model_for_kbit_training makes them fp32"
)
"""Note for QLoRA of a mixture of experts: the experts, most of the frozen weights, are in fp32."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_COUNTS = (
    *("batch", "seq", "image", "accumulate", "steps", "prompt", "decode", "requests", "ranks"),
)
_NAMED = {
    "dtype": tuple(DTYPES),
    "optimizer": tuple(OPTIMIZERS),
    "attention": tuple(ATTENTION),
    "quant": ("", *GENERATOR_QUANTS),
    "start": STARTS,
    "parallel": ("", *PARALLEL),
    "reference": ("", *REFERENCES),
}
"""Allowed values of each field of `Task` that has a fixed set of values."""
_MOST = 1 << 24
DEFAULT_TOKENS = 1024
"""Tokens of a prompt or of a sequence, if the task does not give them."""
USUAL_PIXELS = 224
START_TOKENS = 4
"""Tokens that Whisper's decoder starts with: start, language, task, and no timestamps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Model and its work, training or serving, whose memory `fit` predicts.

    is_training: True for training, False for serving.
    dtype: precision, a key of `DTYPES`.
    optimizer: a key of `OPTIMIZERS`.
    attention: a key of `ATTENTION`; default: the implementation that transformers chooses.
    batch: sequences, pairs of sequences (with `reference`) or images in a batch of one GPU.
    seq: tokens of a training sequence.
    image: side of an image in pixels; default: 224, or the side that an image generator was
        trained with.
    lengths: tokens of successive sequences or prompts, padded to the longest of their batch; empty
        if all have the length `seq` or `prompt`.
    checkpointing: True for activation checkpointing, non-reentrant.
    checkpoint_layers: number of layers, from the first on, that are checkpointed; 0 for all.
    accumulate: micro-batches per optimizer step.
    lora: rank of the LoRA adapters, 0 to train all parameters.
    lora_targets: names of the modules with adapters, empty for all linear modules.
    quant: format of the frozen weights of linear modules, one of `QUANTS`, or "" for `dtype`; for
        an image generator one of `GENERATOR_QUANTS`.
    reference: one of `REFERENCES` for a training on pairs of sequences, such as DPO, or "".
    whole_softmax: True if that training computes the log-softmax of all logits at once.
    offload: True to keep only the running network of an image generator on the card.
    compiles: True to compile the model.
    channels_last: True for images and weights in the channels-last memory format.
    steps: training steps.
    prompt, decode: tokens of a prompt, and tokens generated after it.
    requests: number of batches of prompts, served one after another.
    start: way to create the model, one of `STARTS`.
    parallel: way to train on several GPUs, one of `PARALLEL`, or "" for a single GPU.
    ranks: number of GPUs that share the training.
    rank: index of the GPU whose process is run.
    """

    model: Model
    is_training: bool = True
    dtype: str = "bf16"
    optimizer: str = "adamw"
    batch: int = 1
    seq: int = 1024
    image: int = 0
    lengths: tuple[int, ...] = ()
    checkpointing: bool = False
    checkpoint_layers: int = 0
    accumulate: int = 1
    lora: int = 0
    lora_targets: tuple[str, ...] = ()
    quant: str = ""
    reference: str = ""
    whole_softmax: bool = False
    offload: bool = False
    attention: str = ""
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
        if not self.attention:
            object.__setattr__(self, "attention", usual_attention(self.model))
        if not self.image:
            model = self.model
            pixels = model.pixels if isinstance(model, Generator) else USUAL_PIXELS
            object.__setattr__(self, "image", pixels)
        self._refuse_unknown()
        for name in _COUNTS:
            value = getattr(self, name)
            if not 0 < value <= _MOST:
                raise ConfigError(f"{name} {value} is not possible; expected 1 to {_MOST:,}")
        if not all(0 < length <= _MOST for length in self.lengths):
            raise ConfigError(f"lengths of sequences are 1 to {_MOST:,} tokens")
        if self.generates:
            self._refuse_of_generator()
            return
        self._refuse_unfit()
        self._refuse_alone()
        self._refuse_too_long()

    def _refuse_unknown(self) -> None:
        for name, known in _NAMED.items():
            value = getattr(self, name)
            if value not in known:
                expected = ", ".join(filter(None, known))
                raise ConfigError(f"{name} {value!r} is not known; expected one of {expected}")

    def _refuse_of_generator(self) -> None:
        name = self.model.name
        if self.is_training:
            raise ConfigError(f"{name} generates images; there is no formula for its training")
        if self.dtype.startswith("autocast"):
            raise ConfigError(f"{name} in {self.dtype} is not usual; expected fp32, bf16 or fp16")

    def _refuse_unfit(self) -> None:
        model = self.model
        if self.offload:
            raise ConfigError(f"offload is for image generators, not {model.name}")
        if self.quant and self.quant not in QUANTS:
            raise ConfigError(f"quant {self.quant} is for image generators, not {model.name}")
        is_of_transformers = isinstance(model, Configured)
        if not self.is_training and not (isinstance(model, Configured) and model.writes):
            raise ConfigError(f"{model.name} answers no prompts; serving is for language models")
        if self.reference and not (is_decoder(model) and self.is_training):
            raise ConfigError(f"reference {self.reference} is for training a decoder of text")
        if self.reference == "adapter" and not self.lora:
            raise ConfigError("reference adapter needs lora; without adapters it is a copy")
        if self.whole_softmax and not self.reference:
            raise ConfigError("whole_softmax needs reference")
        if self.lora and isinstance(model, UserModel):
            raise ConfigError(f"{model.name} makes its own model; its function adds the adapters")
        if self.quant and not (self.lora and self.is_training and is_of_transformers):
            raise ConfigError(f"quant {self.quant} needs lora: weights in 4 bits are not trained")
        if self.checkpoint_layers and not (self.checkpointing and self.is_training):
            raise ConfigError(f"checkpoint_layers {self.checkpoint_layers} needs checkpointing")
        if self.checkpointing and not is_of_transformers:
            raise ConfigError(f"{model.name} is not a transformers model; checkpointing needs one")
        if not self.is_training and self.dtype.startswith("autocast"):
            raise ConfigError(f"serving in {self.dtype} is not usual; expected fp32, bf16 or fp16")

    def _refuse_alone(self) -> None:
        if self.ranks > 1 and not self.parallel:
            raise ConfigError(f"{self.ranks} ranks need parallel 'fsdp' or 'ddp'")
        if self.parallel and not self.is_training:
            raise ConfigError(f"{self.parallel} is for training")
        if self.parallel == "fsdp" and self.quant:
            raise ConfigError(f"quant {self.quant} is for one card or ddp; fsdp cannot shard it")
        if self.parallel and isinstance(self.model, UserModel):
            raise ConfigError(f"{self.model.name} makes its own model; its function shards it")
        if not 0 <= self.rank < self.ranks:
            raise ConfigError(f"rank {self.rank} is not possible; expected 0 to {self.ranks - 1}")

    def _refuse_too_long(self) -> None:
        most, name = most_positions(self.model), self.model.name
        longest = max(self.lengths, default=self.seq if self.is_training else self.prompt)
        longest += 0 if self.is_training else self.decode
        if most is not None and longest > most:
            raise ConfigError(f"{name} has {most:,} positions; {longest:,} tokens are too many")

    def at(self, size: str, value: int) -> Task:
        """Return a copy of the task with `value` in the field `size`, such as "batch"."""
        changed: dict[str, Any] = {size: value}
        return replace(self, **changed)

    @property
    def generates(self) -> bool:
        """True if the model generates images."""
        return isinstance(self.model, Generator)

    @property
    def parameters_dtype(self) -> str:
        """Dtype of the parameters, as torch names it, such as "bfloat16"."""
        return DTYPES[self.dtype][0]

    @property
    def autocast_dtype(self) -> str | None:
        """Dtype of torch.autocast, as torch names it, or None without autocast."""
        return DTYPES[self.dtype][1]

    @property
    def sequences(self) -> int:
        """Number of sequences in a batch; twice `batch` if that counts preference pairs (DPO)."""
        return self.batch * (2 if self.reference else 1)

    @property
    def reference_dtype(self) -> str | None:
        """Dtype of the frozen reference model, as torch names it, or None without a copy."""
        half = self.autocast_dtype if self.reference == "half-copy" else None
        return (half or self.parameters_dtype) if "copy" in self.reference else None

    @property
    def text(self) -> str:
        """Task in words: "4 training steps of gpt2, batch 8 x 1,024 tokens, bf16, adamw"."""
        return self.text_with(self._amount())

    def text_with(self, amount: str) -> str:
        """Return the task in words, with `amount` in place of, say, "batch 8 x 1,024 tokens"."""
        what = [self._work(), amount, self.dtype]
        if self.generates:
            what += [f"weights in {self.quant}"] * bool(self.quant)
            return ", ".join(what + ["networks offloaded"] * self.offload)
        if self.is_training:
            what.append(self.optimizer)
            some = f"checkpointing {self.checkpoint_layers} layers"
            what += [some if self.checkpoint_layers else "checkpointing"] * self.checkpointing
            what += [f"accumulating {self.accumulate}"] * (self.accumulate > 1)
            what += [f"LoRA of rank {self.lora}"] * bool(self.lora)
            what += [f"weights in {self.quant}"] * bool(self.quant)
            what += [f"DPO with reference {self.reference}"] * bool(self.reference)
            what += [f"{self.parallel} over {self.ranks} GPUs"] * bool(self.parallel)
        if self.attention != "sdpa":
            what.append(f"{self.attention} attention")
        return ", ".join(what + ["compiled"] * self.compiles)

    def _work(self) -> str:
        if self.generates:
            return f"images by {self.model.name}"
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
        if self.model.hears:
            tokens = f"30 s of sound and {tokens}"
        if self.lengths:
            tokens = f"{min(self.lengths):,} to {max(self.lengths):,} tokens"
        more = "" if self.is_training else f" and {self.decode:,} generated"
        if self.is_training and self.model.has_encoder and not self.model.hears:
            more = " of input and of target"
        pairs = f" pair{'s' * (self.batch > 1)}" * bool(self.reference)
        return f"batch {self.batch}{pairs} x {tokens}{more}"


def usual_attention(model: Model) -> str:
    """Return the attention implementation that transformers chooses by itself."""
    is_eager = isinstance(model, Configured) and model.config["model_type"] in _EAGER
    return "eager" if is_eager else "sdpa"


def notes_of_quant(task: Task) -> Iterator[str]:
    """Yield a note if QLoRA leaves the experts, and so most of the model, in 32 bits."""
    if task.quant and isinstance(task.model, Configured):
        config = task.model.config.get("text_config", task.model.config)
        if any(config.get(key) for key in _EXPERTS):
            yield EXPERTS_IN_32_BITS


def usual_lengths(model: Model, decode: int = 64) -> dict[str, int]:
    """Return the defaults of `seq` and `prompt`: 1,024 tokens, or as many as the model supports.

    decode: number of generated tokens, which need positions after the prompt.
    """
    most = most_positions(model) or _MOST
    prompt = max(min(START_TOKENS if model.hears else DEFAULT_TOKENS, most - decode), 1)
    return {"seq": min(DEFAULT_TOKENS, most), "prompt": prompt}


def most_of(task: Task, size: str) -> int:
    """Return the largest possible value of a field of `task`, such as "seq"."""
    most = most_positions(task.model) or _MOST
    if size == "seq":
        return most
    return {"prompt": most - task.decode, "decode": most - task.prompt}.get(size, _MOST)


def usual_values(task: Task, other: str) -> tuple[int, ...]:
    """Return the task's value of a field, half of it, and twice it, as values to try.

    other: name of the field, such as "seq".
    """
    own: int = getattr(task, other)
    return tuple(sorted({max(own // 2, 1), own, min(2 * own, most_of(task, other))}))


_DRAWN = re.compile(r"(uniform|lognormal):(\d{1,8}):(\d{1,8}(?:\.\d+)?)")
_MOST_LENGTHS = 100_000
_LONGEST = 1 << 24
_BYTES = 1 << 22


def lengths_of(text: str, count: int) -> tuple[int, ...]:
    """Return `count` lengths in tokens from a distribution, or all lengths in a file.

    text: "uniform:LOW:HIGH", "lognormal:MEDIAN:SIGMA" (SIGMA of the logarithm), or the name of a
        file of whole numbers.
    """
    found = _DRAWN.fullmatch(text)
    if found is None:
        return _in_file(Path(text))
    chance, low, high = random.Random(0), int(found[2]), float(found[3])
    if found[1] == "uniform":
        if not 1 <= low <= high:
            raise ConfigError(f"lengths {text}: expected uniform:LOW:HIGH, 1 or more, LOW first")
        return tuple(chance.randint(low, int(high)) for _ in range(count))
    if not low or not 0 <= high <= 10:
        raise ConfigError(f"lengths {text}: expected lognormal:MEDIAN:SIGMA, SIGMA from 0 to 10")
    drawn = (round(low * chance.lognormvariate(0.0, high)) for _ in range(count))
    return tuple(min(max(length, 1), _LONGEST) for length in drawn)


def _in_file(file: Path) -> tuple[int, ...]:
    try:
        with file.open("rb") as opened:
            words = opened.read(_BYTES).split()
    except (OSError, ValueError):
        raise ConfigError(
            f"lengths {str(file)[:80]!r}: expected a file of whole numbers, uniform:LOW:HIGH or "
            "lognormal:MEDIAN:SIGMA"
        ) from None
    if not 0 < len(words) <= _MOST_LENGTHS or not all(
        word.isdigit() and len(word) < 9 for word in words
    ):
        raise ConfigError(
            f"{file}: expected 1 to {_MOST_LENGTHS:,} lengths, whole numbers with space between"
        )
    return tuple(map(int, words))
