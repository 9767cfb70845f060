"""Formulas of training T5 and Whisper, and of serving them, beside runs of real PyTorch.

The peaks are of PyTorch 2.11.0 and transformers 5.17.0 over a phantom RTX 4090, by
`benchmarks.recent.run`.
"""

from __future__ import annotations

from typing import Any

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import Task, estimate, held_of, model_of, serve, shape_of
from allocsim.fitting.formulas import sizes_of
from allocsim.fitting.formulas.training import EAGER, ParallelLayout, Training, kept_of_layer
from allocsim.fitting.presets import CONFIGURATIONS
from allocsim.phantom import find_gpu
from benchmarks.recent import CASES, Case, stored

CARD = find_gpu("RTX 4090")
OF_ENCODERS = [
    case for case in CASES if CONFIGURATIONS[case.model]["model_type"] in ("t5", "whisper")
]


def of(model: str, **more: Any) -> Task:
    return Task(model=model_of(model), **more)


@pytest.mark.parametrize("case", OF_ENCODERS, ids=lambda case: case.id)
def test_formula_allocates_within_seven_percent_of_real_pytorch(case: Case) -> None:
    measured = stored()[case.id]["allocated"]
    found = estimate(case.task, find_gpu(case.card)).peak_allocated_bytes
    assert found == pytest.approx(measured, rel=0.07)


@pytest.mark.parametrize("case", OF_ENCODERS, ids=lambda case: case.id)
def test_formula_reserves_a_range_with_the_peak_of_real_pytorch(case: Case) -> None:
    found = estimate(case.task, find_gpu(case.card))
    outside = next(part for part in found.parts if part.name == "CUDA context")
    least = found.process_bytes[0] - outside.low
    assert least <= stored()[case.id]["reserved"] <= found.needed_bytes


def test_t5_saves_nine_bytes_for_each_score_in_addition_to_its_vectors() -> None:
    shape = shape_of(model_of("t5-base"))
    one, two = (
        kept_of_layer(shape.of_layer(0), ParallelLayout(seq=seq), 0, EAGER)["attention"]
        for seq in (512, 1024)
    )
    assert two - 2 * one == 9 * shape.heads * 2 * 512**2


def test_cross_attention_of_whisper_keeps_keys_and_values_of_all_sound() -> None:
    shape = shape_of(model_of("whisper-small")).of_layer(12)
    short, long = (
        kept_of_layer(shape, ParallelLayout(seq=seq), 12, EAGER)["attention to the encoder"]
        for seq in (1, 101)
    )
    assert short > 2 * 2 * 768 * 1500
    assert (long - short) / 100 == 3 * 2 * 768 + 4 * 12


def test_longer_targets_do_not_change_the_encoder_of_whisper() -> None:
    shape = shape_of(model_of("whisper-tiny")).of_layer(0)
    kept = [kept_of_layer(shape, ParallelLayout(seq=seq), 0, EAGER) for seq in (1, 448)]
    assert kept[0] == kept[1]


def test_a_model_with_an_encoder_is_not_split_by_formula() -> None:
    training = Training("t5", shape_of(model_of("t5-small")), ParallelLayout(tensor=2))
    with pytest.raises(ConfigError, match="has no tensor, pipeline and context"):
        training.worst()


def test_an_encoder_of_other_heads_than_the_decoder_is_refused() -> None:
    config = {**CONFIGURATIONS["Whisper-tiny"], "encoder_attention_heads": 3}
    with pytest.raises(ConfigError, match="encoder_attention_heads is 3; expected that of"):
        sizes_of(config)


def test_serving_keeps_keys_and_values_of_the_encoder_once() -> None:
    def cache(decode: int) -> int:
        found = estimate(of("t5-base", is_training=False, prompt=100, decode=decode), CARD)
        return next(part.high for part in found.parts if part.name == "keys and values")

    each = 2 * 2 * 12 * 64 * 12
    assert cache(1) == each * (100 + 2)
    assert cache(50) - cache(1) == each * 49


def test_a_served_speech_model_starts_with_four_tokens_of_its_positions() -> None:
    held = held_of("openai/whisper-base", "transformers")
    assert serve(held, "transformers", CARD).work.prompt == 4
    with pytest.raises(ConfigError, match="has 448 positions; 464 tokens are too many"):
        serve(held, "transformers", CARD, prompt=400)


SERVED: dict[str, tuple[Task, int, int]] = {
    "T5-small": (of("t5-small", is_training=False), 250_541_568, 287_309_824),
    "Whisper-tiny": (
        of("whisper-tiny", is_training=False, prompt=4),
        112_251_392,
        121_634_816,
    ),
    "Whisper-large-v3": (
        of("whisper-large-v3", is_training=False, prompt=4),
        3_401_222_656,
        3_703_570_432,
    ),
    "Flan-T5-large": (
        of("google/flan-t5-large", is_training=False, prompt=512),
        1_737_984_512,
        1_786_773_504,
    ),
    "T5-base, batch 4": (
        of("t5-base", is_training=False, batch=4, decode=16),
        1_192_558_080,
        1_323_302_912,
    ),
}
"""Servings with the allocated and reserved bytes of real PyTorch."""


@pytest.mark.parametrize("name", SERVED)
def test_formula_of_serving_is_a_range_with_the_peak_of_real_pytorch(name: str) -> None:
    task, _, reserved = SERVED[name]
    found = estimate(task, CARD)
    outside = next(part for part in found.parts if part.name == "CUDA context")
    assert found.process_bytes[0] - outside.low <= reserved <= found.needed_bytes
