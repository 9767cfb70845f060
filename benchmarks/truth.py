"""Compare `allocsim fit` with the allocator of real PyTorch on the same tasks.

    python -m benchmarks.truth [--engine program|laws] [--python PATH] [--current] [ID ...]

Runs the 100 tasks of traces/fit/truth.jsonl, or those with the given ids, with `fit`'s own program
and compares both peaks.  It needs a Python with PyTorch 2.15, transformers, peft and torchvision;
--engine laws needs none of these, and lists the tasks without a law.

The rows were recorded on an earlier phantom GPU: every value was zero, and cuDNN's attention and
the workspaces of its convolutions did not exist.  By default programs run under the same
conditions.  With --current they run as `fit` runs them today, and rows with convolutions, with
checkpointing, and in 16 bits on Hopper and Blackwell may differ.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from allocsim.errors import AllocsimError
from allocsim.fitting import (
    CUDNN_ATTENTION,
    Ran,
    Task,
    model_of,
    program_of,
    run_by_law,
    run_program,
)
from allocsim.phantom import CARDS, Gpu, find_gpu
from allocsim.units import MIB

DATA = Path(__file__).parents[1] / "traces" / "fit"
_OF_THE_TASK = (
    *("dtype", "optimizer", "batch", "seq", "image", "checkpointing", "lora", "attention"),
    *("prompt", "decode", "start"),
)


def rows() -> list[dict[str, Any]]:
    """Return the rows of traces/fit/truth.jsonl."""
    return [json.loads(line) for line in (DATA / "truth.jsonl").read_text().splitlines()]


def task_of(row: Mapping[str, Any], folder: Path) -> Task:
    """Return the task of a row; write its model's configuration to `folder`."""
    config = json.loads((DATA / "configs.json").read_text()).get(row["model"])
    name = row["model"]
    if config is not None:
        place = folder / row["id"]
        place.mkdir()
        (place / "config.json").write_text(json.dumps(config))
        name = str(place)
    given = {key: row[key] for key in _OF_THE_TASK if key in row}
    targets = tuple(row.get("lora_targets", ()))
    is_training = row["kind"] == "train"
    return Task(model=model_of(name), is_training=is_training, lora_targets=targets, **given)


def gpu_of(row: Mapping[str, Any]) -> Gpu:
    """Return the GPU of a row, with the properties that the phantom GPU had at that time."""
    gpu = find_gpu(row["card"])
    if "limits" in row:
        return replace(gpu, limits=CARDS["A100 80GB"].limits)
    return gpu


def has_cudnn_attention(row: Mapping[str, Any]) -> bool:
    """Return True if PyTorch uses cuDNN's attention for the task on the GPU of the row."""
    return row["dtype"] != "fp32" and gpu_of(row).capability[0] in CUDNN_ATTENTION


def without_cudnn(program: str) -> str:
    """Return a program without cuDNN's attention and without its workspaces of convolutions."""
    first = (
        'import os\nos.environ["TORCH_CUDNN_V8_API_DISABLED"] = "1"\n'
        "import torch\ntorch.backends.cuda.enable_cudnn_sdp(False)\n"
    )
    assert "import torch\n" in program
    return program.replace("import torch\n", first, 1)


def run(
    row: Mapping[str, Any], python: str | None, engine: str = "program", *, is_current: bool = False
) -> Ran:
    """Return the result of `fit` for the task and GPU of a row.

    python: interpreter with PyTorch; None for the engine "laws".
    is_current: True to run the program as `fit` does today.
    """
    with TemporaryDirectory() as place:
        task = task_of(row, Path(place))
        if engine == "laws":
            return run_by_law(task, gpu_of(row))
        program = program_of(task)
        if not is_current:
            program = without_cudnn(program)
        return run_program(program, gpu_of(row), python=python, model=task.model, values=is_current)


def line_of(
    row: Mapping[str, Any], python: str | None, engine: str, *, is_current: bool = False
) -> tuple[str, bool]:
    """Return a line of text about a row, and True if both peaks are equal."""
    began = time.perf_counter()
    try:
        ran = run(row, python, engine, is_current=is_current)
    except AllocsimError as error:
        return f"{row['id']}: {error}", False
    allocated = ran.peak_allocated_bytes - row["peak_allocated"]
    reserved = ran.peak_reserved_bytes - row["peak_reserved"]
    ends_alike = ran.is_out_of_memory == ("oom_in_step" in row)
    is_same = allocated == reserved == 0 and ends_alike
    end = "" if ends_alike else "  ends differently"
    if has_cudnn_attention(row):
        end += "  recorded without cuDNN's attention"
    return (
        f"{row['id']:16} {_what(row):58} {row['peak_reserved'] // MIB:>7,} MiB "
        f"{reserved:>+12,} {allocated:>+12,} {time.perf_counter() - began:5.1f} s{end}",
        is_same,
    )


def _what(row: Mapping[str, Any]) -> str:
    """Return a short description of a row's task."""
    length = row.get("seq") or row.get("prompt") or row.get("image")
    words = [
        row["model"],
        row["dtype"],
        row.get("optimizer", "serve"),
        f"{row['batch']} x {length}",
    ]
    words += ["checkpointing"] * bool(row.get("checkpointing"))
    words += ["LoRA"] * bool(row.get("lora")) + [row["start"]] * (row["start"] == "clean")
    words += ["OOM"] * ("oom_in_step" in row)
    return " ".join(words)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--python", help="the Python that has PyTorch")
    parser.add_argument("--engine", choices=("program", "laws"), default="program")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--current", action="store_true", help="run as `fit` runs programs today")
    given = parser.parse_args()
    asked = [row for row in rows() if not given.ids or row["id"] in given.ids]
    print(f"{'row':16} {'task':58} {'reserved':>11} {'reserved':>12} {'allocated':>12}")
    n_same = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        lines = pool.map(
            lambda row: line_of(row, given.python, given.engine, is_current=given.current), asked
        )
        for line, is_same in lines:
            n_same += is_same
            print(line, flush=True)
    print(f"{n_same} of {len(asked)} to the byte, reserved and allocated")
    n_without = sum(map(has_cudnn_attention, asked))
    print(f"{n_without} were recorded without the attention of cuDNN that PyTorch prefers there")
    return int(n_same != len(asked))


if __name__ == "__main__":
    raise SystemExit(main())
