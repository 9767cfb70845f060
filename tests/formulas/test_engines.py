"""Serving engines by their documented arithmetic, compared with the logs of real ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocsim.errors import ConfigError
from allocsim.fitting import CONFIGURATIONS
from allocsim.fitting.formulas import (
    LARGE_WORKSPACE,
    WORKSPACE,
    Needs,
    ServerOptions,
    ServingWork,
    bytes_a_token,
    compute_buffer,
    kv_range,
    llama_cpp,
    ollama,
    sglang,
    shapes_of,
    sizes_of,
    static_fraction,
    tensorrt_llm,
    transformers,
    vllm,
    weights_of,
)
from allocsim.fitting.formulas.growing import grow
from allocsim.units import GIB, MIB

DATA = Path(__file__).parents[2] / "traces" / "fit"
CONFIGS: dict[str, Any] = json.loads((DATA / "configs.json").read_text())
SERVED = [
    row
    for line in (DATA / "truth.jsonl").read_text().splitlines()
    for row in [json.loads(line)]
    if row["kind"] == "serve" and row["start"] == "clean"
    if row.get("attention") is None and "Mixtral" not in row["model"]
    if "oom_in_step" not in row
]
CONTEXT = (112 * MIB, 687 * MIB)


def work(preset: str, name: str = "bf16", *, memory: int = 24 * GIB, **more: Any) -> ServingWork:
    sizes = sizes_of(CONFIGURATIONS[preset])
    weights = weights_of(shapes_of(sizes), name, sizes)
    return ServingWork(sizes=sizes, weights=weights, memory=memory, context=CONTEXT, **more)


def parts(needs: Needs) -> dict[str, tuple[int, int]]:
    return {part.name: (part.low, part.high) for part in needs.parts}


def differences(row: dict[str, Any]) -> tuple[int, int]:
    """Return predicted minus measured bytes of allocated and of reserved memory for a real run."""
    sizes = sizes_of(CONFIGS[row["model"]])
    weights = weights_of(shapes_of(sizes), row["dtype"], sizes)
    asked = {key: row[key] for key in ("batch", "prompt", "decode")}
    workspace = LARGE_WORKSPACE if row["card"] == "H100" else WORKSPACE
    found = grow(sizes, weights, **asked, workspace=workspace)
    return found.allocated - row["peak_allocated"], found.reserved - row["peak_reserved"]


def test_tokens_that_follow_from_others_equal_recorded_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = sizes_of(CONFIGURATIONS["Gemma-2-2B"])
    asked = {"batch": 3, "prompt": 700, "decode": 90, "requests": 3}
    weights = weights_of(shapes_of(sizes), "bf16", sizes)
    found = grow(sizes, weights, **asked)
    monkeypatch.setattr("allocsim.fitting.formulas.growing._RECORDED", 1000)
    grow.cache_clear()
    assert grow(sizes, weights, **asked) == found


def test_the_growing_cache_of_gpt2_is_that_of_real_pytorch() -> None:
    row = next(row for row in SERVED if row["model"] == "gpt2")
    allocated, reserved = differences(row)
    assert abs(allocated) < 2048
    assert reserved == 0


@pytest.mark.slow
@pytest.mark.parametrize("row", SERVED, ids=lambda row: str(row["id"]))
def test_growing_caches_are_those_of_real_pytorch(row: dict[str, Any]) -> None:
    allocated, reserved = differences(row)
    assert abs(allocated) < 2048
    assert reserved == (-2 * MIB if row["id"] == "a100-083-clean" else 0)


def test_a_token_takes_two_rows_a_layer() -> None:
    llama = sizes_of(CONFIGURATIONS["Llama-3-8B"])
    assert bytes_a_token(llama, "bf16") == 131_072
    assert bytes_a_token(llama, "fp8") == 65_536
    assert bytes_a_token(llama, "q8_0") == 131_072 * 34 // 64
    assert kv_range(llama, 100, "bf16", block=16) == (112 * 131_072, 112 * 131_072)
    with pytest.raises(ConfigError, match="not a type of a cache"):
        bytes_a_token(llama, "int3")


def test_a_window_is_the_least_and_all_tokens_the_most() -> None:
    gemma = sizes_of(CONFIGURATIONS["Gemma-2-9B"])
    low, high = kv_range(gemma, 8192, "bf16")
    assert low == high - 21 * 4096 * 2 * 2 * 8 * 256


def test_vllm_has_room_for_what_it_logged() -> None:
    """vllm-project/vllm#10511: Llama 3 8B on 79.22 GiB had 53.29 GiB for its cache."""
    options = ServerOptions(version=(0, 6), longest=8192)
    needs = vllm(work("Llama-3-8B", memory=round(79.22 * GIB), options=options))
    assert needs.room is not None
    low, high = needs.room
    logged = 53.29 * GIB / 131_072
    assert low < logged < high
    assert (high - low) / logged < 0.06
    assert low % 16 == high % 16 == 0
    activations = parts(needs)["activations"]
    assert activations[0] < 1.26 * GIB < activations[1]


def test_the_value_to_paste_holds_all_that_is_needed() -> None:
    asked = work("Qwen2.5-7B", batch=4, prompt=4000, decode=96)
    needs = vllm(asked)
    fraction = float(needs.paste.split()[1])
    assert needs.paste.endswith(" --max-model-len 4096 --max-num-seqs 4")
    pasted = ServerOptions(fraction=fraction, longest=4096, sequences=4)
    started = vllm(replace(asked, options=pasted))
    cache = parts(needs)["keys and values"][1]
    assert started.pool is not None
    assert started.pool[0] >= cache
    context, graphs = (parts(started)[name][1] for name in ("CUDA context", "CUDA graphs"))
    left = (1 - fraction) * asked.memory - context - graphs
    assert 0 <= left < asked.memory / 100
    assert f"--kv-cache-memory-bytes {cache}" in needs.least
    too_small = replace(asked, memory=8 * GIB)
    assert vllm(too_small).paste == sglang(too_small).paste == tensorrt_llm(too_small).paste == ""
    assert vllm(too_small).room == (0, 0)


def test_sglang_leaves_by_card_what_its_formula_says() -> None:
    assert static_fraction(24564 * MIB) == (0.847, (512 + 3072 + 128 + 48) * MIB)
    fraction, left = static_fraction(81559 * MIB)
    assert left == (512 + 12288 + 128 + 512) * MIB
    assert fraction == 0.835
    needs = sglang(work("Qwen2.5-7B", memory=24564 * MIB))
    assert needs.taken == (24564 * MIB - 3760 * MIB, 24564 * MIB)
    assert "--mem-fraction-static 0.847" in needs.paste
    assert "--mem-fraction-static 0.6" in needs.least


def test_tensorrt_llm_takes_nine_tenths_of_what_is_left() -> None:
    asked = work("Llama-3-8B", memory=80 * GIB)
    needs = tensorrt_llm(asked)
    assert needs.room is not None
    left = 80 * GIB - sum(high for name, (_, high) in parts(needs).items() if "keys" not in name)
    assert needs.room[0] == int(left * 0.9) // (32 * 131_072) * 32


@pytest.mark.parametrize(
    ("preset", "tokens", "with_flash", "without"),
    [
        ("Llama-3-8B", 512, 258.5, 258.5),
        ("Llama-3-8B", 8192, 258.5, 560.0),
        ("Llama-2-7B", 512, 70.5, 70.5),
        ("Llama-2-7B", 4096, 70.5, 296.0),
    ],
)
def test_the_compute_buffers_are_those_that_llama_cpp_logs(
    preset: str, tokens: int, with_flash: float, without: float
) -> None:
    low, high = compute_buffer(work(preset, prompt=tokens - 64, decode=64))
    assert low / MIB == pytest.approx(with_flash, abs=0.01)
    if without != with_flash:
        assert high / MIB == without


def test_llama_cpp_keeps_the_embedding_on_the_host_and_layers_where_they_are_asked() -> None:
    whole = llama_cpp(work("Qwen2.5-7B", "Q4_K_M"))
    assert parts(whole)["weights"][0] / MIB == pytest.approx(4168, abs=1)
    assert whole.host[0].high / MIB == pytest.approx(292.4, abs=0.1)
    half = llama_cpp(work("Qwen2.5-7B", "Q4_K_M", gpu_layers=14))
    low, high = parts(half)["weights"]
    assert low < high < parts(whole)["weights"][0] * 0.6
    assert half.host[0].low + high == whole.host[0].low + parts(whole)["weights"][0]
    assert (
        half.host[1].low + parts(half)["keys and values"][1] == parts(whole)["keys and values"][0]
    )


def test_no_layers_on_the_card_take_nothing_at_first() -> None:
    none = llama_cpp(work("Qwen2.5-7B", "Q4_K_M", gpu_layers=0))
    assert none.low == 0
    assert none.high > 300 * MIB
    assert parts(none)["weights"] == (0, 0)


def test_a_shared_embedding_is_there_twice() -> None:
    needs = llama_cpp(work("Llama-3.2-1B", "Q8_0"))
    held = work("Llama-3.2-1B", "Q8_0").weights
    embedding = held.of_role("token_embd")
    assert parts(needs)["weights"][0] + needs.host[0].low == pytest.approx(held.size + embedding)


def test_ollama_has_a_context_of_4096_and_nothing_at_rest() -> None:
    needs = ollama(work("Qwen2.5-7B", "Q4_K_M", prompt=16, decode=16))
    assert parts(needs)["keys and values"][0] == 4096 * 57_344
    assert "OLLAMA_CONTEXT_LENGTH=4096" in needs.paste
    assert "an idle server takes none" in needs.notes[0]


def test_a_cache_of_fewer_bits_is_smaller() -> None:
    full = llama_cpp(work("Qwen2.5-7B", "Q4_K_M"))
    small = llama_cpp(work("Qwen2.5-7B", "Q4_K_M", kv_type="q8_0"))
    assert parts(small)["keys and values"][0] * 64 == parts(full)["keys and values"][0] * 34


def test_quantised_weights_may_need_a_matrix_in_16_bits() -> None:
    needs = transformers(work("gpt2", "nf4", prompt=8, decode=1))
    assert parts(needs)["dequantised matrix"] == (0, 2 * 3072 * 768)


def test_more_than_any_card_could_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than any card"):
        transformers(work("gpt2", batch=1 << 24, prompt=1 << 24))


@pytest.mark.parametrize(("family", "inner"), [("Phi-3-mini", 4), ("Llama-2-7B", 3), ("gpt2", 4)])
def test_a_long_prompt_holds_the_terms_of_its_feed_forward_part(family: str, inner: int) -> None:
    asked = work(family, prompt=1000, decode=1, requests=1)
    sizes, weights = asked.sizes, asked.weights
    found = grow(sizes, weights, batch=1, prompt=1000, decode=1, requests=1)
    longer = grow(sizes, weights, batch=1, prompt=2000, decode=1, requests=1)
    each = (longer.allocated - found.allocated) / 1000
    cache = bytes_a_token(sizes, "bf16")
    assert each - cache == pytest.approx(2 * (inner * sizes.inner + 4 * sizes.width), rel=0.05)
