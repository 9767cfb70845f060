"""Real programs that share one phantom card, compared with the prediction.

`ALLOCSIM_TORCH_PYTHON=PYTHON make test-slow` runs this with any PyTorch that has transformers.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.colocated.__main__ import CASES, Lab
from tests.pythons import NEEDS_TORCH, PYTHONS

NAMED = {case.name: case for case in CASES}


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("name", ["the same on 7 GiB", "train + serve, no workspaces"])
def test_peak_of_the_card_and_failing_phase_are_as_predicted(name: str, tmp_path: Path) -> None:
    case, lab = NAMED[name], Lab(PYTHONS[0], tmp_path)
    predicted, (peak, failed) = lab.predict(case).run, lab.run(case)
    assert predicted.peak == peak
    assert failed == (None if predicted.failure is None else predicted.failure.phase)
    assert (failed is None) is (case.memory > 7 << 30)
