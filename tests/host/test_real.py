"""The model gives the answers of real PyTorch, stored or from an interpreter with torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.core import find_release
from allocsim.phantom import find_torch
from allocsim.verify import CrossCheck, InstalledSource, crosscheck
from allocsim.verify.comparison import first_difference
from allocsim.verify.player import play_host
from tests.host.real import DATA, cases
from tests.pythons import NEEDS_TORCH, PYTHONS


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json.gz")), ids=lambda path: path.name)
def test_host_allocator_gives_the_answers_of_pytorch(path: Path) -> None:
    n_answers = 0
    for script, expected in cases(path):
        ours = play_host(script, expected.torch)
        assert first_difference(ours, expected) is None, script
        n_answers += len(expected.addresses) + len(expected.stats)
    assert n_answers > 3_000


@NEEDS_TORCH
@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_pinned_memory_agrees_with_an_interpreter(python: str) -> None:
    release = find_release(find_torch(python).version).version
    source = InstalledSource(release, python, is_host=True)
    report = crosscheck(CrossCheck((source,), seed=3_000_000, ops=20_000))
    assert report.divergence is None, report.divergence.as_test()
