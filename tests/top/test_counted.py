"""Categories beside what programs counted of themselves (traces/counted/programs.py).

Each program looked its parameters, buffers, gradients, optimizer state and caches up where PyTorch
keeps them, a block for each storage, while real PyTorch ran it.  They are told here from nothing
but the recording.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from allocsim import load, top
from allocsim.questions.top import Top
from allocsim.trace import Recording

FOLDER = Path(__file__).parents[2] / "traces" / "counted"
COUNTED: dict[str, list[dict[str, Any]]] = json.loads((FOLDER / "counted.json").read_text())
NAMES = ("parameters", "buffers", "gradients", "optimizer state", "caches")
MOST = 3
"""Moments of a program that are asked for one by one."""


@lru_cache(maxsize=1)
def recording(name: str) -> Recording:
    return load(FOLDER / f"{name}.npz.gz")


def moments(name: str) -> list[dict[str, Any]]:
    """Some of the moments at which a program counted, spread over the run, the last among them."""
    every = COUNTED[name]
    return every[:: -(-len(every) // MOST)] + every[-1:]


def answer(name: str, moment: dict[str, Any]) -> Top:
    return top(recording(name), moment["entry"] - 1, by="category")


def test_the_programs_are_of_twelve_kinds() -> None:
    assert len(COUNTED) == 12


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_categories_are_what_the_program_counted(name: str) -> None:
    for moment in moments(name):
        told = answer(name, moment)
        assert told.allocated_bytes == moment["allocated"]
        categories = {each: told.categories.get(each, 0) for each in NAMES}
        counted = {each: moment[each] for each in NAMES}
        if moment["what"] == "within backward":
            # What is made and not yet handed over to its parameter is one all the same.
            assert categories.pop("gradients") >= counted.pop("gradients")
        assert categories == counted, moment


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COUNTED))
def test_so_are_they_at_every_moment(name: str) -> None:
    for moment in COUNTED[name]:
        told = answer(name, moment)
        for each in NAMES:
            if (moment["what"], each) != ("within backward", "gradients"):
                assert told.categories.get(each, 0) == moment[each], (moment, each)


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_next_to_nothing_is_unknown_at_the_peak(name: str) -> None:
    told = top(recording(name), "peak", by="category")
    assert told.categories.get("unknown", 0) < 0.05 * told.allocated_bytes
