"""Sizes that kernels derive, compared with real PyTorch over the phantom GPU."""

from __future__ import annotations

import pytest

from allocsim.fitting.laws import (
    Card,
    Serving,
    attention_splits,
    prompt_regime,
    regime_of,
    step_regime,
    variables_of,
)

A100 = Card((8, 0), 108, 2048)
QWEN = {
    "hidden": 896, "intermediate": 4864, "heads": 14, "kv_heads": 2, "head_dim": 64,
    "vocabulary": 151936, "batch": 1, "length": 512,
}  # fmt: skip


@pytest.mark.parametrize(
    ("length", "splits"),
    [(256, 1), (384, 2), (512, 1), (768, 1)],
)
def test_attention_takes_the_keys_apart_where_that_fills_the_card(length: int, splits: int) -> None:
    """The program is one sequence on Qwen2.5-0.5B on an A100: 384 tokens only."""
    assert attention_splits({**QWEN, "length": length}, 108) == splits


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "bytes_"),
    [
        (3073, 5000, 55295), (3584, 5000, 62975), (4096, 5000, 72191), (8192, 5000, 138751),
        (65536, 5000, 1071615), (3776, 149670, 68095), (4105, 136590, 74751),
        (3368, 34784, 59903), (16268, 133367, 272383),
    ],
)  # fmt: skip
def test_the_storage_of_a_sort(tokens: int, vocabulary: int, bytes_: int) -> None:
    sizes = {**QWEN, "length": tokens, "vocabulary": vocabulary}
    assert variables_of(sizes, A100)["sort_storage"] == bytes_


@pytest.mark.parametrize(
    ("tokens", "choices", "experts", "types"),
    [
        (1152, 1, 1, 1), (1153, 43_007, 55_295, 1), (2500, 87_039, 99_327, 3583),
        (32_768, 1_071_615, 1_083_903, 11_775), (32_769, 1_072_127, 1_084_415, 11_775),
    ],
)  # fmt: skip
def test_the_storage_of_sorts_by_expert_and_by_type(
    tokens: int, choices: int, experts: int, types: int
) -> None:
    """A token has two experts; a single block sorts 2,304 indices without storage."""
    found = variables_of({**QWEN, "length": tokens, "chosen": 2}, A100)
    assert found["choices_sort_storage"] == choices
    assert found["experts_sort_storage"] == experts
    assert found["types_sort_storage"] == types


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "sums"),
    [
        (4096, 30522, 2), (8192, 30522, 4), (16384, 30522, 8), (30000, 30522, 15), (4000, 20002, 3),
        (9000, 5002, 11), (6000, 43182, 3),
    ],
)  # fmt: skip
def test_a_vocabulary_that_four_do_not_divide_is_summed_two_columns_at_a_time(
    tokens: int, vocabulary: int, sums: int
) -> None:
    sizes = {**QWEN, "batch": tokens // 8, "length": 8, "vocabulary": vocabulary}
    assert variables_of(sizes, A100)["vocabulary_in_twos_partial_sums"] == sums
    assert variables_of(sizes, A100)["vocabulary_in_twos_by_64"] == -(-vocabulary // 64)


@pytest.mark.parametrize(
    ("hidden", "patch", "checked"),
    [(768, 16, 72), (1024, 16, 96), (384, 28, 111), (768, 32, 288), (3000, 32, 432)],
)
def test_weights_of_patches_are_checked_by_as_many_blocks_as_fill_the_card(
    hidden: int, patch: int, checked: int
) -> None:
    sizes = {**QWEN, "hidden": hidden, "patch": patch}
    assert variables_of(sizes, A100)["patch_weights_checked"] == checked


@pytest.mark.parametrize(
    ("hidden", "length", "blocks"), [(192, 65, 2), (768, 197, 19), (768, 257, 25), (9000, 785, 432)]
)
def test_positions_of_an_image_are_checked_by_as_many_blocks_as_fill_the_card(
    hidden: int, length: int, blocks: int
) -> None:
    sizes = {**QWEN, "hidden": hidden, "length": length, "patch": 16}
    assert variables_of(sizes, A100)["patch_positions_checked"] == blocks


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "bytes_"), [(25_088, 12_423, 11_131_008), (6144, 9711, 2_486_016)]
)
def test_an_odd_vocabulary_is_summed_one_column_at_a_time(
    tokens: int, vocabulary: int, bytes_: int
) -> None:
    sizes = {**QWEN, "batch": tokens // 8, "length": 8, "vocabulary": vocabulary}
    sums = variables_of(sizes, A100)["vocabulary_in_ones_partial_sums"]
    assert 128 * vocabulary * sums == bytes_


BERT = {"hidden": 768, "heads": 12, "kv_heads": 12, "head_dim": 64, "output_bias": 1}


@pytest.mark.parametrize(
    ("batch", "length", "vocabulary", "end"),
    [
        (4, 255, 28996, "few.own.whole"), (4, 256, 28996, "two.own.whole.fours"),
        (4, 510, 30522, "two.own.whole"), (4, 511, 30522, "two.own.whole.twos"),
        (64, 512, 30521, "sorted.own.whole"), (16, 512, 57514, "sorted.own.whole"),
        (8, 510, 12423, "sorted.own.whole"), (64, 392, 12423, "sorted.own.whole.ones"),
        (128, 512, 30522, "sorted.own.whole.twos.parts"),
    ],
)  # fmt: skip
def test_the_way_to_sum_a_vocabularys_biases(
    batch: int, length: int, vocabulary: int, end: str
) -> None:
    sizes = {**BERT, "batch": batch, "length": length, "vocabulary": vocabulary}
    assert regime_of(sizes, A100) == f"several.{end}"


def test_the_way_through_experts_patches_and_windows() -> None:
    sizes = {**QWEN, "batch": 2, "length": 1024, "chosen": 2}
    assert regime_of(sizes, A100) == "several.two.shared.whole"
    assert regime_of({**sizes, "length": 1025}, A100) == "several.two.shared.whole.many"
    assert regime_of({**sizes, "chosen": 1}, A100) == "several.two.shared.whole.one"
    assert regime_of({**sizes, "window": 99}, A100, 8) == "several.two.shared.masked.window"
    vit = {"hidden": 768, "heads": 12, "head_dim": 64, "patch": 16, "batch": 64, "length": 197}
    assert regime_of(vit, A100) == "several.sorted.own.whole"
    assert regime_of({**vit, "batch": 1021}, A100) == "several.crowd.own.whole"
    assert regime_of({**vit, "batch": 333}, A100) == "several.crowd.own.whole"
    assert regime_of({**vit, "intermediate": 99_999}, A100) == "several.sorted.own.whole.parts"
    assert regime_of({**vit, "hidden": 170}, A100) == "several.sorted.own.whole.narrow"
    assert regime_of({**vit, "hidden": 171}, A100) == "several.sorted.own.whole"
    named = {**vit, "vocabulary": 1000, "length": 50}
    assert regime_of({**named, "hidden": 2611}, A100) == "several.sorted.own.whole.narrow"
    assert regime_of({**named, "hidden": 2612}, A100) == "several.sorted.own.whole"


@pytest.mark.parametrize(
    ("tokens", "rows", "scan", "rows_scan"),
    [(14336, 133367, 1279, 1279), (14337, 133367, 1279, 1535), (28673, 133367, 1535, 1791),
     (21504, 5000, 1279, 1279), (21505, 5000, 1535, 1279), (43009, 5000, 1791, 1279)],
)  # fmt: skip
def test_the_storage_of_scans(tokens: int, rows: int, scan: int, rows_scan: int) -> None:
    found = variables_of({**QWEN, "length": tokens, "vocabulary": rows}, A100)
    assert (found["scan_storage"], found["rows_scan_storage"]) == (scan, rows_scan)


@pytest.mark.parametrize(
    ("tokens", "hidden", "sums"),
    [(3776, 4992, 45), (4105, 4480, 50), (3818, 4096, 54), (3840, 3840, 58), (3368, 3584, 53),
     (4352, 1024, 68), (4874, 3072, 72)],
)  # fmt: skip
def test_partial_sums_fill_the_card_and_no_more(tokens: int, hidden: int, sums: int) -> None:
    sizes = {**QWEN, "hidden": hidden, "length": tokens}
    assert variables_of(sizes, A100)["hidden_partial_sums"] == sums


def test_a_workspace_is_larger_from_hopper_on() -> None:
    assert variables_of(QWEN, A100)["workspace"] == 8_519_680
    assert variables_of(QWEN, Card((9, 0), 132, 2048))["workspace"] == 32 << 20


@pytest.mark.parametrize(
    ("changed", "regime"),
    [
        ({}, "single.few.shared.whole"),
        ({"length": 384}, "single.few.shared.split"),
        ({"batch": 2, "length": 510}, "several.few.shared.whole"),
        ({"batch": 2, "length": 511}, "several.two.shared.whole"),
        ({"length": 3072}, "single.two.shared.whole"),
        ({"length": 3073}, "single.sorted.shared.whole"),
        ({"kv_heads": 14}, "single.few.own.whole"),
        ({"kv_heads": 1}, "single.few.one.whole"),
        ({"length": 3073, "positions": 4096}, "single.long.shared.whole"),
    ],
)
def test_where_another_way_through_the_kernels_begins(changed: dict[str, int], regime: str) -> None:
    assert regime_of({**QWEN, **changed}, A100) == regime


@pytest.mark.parametrize(
    ("length", "head_dim", "bytes_"),
    [(187, 128, 131136), (120, 128, 65568), (64, 96, 65568), (92, 64, 32800), (144, 64, 49200)],
)
def test_the_workspace_of_memory_efficient_attention(
    length: int, head_dim: int, bytes_: int
) -> None:
    found = variables_of({**QWEN, "length": length, "head_dim": head_dim}, A100)
    assert found["gradient_workspace"] == bytes_


@pytest.mark.parametrize(("batch", "length", "sums"), [(16, 2852, 45), (7, 2640, 19)])
def test_no_partial_sum_is_of_more_than_1024_tokens(batch: int, length: int, sums: int) -> None:
    sizes = {**QWEN, "batch": batch, "length": length, "intermediate": 15424}
    assert variables_of(sizes, A100)["intermediate_partial_sums"] == sums


@pytest.mark.parametrize(
    ("heads", "batch", "cached", "splits", "on_4090"),
    [
        ((32, 8, 64), 1, 256, 1, 1), ((32, 8, 64), 1, 257, 2, 2), ((32, 8, 64), 1, 1000, 4, 4),
        ((32, 8, 64), 4, 3001, 6, 6), ((28, 4, 128), 1, 257, 3, 3), ((28, 4, 128), 4, 3001, 12, 12),
        ((40, 40, 128), 4, 3001, 4, 3), ((64, 8, 128), 4, 3001, 6, 8),
        ((18, 2, 96), 4, 3001, 24, 24),
    ],
)  # fmt: skip
def test_one_token_takes_the_keys_apart_by_heads_of_keys(
    heads: tuple[int, int, int], batch: int, cached: int, splits: int, on_4090: int
) -> None:
    """One token has a query per head.

    heads: number of heads, number of key heads, and size of a head.
    """
    sizes = dict(zip(("heads", "kv_heads", "head_dim"), heads, strict=True))
    sizes |= {"batch": batch, "length": cached}
    assert attention_splits(sizes, 108, is_step=True) == splits
    assert attention_splits(sizes, 128, is_step=True) == on_4090


@pytest.mark.parametrize(
    ("batch", "parts", "on_4090"),
    [(1, 19, 19), (16, 19, 19), (24, 18, 16), (32, 14, 12), (64, 7, 6), (100, 5, 4), (256, 2, 2)],
)
def test_a_token_of_a_large_vocabulary_is_chosen_in_parts(
    batch: int, parts: int, on_4090: int
) -> None:
    sizes = {**QWEN, "batch": batch}
    assert variables_of(sizes, A100)["choice_parts"] == parts
    assert variables_of(sizes, Card((8, 9), 128, 1536))["choice_parts"] == on_4090


@pytest.mark.parametrize(
    ("changed", "is_fused", "prompt", "step"),
    [
        ({}, True, "single.shared.whole.parts", "single.shared.split.parts"),
        ({}, False, "single.shared.whole.parts", "single.shared.whole.parts"),
        ({"length": 256}, True, "single.shared.whole.parts", "single.shared.whole.parts"),
        ({"length": 384}, True, "single.shared.split.parts", "single.shared.split.parts"),
        ({"batch": 4, "kv_heads": 14}, True, "several.own.whole.parts", "several.own.split.parts"),
        (
            {"vocabulary": 130_560},
            True,
            "single.shared.whole.at-once",
            "single.shared.split.at-once",
        ),
        ({"length": 1}, True, "one token", "single.shared.whole.parts"),
        ({"head_dim": 80}, True, "heads of 80", "heads of 80"),
    ],
)
def test_a_prompt_and_a_step_have_ways_of_their_own(
    changed: dict[str, int], is_fused: bool, prompt: str, step: str
) -> None:
    sizes = {**QWEN, **changed}
    assert prompt_regime(sizes, A100, is_fused=is_fused) == prompt
    assert step_regime(sizes, A100, is_fused=is_fused) == step


def test_a_window_holds_the_keys_of_a_step_and_is_no_way_of_eager_attention() -> None:
    """The model is Gemma 2, whose heads of 256 were recorded only with eager attention."""
    sizes = {**QWEN, "length": 300, "window": 128, "head_dim": 256}
    assert variables_of(sizes, A100, is_step=True)["windowed"] == 128
    assert variables_of({**sizes, "window": 500}, A100)["windowed"] == 300
    assert variables_of({**sizes, "window": 0}, A100)["windowed"] == 300
    assert regime_of(sizes, A100, 1) == "single.few.shared.masked"
    for way in (prompt_regime, step_regime):
        assert way(sizes, A100, is_fused=False) == "heads of 256"
        assert way(sizes, A100, is_fused=False, is_eager=True) == "single.shared.whole.parts"


def test_steps_pass_from_one_way_to_another_as_the_cache_grows() -> None:
    serving = Serving({**QWEN, "length": 255}, A100, is_fused=True, decode=3, requests=2)
    single = "single.shared"
    of_one = [
        (f"step.{single}.whole.parts", 256), (f"after.{single}.whole.parts", 256),
        (f"step.{single}.split.parts", 257), (f"after.{single}.split.parts", 257),
        (f"step.{single}.split.parts", 258),
    ]  # fmt: skip
    assert serving.names == [
        ("make.default", 255), (f"start.{single}.whole.parts", 255), *of_one,
        (f"between.{single}.whole.parts", 255), *of_one,
        ("end.default", 255),
    ]  # fmt: skip


def test_only_the_token_of_a_step_chooses_experts() -> None:
    sizes = {**QWEN, "experts": 8, "chosen": 2, "batch": 4, "length": 1024}
    prompt, step = (variables_of(sizes, A100, is_step=each) for each in (False, True))
    assert prompt["chosen_sort_storage"] > step["chosen_sort_storage"] == 1
    assert prompt_regime(sizes, A100, is_fused=True).endswith(".many")
    assert not step_regime(sizes, A100, is_fused=True).endswith(".many")
    assert prompt_regime({**sizes, "chosen": 1}, A100, is_fused=True).endswith(".one")
