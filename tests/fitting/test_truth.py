"""Programs of `fit` compared with independent runs of real PyTorch.

The slow tests need a Python with PyTorch, transformers, peft and torchvision in
ALLOCSIM_TORCH_PYTHON; `python -m benchmarks.truth` runs every row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from allocsim.fitting import Fit, fit, program_of
from allocsim.fitting.laws import TRANSFORMERS
from benchmarks.truth import gpu_of, has_cudnn_attention, rows, run, task_of
from tests.pythons import NEEDS_TORCH, python_of

SOME = ("a100-001-clean", "a100-011", "a100-053", "a100-074", "4090-006", "4090-010", "h100-002")


def test_every_row_is_a_task_on_a_card(tmp_path: Path) -> None:
    assert len(rows()) == 100
    for row in rows():
        task = task_of(row, tmp_path)
        assert task.model.name in (row["model"], row["id"])
        compile(program_of(task), row["id"], "exec")
        assert gpu_of(row).memory > row["peak_reserved"] > row["peak_allocated"]


def test_cudnn_attention_is_preferred_for_the_rows_of_hopper_cards() -> None:
    preferring = {row["id"] for row in rows() if has_cudnn_attention(row)}
    assert preferring == {row["id"] for row in rows() if row["card"] == "H100"}


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("row", [row for row in rows() if row["id"] in SOME], ids=str)
def test_run_program_equals_the_recorded_bytes(row: dict[str, Any]) -> None:
    ran = run(row, python_of("2.15", TRANSFORMERS[0]))
    assert ran.peak_allocated_bytes == row["peak_allocated"]
    assert ran.peak_reserved_bytes == row["peak_reserved"]
    assert ran.is_out_of_memory == ("oom_in_step" in row)
    assert ran.device_run.fidelity is not None
    assert ran.device_run.fidelity.is_exact


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("row", [row for row in rows() if "oom_in_step" in row], ids=str)
def test_task_that_runs_out_of_memory_is_answered_by_one_run(
    row: dict[str, Any], tmp_path: Path
) -> None:
    found = fit(
        task_of(row, tmp_path),
        gpu_of(row),
        engine="program",
        python=python_of("2.15", TRANSFORMERS[0]),
        values=False,
    )
    there = run(row, python_of("2.15", TRANSFORMERS[0]))
    assert isinstance(found, Fit)
    assert found.unlimited is not None
    assert found.ran.peak_allocated_bytes == row["peak_allocated"]
    assert found.ran.peak_reserved_bytes == row["peak_reserved"]
    assert found.ran.oom is not None
    assert there.oom is not None
    assert found.ran.oom.message == there.oom.message
