"""`allocsim fit` beside what real PyTorch's allocator said of the same tasks.

    python -m benchmarks.truth [--engine program|laws] [--python PATH] [--jobs N] [--cudnn] [ID ...]

Runs the 100 tasks of traces/fit/truth.jsonl, or those of the given ids, by `fit`'s own program
and compares both peaks.  It needs a Python with PyTorch 2.15, transformers, peft and torchvision;
--engine laws needs none of these, and lists what there is no law for.

The rows were recorded before the phantom GPU had cuDNN's attention.  Those in 16 bits on a card
where PyTorch prefers it are marked, and are run without it; with --cudnn they are run with it.
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
from allocsim.laws import TRANSFORMERS
from allocsim.phantom import CARDS, Gpu, find_gpu
from allocsim.questions.fit import (
    CUDNN_ATTENTION,
    Ran,
    Task,
    model_of,
    program_of,
    run_by_law,
    run_program,
)
from allocsim.units import MIB

DATA = Path(__file__).parents[1] / "traces" / "fit"
_OF_THE_TASK = (
    *("dtype", "optimizer", "batch", "seq", "image", "checkpointing", "lora", "attention"),
    *("prompt", "decode", "start"),
)


def rows() -> list[dict[str, Any]]:
    """The runs that are compared with."""
    return [json.loads(line) for line in (DATA / "truth.jsonl").read_text().splitlines()]


def task_of(row: Mapping[str, Any], folder: Path) -> Task:
    """The task of a row; its model's configuration is written to `folder`."""
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
    """The card of a row, with the limits that were reported then."""
    gpu = find_gpu(row["card"])
    if "limits" in row:
        return replace(gpu, limits=CARDS["A100 80GB"].limits)
    return gpu


def lacks_cudnn_attention(row: Mapping[str, Any]) -> bool:
    """Whether a row was recorded without the attention that PyTorch prefers on its card."""
    return row["dtype"] != "fp32" and gpu_of(row).capability[0] in CUDNN_ATTENTION


def without_cudnn_attention(program: str) -> str:
    """The text of a program, with cuDNN's attention switched off as PyTorch offers it."""
    switched_off = "import torch\ntorch.backends.cuda.enable_cudnn_sdp(False)\n"
    assert "import torch\n" in program
    return program.replace("import torch\n", switched_off, 1)


def run(
    row: Mapping[str, Any], python: str | None, engine: str = "program", *, has_cudnn: bool = False
) -> Ran:
    """Run a row's task on its card.

    has_cudnn: whether PyTorch may choose cuDNN's attention where the row was recorded without.
    """
    with TemporaryDirectory() as place:
        task = task_of(row, Path(place))
        if engine == "laws":
            return run_by_law(task, gpu_of(row), transformers=TRANSFORMERS[0])
        program = program_of(task)
        if lacks_cudnn_attention(row) and not has_cudnn:
            program = without_cudnn_attention(program)
        return run_program(program, gpu_of(row), python=python, model=task.model)


def told(
    row: Mapping[str, Any], python: str | None, engine: str, has_cudnn: bool
) -> tuple[str, bool]:
    """A row's line, and whether both peaks are the same."""
    began = time.perf_counter()
    try:
        ran = run(row, python, engine, has_cudnn=has_cudnn)
    except AllocsimError as error:
        return f"{row['id']}: {error}", False
    allocated = ran.peak_allocated_bytes - row["peak_allocated"]
    reserved = ran.peak_reserved_bytes - row["peak_reserved"]
    ends_alike = ran.is_out_of_memory == ("oom_in_step" in row)
    is_same = allocated == reserved == 0 and ends_alike
    end = "" if ends_alike else "  ends otherwise"
    if lacks_cudnn_attention(row):
        end += "  recorded without cuDNN's attention"
    return (
        f"{row['id']:16} {_what(row):58} {row['peak_reserved'] // MIB:>7,} MiB "
        f"{reserved:>+12,} {allocated:>+12,} {time.perf_counter() - began:5.1f} s{end}",
        is_same,
    )


def _what(row: Mapping[str, Any]) -> str:
    """A row's task in short."""
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
    parser.add_argument("--cudnn", action="store_true", help="run cuDNN's attention where it is")
    given = parser.parse_args()
    asked = [row for row in rows() if not given.ids or row["id"] in given.ids]
    print(f"{'row':16} {'task':58} {'reserved':>11} {'reserved':>12} {'allocated':>12}")
    n_same = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        lines = pool.map(lambda row: told(row, given.python, given.engine, given.cudnn), asked)
        for line, is_same in lines:
            n_same += is_same
            print(line, flush=True)
    print(f"{n_same} of {len(asked)} to the byte, reserved and allocated")
    n_without = sum(map(lacks_cudnn_attention, asked))
    print(f"{n_without} were recorded without the attention of cuDNN that PyTorch prefers there")
    return int(n_same != len(asked))


if __name__ == "__main__":
    raise SystemExit(main())
