"""Configuration files of training tools, such as axolotl: reader, and keys that affect memory."""

# Sources: the documented configuration keys and defaults of TrainingArguments of Hugging Face, TRL
# 1.9, axolotl 0.18, LLaMA-Factory 0.9.5, torchtune 0.6.1, accelerate, DeepSpeed and peft.

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from allocsim.errors import ConfigError
from allocsim.fitting.model import bytes_of_config

KEYS: dict[str, tuple[str, ...]] = {
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
"""Configuration keys that give each option of `fit`; the first key that is present counts.

A dot separates nested keys."""
OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw", "adamw_hf", "torch.optim.adamw"), "adamw"),
    "adamw_torch_fused": "adamw-fused",
    **dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit", "bitsandbytes.optim.adamw8bit"), "adamw8bit"),
    **dict.fromkeys(("paged_adamw_8bit", "bitsandbytes.optim.pagedadamw8bit"), "paged-adamw8bit"),
    "bitsandbytes.optim.adam8bit": "adam8bit",
    **dict.fromkeys(("adafactor", "torch.optim.adafactor"), "adafactor"),
    **dict.fromkeys(("sgd", "torch.optim.sgd"), "sgd"),
}
ATTENTION = {
    **{"sdpa": "sdpa", "eager": "eager", "flash_attention_2": "flash", "fa2": "flash"},
    "true": "flash",
    "disabled": "eager",
}
WHOLE = {
    **{"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16"},
    **{"float32": "fp32", "fp32": "fp32"},
}
TYPES = ("torch_dtype", "dtype", "model_dtype")
RANKS = ("num_processes", "world_size")
AUTO = (None, "auto", "", "none", False)
FACTORY = "LLaMA-Factory"
TRAINER = "Hugging Face's Trainer"
TOOLS = {
    "axolotl": ("base_model",),
    "torchtune": ("tokenizer._component_", "model._component_"),
    FACTORY: (
        *("finetuning_type", "stage", "cutoff_len", "pure_bf16", "quantization_bit"),
        *("lora_target", "disable_gradient_checkpointing"),
    ),
    "TRL": (
        *("use_peft", "max_length", "max_seq_length", "beta", "loss_type"),
        *("num_generations", "max_completion_length", "use_bnb_nested_quant"),
        *("dataset_text_field", "completion_only_loss", "assistant_only_loss", "max_prompt_length"),
        *("cpo_alpha", "simpo_gamma", "ref_model"),
    ),
    TRAINER: ("output_dir", "num_train_epochs", "per_device_train_batch_size", "optim"),
}
"""Keys that only configurations of one tool have; the first tool with a present key is assumed."""
DEFAULTS: dict[str, dict[str, Any]] = {
    "axolotl": {"checkpointing": False},
    "torchtune": {"checkpointing": False},
    FACTORY: {"batch": 8, "seq": 2048, "lora": 8, "checkpointing": True},
    "TRL": {"batch": 8, "seq": 1024, "lora": 16, "checkpointing": True},
    TRAINER: {"batch": 8},
}
"""Values that each tool uses for options whose keys are absent."""
DISABLED = ("disable_gradient_checkpointing",)
IN_WORDS: dict[str, Callable[[Any], str]] = {
    "batch": lambda value: f"batch {value}",
    "seq": lambda value: f"{value:,} tokens",
    "lora": lambda value: f"LoRA of rank {value}",
    "checkpointing": lambda value: "checkpointing" if value else "no checkpointing",
}
FILES = {
    "deepspeed": "deepspeed.",
    "deepspeed_config.deepspeed_config_file": "deepspeed.",
    "fsdp_config": "fsdp_config.",
}
"""Dictionary from keys that can name a further file to the prefix that this file's keys get."""
DOUBLE = ("bnb_4bit_use_double_quant", "use_bnb_nested_quant", "double_quantization")
OFFLOADS = (
    *("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"),
    *("deepspeed_config.offload_optimizer_device", "deepspeed_config.offload_param_device"),
    *("fsdp_config.fsdp_offload_params", "fsdp_config.offload_params"),
)
REFERRING = ("dpo", "ipo")
"""Trainings on pairs of a chosen and a rejected sequence, with a reference model."""
ALONE = ("orpo", "simpo", "cpo", "rm", "reward")
"""Trainings on pairs of sequences without a reference model."""
METHODS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("distillation", ("teacher_model._component_", "teacher_model_name_or_path", "lmbda")),
    ("grpo", ("num_generations", "reward_funcs", "reward_weights", "scale_rewards")),
    ("kto", ("desirable_weight", "undesirable_weight")),
    ("reward", ("center_rewards_coefficient",)),
    ("dpo", ("beta", "precompute_ref_log_probs", "max_prompt_length", "ref_model")),
    ("ppo", ("policy_model._component_", "reward_model_path")),
    ("grpo", ("max_completion_length",)),
)
"""Keys that indicate each kind of training, if no key names the kind.

The first kind with a present key counts.  DPO also has the key `max_completion_length`, so it
indicates GRPO only if no key of DPO is present."""
OF_CPO = ("cpo_alpha", "simpo_gamma")
"""Keys that only TRL's CPO has, which also trains SimPO; 0 is a usual value of both."""
LOSSES = {
    **dict.fromkeys(("sigmoid", "hinge", "exo_pair", "nca_pair", "robust", "bco_pair"), "dpo"),
    **dict.fromkeys(("sppo_hard", "aot", "aot_pair", "aot_unpaired", "discopop"), "dpo"),
    **dict.fromkeys(("apo_zero", "apo_down"), "dpo"),
    **{"ipo": "ipo", "simpo": "simpo", "alphapo": "cpo"},
}
"""Kind of training of each value of TRL's key `loss_type` that is of a training on pairs."""
UNCOUNTED = {
    "kto": "a reference model and the sequences of the divergence are",
    "distillation": "the teacher's weights and logits are",
}


def pairs_of_trl(flat: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the kind of training on pairs that TRL's keys name, or "", and those keys."""
    losses = flat.get("loss_type")
    named = (str(each) for each in (losses if isinstance(losses, list) else [losses]))
    found = next((LOSSES[each] for each in named if each in LOSSES), "")
    keys = ("loss_type",) * bool(found)
    if any(flat.get(key) is not None for key in OF_CPO):
        # DPO and CPO share the names of some losses.
        keys += tuple(key for key in OF_CPO if key in flat)
        return found if found in ALONE else "cpo", keys
    return found, keys


def parsed_file(file: Path) -> Mapping[str, Any]:
    """Return the keys and values of a JSON or YAML file; ConfigError if it has none."""
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
