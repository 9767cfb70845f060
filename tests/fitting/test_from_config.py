"""Options of `fit` from configurations as other tools read them."""

from __future__ import annotations

import json
import re
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
            "quant": "nf4-double",
        },
    ),
    (
        LLAMA_FACTORY,
        {
            **{"model": "Qwen/Qwen2.5-7B-Instruct", "batch": 1, "accumulate": 2, "seq": 4096},
            **{"attention": "sdpa", "dtype": "autocast-bf16", "checkpointing": True},
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
FACTORY_LORA = {
    "model_name_or_path": "Qwen/Qwen2.5-7B-Instruct",
    "stage": "sft",
    "lora_target": "all",
    "bf16": True,
}
ZERO = {"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}


def read(config: dict[str, Any], folder: Path, model: str = "") -> ReadConfig:
    file = folder / "config.yml"
    file.write_text(yaml.safe_dump(config))
    return read_config(file, model)


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
    assert len(eight.used) == len(set(eight.used))


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


@pytest.mark.parametrize(
    ("config", "expected", "assumed"),
    [
        (
            FACTORY_LORA,
            {"batch": 8, "seq": 2048, "lora": 8, "checkpointing": True, "dtype": "bf16"},
            "LLaMA-Factory: batch 8, 2,048 tokens, LoRA of rank 8, checkpointing, "
            "frozen weights in bf16;",
        ),
        (
            FACTORY_LORA | {"disable_gradient_checkpointing": True, "quantization_bit": 4},
            {"checkpointing": False, "quant": "nf4-double"},
            "LLaMA-Factory: batch 8, 2,048 tokens, LoRA of rank 8, 4-bit scales quantized;",
        ),
        (
            FACTORY_LORA | {"finetuning_type": "full"},
            {"dtype": "autocast-bf16", "checkpointing": True, "lora": None},
            "checkpointing, weights in fp32;",
        ),
        (
            FACTORY_LORA | {"finetuning_type": "full", "pure_bf16": True},
            {"dtype": "bf16"},
            "weights in bf16;",
        ),
        (
            {"base_model": "m/llama", "bf16": "auto", "lora_r": 8, "micro_batch_size": 1},
            {"dtype": "bf16", "lora": None, "checkpointing": False},
            "axolotl: no checkpointing, bf16: true, weights in bf16;",
        ),
        (
            {"model_name_or_path": "m/llama", "max_length": 512, "use_peft": True},
            {"batch": 8, "lora": 16, "checkpointing": True, "dtype": "autocast-bf16"},
            "TRL: batch 8, LoRA of rank 16, checkpointing, bf16: true, weights in fp32;",
        ),
        (
            {"output_dir": "out", "bf16": True},
            {"batch": 8, "dtype": "autocast-bf16", "checkpointing": None},
            "Hugging Face's Trainer: batch 8;",
        ),
        (
            {"max_length": 512, "gradient_checkpointing": False, "bf16": False},
            {"checkpointing": False, "dtype": None},
            "TRL: batch 8;",
        ),
        (
            TORCHTUNE | {"model": {"_component_": "torchtune.models.qlora_x", "lora_rank": 8}},
            {"quant": "nf4-double", "dtype": "bf16"},
            "torchtune: 4-bit scales quantized;",
        ),
    ],
)
def test_defaults_of_a_tool_that_decide_memory_are_used_and_said(
    config: dict[str, Any], expected: dict[str, Any], assumed: str, tmp_path: Path
) -> None:
    found = read(config, tmp_path)
    assert {name: found.values.get(name) for name in expected} == expected
    assert assumed in found.sentences()[0]


@pytest.mark.parametrize(
    ("config", "per_example", "said"),
    [
        (FACTORY_LORA | {"stage": "ppo"}, 1, "PPO is .* too low: generation, and reference"),
        (AXOLOTL | {"rl": "kto"}, 1, "KTO is .* too low"),
        ({"num_generations": 8, "beta": 0.1}, 1, "GRPO is answered"),
        (
            {"beta": 0.5, "lmbda": 0.5, "teacher_model_name_or_path": "m/teacher"},
            1,
            "DISTILLATION is .* too low: the teacher's",
        ),
        ({"max_completion_length": 512, "beta": 0.1, "reward_funcs": "mine"}, 1, "GRPO is"),
        ({"max_completion_length": 512}, 1, "GRPO is answered"),
    ],
)
def test_training_beyond_supervised_is_warned_of_first(
    config: dict[str, Any], per_example: int, said: str, tmp_path: Path
) -> None:
    found = read(config, tmp_path)
    assert found.per_example == per_example
    assert re.match(f"warning: .*{said}", found.sentences()[0])


def test_pairs_without_a_reference_are_answered_without_a_warning(tmp_path: Path) -> None:
    found = read(FACTORY_LORA | {"stage": "dpo", "pref_loss": "simpo"}, tmp_path)
    assert (found.values["batch"], found.per_example) == (8, 2)
    assert not found.warnings
    assert "SIMPO is answered as supervised training on pairs" in found.notes[-1]
    assert not read(FACTORY_LORA | {"pref_loss": "sigmoid"}, tmp_path).warnings


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": 0.5}, "SIMPO"),
        ({"loss_type": "simpo"}, "SIMPO"),
        ({"loss_type": "sigmoid", "cpo_alpha": 1.0}, "CPO"),
        ({"cpo_alpha": 0.0}, "CPO"),
    ],
)
def test_cpo_and_simpo_of_trl_have_no_reference_though_they_have_keys_of_dpo(
    config: dict[str, Any], name: str, tmp_path: Path
) -> None:
    found = read({"beta": 2.0, "max_length": 512} | config, tmp_path)
    assert "reference" not in found.values
    assert found.per_example == 2
    assert found.notes[-1].startswith(f"{name} is answered as supervised training on pairs")
    assert found.ignored in ((), ("beta",))
    assert not found.warnings


@pytest.mark.parametrize("loss", ["nll", "dapo", ["dft"]])
def test_losses_of_other_trainings_are_no_dpo(loss: str | list[str], tmp_path: Path) -> None:
    found = read({"max_length": 512, "loss_type": loss}, tmp_path)
    assert ("reference" in found.values, found.per_example) == (False, 1)


@pytest.mark.parametrize("model", ["google-t5/t5-small", "resnet50", "mine:model"])
def test_reference_of_a_model_that_is_no_decoder_is_not_counted(model: str, tmp_path: Path) -> None:
    dpo = {"max_length": 512, "beta": 0.1}
    for found in (read(dpo, tmp_path, model), read(dpo | {"model_name_or_path": model}, tmp_path)):
        assert "reference" not in found.values
        assert found.per_example == 2
        assert "DPO is answered as supervised training on pairs" in found.warnings[0]
        assert "too low: the reference model is counted only for a decoder" in found.warnings[0]
    both = read(dpo | {"model_name_or_path": model}, tmp_path, "gpt2")
    assert both.values["reference"] == "copy"


def test_dpo_of_an_encoder_and_decoder_is_answered(
    cli: Callable[..., Done], tmp_path: Path
) -> None:
    file = tmp_path / "dpo.json"
    file.write_text(json.dumps({"beta": 0.1, "max_length": 128, "per_device_train_batch_size": 2}))
    words = ("fit", "google-t5/t5-small", "--gpu", "RTX 4090", "--config", str(file), "--json")
    answer = json.loads(cli(*words).out)
    assert "batch 4 x 128 tokens" in answer["program"]
    assert any(note.startswith("warning: DPO is answered as") for note in answer["notes"])


@pytest.mark.parametrize(
    ("config", "more", "reference"),
    [
        ({}, (), "copy"),
        ({}, ("--lora", "8"), "adapter"),
        (ZERO, ("--lora", "8"), "adapter"),
        ({}, ("--lora", "8", "--reference", "copy"), "copy"),
        ({"ref_model": "m/other"}, ("--lora", "8"), "copy"),
    ],
)
def test_adapters_on_the_command_line_replace_the_copy(
    config: dict[str, Any],
    more: tuple[str, ...],
    reference: str,
    cli: Callable[..., Done],
    tmp_path: Path,
) -> None:
    file = tmp_path / "dpo.json"
    file.write_text(json.dumps({"beta": 0.1, "max_length": 128} | config))
    words = ("fit", "gpt2", "--gpu", "RTX 4090", "--config", str(file), "--json")
    answer = json.loads(cli(*words, *more).out)
    assert f"DPO with reference {reference}" in answer["program"]


def test_plan_that_would_lose_the_reference_is_not_recommended(tmp_path: Path) -> None:
    config = {"max_length": 512} | ZERO
    assert "--zero 3 --data-parallel N without --config" in read(config, tmp_path).warnings[0]
    (warning,) = read(config | {"beta": 0.1}, tmp_path).warnings
    assert "16-bit weights and gradients of ZeRO 3" in warning
    assert "--config" not in warning


@pytest.mark.parametrize(
    ("config", "reference", "is_whole"),
    [
        (FACTORY_LORA | {"stage": "dpo"}, "adapter", True),
        (FACTORY_LORA | {"stage": "dpo", "ref_model": "other"}, "half-copy", True),
        (
            FACTORY_LORA | {"stage": "dpo", "finetuning_type": "full", "bf16": True},
            "half-copy",
            True,
        ),
        (AXOLOTL | {"rl": "ipo"}, "adapter", None),
        (AXOLOTL | {"rl": "dpo", "rl_adapter_ref_model": True}, "copy", None),
        ({"max_length": 512, "beta": 0.1}, "copy", None),
        ({"max_length": 512, "beta": 0.1} | ZERO, "half-copy", None),
        ({"beta": 0.1, "max_prompt_length": 512, "max_completion_length": 512}, "copy", None),
        ({"max_length": 512, "loss_type": "ipo", "max_completion_length": 512}, "copy", None),
        ({"loss_type": ["sigmoid", "sft"], "use_peft": True}, "adapter", None),
        ({"loss_type": "sigmoid", "use_peft": True, "ref_model": "m/other"}, "copy", None),
        ({"output_dir": "out", "ref_model": "m/other"}, "copy", None),
        (TORCHTUNE | {"loss": {"_component_": "torchtune.rlhf.loss.DPOLoss"}}, "adapter", True),
        ({"max_length": 512, "beta": 0.1, "precompute_ref_log_probs": True}, None, None),
    ],
)
def test_reference_of_pairs_is_that_of_the_tool(
    config: dict[str, Any], reference: str | None, is_whole: bool | None, tmp_path: Path
) -> None:
    found = read(config, tmp_path)
    assert found.values.get("reference") == reference
    assert found.values.get("whole_softmax") is is_whole
    assert found.per_example == (1 if reference else 2)
    assert not [each for each in found.warnings if "reference" in each]
    said = "as reference; a batch counts pairs" if reference else "the reference is computed before"
    assert said in found.notes[-1] or said in found.notes[0]


@pytest.mark.parametrize(("more", "n_pairs"), [((), "1 pair"), (("--batch", "3"), "3 pairs")])
def test_dpo_is_answered_by_formula_without_pytorch(
    more: tuple[str, ...], n_pairs: str, cli: Callable[..., Done], tmp_path: Path
) -> None:
    file = tmp_path / "axolotl.json"
    file.write_text(json.dumps({"base_model": "gpt2", "rl": "dpo", "sequence_len": 512}))
    words = ("fit", "--gpu", "RTX 4090", "--config", str(file), "--json")
    answer = json.loads(cli(*words, *more).out)
    assert answer["engine"] == "formula"
    assert f"of gpt2, batch {n_pairs} x 512 tokens" in answer["program"]
    assert answer["breakdown"]["reference model"] == 2 * 124_439_808
    assert any("no law for reference 'copy'" in note for note in answer["notes"])


@pytest.mark.parametrize(("more", "n_sequences"), [((), 2), (("--batch", "3"), 6)])
def test_batch_counts_pairs_wherever_it_is_from(
    more: tuple[str, ...], n_sequences: int, cli: Callable[..., Done], tmp_path: Path
) -> None:
    file = tmp_path / "axolotl.json"
    for batch in ({}, {"micro_batch_size": 1}):
        file.write_text(json.dumps({"base_model": "gpt2", "rl": "simpo"} | batch))
        words = ("fit", "gpt2", "--gpu", "RTX 4090", "--engine", "laws", "--config", str(file))
        answer = json.loads(cli(*words, *more, "--json").out)
        assert f"of gpt2, batch {n_sequences} x 1,024 tokens" in answer["program"]
        assert any(
            "on pairs (--batch counts pairs, --find batch sequences)" in note
            for note in answer["notes"]
        )


@pytest.mark.parametrize(
    ("config", "rank", "said"),
    [
        ({"use_peft": False, "lora_r": 16}, None, "TRL trains all weights"),
        ({"lora_r": 16}, None, "TRL trains all weights"),
        ({"use_peft": True, "lora_r": 0}, None, "LoRA of rank 0"),
        ({"use_peft": True, "lora_r": 4}, 4, None),
        ({"use_peft": False}, None, None),
    ],
)
def test_lora_of_trl_needs_use_peft_and_a_rank(
    config: dict[str, Any], rank: int | None, said: str | None, tmp_path: Path
) -> None:
    found = read({"max_length": 512} | config, tmp_path)
    assert found.values.get("lora") == rank
    assert not found.warnings
    assert [note[:14] for note in found.notes] == ([said[:14]] if said else [])
    assert ("use_peft" in found.used) == ("use_peft" in config and config.get("lora_r") != 0)


def test_named_file_is_not_searched_far_above_the_configuration(tmp_path: Path) -> None:
    named = tmp_path / "ds3.json"
    named.write_text(json.dumps(ZERO))
    config = FACTORY_LORA | {"deepspeed": "ds3.json"}
    near, far = tmp_path / "a" / "b" / "c", tmp_path / "a" / "b" / "c" / "d"
    far.mkdir(parents=True)
    found = read(config, near)
    assert found.values["parallel"] == "fsdp"
    assert found.sentences()[0].startswith(f"{near / 'config.yml'} and {named}: read ")
    assert "parallel" not in read(config, far).values


def test_named_file_of_deepspeed_is_read_or_its_absence_comes_first(tmp_path: Path) -> None:
    config = FACTORY_LORA | {"deepspeed": "examples/ds3.json"}
    missing = read(config, tmp_path)
    assert "parallel" not in missing.values
    assert re.match("warning: deepspeed: .*ds3.json cannot be read", missing.sentences()[0])
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "ds3.json").write_text(json.dumps(ZERO))
    (tmp_path / "train").mkdir()
    found = read(config, tmp_path / "train")
    assert (found.values["parallel"], found.values["dtype"]) == ("fsdp", "bf16")
    assert {"deepspeed", "deepspeed.zero_optimization.stage"} <= set(found.used)
    assert found.ignored == ()
    full = read(config | {"finetuning_type": "full"}, tmp_path)
    assert full.values["dtype"] == "autocast-bf16"
    assert "1 GPU, as the file names no number" in full.sentences()[-1]
    assert "1 GPU" not in full.sentences(["ranks"])[-1]


def test_auto_of_deepspeed_is_the_precision_that_the_trainer_passes(
    cli: Callable[..., Done], tmp_path: Path
) -> None:
    found = read(ZERO, tmp_path)
    assert found.values["dtype"] == "autocast-bf16"
    assert found.assumed["dtype"] == "fp32 master weights of DeepSpeed"
    file = tmp_path / "zero.json"
    file.write_text(json.dumps(ZERO | {"steps_per_print": 5}))
    words = ("fit", "Llama-3.1-8B", "--gpu", "h100", "--ranks", "8", "--config", str(file))
    text = " ".join(cli(*words, "--engine", "auto").out.split())
    assert text.startswith("Warning the answer is too low by the 16-bit weights and gradients")
    assert 'bf16 for "auto", as the trainer passes with --bf16' in text
    assert "ignored steps_per_print" in text
    notes = json.loads(cli(*words, "--json").out)["notes"]
    assert any(note.endswith("ignored steps_per_print") for note in notes)
    assert text.split()[1:4] == notes[1].removeprefix("warning: ").split()[:3]


def test_answer_under_fsdp_has_no_changes_that_fsdp_refuses(
    cli: Callable[..., Done], tmp_path: Path
) -> None:
    file = tmp_path / "zero.json"
    file.write_text(json.dumps(ZERO))
    words = ("fit", "Qwen2.5-7B", "--gpu", "RTX 4090", "--lora", "8", "--config", str(file))
    done = cli(*words, "--dtype", "bf16", "--seq", "4096")
    assert "Make it fit" in done.out
    assert "--quant" not in done.out
