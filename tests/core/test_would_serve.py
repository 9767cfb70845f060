"""`would_serve` and `served_once_free` agree with a request after the free."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from allocsim.core import (
    Block,
    CachingAllocator,
    allocated_block,
    finds_free_block,
    served_once_free,
    would_serve,
)
from allocsim.units import KIB, MIB

SIZES = (2 * KIB, 600 * KIB, 3 * MIB, 12 * MIB, 21 * MIB, 22 * MIB, 40 * MIB)
CONFS = (
    "",
    "max_split_size_mb:24",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:21",
    "expandable_segments:True,max_split_size_mb:21,max_non_split_rounding_mb:40",
)


def made(seed: int, conf: str, torch: str) -> tuple[CachingAllocator, list[int]]:
    """Return an allocator in the middle of a program, and its blocks."""
    rng = random.Random(seed)
    a = CachingAllocator("3GiB", conf, torch)
    live: list[int] = []
    for _ in range(60):
        if rng.random() < 0.55 or not live:
            ptr = a.malloc(rng.choice(SIZES) + rng.choice((-512, 0, 512)))
            assert ptr is not None
            live.append(ptr)
        else:
            a.free(live.pop(rng.randrange(len(live))))
    return a, live


def serves(a: CachingAllocator, ptr: int, size: int) -> bool:
    """Return True if the block serves the request once it is free."""
    block = allocated_block(a, ptr)
    assert block is not None
    a.free(ptr)
    start = block.ptr  # including the blocks merged into it
    return finds_free_block(a, size, 0) and a.malloc(size) == start


Case = tuple[CachingAllocator, Block, int, Callable[[], tuple[CachingAllocator, int]]]


def cases(conf: str, torch: str) -> Iterator[Case]:
    """Yield allocators, a block of each, the size of a request, and a function that makes a twin.

    The function returns the address of the block in the twin as well.
    """
    for seed in range(12):
        a, live = made(seed, conf, torch)
        for at, size in zip(range(len(live)), SIZES * 9, strict=False):
            block = allocated_block(a, live[at])
            assert block is not None

            def twin(seed: int = seed, at: int = at) -> tuple[CachingAllocator, int]:
                other, same = made(seed, conf, torch)
                return other, same[at]

            yield a, block, size, twin
        a.check()


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("torch", ["2.11", "2.12", "2.15"])
def test_it_would_where_it_does(conf: str, torch: str) -> None:
    answers = []
    for a, block, size, twin in cases(conf, torch):
        said = would_serve(a, block, size, 0)
        assert serves(*twin(), size) is said
        answers.append(said)
    assert {*answers} == {True, False}


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("torch", ["2.11", "2.12", "2.15"])
def test_once_it_is_free_a_request_is_served_or_not(conf: str, torch: str) -> None:
    """By that block, another, or none: the merged block may be oversize for the request."""
    answers = []
    for a, block, size, twin in cases(conf, torch):
        for stream in (0, 4096):
            before = finds_free_block(a, size, stream)
            said = served_once_free(a, block, size, stream)
            other, ptr = twin()
            other.free(ptr)
            assert finds_free_block(other, size, stream) is said
            answers.append((before, said))
    takes_away = "expandable" in conf and "max_split_size_mb" in conf
    assert {*answers} >= {(True, True), (False, False), (False, True)}
    assert ((True, False) in answers) is takes_away
