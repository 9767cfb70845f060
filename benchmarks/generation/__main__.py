"""Compare the formula for image generators with diffusers over a phantom GPU, and with figures.

    python -m benchmarks.generation [--python PYTHON]

`published.json` has figures that others published, `ran.json` peaks of earlier runs. With PYTHON,
an interpreter with torch, transformers, accelerate and diffusers, the runs are repeated and
`ran.json` is written; each takes one or two minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from allocsim.fitting import Task, estimate, model_of
from allocsim.fitting.by_formula import drawn_on
from allocsim.fitting.presets import GENERATORS, Generator
from allocsim.phantom import Gpu, find_gpu, find_torch, phantom_environment
from allocsim.units import GIB, TIB

INSIDE = Path(__file__).with_name("inside.py")
PUBLISHED = Path(__file__).with_name("published.json")
RAN = Path(__file__).with_name("ran.json")
"""Model, card and options of each run, and its peaks in GiB; the card's memory is unlimited."""


def run(name: str, gpu: Gpu, task: Task, python: str) -> dict[str, Any]:
    """Generate images with diffusers over a phantom of `gpu`, and return what `inside.py` said."""
    model = task.model
    assert isinstance(model, Generator)
    request = {
        "class": model.kind,
        "denoiser": model.denoiser,
        "autoencoder": model.autoencoder,
        "encoders": list(model.encoders.values()),
        "image": task.image,
        "batch": task.batch,
        "dtype": task.dtype,
        "offload": task.offload,
    }
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment = os.environ | quiet | phantom_environment(find_torch(python), gpu)
    environment.pop("PYTHONPATH", None)
    command = [python, str(INSIDE), json.dumps(request)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}: {done.stderr[-600:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    counts = GENERATORS[name]["parameters"]
    expected = {*counts["encoders"], counts["denoiser"], counts["autoencoder"]}
    if set(said["parameters"].values()) != expected:
        raise SystemExit(f"{name}: {said['parameters']} parameters; expected {expected}")
    return said


def task_of(row: Mapping[str, Any]) -> Task:
    return Task(model=model_of(row["model"]), is_training=False, **row["task"])


def predicted(task: Task, gpu: Gpu) -> tuple[float, float, float, float]:
    """Return allocated and reserved GiB of the formula, and its range, without the context."""
    drawn = drawn_on(task, gpu, gpu.room)
    parts = [part for part in estimate(task, gpu).parts if part.name != "CUDA context"]
    low, high = sum(part.low for part in parts), sum(part.high for part in parts)
    return drawn.allocated / GIB, drawn.reserved / GIB, low / GIB, high / GIB


def line(row: Mapping[str, Any], reads: str, theirs: float, gpu: Gpu) -> str:
    """Return a row of the table: the figure `reads`, "allocated" or "reserved", in GiB."""
    task = task_of(row)
    allocated, reserved, low, high = predicted(task, gpu)
    ours = allocated if reads == "allocated" else reserved
    what = f"{task.model.name}, {task.text.partition(', ')[2]}"
    inside = "yes" if low <= theirs <= high else "no"
    error = f"{100 * (ours / theirs - 1):+.1f} %"
    return f"| {what} | {row['gpu']} | {reads} | {theirs:.3f} | {ours:.3f} | {error} | {inside} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.generation", description=__doc__)
    parser.add_argument("--python")
    python = parser.parse_args(arguments).python
    for address, rows in json.loads(PUBLISHED.read_text()).items():
        print(address)
        for row in rows:
            print(line(row, row["reads"], row["gib"], find_gpu(row["gpu"])))
    ran = json.loads(RAN.read_text())
    print("diffusers over the phantom")
    for row in ran:
        gpu = replace(find_gpu(row["gpu"]), memory=TIB)
        if python:
            said = run(row["model"], gpu, task_of(row), python)
            row |= {each: round(said[each] / GIB, 3) for each in ("allocated", "reserved")}
        for reads in ("allocated", "reserved"):
            print(line(row, reads, row[reads], gpu), flush=True)
    if python:
        RAN.write_text("[\n" + ",\n".join(f" {json.dumps(row)}" for row in ran) + "\n]\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
