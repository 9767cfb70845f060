"""Largest value of one size at several values of another; a failing run proves each result."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from allocsim import CachingAllocator
from allocsim.errors import ConfigError
from allocsim.fitting import Frontier, Task, frontier, largest, model_of, usual_values
from allocsim.phantom import Gpu
from allocsim.units import GIB, MIB
from tests.fitting.conftest import Pretended

Pretend = Callable[..., Pretended]
CARD = Gpu("a card", 16 * GIB)


def tokens(allocator: CachingAllocator, program: str) -> int:
    """Play 1 GiB, and 2 MiB for each 16 tokens of a batch."""
    found = re.search(r"\((\d+), (\d+)\), device", program)
    assert found is not None
    allocator.malloc(GIB)
    allocator.malloc(int(found[1]) * int(found[2]) // 16 * 2 * MIB)
    return 0


def task(**more: int) -> Task:
    return Task(model=model_of("Llama-3.2-1B"), **more)  # type: ignore[arg-type]


def largest_of(found: Frontier) -> dict[int, int]:
    return {value: row.value for value, row in found.rows}


def test_frontier_row_and_the_next_value_have_run(pretend: Pretend) -> None:
    pretend(tokens)
    found = frontier(task(), "batch", "seq", CARD)
    assert largest_of(found) == {512: 240, 1024: 120, 2048: 60}
    assert found.fits
    for _, row in found.rows:
        assert row.fitting is not None
        assert row.failing is not None
        assert {each.value: each.fits for each in row.tried}[row.value + 1] is False


def test_frontier_starts_a_row_where_earlier_ones_predict(pretend: Pretend) -> None:
    pretend(tokens)
    found = frontier(task(), "batch", "seq", CARD, values=(1024, 512, 4096))
    assert [len(row.tried) for _, row in found.rows] == [4, 2, 2]
    other_way = frontier(task(), "seq", "batch", CARD, values=(2, 8))
    assert largest_of(other_way) == {2: 61_440 + 7, 8: 15_360 + 1}
    assert [len(row.tried) for _, row in other_way.rows][1] <= 4


def test_first_guess_ignores_the_optimizers_peak_at_a_small_batch(pretend: Pretend) -> None:
    """Up to a batch of 30 the peak is in the optimizer's step, whatever the batch is."""

    def training(allocator: CachingAllocator, program: str) -> int:
        batch, _ = map(int, re.findall(r"\((\d+), (\d+)\), device", program)[0])
        model = allocator.malloc(GIB)
        for _step in range(4):
            for size in (batch * 300 * MIB, 9 * GIB):
                parts = [allocator.malloc(size // 30) for _ in range(30)]
                for part in parts:
                    allocator.free(part)
                allocator.empty_cache()
        allocator.free(model)
        return 0

    pretend(training)
    found = largest(task(), "batch", CARD)
    assert found.value == 51
    assert len(found.tried) == 4, "two without a limit, then the place itself"


def test_search_corrects_a_guess_that_misses_by_a_little(pretend: Pretend) -> None:
    """Long sequences take slightly less, or slightly more, than their tokens suggest."""
    for more in (-2, 2):

        def bent(allocator: CachingAllocator, program: str, more: int = more) -> int:
            found = re.search(r"\((\d+), (\d+)\), device", program)
            assert found is not None
            batch, seq = int(found[1]), int(found[2])
            allocator.malloc(batch * (seq // 8 + (seq > 600) * more) * MIB)
            return 0

        pretend(bent)
        found = frontier(task(), "batch", "seq", CARD, values=(512, 1024))
        assert largest_of(found) == {512: 256, 1024: 16384 // (128 + more)}
        assert len(found.rows[1][1].tried) == 4


def test_frontier_has_a_row_where_nothing_fits(pretend: Pretend) -> None:
    pretend(tokens)
    found = frontier(task(), "batch", "seq", CARD, values=(1024, 1 << 17))
    assert largest_of(found) == {1024: 120, 1 << 17: 0}
    assert found.fits
    assert not frontier(task(), "batch", "seq", Gpu("small", GIB), values=(512, 1024)).fits


def test_frontier_of_unrelated_sizes_starts_at_the_last_result(pretend: Pretend) -> None:
    pretend(tokens)
    found = frontier(task(), "batch", "lora", CARD, values=(4, 8))
    assert largest_of(found) == {4: 120, 8: 120}
    assert [len(row.tried) for _, row in found.rows] == [4, 2]


def test_usual_values_are_half_the_same_and_twice() -> None:
    assert usual_values(task(seq=2048), "seq") == (1024, 2048, 4096)
    assert usual_values(Task(model=model_of("gpt2")), "seq") == (512, 1024)
    assert usual_values(task(), "batch") == (1, 2)


def test_frontier_names_another_release_once(pretend: Pretend) -> None:
    pretend(tokens)
    found = frontier(task(), "batch", "seq", CARD, values=(512, 1024), torch_version="2.11")
    assert len([note for note in found.notes if "is not installed" in note]) == 1


@pytest.mark.parametrize("pair", [("batch", "batch"), ("batch", "steps"), ("gpus", "seq")])
def test_frontier_refuses_equal_or_unknown_sizes(pair: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="expected two of batch, seq, image"):
        frontier(task(), *pair, CARD)
