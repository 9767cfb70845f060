"""Convert the configuration of a training tool, such as axolotl, to options of `fit`.

A key is recognised by its name, whichever tool the file is for, because the tools share most names.
"""

# Sources: the documented configuration keys of TrainingArguments of Hugging Face, TRL, axolotl,
# LLaMA-Factory, torchtune, accelerate, DeepSpeed and peft.

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.model import bytes_of_config, flattened

_KEYS: dict[str, tuple[str, ...]] = {
    "model": ("model_name_or_path", "base_model", "pretrained_model_name_or_path", "model"),
    "batch": (
        *("per_device_train_batch_size", "micro_batch_size", "train_micro_batch_size_per_gpu"),
        "batch_size",
    ),
    "accumulate": ("gradient_accumulation_steps",),
    "seq": ("max_length", "max_seq_length", "sequence_len", "cutoff_len", "tokenizer.max_seq_len"),
    "lora": ("lora_r", "lora_rank", "model.lora_rank", "r", "peft_config.r"),
    "lora_targets": ("lora_target_modules", "lora_target", "target_modules"),
    "optimizer": ("optim", "optimizer", "optimizer._component_"),
    "checkpointing": (
        *("gradient_checkpointing", "enable_activation_checkpointing"),
        "fsdp_config.fsdp_activation_checkpointing",
    ),
    "attention": ("attn_implementation", "flash_attn", "flash_attention"),
    "compiles": ("torch_compile", "compile"),
}
"""Configuration keys for each option of `fit`; the first that is present counts.

A dot separates nested keys."""
_OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw", "adamw_hf", "torch.optim.adamw"), "adamw"),
    "adamw_torch_fused": "adamw-fused",
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "bitsandbytes.optim.adamw8bit"), "adamw8bit"),
    **dict.fromkeys(("paged_adamw_8bit", "bitsandbytes.optim.pagedadamw8bit"), "paged-adamw8bit"),
    "bitsandbytes.optim.adam8bit": "adam8bit",
    **dict.fromkeys(("adafactor", "torch.optim.adafactor"), "adafactor"),
    **dict.fromkeys(("sgd", "torch.optim.sgd"), "sgd"),
}
_ATTENTION = {
    **{"sdpa": "sdpa", "eager": "eager", "flash_attention_2": "flash", "fa2": "flash"},
    "true": "flash",
    "disabled": "eager",
}
_HALF = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"}
_TYPES = ("torch_dtype", "dtype", "model_dtype")
_MASTERLESS = ("base_model", "tokenizer._component_", "pure_bf16")
"""Keys whose presence shows that `bf16: true` means 16-bit weights, and not autocast.

base_model is a key of axolotl, tokenizer._component_ of torchtune."""
_RANKS = ("num_processes", "world_size")
_AUTO = (None, "auto", "", "none", False)


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """Options of `fit`, read from the configuration of a training tool.

    path: the file.
    values: values of the options, by names such as "batch".
    used, ignored: keys of the configuration that became options, and all other keys.
    notes: differences between the configuration and what `fit` computes, one sentence each.
    """

    path: str
    values: Mapping[str, Any]
    used: tuple[str, ...]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        rest = ", ".join(self.ignored) or "nothing"
        return (f"{self.path}: read {', '.join(self.used)}; ignored {rest}", *self.notes)


def read_config(path: str | Path) -> ReadConfig:
    """Return the options of `fit` in a JSON or YAML configuration of a training tool.

    Raises ConfigError if it has none of them.
    """
    file = Path(path)
    flat = dict(flattened(_parsed(file)))
    reader = _Reader(flat)
    values = dict(reader.values())
    if not values:
        why = "; ".join(reader.notes) or "no key of a training's configuration that decides memory"
        raise ConfigError(f"{file}: {why}")
    ignored = tuple(key for key in flat if key not in reader.used)
    return ReadConfig(str(path), values, tuple(reader.used), ignored, tuple(reader.notes))


def _parsed(file: Path) -> Mapping[str, Any]:
    data = bytes_of_config(file)
    found = _as_json(data) if file.suffix == ".json" else _as_yaml(data, file)
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is no configuration; expected JSON or YAML with keys and values")
    return found


def _as_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _as_yaml(data: bytes, file: Path) -> Any:
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            f"{file} needs PyYAML; pip install 'allocsim[yaml]', or convert it to JSON"
        ) from None
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError):
        return None


class _Reader:
    """Converter of a configuration's keys to options of `fit`.

    flat: values by key; a dot separates nested keys.
    used: keys that became options.
    notes: differences between the configuration and what `fit` computes, one sentence each.
    """

    def __init__(self, flat: Mapping[str, Any]) -> None:
        self.flat = flat
        self.used: list[str] = []
        self.notes: list[str] = []

    def take(self, *keys: str) -> Any:
        for key in keys:
            if self.flat.get(key) not in _AUTO:
                self.used.append(key)
                return self.flat[key]
        return None

    def values(self) -> Iterator[tuple[str, Any]]:
        converted: dict[str, Callable[[Any], Any]] = {
            "optimizer": self.optimizer,
            "attention": self.attention,
            "lora_targets": self.targets,
            "checkpointing": bool,
            "compiles": bool,
            "model": str,
        }
        has_adapters = self.take("finetuning_type", "adapter") or "lora"
        self.take("lora_target_linear")
        for name, keys in _KEYS.items():
            if name.startswith("lora") and has_adapters not in ("lora", "qlora"):
                continue
            value = self.take(*keys)
            if value is None:
                continue
            made = converted[name](value) if name in converted else self.count(name, value)
            if made is not None:
                yield name, made
        if (dtype := self.dtype()) is not None:
            yield "dtype", dtype
        if (parallel := self.parallel()) is not None:
            yield "parallel", parallel
            yield "ranks", self.count("ranks", self.take(*_RANKS) or 1)
        if self.take("load_in_4bit") or self.take("quantization_bit") == 4:
            yield "quant", "nf4-double" if self.take("bnb_4bit_use_double_quant") else "nf4"
        if self.take("load_in_8bit", "quantization_bit") not in (None, 4):
            self.notes.append("weights in 8 bits are not computed; 16 bits are counted")

    def count(self, name: str, value: Any) -> int | None:
        if isinstance(value, int) and value > 0:
            return value
        self.notes.append(
            f"{name} is {str(value)[:40]!r}; expected a whole number, so it is ignored"
        )
        return None

    def optimizer(self, value: Any) -> str | None:
        name = _OPTIMIZERS.get(str(value).lower())
        if name == "adamw" and self.take("optimizer.fused") is True:
            name = "adamw-fused"
        if name is None:
            self.notes.append(f"optimizer {str(value)[:40]!r} is not known; adamw is assumed")
        return name

    def attention(self, value: Any) -> str | None:
        name = _ATTENTION.get(str(value).lower())
        if name != "flash":
            return name
        self.notes.append("flash attention is computed by PyTorch's own, which saves the same")
        return "sdpa"

    def targets(self, value: Any) -> str | None:
        names = ",".join(value) if isinstance(value, list) else str(value)
        return None if names in ("all", "all-linear") else names

    def dtype(self) -> str | None:
        half = _HALF.get(str(self.take(*_TYPES)).removeprefix("torch."))
        mixed = str(self.take("mixed_precision"))
        for name in ("bf16", "fp16"):
            is_on = self.take(name, f"{name}.enabled", f"pure_{name}") is not None
            if half is None and (is_on or mixed == name):
                is_whole = any(key in self.flat for key in _MASTERLESS)
                return name if is_whole else f"autocast-{name}"
        return half

    def parallel(self) -> str | None:
        kind = str(self.take("distributed_type")).lower()
        stage = self.take("zero_optimization.stage", "deepspeed_config.zero_stage")
        if stage in (1, 2):
            self.notes.append(
                f"ZeRO {stage} is computed as DistributedDataParallel, which needs more"
            )
        if self.take("fsdp", "fsdp_config.fsdp_version") or kind == "fsdp" or stage == 3:
            return "fsdp"
        return "ddp" if kind == "multi_gpu" or stage in (1, 2) else None
