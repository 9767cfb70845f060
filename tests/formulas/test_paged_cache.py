"""Tokens of vLLM's cache, as vLLM counts them."""

from __future__ import annotations

from typing import Any

import pytest

from allocsim.fitting import CONFIGURATIONS
from allocsim.fitting.formulas import sizes_of, sizes_of_rank
from allocsim.fitting.formulas.paged_cache import PagedCache
from allocsim.units import GIB

NEWEST = (0, 33)


def cache(preset: str, cards: int = 1, **more: Any) -> PagedCache:
    sizes = sizes_of(CONFIGURATIONS[preset])
    sizes = sizes if cards == 1 else sizes_of_rank(sizes, cards)
    kind = {1: "fp8", 2: "bf16"}[more.pop("each", 2)]
    return PagedCache(sizes, kind, **{"chunk": 2048, "version": NEWEST, **more})


@pytest.mark.parametrize(
    ("preset", "size", "longest", "chunk", "at_two_steps"),
    [
        ("Llama-3.1-8B", 53.1, 8192, 8192, 434_992),
        ("gpt-oss-20b", 10, 131_072, 8192, 387_973),
        ("Gemma-3-4B", 10, 131_072, 2048, 424_487),
        ("Gemma-3-12B", 30, 32_768, 2048, 275_563),
        ("Olmo-3-7B", 20, 65_536, 2048, 119_092),
        ("Gemma-2-9B", 20, 8192, 2048, 62_347),
        ("Gemma-4-31B", 30, 65_536, 2048, 220_450),
        ("Gemma-4-26B-A4B", 20, 131_072, 2048, 753_370),
        ("Gemma-4-12B", 20, 32_768, 2048, 316_999),
        ("Gemma-4-E4B", 10, 131_072, 2048, 602_075),
        ("Gemma-4-E2B", 4, 32_768, 2048, 544_761),
        ("Laguna-S-2.1", 30, 262_144, 2048, 622_422),
    ],
)
def test_tokens_are_those_of_the_functions_of_vllm(
    preset: str, size: float, longest: int, chunk: int, at_two_steps: int
) -> None:
    """`get_kv_cache_groups`, `get_kv_cache_config_from_groups` and `get_kv_cache_capacity`.

    Of vLLM 0.33.0, with bf16, blocks of 16 tokens and 2 steps at a time, which is the low end.
    """
    found = cache(preset, longest=longest, chunk=chunk)
    pool = int(size * GIB)
    low, high = found.tokens(pool, pool)
    assert low == at_two_steps
    assert low <= high


def test_one_step_at_a_time_is_the_high_end() -> None:
    """The same functions print 459,354 with 1 step at a time."""
    found = cache("Gemma-3-4B", longest=131_072)
    assert found.tokens(10 * GIB, 10 * GIB)[1] == 459_354


@pytest.mark.parametrize(
    ("start", "size", "printed"),
    [
        (("Qwen3.5-35B-A3B", 4, 2, 65_536, (0, 27)), 15.08, 1_533_440),
        (("Qwen3.5-35B-A3B", 4, 1, 65_536, (0, 27)), 15.08, 2_973_944),
        (("Qwen3.5-35B-A3B", 4, 2, 262_144, (0, 27)), 10.44, 1_086_849),
        (("Qwen3.5-27B", 1, 2, 4096, (0, 27)), 41.03, 292_522),
        (("Qwen3.5-27B", 4, 2, 32_768, (0, 19)), 7.00, 114_464),
        (("Qwen3.5-27B", 4, 2, 50_000, (0, 19)), 7.56, 123_088),
    ],
)
def test_states_of_linear_attention_take_blocks_as_public_logs_show(
    start: tuple[str, int, int, int, tuple[int, int]], size: float, printed: int
) -> None:
    """Rows V077, V074, V096, V039, V032 and V034 of benchmarks/serving/logs.csv."""
    preset, cards, each, longest, version = start
    found = cache(preset, cards, each=each, longest=longest, version=version)
    pool = (size - 0.005) * GIB, (size + 0.005) * GIB
    low, high = found.tokens(round(pool[0]), round(pool[1]))
    assert low <= printed <= high
    assert min(abs(low - printed), abs(high - printed)) < 0.002 * printed


def test_the_longest_request_fits_and_the_next_block_does_not() -> None:
    found = cache("Gemma-3-12B", longest=131_072)
    longest = found.longest_in(4 * GIB)
    assert found.bytes_of(longest) <= 4 * GIB < found.bytes_of(longest + 16)
    assert found.longest_in(0) == 0
    assert found.longest_in(1000 * GIB) == 131_072
