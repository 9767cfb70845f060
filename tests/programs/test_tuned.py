"""Settings that `tune` recommends have the predicted peak, driver calls and retries in PyTorch.

Run with `ALLOCSIM_TORCH_PYTHON=PYTHON make test-slow`, as in test_programs.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim import load, replay, tune
from allocsim.phantom.gpu import Gpu
from allocsim.phantom.recorder import RecordedProgram, record
from allocsim.units import GIB
from tests.pythons import NEEDS_TORCH, python_of

pytestmark = [
    pytest.mark.slow,
    NEEDS_TORCH,
]
ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "traces" / "programs" / "gpt2_training.py"
DEFAULTS = ROOT / "traces" / "recordings" / "gpt2_training-default-torch2.15.npz.gz"
CARD = Gpu("allocsim phantom", 24 * GIB)
COUNTS = ("num_device_alloc", "num_device_free", "num_alloc_retries")


def test_the_front_is_what_real_pytorch_does(tmp_path: Path) -> None:
    """The programs make the same requests again, so the real runs decide."""
    found = tune(str(DEFAULTS), 24 * GIB)
    assert found.best is not None
    candidates = {row.conf: row for row in (found.best, *found.front)}
    assert len(candidates) > 1
    python = python_of("2.15")
    for number, (conf, row) in enumerate(list(candidates.items())[:4]):
        out = tmp_path / f"{number}.pickle"
        made = record(
            RecordedProgram((python, str(PROGRAM)), out, CARD, conf, output_to_stderr=True)
        )
        assert made.exit_code == 0
        (device,) = replay(load(out)).devices  # matches PyTorch exactly
        assert device.fidelity is not None
        assert device.fidelity.is_exact
        real = {name: device.stats[name] for name in COUNTS}
        assert device.peak_reserved_bytes == row.peak_reserved_bytes, conf
        assert real == {name: getattr(row, name) for name in COUNTS}, conf
