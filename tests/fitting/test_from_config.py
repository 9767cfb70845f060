"""Options of `fit` from configurations as other tools read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from allocsim.errors import ConfigError
from allocsim.fitting import ReadConfig, read_config
from tests.cli.conftest import Done, cli

__all__ = ["cli"]  # a fixture

AXOLOTL = {
    "base_model": "meta-llama/Meta-Llama-3-8B",
    "load_in_4bit": True,
    "adapter": "qlora",
    "lora_r": 32,
    "lora_target_linear": True,
    "sequence_len": 2048,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "optimizer": "paged_adamw_8bit",
    "gradient_checkpointing": True,
    "bf16": True,
    "flash_attention": True,
    "wandb_project": "mine",
}
LLAMA_FACTORY = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
    "stage": "sft",
    "finetuning_type": "full",
    "lora_rank": 8,
    "cutoff_len": 4096,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "bf16": True,
    "flash_attn": "fa2",
}
TORCHTUNE = {
    "model": {"_component_": "torchtune.models.llama3_1.lora_llama3_1_8b", "lora_rank": 8},
    "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer", "max_seq_len": 1024},
    "batch_size": 2,
    "optimizer": {"_component_": "torch.optim.AdamW", "fused": True, "lr": 3e-4},
    "enable_activation_checkpointing": True,
    "dtype": "bf16",
}
TRAINER = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "bf16": True,
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "learning_rate": 5e-5,
}
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "num_processes": 4,
    "mixed_precision": "bf16",
}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 2},
    "fp16": {"enabled": True},
}
EXPECTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        AXOLOTL,
        {
            **{"model": "meta-llama/Meta-Llama-3-8B", "batch": 2, "accumulate": 4, "seq": 2048},
            **{
                "lora": 32,
                "optimizer": "paged-adamw8bit",
                "checkpointing": True,
                "attention": "sdpa",
            },
            "dtype": "bf16",
            "quant": "nf4",
        },
    ),
    (
        LLAMA_FACTORY,
        {
            **{"model": "Qwen/Qwen2.5-7B-Instruct", "batch": 1, "accumulate": 2, "seq": 4096},
            **{"attention": "sdpa", "dtype": "autocast-bf16"},
        },
    ),
    (
        TORCHTUNE,
        {
            **{"batch": 2, "seq": 1024, "lora": 8, "optimizer": "adamw-fused"},
            **{"checkpointing": True, "dtype": "bf16"},
        },
    ),
    (
        TRAINER,
        {"batch": 8, "accumulate": 1, "optimizer": "adamw-fused", "dtype": "autocast-bf16"},
    ),
    (ACCELERATE, {"dtype": "autocast-bf16", "parallel": "fsdp", "ranks": 4}),
    (DEEPSPEED, {"batch": 4, "dtype": "autocast-fp16", "parallel": "ddp", "ranks": 1}),
]
"""Configurations as the tools' documentation shows them, and the options that they mean."""


def read(config: dict[str, Any], folder: Path) -> ReadConfig:
    file = folder / "config.yml"
    file.write_text(yaml.safe_dump(config))
    return read_config(file)


@pytest.mark.parametrize(("config", "expected"), EXPECTED)
def test_each_tool_gives_the_options_of_its_documentation(
    config: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    assert read(config, tmp_path).values == expected


def test_every_key_is_used_or_listed_as_ignored(tmp_path: Path) -> None:
    found = read(AXOLOTL, tmp_path)
    assert set(found.used) | set(found.ignored) == set(AXOLOTL)
    assert found.ignored == ("wandb_project",)
    eight = read({**LLAMA_FACTORY, "quantization_bit": 8}, tmp_path)
    assert "weights in 8 bits are not computed; 16 bits are counted" in eight.notes


def test_the_command_uses_the_file_and_options_beside_it_win(
    cli: Callable[..., Done], tmp_path: Path
) -> None:
    file = tmp_path / "trainer.json"
    file.write_text(json.dumps(TRAINER))
    words = ("fit", "gpt2", "--gpu", "RTX 4090", "--engine", "laws", "--config", str(file))
    answer = json.loads(cli(*words, "--batch", "2", "--json").out)
    assert answer["program"].count('"""4 training steps of gpt2, batch 2 x 1,024 tokens') == 1
    assert "autocast-bf16, adamw-fused" in answer["program"]
    note = answer["notes"][0]
    assert note.startswith(f"{file}: read per_device_train_batch_size")
    assert note.endswith("ignored gradient_checkpointing, learning_rate")
    assert "ignored gradient_checkpointing" in " ".join(cli(*words).out.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1\n- 2\n", "is no configuration"),
        ("a: [", "is no configuration"),
        ("learning_rate: 3\n", "no key of a training's configuration"),
        (None, "cannot be read"),
    ],
)
def test_read_config_names_a_file_that_is_no_configuration(
    text: str | None, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        read_config(file)
    assert str(file) in str(error.value)


def test_config_whose_only_key_has_no_number_is_refused_by_that_key(tmp_path: Path) -> None:
    file = tmp_path / "arguments.json"
    file.write_text('{"per_device_train_batch_size": "four"}')
    with pytest.raises(ConfigError, match="batch is 'four'; expected a whole number"):
        read_config(file)
