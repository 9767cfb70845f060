"""Compare categories with counts by the programs themselves (traces/counted/programs.py).

Each program looked up its parameters, buffers, gradients, optimizer state and caches in PyTorch,
one block per storage, while real PyTorch ran it.  Here they are inferred from the recording alone.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from allocsim import load, top
from allocsim.analysis.top import Top
from allocsim.recording import Recording

FOLDER = Path(__file__).parents[2] / "traces" / "counted"
COUNTED: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "counted.json").read_text())
NAMES = ("parameters", "buffers", "gradients", "optimizer state", "caches")
MOST = 3
"""Number of moments of each program that are checked."""


@lru_cache(maxsize=1)
def recording(name: str) -> Recording:
    return load(FOLDER / f"{name}.npz.gz")


def moments(name: str) -> list[dict[str, Any]]:
    """Return some of the moments at which a program counted, including the last."""
    every = COUNTED[name]
    return every[:: -(-len(every) // MOST)] + every[-1:]


def answer(name: str, moment: dict[str, Any]) -> Top:
    return top(recording(name), moment["entry"] - 1, by="category")


def test_the_programs_are_of_twelve_kinds() -> None:
    assert len(COUNTED) == 12


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_categories_at_the_peak_are_what_the_program_counted(name: str) -> None:
    for moment in moments(name):
        result = answer(name, moment)
        assert result.allocated_bytes == moment["allocated"]
        categories = {each: result.categories.get(each, 0) for each in NAMES}
        counted = {each: moment[each] for each in NAMES}
        if moment["what"] == "within backward":
            # A block that is not yet assigned to its parameter counts as well.
            assert categories.pop("gradients") >= counted.pop("gradients")
        assert categories == counted, moment


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COUNTED))
def test_categories_at_every_moment_are_what_the_program_counted(name: str) -> None:
    for moment in COUNTED[name]:
        result = answer(name, moment)
        for each in NAMES:
            if (moment["what"], each) != ("within backward", "gradients"):
                assert result.categories.get(each, 0) == moment[each], (moment, each)


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_hardly_any_memory_has_an_unknown_category_at_the_peak(name: str) -> None:
    result = top(recording(name), "peak", by="category")
    assert result.categories.get("unknown", 0) < 0.05 * result.allocated_bytes
