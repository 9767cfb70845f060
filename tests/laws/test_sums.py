"""Temporary memory of Adafactor's sums, as real PyTorch requested it over the phantom GPU."""

from __future__ import annotations

import pytest

from allocsim.fitting.laws import Card, factored_way, variables_of

A100 = Card((8, 0), 108, 2048)
LLAMA_1B = {
    "hidden": 2048, "intermediate": 8192, "heads": 32, "kv_heads": 8, "head_dim": 64,
    "vocabulary": 128_256, "batch": 2, "length": 700, "factored": 2,
}  # fmt: skip
TALL = "tall-queries-attended-gate-down-embedding"


@pytest.mark.parametrize(
    ("rows", "columns", "bytes_"),
    [
        (1020, 1024, 0), (1021, 1024, 8_388_608), (2048, 2048, 33_554_432),
        (4864, 896, 34_865_152), (14336, 4096, 113_246_208), (4096, 14336, 117_440_512),
        (1021, 1000, 8_192_000), (5000, 900, 36_403_200),
    ],
)  # fmt: skip
def test_columns_of_a_tall_matrix_are_summed_in_two_passes(
    rows: int, columns: int, bytes_: int
) -> None:
    found = variables_of({**LLAMA_1B, "intermediate": rows, "hidden": columns}, A100)
    assert found["gate_column_storage"] == bytes_


@pytest.mark.parametrize(
    ("vocabulary", "hidden", "parts", "row_parts"),
    [(128_256, 2048, 2004, 0), (151_936, 896, 1039, 19), (130_561, 64, 432, 16), (512, 200, 0, 0)],
)
def test_a_sum_of_many_numbers_is_made_by_blocks_that_fill_the_card(
    vocabulary: int, hidden: int, parts: int, row_parts: int
) -> None:
    found = variables_of({**LLAMA_1B, "vocabulary": vocabulary, "hidden": hidden}, A100)
    assert (found["embedding_parts"], found["row_parts"]) == (parts, row_parts)


@pytest.mark.parametrize(
    ("changed", "way"),
    [
        ({}, TALL),
        ({"kv_heads": 32}, "tall-queries-keys-attended-gate-down-embedding"),
        ({"vocabulary": 151_936}, f"{TALL}.rows"),
        ({"kv_heads": 1, "head_dim": 32, "hidden": 2080, "heads": 65}, f"{TALL}.small-keys"),
        ({"intermediate": 5001}, f"{TALL}.odd"),
        ({"intermediate": 524_284}, TALL),
        ({"intermediate": 524_288}, f"{TALL}.parts"),
        ({"factored": 4, "intermediate": 300_000}, f"{TALL}.parts"),
        ({"positions": 1024, "hidden": 768, "heads": 12, "kv_heads": 12, "intermediate": 3072},
         "tall-gate-embedding-places"),
    ],
)  # fmt: skip
def test_which_sums_take_two_passes_is_named(changed: dict[str, int], way: str) -> None:
    assert factored_way({**LLAMA_1B, **changed}) == way
