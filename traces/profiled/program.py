"""Small training run under PyTorch's profiler, written in every form that reports memory.

    python traces/profiled/program.py FOLDER [cuda|cpu]

It runs unchanged on a GPU, and without one under `allocsim record --`.  Events of the CPU come from
no allocator that allocsim models; a trace of them shows the reader's error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn


def step(model, optimizer, batch) -> None:
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def main(folder: str, device: str = "cuda") -> None:
    out = Path(folder)
    out.mkdir(exist_ok=True)
    is_gpu = device == "cuda"
    if is_gpu:
        torch.cuda.memory._record_memory_history(max_entries=100_000)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        profile_memory=True,
        record_shapes=True,
        with_stack=True,
    ) as profiler:
        model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for length in (64, 200, 128):
            step(model, optimizer, torch.zeros(length, 512, device=device))
    profiler.export_chrome_trace(str(out / "trace.json"))
    for name in ("timeline.raw.json.gz", "timeline.json"):
        profiler.export_memory_timeline(str(out / name), device="cuda:0" if is_gpu else "cpu")
    if is_gpu:
        from torch.cuda._memory_viz import trace_plot

        snapshot = torch.cuda.memory._snapshot()
        (out / "summary.txt").write_text(torch.cuda.memory_summary())
        (out / "trace_plot.html").write_text(trace_plot(snapshot))
        (out / "segments.json").write_text(json.dumps(snapshot["segments"]))
        torch.cuda.memory._dump_snapshot(str(out / "snapshot.pickle"))
        (out / "stats.json").write_text(json.dumps(torch.cuda.memory_stats()))
        late(model, optimizer, out)


def late(model, optimizer, out: Path) -> None:
    """Write a trace that begins in the middle of the run and frees earlier blocks."""
    before = [torch.zeros(300, 512, device="cuda") for _ in range(3)]
    torch.cuda.reset_peak_memory_stats()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        while before:
            step(model, optimizer, before.pop())
    profiler.export_chrome_trace(str(out / "late.json"))
    torch.cuda.memory._dump_snapshot(str(out / "late.pickle"))
    (out / "late-stats.json").write_text(json.dumps(torch.cuda.memory_stats()))


def warm_up() -> None:
    """Trigger lazy imports, which would be 400 MB of calls in a trace of 2.2."""
    model = nn.Linear(8, 8)
    step(model, torch.optim.AdamW(model.parameters(), foreach=False), torch.zeros(8, 8))


warm_up()
main(*sys.argv[1:])
