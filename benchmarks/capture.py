"""Measure the time that a capture costs: per training step, per allocation and per file.

    python -m benchmarks.capture --python PYTHON [-o FILE]

PYTHON has a CUDA build of PyTorch, which runs on a phantom GPU.  Kernels take no time, so a step is
only Python and the measured share of recording is an upper bound; on a GPU the host mostly waits.
The ways of recording alternate in one process, and the fastest turn of each counts, in seconds of
processor time, because the machine has other work.  A step is forward, backward and AdamW of a
transformer of eight layers.  An allocation is made and freed in a bare loop, eight calls deep.  Two
minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allocsim.capture import MAX_ENTRIES
from allocsim.phantom import Gpu, find_torch, phantom_environment
from allocsim.units import GIB, MIB
from benchmarks.output import add_output, machine_and_month, show

ROOT = Path(__file__).parents[1]
WAYS = ("nothing", "stacks none", "stacks python", "stacks all")
RINGS = (20_000, 100_000, 200_000)

_PROGRAM = """
import contextlib, json, os, resource, sys, time
import torch
from allocsim.capture import capture

torch.backends.cuda.enable_cudnn_sdp(False)
mode, ring, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def recording(way):
    stacks = {"none": None, "python": "python", "all": "all"}.get(way.split()[-1])
    if way == "nothing":
        return contextlib.nullcontext()
    return capture(folder + "/run.pickle", max_entries=ring, stacks=stacks)

def allocate(n, depth=8):
    if depth:
        return allocate(n, depth - 1)
    began = time.process_time()
    for _ in range(n):
        torch.empty(1000, device="cuda")
    return (time.process_time() - began) / n

layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

def step(capture):
    began = time.process_time()
    if capture is not None:
        capture.step()
    model(torch.zeros(8, 128, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.process_time() - began

def entries():
    stats = torch.cuda.memory_stats()
    counted = ("allocated", "freed", "freed")  # a free is requested and completed
    return sum(stats.get(f"allocation.all.{each}", 0) for each in counted)

answer = {}
if mode == "turns":
    step(None)
    before = entries()
    step(None)
    answer["entries"] = entries() - before
    for _ in range(30):
        for way in sys.argv[4:]:
            with recording(way) as capture_:
                step(capture_)
                found = (min(step(capture_) for _ in range(3)), allocate(3000))
                best = answer.setdefault(way, found)
                answer[way] = tuple(map(min, best, found))
else:
    def used():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    def saved(capture):
        began = time.perf_counter()
        file = capture.save()
        return time.perf_counter() - began, os.path.getsize(file)
    with recording("stacks python") as capture_:
        step(capture_)
        answer["first"] = saved(capture_)[0]  # imports what PyTorch needs to read its own stacks
        at_first = used()
        while entries() < ring:
            step(capture_)
        answer["ring"] = used() - at_first
        answer["seconds"], answer["size"] = saved(capture_)
        answer["memory"] = used() - at_first - answer["ring"]
print(json.dumps(answer))
"""


def measured(python: str, *arguments: str) -> dict[str, Any]:
    """Return the measurements that one process prints."""
    gpu = Gpu("a phantom", 16 * GIB)
    environment = dict(os.environ) | phantom_environment(find_torch(python), gpu)
    environment["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        mode, ring, *rest = arguments
        done = subprocess.run(
            [python, "-c", _PROGRAM, mode, ring, folder, *rest],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def ways(python: str) -> list[str]:
    """Return the table of the costs per allocation and per step."""
    found = measured(python, "turns", str(MAX_ENTRIES), *WAYS)
    rows = ["| recording | entries a second | an entry | a step | share |", "|---|---|---|---|---|"]
    plain_step, plain_loop = found[WAYS[0]]
    for way in WAYS:
        step, loop = found[way]
        # A tensor is made and freed: an alloc, a free_requested and a free_completed.
        more = f"{1e6 * (loop - plain_loop) / 3:+.2f} µs" if way != WAYS[0] else ""
        share = f"{100 * (step / plain_step - 1):+.1f} %" if way != WAYS[0] else ""
        rows.append(f"| {way} | {3 / loop:,.0f} | {more} | {1000 * step:.1f} ms | {share} |")
    return [*rows, "", f"A step has {found['entries']:,} entries."]


def writing(python: str) -> list[str]:
    """Return the table of the memory of the history and the time to write it, by its size."""
    rows = [
        "| entries | host memory of the ring | to write it | host memory meanwhile | the file |",
        "|---|---|---|---|---|",
    ]
    firsts = []
    for ring in RINGS:
        found = measured(python, "writing", str(ring))
        firsts.append(f"{found['first']:.1f}")
        rows.append(
            f"| {ring:,} | {found['ring'] / MIB:,.0f} MiB | {found['seconds']:.1f} s | "
            f"{found['memory'] / MIB:,.0f} MiB | {found['size'] / MIB:.1f} MiB |"
        )
    return [*rows, "", f"The first file of a process took {', '.join(firsts)} s."]


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture")
    parser.add_argument("--python", required=True, help="a Python with a CUDA build of PyTorch")
    add_output(parser)
    options = parser.parse_args(arguments)
    torch = find_torch(options.python)
    head = (
        f"PyTorch {torch.version} over a phantom GPU, {machine_and_month()}; "
        "`python -m benchmarks.capture`."
    )
    text = "\n".join([head, "", *ways(options.python), "", *writing(options.python)]) + "\n"
    show(text, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
