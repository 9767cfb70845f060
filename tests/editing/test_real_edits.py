"""Edits of real PyTorch programs, run with the edit in their source on a phantom GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim.editing import edit_devices
from allocsim.replaying import prepare, replay_prepared
from benchmarks.edits.__main__ import EDITS, PROGRAMS, recorded
from tests.pythons import NEEDS_TORCH, PYTHONS

pytestmark = [pytest.mark.slow, NEEDS_TORCH]


@pytest.mark.parametrize("program", PROGRAMS)
def test_predicted_peaks_are_those_of_the_edited_source(program: str, tmp_path: Path) -> None:
    devices = prepare(recorded(program, (), PYTHONS[0], tmp_path))
    edits = EDITS if program == "prefetch" else EDITS[:-2]
    wrong = []
    for edit in edits:
        (real,) = replay_prepared(prepare(recorded(program, (edit,), PYTHONS[0], tmp_path))).devices
        (run,) = replay_prepared(edit_devices(devices, [edit])).devices
        if run.peak_reserved_bytes != real.peak_reserved_bytes:
            wrong.append((edit, real.peak_reserved_bytes, run.peak_reserved_bytes))
    assert not wrong
