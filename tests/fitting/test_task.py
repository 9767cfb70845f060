"""Possible and impossible tasks of a model."""

from __future__ import annotations

from typing import Any

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import Task, lengths_of, model_of


@pytest.mark.parametrize(
    ("model", "more", "sentence"),
    [
        ("gpt2", {"batch": 0}, "batch 0 is not possible; expected 1 to 16,777,216"),
        ("gpt2", {"steps": 0}, "steps 0"),
        ("gpt2", {"seq": 1025}, "gpt2 has 1,024 positions; 1,025 tokens are too many"),
        ("gpt2", {"lengths": (8, 2000)}, "gpt2 has 1,024 positions; 2,000 tokens"),
        (
            "gpt2",
            {"is_training": False, "prompt": 1000, "decode": 30},
            "1,030 tokens are too many",
        ),
        ("resnet50", {"is_training": False}, "ResNet-50 answers no prompts"),
        ("bert-base-uncased", {"is_training": False}, "BERT-base answers no prompts"),
        (
            "resnet50",
            {"checkpointing": True},
            "is not a transformers model; checkpointing needs one",
        ),
        ("gpt2", {"ranks": 4}, "4 ranks need parallel 'fsdp' or 'ddp'"),
        (
            "gpt2",
            {"ranks": 4, "rank": 4, "parallel": "ddp"},
            "rank 4 is not possible; expected 0 to 3",
        ),
        ("gpt2", {"is_training": False, "parallel": "fsdp"}, "fsdp is for training"),
        ("a.b:c", {"parallel": "fsdp"}, "its function shards it"),
        ("a.b:c", {"lora": 8}, "its function adds the adapters"),
        ("gpt2", {"quant": "nf4"}, "quant nf4 needs lora"),
        ("gpt2", {"quant": "nf4", "lora": 8, "parallel": "fsdp"}, "fsdp cannot shard it"),
        ("gpt2", {"is_training": False, "dtype": "autocast-bf16"}, "expected fp32, bf16 or fp16"),
    ],
)
def test_task_refuses_impossible_values_in_a_sentence(
    model: str, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Task(model=model_of(model), **more)


@pytest.mark.parametrize(
    ("field", "value", "known"),
    [
        ("dtype", "float32", "fp32, bf16, fp16, autocast-bf16, autocast-fp16"),
        ("optimizer", "adam", "adamw, adamw-fused, adamw-foreach-off, adam8bit, adamw8bit"),
        ("attention", "flash_attention_2", "sdpa, eager, flash"),
        ("start", "", "clean, made"),
        ("parallel", "FSDP", "fsdp, ddp"),
        ("dtype", ["bf16"], "fp32, bf16"),
    ],
)
def test_task_refuses_an_unknown_name_and_lists_the_known(
    field: str, value: Any, known: str
) -> None:
    with pytest.raises(ConfigError) as error:
        Task(model=model_of("gpt2"), **{field: value})
    assert str(error.value).startswith(f"{field} {value!r} is not known; expected one of {known}")


def test_task_refuses_0_ranks() -> None:
    with pytest.raises(ConfigError, match="ranks 0 is not possible"):
        Task(model=model_of("gpt2"), parallel="ddp", ranks=0)


def test_task_has_no_limit_for_rotary_positions() -> None:
    assert Task(model=model_of("Llama-3-8B"), seq=100_000).seq == 100_000


def test_text_describes_the_task() -> None:
    task = Task(model=model_of("gpt2"), batch=8, checkpointing=True, lora=4, accumulate=2)
    assert task.text == (
        "4 training steps of gpt2, batch 8 x 1,024 tokens, bf16, adamw, checkpointing, "
        "accumulating 2, LoRA of rank 4"
    )
    serving = Task(model=model_of("gpt2"), is_training=False, prompt=16, requests=1)
    assert serving.text == "1 request to gpt2, batch 1 x 16 tokens and 64 generated, bf16"
    assert Task(model=model_of("resnet50")).text.startswith(
        "4 training steps of ResNet-50, batch 1 of 224 x 224 pixels"
    )


def test_lengths_come_from_a_file_or_a_distribution(tmp_path: Any) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("3 5\n8\n")
    assert lengths_of(str(file), 100) == (3, 5, 8)
    drawn = lengths_of("uniform:10:20", 50)
    assert len(drawn) == 50
    assert drawn == lengths_of("uniform:10:20", 50)
    assert {min(drawn), max(drawn)} <= set(range(10, 21))
    assert sorted(lengths_of("lognormal:500:0.5", 99))[49] == pytest.approx(500, rel=0.2)


@pytest.mark.parametrize("text", ["uniform:20:10", "lognormal:0:1", "nowhere", "uniform:1"])
def test_lengths_of_refuses_other_texts(text: str) -> None:
    with pytest.raises(ConfigError, match="lengths"):
        lengths_of(text, 4)


@pytest.mark.parametrize("text", ["", "1 2 x", "-4", "9" * 12])
def test_lengths_of_refuses_a_file_without_lengths(tmp_path: Any, text: str) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(text)
    with pytest.raises(ConfigError, match="whole numbers"):
        lengths_of(str(file), 4)
