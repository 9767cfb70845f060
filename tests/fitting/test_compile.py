"""`--compile` completes: Inductor generates kernels for a card that does not exist.

The test takes a minute and needs a C compiler, and a Python with PyTorch, transformers and triton
in ALLOCSIM_TORCH_PYTHON.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from allocsim.fitting import Task, model_of, run_program
from allocsim.phantom import find_gpu
from tests.pythons import NEEDS_TORCH, PYTHONS


@pytest.mark.slow
@NEEDS_TORCH
def test_a_compiled_model_keeps_less_for_its_backward_pass(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    eager = Task(model=model_of(str(file)), batch=4, seq=512, steps=2)
    runs = [
        run_program(task, find_gpu("RTX 4090"), python=PYTHONS[0])
        for task in (eager, replace(eager, compiles=True))
    ]
    for ran in runs:
        assert not ran.is_out_of_memory
        assert ran.device_run.fidelity is not None
        assert ran.device_run.fidelity.is_exact
    assert runs[1].peak_allocated_bytes < runs[0].peak_allocated_bytes
