"""Memory of one card of several, compared with the start-up logs of servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import held_of, serve
from allocsim.fitting.formulas import (
    bytes_a_token,
    shapes_of,
    sizes_of,
    sizes_of_rank,
    weights_of,
    weights_of_rank,
)
from allocsim.phantom import find_gpu
from allocsim.units import GIB

LOGGED = [
    ("Llama-3-8B", 2, 7.48),
    ("Llama-3-8B", 4, 3.7418),
    ("Qwen2.5-14B", 4, 6.9461),
    ("Qwen2.5-32B", 4, 15.39),
    ("Llama-3.1-70B", 8, 16.4),
]
"""Model, cards, and GiB of weights per card: start-up logs of vLLM, a report of the 70B."""


@pytest.mark.parametrize(("model", "cards", "gib"), LOGGED)
def test_a_card_holds_what_vllm_printed(model: str, cards: int, gib: float) -> None:
    """The tolerance is 1 %: logs include whole segments and buffers."""
    held = held_of(model, "vllm")
    found = weights_of_rank(held.weights, held.sizes, cards).size / GIB
    assert found == pytest.approx(gib, rel=0.01)


def fp8_config(folder: Path, kv_heads: int) -> str:
    """Return Llama-3.1-405B-Instruct-FP8, with attention and outer layers in 16 bits."""
    outer = [f"model.layers.{n}.mlp.{m}_proj" for n in (0, 125) for m in ("gate", "up", "down")]
    attention = [f"model.layers.{n}.self_attn.{m}_proj" for n in range(126) for m in "qkvo"]
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "fbgemm_fp8",
            "modules_to_not_convert": outer + attention,
        },
    }
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(("kv_heads", "low", "high"), [(8, -0.018, -0.017), (16, -0.001, 0.0)])
def test_modules_that_stay_in_16_bits_are_counted_so(
    tmp_path: Path, kv_heads: int, low: float, high: float
) -> None:
    """The model was published with 16 key and value heads; vLLM printed 57.752 GiB then.

    That is the size per card, on eight cards. The model has 8 of these heads now.
    """
    held = held_of(fp8_config(tmp_path, kv_heads), "vllm")
    found = weights_of_rank(held.weights, held.sizes, 8).size / GIB
    assert low < found / 57.752 - 1 < high


def test_the_parts_of_all_cards_are_the_model_and_what_each_has_whole() -> None:
    held = held_of("Llama-3.1-70B", "vllm")
    norms = (2 * 80 + 1) * 8192 * 2
    part = weights_of_rank(held.weights, held.sizes, 8).size
    assert 8 * (part - norms) == held.weights.size - norms


@pytest.mark.parametrize(("cards", "share"), [(2, 2), (4, 4), (8, 8), (16, 8)])
def test_keys_and_values_are_divided_until_each_card_has_one_head(cards: int, share: int) -> None:
    sizes = held_of("Llama-3.1-70B", "vllm").sizes
    whole, part = (bytes_a_token(each, "bf16") for each in (sizes, sizes_of_rank(sizes, cards)))
    assert whole == share * part


@pytest.mark.parametrize("kind", ["int8", "fp8", "fp8-rows", "gptq-int4", "awq-int4", "nf4"])
def test_scales_go_with_their_rows_and_groups(kind: str) -> None:
    held = held_of("Llama-3.1-8B", "vllm")
    whole = weights_of(shapes_of(held.sizes), kind, held.sizes)
    parts = weights_of_rank(whole, held.sizes, 4)
    part_sizes = {**vars_of(held.sizes), "heads": 8, "kv_heads": 2, "inner": 14336 // 4}
    [down] = [s for s in parts.tensors if s.shape.role == "ffn_down" and s.shape.layer == 3]
    assert down.shape.dims == (4096, part_sizes["inner"])
    [of_whole] = [s for s in whole.tensors if s.shape.role == "ffn_down" and s.shape.layer == 3]
    of_rows = kind in ("int8", "fp8", "fp8-rows")
    assert down.scales == (of_whole.scales if of_rows else -(-of_whole.scales // 4))
    assert 4 * parts.size >= whole.size


def vars_of(sizes: object) -> dict[str, int]:
    return {name: getattr(sizes, name) for name in ("heads", "kv_heads", "inner")}


def test_biases_go_with_what_they_are_added_to() -> None:
    """Biases of divided outputs are divided; biases of sums are whole on every card."""
    config = {"model_type": "gpt2", "vocab_size": 64, "n_embd": 64, "n_layer": 1, "n_head": 4}
    sizes = sizes_of(config)
    parts = weights_of_rank(weights_of(shapes_of(sizes), "bf16", sizes), sizes, 2)
    assert [s.shape.dims for s in parts.tensors if s.shape.role == "bias"] == [
        *[(96,), (64,), (128,), (64,)],
        *[(64,), (64,), (64,)],
    ]


@pytest.mark.parametrize("cards", [3, 5, 16])
def test_heads_that_cannot_be_divided_are_refused(cards: int) -> None:
    sizes = held_of("gpt2", "vllm").sizes
    with pytest.raises(ConfigError, match=f"{cards} cards do not divide 12 attention heads" if
                       cards != 3 else "divide"):  # fmt: skip
        sizes_of_rank(sizes if cards != 3 else held_of("Llama-3-8B", "vllm").sizes, cards)


@pytest.mark.parametrize("server", ["vllm", "sglang", "tensorrt-llm"])
def test_eight_cards_hold_what_one_cannot(server: str) -> None:
    held, card = held_of("Llama-3.1-70B", server), find_gpu("H100")
    assert not serve(held, server, card).may_fit
    found = serve(held, server, card, cards=8)
    assert found.fits
    assert "8 of NVIDIA H100" in found.headline()
    [weights] = [part for part in found.needs.parts if part.name == "weights"]
    assert weights.low == pytest.approx(16.4 * GIB, rel=0.005)
