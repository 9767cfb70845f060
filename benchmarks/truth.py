"""`allocsim fit` beside what real PyTorch's allocator said of the same tasks.

    python -m benchmarks.truth [--engine program|laws] [--python PATH] [--jobs N] [ID ...]

Runs the 100 tasks of traces/fit/truth.jsonl, or those of the given ids, by `fit`'s own program
and compares both peaks.  It needs a Python with PyTorch 2.15, transformers, peft and torchvision;
--engine laws needs none of these, and lists what there is no law for.
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
from allocsim.questions.fit import Ran, Task, model_of, run_by_law, run_task
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


def run(row: Mapping[str, Any], python: str | None, engine: str = "program") -> Ran:
    """A row's task on its card."""
    with TemporaryDirectory() as place:
        task = task_of(row, Path(place))
        if engine == "laws":
            return run_by_law(task, gpu_of(row), transformers=TRANSFORMERS[0])
        return run_task(task, gpu_of(row), python=python)


def told(row: Mapping[str, Any], python: str | None, engine: str) -> tuple[str, bool]:
    """A row's line, and whether both peaks are the same."""
    began = time.perf_counter()
    try:
        ran = run(row, python, engine)
    except AllocsimError as error:
        return f"{row['id']}: {error}", False
    allocated = ran.peak_allocated_bytes - row["peak_allocated"]
    reserved = ran.peak_reserved_bytes - row["peak_reserved"]
    ends_alike = ran.is_out_of_memory == ("oom_in_step" in row)
    is_same = allocated == reserved == 0 and ends_alike
    end = "" if ends_alike else "  ends otherwise"
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
    given = parser.parse_args()
    asked = [row for row in rows() if not given.ids or row["id"] in given.ids]
    print(f"{'row':16} {'task':58} {'reserved':>11} {'reserved':>12} {'allocated':>12}")
    n_same = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        lines = pool.map(lambda row: told(row, given.python, given.engine), asked)
        for line, is_same in lines:
            n_same += is_same
            print(line, flush=True)
    print(f"{n_same} of {len(asked)} to the byte, reserved and allocated")
    return int(n_same != len(asked))


if __name__ == "__main__":
    raise SystemExit(main())
