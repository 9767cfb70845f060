"""Tensors of a configuration, compared with the parameters of real models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import CONFIGURATIONS
from allocsim.fitting.formulas import ModelSizes, parameters_of, shapes_of, sizes_of

DATA = Path(__file__).parents[2] / "traces" / "fit"
CONFIGS: dict[str, Any] = json.loads((DATA / "configs.json").read_text())
ROWS = [json.loads(line) for line in (DATA / "truth.jsonl").read_text().splitlines()]
COUNTED = sorted({(row["model"], row["parameters"]) for row in ROWS if row["model"] in CONFIGS})


@pytest.mark.parametrize(("model", "parameters"), COUNTED)
def test_the_parameters_are_those_that_real_transformers_counted(
    model: str, parameters: int
) -> None:
    assert parameters_of(shapes_of(sizes_of(CONFIGS[model]))) == parameters


@pytest.mark.parametrize(
    ("preset", "published"),
    [
        ("gpt2-xl", 1_557_611_200),
        ("Llama-2-13B", 13_015_864_320),
        ("Llama-3.1-405B", 405_853_388_800),
        ("Qwen2.5-14B", 14_770_033_664),
        ("Mistral-7B-v0.1", 7_241_732_096),
        ("Mixtral-8x7B", 46_702_792_704),
        ("Phi-3-mini", 3_821_079_552),
        ("Gemma-2-9B", 9_241_705_984),
        ("Gemma-2-27B", 27_227_128_320),
    ],
)
def test_the_parameters_are_those_that_the_publishers_print(preset: str, published: int) -> None:
    assert parameters_of(shapes_of(sizes_of(CONFIGURATIONS[preset]))) == published


def test_a_window_belongs_to_all_layers_or_to_every_second_of_gemma_2() -> None:
    def seen(preset: str) -> tuple[int, int]:
        sizes: ModelSizes = sizes_of(CONFIGURATIONS[preset])
        return sizes.window, sizes.windowed

    assert seen("Mistral-7B-v0.1") == (4096, 32)
    assert seen("Gemma-2-9B") == (4096, 21)
    assert seen("Qwen2.5-7B") == (0, 0)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "mamba"}, "has no formula"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"intermediate_size": None}, "has no intermediate_size"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"vocab_size": 1 << 40}, "vocab_size is"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"num_hidden_layers": 5000}, "5,000 layers"),
    ],
)
def test_a_configuration_that_no_model_has_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sizes_of({**CONFIGURATIONS["Llama-3-8B"], **changed})
