"""`gate` on real PyTorch over the phantom GPU: equal figures after five different warm-ups."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from allocsim import gate, load, measured
from allocsim.analysis.gate import read_baseline, write_baseline
from allocsim.phantom import Gpu, find_torch, phantom_environment
from allocsim.units import GIB
from tests.pythons import NEEDS_TORCH, PYTHONS

pytestmark = [pytest.mark.slow, NEEDS_TORCH]
ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, torch
from allocsim.capture import capture
torch.backends.cuda.enable_cudnn_sdp(False)
which, more = sys.argv[1], int(sys.argv[2])

def body(length, batch=4):
    x = torch.zeros(batch, length, 512, device="cuda")
    layers(x).float().square().mean().backward()
    for each in layers.parameters():
        each.grad = None

with capture(f"run-{which}-{more}.pickle", on="exit") as recording:
    layers = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(512, 8, batch_first=True), 3
    ).cuda()
    recording.step(1)
    body(64)  # what is made once, as workspaces, is there from now on
    if which == "long": body(900)
    elif which == "short": [body(length) for length in (10, 20, 30, 40)]
    elif which == "growing": [body(length, 2) for length in range(100, 700, 130)]
    elif which == "emptied": body(700), torch.cuda.empty_cache(), body(50)
    recording.step(2)
    body(256 + more)
"""
WARM_UPS = ("none", "long", "short", "growing", "emptied")


def record(python: str, folder: Path, which: str, more: int = 0) -> Path:
    environment = phantom_environment(find_torch(python), Gpu("a card", 24 * GIB))
    (folder / "program.py").write_text(PROGRAM)
    subprocess.run(
        [python, "program.py", which, str(more)],
        cwd=folder,
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    return folder / f"run-{which}-{more}-exit.pickle"


@pytest.mark.parametrize("python", PYTHONS)
def test_gate_of_real_runs_ignores_warm_up_and_fails_on_three_percent(
    python: str, tmp_path: Path
) -> None:
    found, recorded = set(), set()
    for which in WARM_UPS:
        recording = load(record(python, tmp_path, which))
        run = measured(recording, at=("step", "2"))
        found.add((run.peak_reserved_bytes, run.peak_allocated_bytes, run.peak_requested_bytes))
        whole = sum(segment.total_size for segment in recording.devices[0].segments)
        recorded.add(whole)
    assert len(found) == 1
    assert len(recorded) >= 3, "what was reserved at the end is another figure each time"
    write_baseline(tmp_path / "base.json", run)
    baseline = read_baseline(tmp_path / "base.json")
    more = measured(load(record(python, tmp_path, "long", 8)), at=("step", "2"))
    judged = gate(more, baseline=baseline, tolerance=0.01)
    assert 0.02 < more.peak_requested_bytes / baseline.peak_requested_bytes - 1 < 0.05
    assert not judged.passed
    assert any("program.py" in each.owner for each in judged.grown)
